"""How each primitive of MindSpore is written in C++: a row each.

A primitive is element-wise (`elementwise`: an expression of single numbers, fused with its
neighbours into one loop), or a view (`views`: numbers of its argument at other places, fused
likewise or free), or it is written by a function here. One that is missing raises `Unsupported`:
MindSpore then runs the cell.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_rl.native.blocks import Unsupported
from mindspore_rl.native.program import Type, Value
from mindspore_rl.native.rows.elementwise import C_TYPES, ELEMENTWISE, literal
from mindspore_rl.native.rows.views import FREE, VIEWS, constant, extent_of, strides_of


@dataclass(frozen=True)
class Operand:
    """Where a tensor's numbers are: a C++ expression of a pointer to the first."""

    pointer: str
    type: Type

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""
        return self.type.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    @property
    def c_type(self) -> str:
        """Of an element."""
        return C_TYPES[self.type.dtype]

    def split(self, axis: int, count: int = 1) -> tuple[int, int, int]:
        """Extents before, of, and after some axes, each as one."""
        axis %= max(len(self.shape), 1)
        middle = self.shape[axis : axis + count]
        return (
            extent_of(self.shape[:axis]),
            extent_of(middle),
            extent_of(self.shape[axis + count :]),
        )


@dataclass(frozen=True)
class Call:
    """A primitive that is to be written.

    Attributes:
        args: an operand for a tensor, a list of them for a tuple, None for the rest.
        outs: where the results go.
        line: takes a line of C++.
        scratch: gives a pointer to so many floats of its own.
        function: gives a pointer to a function of a library, `path:name`.
    """

    node: Value
    args: list[Any]
    outs: list[Operand]
    line: Callable[[str], None]
    scratch: Callable[[int], str]
    function: Callable[[str], str]

    @property
    def out(self) -> Operand:
        """The only result."""
        return self.outs[0]

    def number(self, index: int, default: Any = None) -> Any:
        """An argument that is compiled in."""
        return constant(self.node, index, default)

    def run(self, function: str, template: Any, *args: Any) -> None:
        """Writes a call of a function in kernels.h."""
        chosen = ", ".join(str(t).lower() if isinstance(t, bool) else str(t) for t in template)
        given = ", ".join(a.pointer if isinstance(a, Operand) else str(a) for a in args)
        self.line(f"{function}<{chosen}>({given});")

    def unsupported(self) -> Unsupported:
        """For arguments that the row does not know."""
        return Unsupported(f"{self.node.op} with these arguments")


def loops(shape: tuple[int, ...]) -> tuple[str, list[str]]:
    """The heads of loops over an array's elements, and their variables."""
    variables = [f"i{axis}" for axis in range(len(shape))]
    heads = (
        f"for (int64_t {i} = 0; {i} < {extent}; {i}++) "
        for i, extent in zip(variables, shape, strict=True)
    )
    return "".join(heads), variables


def place(variables: list[str], strides: list[int]) -> str:
    """Where loops are in an array."""
    terms = (f"{i} * {stride}" for i, stride in zip(variables, strides, strict=True) if stride)
    return " + ".join(terms) or "0"


WRITERS: dict[str, Callable[[Call], None]] = {}


def row(*names: str) -> Callable:
    """Makes a function the row of some primitives."""

    def add(function: Callable[[Call], None]) -> Callable[[Call], None]:
        WRITERS.update(dict.fromkeys(names, function))
        return function

    return add


def known(op: str) -> bool:
    """Whether the table has a row for a primitive."""
    return op in ELEMENTWISE or op in FREE or op in WRITERS or op in VIEWS


# ---- rows by functions ---------------------------------------------------------------------------


