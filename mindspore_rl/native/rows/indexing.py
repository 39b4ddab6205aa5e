"""Rows of primitives that read or write at places: by indices, slices and padding."""

from collections.abc import Callable
from typing import Any

from mindspore_rl.native.rows.primitives import Call, Operand, loops, place, row
from mindspore_rl.native.rows.views import extent_of, strided, strides_of

# ---- indices of several axes: rows of the first axes that they name ------------------------------


@row("GatherNd", "GatherNdExt")
def _gather_places(call: Call) -> None:
    x, index = call.args[:2]
    width = extent_of(x.shape[index.shape[-1] :])
    target, source = f"{call.out.pointer} + i * {width}", f"{x.pointer} + at * {width}"
    _at_places(call, x, index, f"memcpy({target}, {source}, {width} * sizeof(*{x.pointer}));")


@row("ScatterNd")
def _scatter_places(call: Call) -> None:
    index, value = call.args[:2]
    _fill(call, "0")
    _put_at_places(call, call.out, index, value, "{0} + {1}")


@row(*(f"TensorScatter{kind}" for kind in ("Update", "Add", "Sub", "Mul", "Max", "Min")))
def _changed_places(call: Call) -> None:
    x, index, value = call.args[:3]
    _copy(call, x)
    change = _CHANGES[call.node.op.removeprefix("TensorScatter")]
    _put_at_places(call, call.out, index, value, change)


@row("ScatterNdUpdate")
def _update_places(call: Call) -> None:
    target, index, value = call.args[:3]
    _put_at_places(call, target, index, value, "{1}")


_CHANGES = {
    "Update": "{1}",
    "Add": "{0} + {1}",
    "Sub": "{0} - {1}",
    "Mul": "{0} * {1}",
    "Max": "larger({0}, {1})",
    "Min": "smaller({0}, {1})",
}


def _put_at_places(call: Call, out: Operand, index: Operand, value: Operand, change: str) -> None:
    width = extent_of(out.shape[index.shape[-1] :])
    spot = f"{out.pointer}[at * {width} + j]"
    new = change.format(spot, f"{value.pointer}[i * {width} + j]")
    _at_places(call, out, index, f"for (int64_t j = 0; j < {width}; j++) {spot} = {new};")


def _at_places(call: Call, of: Operand, index: Operand, line: str) -> None:
    """Runs a line for each index `i`, with `at`, the row that it names."""
    axes = index.shape[-1]
    call.line(f"for (int64_t i = 0; i < {extent_of(index.shape[:-1])}; i++) {{ int64_t at = 0;")
    for axis, extent in enumerate(of.shape[:axes]):
        call.line(f"  {{ int64_t k = {index.pointer}[i * {axes} + {axis}]; {_checked('k', extent)}")
        call.line(f"    at = at * {extent} + k; }}")
    call.line(f"  {line} }}")


def _checked(name: str, extent: int) -> str:
    return (
        f"if ({name} < 0) {name} += {extent}; if ({name} < 0 || {name} >= {extent}) return FAILED;"
    )


# ---- indices of one axis: single numbers, or rows ------------------------------------------------


@row("Scatter", "ScatterValue", "InplaceScatterSrc", "TensorScatterElements", "ScatterAddExt")
def _scatter_elements(call: Call) -> None:
    """Numbers at the places of an index, but for one axis, where the index says the place."""
    x, (axis_at, index_at, value_at) = call.args[0], (1, 2, 3)
    if call.node.op == "TensorScatterElements":
        axis_at, index_at, value_at = 3, 1, 2
    index, value = call.args[index_at], call.args[value_at]
    adds = call.node.op == "ScatterAddExt" or bool(call.number(4, 0))
    if call.number(4, 0) not in (0, 1):
        raise call.unsupported()
    axis = call.number(axis_at) % max(len(x.shape), 1)
    head, variables = loops(index.shape)
    strides = strides_of(x.shape)
    rest = [0 if i == axis else stride for i, stride in enumerate(strides)]
    source = "0" if value.size == 1 else place(variables, strides_of(value.shape))
    _copy(call, x)
    call.line(f"{{ int64_t e = 0; {head}{{ int64_t k = {index.pointer}[e++];")
    call.line(f"  {_checked('k', x.shape[axis])}")
    spot = f"{call.out.pointer}[{place(variables, rest)} + k * {strides[axis]}]"
    call.line(f"  {spot} {'+=' if adds else '='} {value.pointer}[{source}]; }} }}")


@row("IndexAddExt", "IndexFill")
def _at_rows(call: Call) -> None:
    x = call.args[0]
    index, value = call.args[2], call.args[3]
    outer, count, inner = x.split(call.number(1))
    _copy(call, x)
    head, (o, i, j) = loops((outer, index.size, inner))
    call.line(f"{head}{{ int64_t k = {index.pointer}[{i}]; {_checked('k', count)}")
    spot = f"{call.out.pointer}[({o} * {count} + k) * {inner} + {j}]"
    if call.node.op == "IndexFill":
        call.line(f"  {spot} = {value.pointer}[0]; }}")
    else:
        step = f"{value.pointer}[({o} * {index.size} + {i}) * {inner} + {j}]"
        call.line(f"  {spot} += {step}; }}")


