"""Rules of reductions along axes: sums, means, products, extrema."""

from mindspore_rl.codegen.ops.registry import Call, Operand, Table, transposed
from mindspore_rl.codegen.ops.views import axes_of, axis_of, extent_of
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.primitives import PRIMITIVES

ROWS = Table()
SUMS = tuple(op for op, primitive in PRIMITIVES.items() if primitive.kernel == "sum")


@ROWS.row("sum")
def _sum(call: Call) -> None:
    out = call.out
    x, (outer, count, inner) = _reduced(call)
    if x.type.dtype == out.type.dtype == "float32":
        call.run("sum", (outer, count, inner), x, out)
    else:
        function = f"[](auto a, auto b) {{ return ({out.c_type})(a + b); }}"
        call.run("fold", (outer, count, inner), x, out, f"({out.c_type})0", function)
    if "Mean" in call.node.op:
        call.each(f"{out.pointer}[i] / {float(count)}f")


@ROWS.row("fold")
def _fold(call: Call) -> None:
    t = call.out.c_type
    limits = f"std::numeric_limits<{t}>"
    largest = f"{limits}::has_infinity ? {limits}::infinity() : {limits}::max()"
    lowest = f"{limits}::has_infinity ? -{limits}::infinity() : {limits}::lowest()"
    op = call.node.op.removeprefix("Reduce").removeprefix("A").removesuffix("Ext")
    x, extents = _reduced(call)
    start, function = {
        "Max": (lowest, "larger(a, b)"),
        "Min": (largest, "smaller(a, b)"),
        "ll": ("true", "a && b"),
        "ny": ("false", "a || b"),
        "Prod": ("1", "a * b"),
    }[op]
    call.run(
        "fold",
        extents,
        x,
        call.out,
        f"({t})({start})",
        f"[]({t} a, {t} b) {{ return ({t})({function}); }}",
    )


def _reduced(call: Call) -> tuple[Operand, tuple[int, int, int]]:
    """Returns the operand to reduce and the extents before, of and after the reduced axes.

    Transposes the operand if the axes are not neighbours.
    """
    x, places = call.args[0], reduced_axes(call.node)
    if not places:
        return x, (x.size, 1, 1)
    middle = range(places[0], places[-1] + 1)
    if any(p not in places and x.shape[p] != 1 for p in middle):
        kept = [axis for axis in range(len(x.shape)) if axis not in places]
        x = transposed(call, x, (*kept, *places))
        return x, (extent_of(x.shape[: len(kept)]), extent_of(x.shape[len(kept) :]), 1)
    return x, x.split(places[0], len(middle))


def reduced_axes(node: Value) -> list[int]:
    """Returns the reduced axes in order, without those of extent 1."""
    shape = node.args[0].type.shape
    axes = axes_of(axis_of(node), len(shape))
    places = sorted(axis % len(shape) for axis in axes) if shape else []
    return [p for p in places if shape[p] != 1]


@ROWS.row("bias_grad")
def _bias_grad(call: Call) -> None:
    x = call.args[0]
    if len(x.shape) == 2:
        call.run("sum", (1, *x.shape), x, call.out)
        return
    outer, channels, inner = x.shape[0], x.shape[1], extent_of(x.shape[2:])
    room = call.scratch(outer * channels)
    call.run("sum", (outer * channels, inner, 1), x, room)
    call.run("sum", (1, outer, channels), room, call.out)


@ROWS.row("half_square")
def _half_square(call: Call) -> None:
    x = call.args[0]
    call.line(f"*{call.out.pointer} = 0.5f * sum_of<{x.size}>({x.pointer}, squared());")