@row("MatMul", "MatMulExt", "BatchMatMul", "BatchMatMulExt", "Mm", "Dense")
def _product(call: Call) -> None:
    a, b = call.args[:2]
    turned_a, turned_b = turned(call.node)
    if not a.shape or not b.shape or a.type.dtype != "float32":
        raise call.unsupported()
    one = a.shape if len(a.shape) > 1 else (1, *a.shape)
    other = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    m, k = one[-2:][::-1] if turned_a else one[-2:]
    n = other[-2] if turned_b else other[-1]
    ahead = one[:-2], other[:-2]
    batch: tuple[int, ...] = np.broadcast_shapes(*ahead)
    if len(other) == 2 and not turned_a:
        batch, m = (), a.size // k if k else 0
    template = (m, n, k, turned_a, turned_b)
    room = call.scratch(k * (n + 15) + m * k)
    if not batch:
        call.run("product", template, a, b, call.out, room)
    else:
        head, variables = loops(batch)
        call.line(f"{{ int64_t at = 0; {head}{{")
        given = (
            f"{x.pointer} + ({place(variables, _repeated(own, batch))}) * {size}"
            for x, own, size in zip((a, b), ahead, (m * k, n * k), strict=True)
        )
        call.run("  product", template, *given, f"{call.out.pointer} + at++ * {m * n}", room)
        call.line("} }")
    if call.node.op == "Dense" and len(call.args) > 2 and call.args[2] is not None:
        bias = call.args[2].pointer
        call.line(f"for (int64_t i = 0; i < {m}; i++)")
        call.line(
            f"  for (int64_t j = 0; j < {n}; j++) {call.out.pointer}[i * {n} + j] += {bias}[j];"
        )


def _repeated(shape: tuple[int, ...], wide: tuple[int, ...]) -> list[int]:
    """Strides of an array by the axes of a wider one, through which it is repeated."""
    strides = [stride if n > 1 else 0 for n, stride in zip(shape, strides_of(shape), strict=True)]
    return [0] * (len(wide) - len(shape)) + strides


def turned(node: Value) -> tuple[bool, bool]:
    """Which of a product's matrices are transposed."""
    if node.op == "Dense":
        return False, True
    attrs = node.attrs
    return (
        bool(attrs.get("transpose_a", constant(node, 2, False))),
        bool(attrs.get("transpose_b", constant(node, 3, False))),
    )


@row("Turned")
def _turned(call: Call) -> None:
    """A matrix whose columns become rows; no primitive of MindSpore's."""
    columns, rows = call.out.shape
    call.run("transpose", (rows, columns), call.args[0], call.out, rows)


@row("SumExt", "ReduceSum", "MeanExt", "ReduceMean")
def _sum(call: Call) -> None:
    out = call.out
    x, (outer, count, inner) = _reduced(call)
    if x.type.dtype == out.type.dtype == "float32":
        call.run("sum", (outer, count, inner), x, out)
    else:
        function = f"[](auto a, auto b) {{ return ({out.c_type})(a + b); }}"
        call.run("fold", (outer, count, inner), x, out, f"({out.c_type})0", function)
    if "Mean" in call.node.op:
        call.line(
            f"for (int64_t i = 0; i < {out.size}; i++) "
            f"{out.pointer}[i] = {out.pointer}[i] / {float(count)}f;"
        )


@row(
    *("ReduceMax", "ReduceMin", "AMax", "AMin", "Max", "Min"),
    *("ReduceAll", "ReduceAny", "ReduceProd", "ProdExt"),
)
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
    """What is reduced, with extents before, of, and after the axes."""
    x, places = call.args[0], reduced_axes(call.node)
    if not places:
        return x, (x.size, 1, 1)
    middle = range(places[0], places[-1] + 1)
    if any(p not in places and x.shape[p] != 1 for p in middle):
        kept = [axis for axis in range(len(x.shape)) if axis not in places]
        x = _transposed(call, x, (*kept, *places))
        return x, (extent_of(x.shape[: len(kept)]), extent_of(x.shape[len(kept) :]), 1)
    before, _, after = x.split(places[0])
    after = extent_of(x.shape[middle.stop :])
    return x, (before, extent_of(x.shape[middle.start : middle.stop]), after)


def _transposed(call: Call, x: Operand, axes: tuple[int, ...]) -> Operand:
    """A copy of an operand with its axes in another order, in room of its own."""
    y = _room(call, x, axes)
    strides = [strides_of(x.shape)[axis] for axis in axes]
    head, variables = loops(y.shape)
    call.line(f"{{ {y.c_type} *at = {y.pointer}; {head}")
    call.line(f"  *at++ = {x.pointer}[{place(variables, strides)}]; }}")
    return y