@row("UnsortedSegmentMax", "UnsortedSegmentMin")
def _segment_most(call: Call) -> None:
    x, index, out = call.args[0], call.args[1], call.out
    width = extent_of(out.shape[1:])
    largest = call.node.op.endswith("Max")
    limit = f"std::numeric_limits<{out.c_type}>"
    _fill(call, f"{limit}::lowest()" if largest else f"{limit}::max()")
    spot, given = f"{out.pointer}[k * {width} + j]", f"{x.pointer}[i * {width} + j]"
    call.line(f"for (int64_t i = 0; i < {index.size}; i++) {{ int64_t k = {index.pointer}[i];")
    call.line(f"  if (k < 0 || k >= {out.shape[0]}) continue;")
    call.line(f"  for (int64_t j = 0; j < {width}; j++)")
    call.line(f"    {spot} = {'larger' if largest else 'smaller'}({given}, {spot}); }}")


# ---- slices --------------------------------------------------------------------------------------


@row("StridedSliceGrad")
def _slice_grad(call: Call) -> None:
    begin, end, step = (call.number(i) for i in (2, 3, 4))
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    masks = [call.node.attrs.get(name, call.number(5 + i, 0)) for i, name in enumerate(names)]
    offset, strides = strided(call.out.shape, begin, end, step, *masks)
    shape = _kept(call, strides)
    _fill(call, "0")
    _put(call, call.args[0], shape, offset, strides)


@row("SliceGrad")
def _block_grad(call: Call) -> None:
    strides = strides_of(call.out.shape)
    offset = sum(b * s for b, s in zip(call.number(2), strides, strict=True))
    _fill(call, "0")
    _put(call, call.args[0], call.args[0].shape, offset, strides)


@row("TensorCopySlices")
def _set_slice(call: Call) -> None:
    x, value = call.args[:2]
    begin, end, step = (call.number(i) for i in (2, 3, 4))
    offset, strides = strided(x.shape, begin, end, step, 0, 0, 0, 0, 0)
    spans = zip(begin, end, step, x.shape, strict=False)
    shape = tuple(len(range(n)[slice(b, e, s)]) for b, e, s, n in spans) + x.shape[len(begin) :]
    if value.size != extent_of(shape):
        raise call.unsupported()
    _copy(call, x)
    _put(call, value, shape, offset, strides)


@row("Eye", "Diag", "TraceGrad", "MatrixDiagV3", "MatrixSetDiagV3")
def _diagonal(call: Call) -> None:
    """One number, or those of an array, along the diagonals of matrices."""
    out = call.out
    rows, columns = out.shape[-2:]
    put_in = call.node.op == "MatrixSetDiagV3"
    given = None if call.node.op == "Eye" else call.args[put_in]
    length = min(rows, columns)
    if put_in and call.number(2) != 0:
        raise call.unsupported()
    if call.node.op == "MatrixDiagV3" and (call.number(1) != 0 or rows != columns):
        raise call.unsupported()
    if call.node.op == "Diag" and len(out.shape) != 2:
        raise call.unsupported()
    if put_in:
        _copy(call, call.args[0])
    else:
        _fill(call, "0")
    source = "1" if given is None else f"{given.pointer}[{'0' if given.size == 1 else 'e'}]"
    call.line(f"for (int64_t e = 0; e < {extent_of(out.shape[:-2]) * length}; e++)")
    at = f"e / {max(length, 1)} * {rows * columns} + e % {max(length, 1)} * {columns + 1}"
    call.line(f"  {out.pointer}[{at}] = {source};")


@row("Tril", "Triu")
def _triangle(call: Call) -> None:
    x = call.args[0]
    rows, columns = x.shape[-2:]
    shift = call.node.attrs.get("diagonal", call.number(1, 0))
    kept = f"j - i {'<=' if call.node.op == 'Tril' else '>='} {shift}"
    matrices = x.size // (rows * columns) if x.size else 0
    head = f"for (int64_t n = 0; n < {matrices}; n++) for (int64_t i = 0; i < {rows}; i++) "
    call.line(f"{{ int64_t at = 0; {head}for (int64_t j = 0; j < {columns}; j++, at++)")
    call.line(f"  {call.out.pointer}[at] = {kept} ? {x.pointer}[at] : ({x.c_type})0; }}")


def _kept(call: Call, strides: list[int]) -> tuple[int, ...]:
    """The shape of a slice whose gradient is given, with axes of one left out or put in."""
    shape = [n for n in call.args[0].shape if n != 1]
    found, spans = [], iter(shape)
    given = call.args[0].shape
    if len(given) == len(strides):
        return given
    for _ in strides:
        found.append(next(spans, 1))
    if extent_of(tuple(found)) != call.args[0].size:
        raise call.unsupported()
    return tuple(found)


