"""Rules along one axis: softmax, running sums, sorting, search, layer norm."""

from typing import Any

from mindspore_rl.codegen.ops.elementwise import literal
from mindspore_rl.codegen.ops.registry import (
    Call,
    Operand,
    Table,
    loops,
    place,
    room_for,
    transposed,
)
from mindspore_rl.codegen.ops.views import axes_of, extent_of, strides_of

ROWS = Table()


@ROWS.row("softmax")
def _softmax(call: Call) -> None:
    kernel = "softmax" if call.node.op == "Softmax" else "log_softmax"
    _by_rows(call, kernel, call.args[:1])


@ROWS.row("softmax_grad")
def _softmax_grad(call: Call) -> None:
    first, second = call.args[:2]
    if call.node.op == "SoftmaxBackward":
        _by_rows(call, "softmax_grad", [second, first])
    else:
        _by_rows(call, "log_softmax_grad", [first, second])


@ROWS.row("arg")
def _arg(call: Call) -> None:
    axis, x = call.axis(), call.args[0]
    extents = (1, x.size, 1) if axis is None else x.split(axis)
    index, value = call.outs[0], call.outs[1] if len(call.outs) > 1 else f"({x.c_type} *)nullptr"
    call.run("arg_of", (*extents, "Max" in call.node.op or "max" in call.node.op), x, index, value)


@ROWS.row("running")
def _running(call: Call) -> None:
    x, out = call.args[0], call.out
    exclusive, backward = (
        call.node.op != "CumsumExt" and bool(call.option(name, at, False))
        for name, at in (("exclusive", 2), ("reverse", 3))
    )
    sums = call.node.op != "CumProd"
    extents = x.split(call.axis())
    call.run("running", (*extents, exclusive, backward, sums), x, out)


@ROWS.row("running_most")
def _running_most(call: Call) -> None:
    x = call.args[0]
    call.run("running_most", (*x.split(call.axis()), call.node.op == "Cummax"), x, *call.outs)


@ROWS.row("sort")
def _sort(call: Call) -> None:
    descending = bool(call.option("descending", 2, False))
    _by_rows(call, "sort_rows", call.args[:1], descending)


@ROWS.row("top")
def _top(call: Call) -> None:
    x, values = call.args[0], call.outs[0]
    largest = call.node.op == "TopK" or bool(call.number(3, True))
    outer, count, inner = x.split(call.axis())
    if inner != 1:
        raise call.unsupported()
    room = call.scratch(count)
    kept = values.shape[-1]
    call.run("top_rows", (outer, count, kept, largest), x, *call.outs, f"(int32_t *){room}")


@ROWS.row("search")
def _search(call: Call) -> None:
    table, values = call.args[:2]
    right = bool(call.option("right", 4, False))
    rows = extent_of(table.shape[:-1])
    wanted = values.size // rows if rows else 0
    if len(call.args) > 2 and call.args[2] is not None:
        raise call.unsupported()
    call.run("search", (rows, table.shape[-1], wanted, right), table, values, call.out)


@ROWS.row("layer_norm")
def _layer_norm(call: Call) -> None:
    x, gain, shift = call.args[:3]
    rows, width = _normalised(call, call.number(3, -1))
    epsilon = literal(float(call.number(5, 1e-7)), "float32")
    call.run("layer_norm", (rows, width), x, gain, shift, epsilon, *call.outs)


@ROWS.row("layer_norm_grad")
def _layer_norm_grad(call: Call) -> None:
    rows, width = _normalised(call, call.number(5, -1))
    epsilon = literal(float(call.node.attrs.get("epsilon", 1e-7)), "float32")
    call.run("layer_norm_grad", (rows, width), *call.args[:5], epsilon, *call.outs)


def _normalised(call: Call, axis: int) -> tuple[int, int]:
    shape = call.args[0].shape
    rows, width = extent_of(shape[: axis % len(shape)]), extent_of(shape[axis % len(shape) :])
    if call.args[0].type.dtype != "float32" or call.args[1].size not in (width, rows * width):
        raise call.unsupported()
    return rows, width


def _by_rows(call: Call, kernel: str, given: list[Operand], *template: Any) -> None:
    """Emits a kernel over rows along an axis; transposes the axis to the end if needed."""
    axis = axes_of(call.axis())[0]
    outer, count, inner = given[0].split(axis)
    if any(x.type.dtype == "float64" for x in given):
        raise call.unsupported()
    if inner == 1:
        step, values = outer // call.parts, (count, *template)
        ahead = f" + part * {step * count}" if call.parts > 1 else ""
        chosen = ", ".join(str(t).lower() for t in (step, *values))
        rows = ", ".join(x.pointer + ahead for x in (*given, *call.outs))
        call.in_parts(f"{kernel}<{chosen}>({rows});")
        return
    axis %= len(given[0].shape)
    order = (*(i for i in range(len(given[0].shape)) if i != axis), axis)
    turned_outs = [room_for(call, out, order) for out in call.outs]
    turned_args = [transposed(call, x, order) for x in given]
    call.run(kernel, (outer * inner, count, *template), *turned_args, *turned_outs)
    for out, turned_out in zip(call.outs, turned_outs, strict=True):
        strides = [strides_of(out.shape)[i] for i in order]
        head, variables = loops(turned_out.shape)
        call.line(f"{{ const {out.c_type} *at = {turned_out.pointer}; {head}")
        call.line(f"  {out.pointer}[{place(variables, strides)}] = *at++; }}")