def _room(call: Call, like: Operand, axes: tuple[int, ...]) -> Operand:
    """Room of its own for an operand with its axes in another order."""
    found = Type(tuple(like.shape[axis] for axis in axes), like.type.dtype)
    floats = -(-found.size * np.dtype(found.dtype).itemsize // 4)
    return Operand(f"(({like.c_type} *){call.scratch(floats)})", found)


def reduced_axes(node: Value) -> list[int]:
    """In order; an axis of one element is reduced or not, as it suits, and left out."""
    shape = node.args[0].type.shape
    axes = constant(node, 1, ()) if "axis" not in node.attrs else node.attrs["axis"]
    axes = (axes,) if isinstance(axes, int) else tuple(axes or range(len(shape)))
    places = sorted(axis % len(shape) for axis in axes) if shape else []
    return [p for p in places if shape[p] != 1]


@row("BiasAddGrad")
def _bias_grad(call: Call) -> None:
    x = call.args[0]
    if len(x.shape) == 2:
        call.run("sum", (1, *x.shape), x, call.out)
        return
    outer, channels, inner = x.shape[0], x.shape[1], extent_of(x.shape[2:])
    room = call.scratch(outer * channels)
    call.run("sum", (outer * channels, inner, 1), x, room)
    call.run("sum", (1, outer, channels), room, call.out)


@row("L2Loss")
def _half_square(call: Call) -> None:
    x = call.args[0]
    call.line(f"*{call.out.pointer} = 0.5f * sum_of<{x.size}>({x.pointer}, squared());")


@row("LogSoftmax", "LogSoftmaxExt", "Softmax")
def _softmax(call: Call) -> None:
    axis = call.node.attrs.get("axis", call.number(1, -1))
    kernel = "softmax" if call.node.op == "Softmax" else "log_softmax"
    _by_rows(call, kernel, axis, call.args[:1])


@row("LogSoftmaxGrad", "SoftmaxBackward")
def _softmax_grad(call: Call) -> None:
    first, second = call.args[:2]
    axis = call.node.attrs.get("axis", call.number(2, -1))
    if call.node.op == "SoftmaxBackward":
        _by_rows(call, "softmax_grad", axis, [second, first])
    else:
        _by_rows(call, "log_softmax_grad", axis, [first, second])


def _by_rows(call: Call, kernel: str, axis: Any, given: list[Operand], *template: Any) -> None:
    """Runs a kernel over the rows along an axis, which is brought to the end for it."""
    axis = axis[0] if isinstance(axis, (tuple, list)) else axis
    outer, count, inner = given[0].split(axis)
    if any(x.type.dtype == "float64" for x in given):
        raise call.unsupported()
    if inner == 1:
        call.run(kernel, (outer, count, *template), *given, *call.outs)
        return
    axis %= len(given[0].shape)
    order = (*(i for i in range(len(given[0].shape)) if i != axis), axis)
    turned_outs = [_room(call, out, order) for out in call.outs]
    turned_args = [_transposed(call, x, order) for x in given]
    call.run(kernel, (outer * inner, count, *template), *turned_args, *turned_outs)
    for out, turned_out in zip(call.outs, turned_outs, strict=True):
        strides = [strides_of(out.shape)[i] for i in order]
        head, variables = loops(turned_out.shape)
        call.line(f"{{ const {out.c_type} *at = {turned_out.pointer}; {head}")
        call.line(f"  {out.pointer}[{place(variables, strides)}] = *at++; }}")


@row("ArgMaxExt", "Argmax", "Argmin", "ArgMinExt", "ArgMaxWithValue", "ArgMinWithValue")
def _arg(call: Call) -> None:
    axis = call.node.attrs.get("axis", call.number(1))
    x = call.args[0]
    extents = (1, x.size, 1) if axis is None else x.split(axis)
    index, value = call.outs[0], call.outs[1] if len(call.outs) > 1 else f"({x.c_type} *)nullptr"
    call.run("arg_of", (*extents, "Max" in call.node.op or "max" in call.node.op), x, index, value)


@row("Gather")
def _gather(call: Call) -> None:
    table, index = call.args[:2]
    if call.number(3, 0):
        raise call.unsupported()
    call.run("gather", (*table.split(call.number(2)), index.size), table, index, call.out)


@row("UnsortedSegmentSum")
def _segments(call: Call) -> None:
    x, index, out = call.args[0], call.args[1], call.out
    inner = out.size // out.shape[0] if out.shape[0] else 0
    call.line(f"memset({out.pointer}, 0, {out.size} * sizeof(*{out.pointer}));")
    call.run("scatter_sum", (out.shape[0], inner, index.size), x, index, out)


@row("GatherD", "GatherDGradV2")
def _gather_along(call: Call) -> None:
    x, index = call.args[0], call.args[2]
    outer, count, inner = x.split(call.number(1))
    along = index.split(call.number(1))
    if (along[0], along[2]) != (outer, inner):
        raise call.unsupported()
    extents = (outer, count, along[1], inner)
    if call.node.op == "GatherD":
        call.run("gather_along", extents, x, index, call.out)
    else:
        call.run("scatter_along", extents, index, call.args[3], call.out)


@row("OneHot")
def _one_hot(call: Call) -> None:
    index, out = call.args[0], call.out
    on, off = (a.pointer + "[0]" for a in call.args[2:4])
    outer, depth, inner = out.split(call.node.attrs.get("axis", call.number(4, -1)))
    head, (i, j, k) = loops((outer, depth, inner))
    call.line(
        f"{head}{out.pointer}[({i} * {depth} + {j}) * {inner} + {k}] = "
        f"{index.pointer}[{i} * {inner} + {k}] == {j} ? {on} : {off};"
    )


@row("Concat", "Stack")
def _concat(call: Call) -> None:
    out = call.out
    parts = call.args[0] if isinstance(call.args[0], list) else [call.args[0]]
    axis = call.node.attrs.get("axis", call.number(1, 0)) % max(len(out.shape), 1)
    outer = extent_of(out.shape[:axis])
    row = out.size // outer if outer else 0
    at = 0
    for part in parts:
        width = part.size // outer if outer else 0
        target, source = f"{out.pointer} + {at}", part.pointer
        if width > 8 or outer == 1:
            copy = (
                f"memcpy({target} + i * {row}, {source} + i * {width}, {width} * sizeof(*{source}))"
            )
            call.line(f"for (int64_t i = 0; i < {outer}; i++) {copy};")
        else:
            call.line(
                f"for (int64_t i = 0; i < {outer}; i++) for (int64_t j = 0; j < {width}; j++) "
                f"({target})[i * {row} + j] = {source}[i * {width} + j];"
            )
        at += width


@row("Tile")
def _tile(call: Call) -> None:
    x, out = call.args[0], call.out
    times = call.number(1)
    shape = (1,) * (len(out.shape) - len(x.shape)) + x.shape
    head, variables = loops(tuple(n * m for n, m in zip(times, shape, strict=True)))
    inside = [f"{i} % {extent}" for i, extent in zip(variables, shape, strict=True)]
    call.line(f"{{ int64_t at = 0; {head}")
    call.line(f"  {out.pointer}[at++] = {x.pointer}[{place(inside, strides_of(shape))}]; }}")


@row("CumSum", "CumsumExt", "CumProd")
def _running(call: Call) -> None:
    x, out = call.args[0], call.out
    exclusive, backward = (
        call.node.op != "CumsumExt" and bool(call.node.attrs.get(name, call.number(at, False)))
        for name, at in (("exclusive", 2), ("reverse", 3))
    )
    sums = call.node.op != "CumProd"
    extents = x.split(call.number(1))
    call.run("running", (*extents, exclusive, backward, sums), x, out)


@row("Cummax", "Cummin")
def _running_most(call: Call) -> None:
    x = call.args[0]
    axis = call.node.attrs.get("axis", call.number(1))
    call.run("running_most", (*x.split(axis), call.node.op == "Cummax"), x, *call.outs)


@row("Sort", "SortExt")
def _sort(call: Call) -> None:
    axis = call.node.attrs.get("axis", call.number(1, -1))
    descending = bool(call.node.attrs.get("descending", call.number(2, False)))
    _by_rows(call, "sort_rows", axis, call.args[:1], descending)


@row("TopK", "TopkExt")
def _top(call: Call) -> None:
    x, values = call.args[0], call.outs[0]
    axis, largest = (-1, True)
    if call.node.op == "TopkExt":
        axis, largest = call.number(2, -1), bool(call.number(3, True))
    outer, count, inner = x.split(axis)
    if inner != 1:
        raise call.unsupported()
    room = call.scratch(count)
    kept = values.shape[-1]
    call.run("top_rows", (outer, count, kept, largest), x, *call.outs, f"(int32_t *){room}")


@row("SearchSorted")
def _search(call: Call) -> None:
    table, values = call.args[:2]
    right = bool(call.node.attrs.get("right", call.number(4, False)))
    rows = extent_of(table.shape[:-1])
    wanted = values.size // rows if rows else 0
    if len(call.args) > 2 and call.args[2] is not None:
        raise call.unsupported()
    call.run("search", (rows, table.shape[-1], wanted, right), table, values, call.out)


@row("Range", "Arange")
def _range(call: Call) -> None:
    start, step = call.number(0), call.number(2, 1)
    call.line(
        f"for (int64_t i = 0; i < {call.out.size}; i++) "
        f"{call.out.pointer}[i] = ({call.out.c_type})({start} + i * {step});"
    )


@row("LinSpace", "LinSpaceExt")
def _linspace(call: Call) -> None:
    start, stop = (a.pointer + "[0]" for a in call.args[:2])
    last = max(call.out.size - 1, 1)
    call.line(
        f"for (int64_t i = 0; i < {call.out.size}; i++) {call.out.pointer}[i] = "
        f"({call.out.c_type})({start} + i * (({stop} - {start}) / {float(last)}f));"
    )


# ---- effects, see `control.WRITES` --------------------------------------------------------------


@row("Assign")
def _assign(call: Call) -> None:
    target, value = call.args[:2]
    _same_type(call, target, value)
    call.line(
        f"memmove({target.pointer}, {value.pointer}, {target.size} * sizeof(*{target.pointer}));"
    )


@row("AssignAdd", "AssignSub")
def _assign_add(call: Call) -> None:
    target, value = call.args[:2]
    _same_type(call, target, value)
    sign = "+" if call.node.op == "AssignAdd" else "-"
    call.line("#pragma GCC ivdep")
    call.line(
        f"for (int64_t i = 0; i < {target.size}; i++) "
        f"{target.pointer}[i] {sign}= {value.pointer}[i];"
    )


def _same_type(call: Call, target: Operand, value: Operand) -> None:
    if target.type.dtype != value.type.dtype or target.size != value.size:
        raise call.unsupported()


@row("ScatterUpdate", "ScatterAdd")
def _scatter(call: Call) -> None:
    target, index, value = call.args[:3]
    _, rows, row = target.split(0)
    change = "=" if call.node.op == "ScatterUpdate" else "+="
    call.line(f"for (int64_t i = 0; i < {index.size}; i++) {{")
    call.line(f"  const int64_t at = {index.pointer}[i];")
    call.line(f"  if (at < 0 || at >= {rows}) return FAILED;")
    call.line(
        f"  for (int64_t j = 0; j < {row}; j++) "
        f"{target.pointer}[at * {row} + j] {change} {value.pointer}[i * {row} + j]; }}"
    )


@row("Adam")
def _adam(call: Call) -> None:
    parameter, first, second = call.args[:3]
    numbers = [f"{arg.pointer}[0]" for arg in call.args[3:9]]
    nesterov = bool(call.node.attrs.get("use_nesterov", False))
    call.run("adam", (parameter.size, nesterov), parameter, first, second, *numbers, call.args[9])


@row("AdamWeightDecay", "ApplyAdagrad", "ApplyMomentum", "ApplyRMSProp", "SGD")
def _optimiser(call: Call) -> None:
    """One number of a parameter `p` after the other; `g` is its gradient, what changes is state."""
    first = call.args[0]
    attrs = {"decay": 0.0, "dampening": 0.0, **call.node.attrs}
    names, lines = _UPDATES[call.node.op]
    if not attrs.get("update_slots", True):
        raise call.unsupported()
    if attrs.get("nesterov") or attrs.get("use_nesterov"):
        if call.node.op != "SGD":  # MindSpore's numbers are others there
            raise call.unsupported()
        lines = lines.replace("step = $sum;", "step += $momentum * $sum;")
    call.line("{")
    for name, arg in zip(names.split(), call.args, strict=False):
        if name == "g" or re.search(rf"\${name} -?=", lines):
            call.line(f"  {arg.c_type} *const {name}_ = ({arg.c_type} *){arg.pointer};")
            lines = re.sub(rf"\${name}\b", f"{name}_[i]", lines)
        else:
            call.line(f"  const float {name}_ = {arg.pointer}[0];")
            lines = re.sub(rf"\${name}\b", f"{name}_", lines)
    call.line(f"  const float weight_decay = {literal(attrs.get('weight_decay', 0.0), 'float32')};")
    call.line(f"  const float damping = {literal(attrs['dampening'], 'float32')};")
    call.line("#pragma GCC ivdep")
    call.line(f"  for (int64_t i = 0; i < {first.size}; i++) {{ {lines} }} }}")


_UPDATES = {
    "AdamWeightDecay": (
        "p m v rate beta1 beta2 epsilon decay g",
        "$m = $beta1 * $m + (1.0f - $beta1) * $g; $v = $beta2 * $v + (1.0f - $beta2) * $g * $g; "
        "$p -= $rate * ($m / (sqrtf($v) + $epsilon) + $decay * $p);",
    ),
    "ApplyAdagrad": (
        "p sum rate g",
        "$sum = $sum + $g * $g; $p -= $rate * $g / sqrtf($sum);",
    ),
    "ApplyMomentum": (
        "p sum rate g momentum",
        "$sum = $sum * $momentum + $g; $p -= $rate * $sum;",
    ),
    "ApplyRMSProp": (
        "p square moment rate g decay momentum epsilon",
        "$square = $decay * $square + (1.0f - $decay) * $g * $g; "
        "$moment = $momentum * $moment + $rate * $g / sqrtf($square + $epsilon); $p -= $moment;",
    ),
    "SGD": (
        "p g rate sum momentum first",
        "float step = $g + weight_decay * $p; if ($momentum > 0.0f) { "
        "$sum = $first > 0.0f ? step : $sum * $momentum + (1.0f - damping) * step; $first = 0.0f; "
        "step = $sum; } $p -= $rate * step;",
    ),
}


@row("LayerNorm")
def _layer_norm(call: Call) -> None:
    x, gain, shift = call.args[:3]
    rows, width = _normalised(call, call.number(3, -1))
    epsilon = literal(float(call.number(5, 1e-7)), "float32")
    call.run("layer_norm", (rows, width), x, gain, shift, epsilon, *call.outs)


@row("LayerNormGrad")
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


@row("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Conv2DTranspose")
def _convolution(call: Call) -> None:
    """By the columns of the image that each product takes, one image, or group of it, at a time."""
    op, attrs = call.node.op.replace("Transpose", "BackpropInput"), call.node.attrs
    groups = attrs.get("group", 1)
    if attrs.get("format", "NCHW") != "NCHW":
        raise call.unsupported()
    x, weight, y = {
        "Conv2D": lambda: (call.args[0], call.args[1], call.out),
        "Conv2DBackpropFilter": lambda: (call.args[1], call.out, call.args[0]),
        "Conv2DBackpropInput": lambda: (call.out, call.args[1], call.args[0]),
    }[op]()
    (images, _, height, width), (out, channels, tall, wide) = x.shape, weight.shape
    images, out = images * groups, out // groups  # groups of an image lie one after the other
    top, _, left, _ = attrs["pad_list"]
    (down, across), (dilated, spread) = attrs["stride"][-2:], attrs["dilation"][-2:]
    places = y.shape[2] * y.shape[3]
    taken = channels * tall * wide
    window = (channels, height, width, tall, wide, down, across, top, left, dilated, spread)
    window += y.shape[2:]
    products = {  # rows, columns, summed, and which operand is turned
        "Conv2D": (out, places, taken, False, False),
        "Conv2DBackpropFilter": (out, taken, places, False, True),
        "Conv2DBackpropInput": (taken, places, out, True, False),
    }
    m, n, k, *turned = products[op]
    room = call.scratch(taken * places + m * n + k * (n + 15) + m * k + 64)
    call.line(f"{{ float *const columns = {room}, *const part = columns + {taken * places};")
    call.line(f"  float *const room = part + {m * n};")
    if op != "Conv2D":
        call.line(f"  memset({call.out.pointer}, 0, {call.out.size} * sizeof(float));")
    call.line(f"  for (int64_t n = 0; n < {images}; n++) {{")
    image, result = (
        f"{x.pointer} + n * {channels * height * width}",
        (f"{y.pointer} + n * {out * places}"),
    )
    weights = f"{weight.pointer} + n % {groups} * {out * taken}" if groups > 1 else weight.pointer
    if op != "Conv2DBackpropInput":
        call.run("columns_of", (*window, False), image, "columns")
    if op == "Conv2D":
        call.run("product", (m, n, k, *turned), weights, "columns", result, "room")
    elif op == "Conv2DBackpropFilter":
        call.run("product", (m, n, k, *turned), result, "columns", "part", "room")
        call.line(f"    for (int64_t i = 0; i < {m * n}; i++) ({weights})[i] += part[i];")
    else:
        call.run("product", (m, n, k, *turned), weights, result, "columns", "room")
        call.run("columns_of", (*window, True), image, "columns")
    call.line("  } }")


@row("MaxPool", "MaxPoolGrad", "MaxPoolWithArgmaxV2", "MaxPoolGradWithArgmaxV2")
def _max_pool(call: Call) -> None:
    x, op = call.args[0], call.node.op
    y = call.outs[0] if "Grad" not in op else call.args[1]
    window = _window(call, x, y)
    index = f"(int32_t *){call.scratch(y.size)}"
    if op.startswith("MaxPoolWith"):
        index = call.outs[1].pointer
    if op != "MaxPoolGradWithArgmaxV2":
        call.run("max_pool", window, x, y if "Grad" not in op else "(float *)nullptr", index)
    if "Grad" in op:
        dy, index = (call.args[2], index) if op == "MaxPoolGrad" else (y, call.args[2].pointer)
        planes, size = extent_of(x.shape[:-2]), extent_of(x.shape[-2:])
        call.run("max_pool_grad", (planes, size, extent_of(y.shape[-2:])), index, dy, call.out)


@row("AvgPool", "AvgPoolGrad")
def _average_pool(call: Call) -> None:
    back = call.node.op == "AvgPoolGrad"
    inner, outer = (call.out, call.args[2]) if back else (call.args[0], call.out)
    call.run("average_pool", (*_window(call, inner, outer), back), inner, outer)


def _window(call: Call, x: Operand, y: Operand) -> tuple[int, ...]:
    """Planes, their sizes, and what each number of a pool is made of; the end has more padding."""
    attrs, op = call.node.attrs, call.node.op
    if op.startswith("Max"):
        sizes, steps = attrs["kernel_size"][-2:], attrs["strides"][-2:]
        same, layout = attrs.get("pad_mode") == "SAME", attrs.get("format", "NCHW")
    else:
        at = 3 if op.endswith("Grad") else 1
        sizes, steps = call.number(at), call.number(at + 1)
        same, layout = call.number(at + 2) == 1, ("NCHW", "")[bool(call.number(at + 3, 0))]
        if call.number(at + 2) == 0:
            raise call.unsupported()
    if layout != "NCHW" or x.type.dtype != "float32" or attrs.get("ceil_mode"):
        raise call.unsupported()
    if any(n != 1 for n in attrs.get("dilation", ())):
        raise call.unsupported()
    if "pads" in attrs:
        before = tuple(attrs["pads"][-2:])
    elif same:
        spans = zip(x.shape[-2:], y.shape[-2:], sizes, steps, strict=True)
        before = tuple(max((n - 1) * step + size - m, 0) // 2 for m, n, size, step in spans)
    else:
        before = (0, 0)
    return (extent_of(x.shape[:-2]), *x.shape[-2:], *sizes, *steps, *before, *y.shape[-2:])


@row("Custom")
def _custom(call: Call) -> None:
    """An ahead-of-time operator of ours, called as MindSpore calls it."""
    if call.node.attrs.get("func_type") != "aot":
        raise call.unsupported()
    ins = [arg for arg in call.args if isinstance(arg, Operand)]
    every = [*ins, *call.outs]
    pointers = ", ".join(f"(void *){o.pointer}" for o in every)
    call.line(f"{{ void *data[] = {{{pointers}}};")
    call.line(f"  int ranks[] = {{{', '.join(str(len(o.shape)) for o in every)}}};")
    for i, operand in enumerate(every):
        call.line(f"  int64_t s{i}[] = {{{', '.join(map(str, operand.shape)) or 0}}};")
    call.line(f"  int64_t *shapes[] = {{{', '.join(f's{i}' for i in range(len(every)))}}};")
    names = ", ".join(f'"{o.type.dtype}"' for o in every)
    call.line(f"  const char *dtypes[] = {{{names}}};")
    function = call.function(call.node.attrs["func_name"])
    call.line(f"  if ({function}({len(every)}, data, ranks, shapes, dtypes, nullptr, nullptr))")
    call.line("    return FAILED; }")