# ---- padding: where each number comes from, axis by axis -----------------------------------------


@row("PadV3", "Pad", "ConstantPadND", "MirrorPad", "PadV3Grad", "MirrorPadGrad")
def _pad(call: Call) -> None:
    back = call.node.op.endswith("Grad")
    inner, outer = (call.out, call.args[0]) if back else (call.args[0], call.out)
    mode = "constant" if "Constant" in call.node.op else call.node.attrs.get("mode", "constant")
    source = _SOURCES.get(mode.lower())
    if source is None:
        raise call.unsupported()
    pads = _pads(call, len(inner.shape))
    maps = [
        [source(i - before, n) for i in range(wide)]
        for (before, _), n, wide in zip(pads, inner.shape, outer.shape, strict=True)
    ]
    value = "0"
    if not back and len(call.args) > 2 and isinstance(call.args[2], Operand):
        value = f"{call.args[2].pointer}[0]"
    _mapped(call, maps, inner, outer, value, back)


@row("ResizeNearestNeighborV2", "ResizeNearestNeighborV2Grad")
def _resize(call: Call) -> None:
    back = call.node.op.endswith("Grad")
    inner, outer = (call.out, call.args[0]) if back else (call.args[0], call.out)
    if call.number(2, False) or call.number(3, False):
        raise call.unsupported()
    maps = [
        [min(i * n // wide, n - 1) for i in range(wide)]
        for n, wide in zip(inner.shape, outer.shape, strict=True)
    ]
    _mapped(call, maps, inner, outer, "0", back)


def _mirror(i: int, n: int) -> int:
    return n - 1 - abs(n - 1 - abs(i))


_SOURCES: dict[str, Callable[[int, int], int]] = {
    "constant": lambda i, n: i if 0 <= i < n else -1,
    "edge": lambda i, n: min(max(i, 0), n - 1),
    "circular": lambda i, n: i % n,
    "reflect": _mirror,
    "symmetric": lambda i, n: i if 0 <= i < n else -1 - i if i < 0 else 2 * n - 1 - i,
}


def _pads(call: Call, rank: int) -> list[tuple[int, int]]:
    """How much goes before and after each axis; PyTorch's order begins with the last one."""
    given = call.node.attrs.get("paddings", call.number(1))
    if isinstance(given[0], (tuple, list)):
        return [(int(before), int(after)) for before, after in given]
    if call.node.attrs.get("paddings_contiguous", True):
        pairs = list(zip(given[::2], given[1::2], strict=True))
    else:
        pairs = list(zip(given[: len(given) // 2], given[len(given) // 2 :], strict=True))
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def _mapped(
    call: Call, maps: list[list[int]], inner: Operand, outer: Operand, value: str, back: bool
) -> None:
    """Numbers of `outer` by those of `inner` that maps name, or, back, their sums."""
    head, variables = loops(outer.shape)
    call.line("{")
    names = []
    outside = []
    for axis, places in enumerate(maps):
        if places == list(range(inner.shape[axis])):
            names.append(variables[axis])
            continue
        call.line(f"  static const int32_t m{axis}[] = {{{', '.join(map(str, places)) or 0}}};")
        names.append(f"(int64_t)m{axis}[{variables[axis]}]")
        if min(places, default=0) < 0:
            outside.append(f"m{axis}[{variables[axis]}] < 0")
    spot = place(names, strides_of(inner.shape))
    if back:
        _fill(call, "0")
    call.line(f"  int64_t at = 0; {head}{{")
    away = " || ".join(outside)
    if back:
        call.line(f"    if (!({away or 'false'})) {inner.pointer}[{spot}] += {outer.pointer}[at];")
    else:
        found = f"{inner.pointer}[{spot}]"
        chosen = f"{away} ? ({outer.c_type}){value} : {found}" if away else found
        call.line(f"    {outer.pointer}[at] = {chosen};")
    call.line("    at++; } }")


# ---- what these begin with ----------------------------------------------------------------------


def _copy(call: Call, x: Operand) -> None:
    call.line(f"memcpy({call.out.pointer}, {x.pointer}, {x.size} * sizeof(*{x.pointer}));")


def _fill(call: Call, number: str) -> None:
    out = call.out
    call.line(f"for (int64_t i = 0; i < {out.size}; i++) {out.pointer}[i] = {number};")


def _put(call: Call, value: Operand, shape: tuple[int, ...], offset: int, strides: Any) -> None:
    """Writes numbers to the places of a slice of the result."""
    head, variables = loops(shape)
    call.line(f"{{ int64_t at = 0; {head}")
    spot = f"{offset} + {place(variables, list(strides))}"
    call.line(f"  {call.out.pointer}[{spot}] = {value.pointer}[at++]; }}")
