"""Rules that create arrays: joined, tiled, padded, resized, or computed."""

from collections.abc import Callable

from mindspore_rl.codegen.ops.registry import Call, Operand, Table, loops, place
from mindspore_rl.codegen.ops.views import extent_of, strides_of

ROWS = Table()


@ROWS.row("concat")
def _concat(call: Call) -> None:
    out = call.out
    parts = call.args[0] if isinstance(call.args[0], list) else [call.args[0]]
    axis = call.axis() % max(len(out.shape), 1)
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


@ROWS.row("tile")
def _tile(call: Call) -> None:
    x, out = call.args[0], call.out
    times = call.number(1)
    shape = (1,) * (len(out.shape) - len(x.shape)) + x.shape
    head, variables = loops(tuple(n * m for n, m in zip(times, shape, strict=True)))
    inside = [f"{i} % {extent}" for i, extent in zip(variables, shape, strict=True)]
    call.line(f"{{ int64_t at = 0; {head}")
    call.line(f"  {out.pointer}[at++] = {x.pointer}[{place(inside, strides_of(shape))}]; }}")


@ROWS.row("range")
def _range(call: Call) -> None:
    start, step = call.number(0), call.number(2, 1)
    call.each(f"({call.out.c_type})({start} + i * {step})")


@ROWS.row("linspace")
def _linspace(call: Call) -> None:
    start, stop = (a.pointer + "[0]" for a in call.args[:2])
    last = max(call.out.size - 1, 1)
    call.each(f"({call.out.c_type})({start} + i * (({stop} - {start}) / {float(last)}f))")


@ROWS.row("diagonal")
def _diagonal(call: Call) -> None:
    """Emits matrices with one number, or the elements of an array, along their diagonals."""
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
        call.copy(call.args[0])
    else:
        call.each("0")
    source = "1" if given is None else f"{given.pointer}[{'0' if given.size == 1 else 'e'}]"
    call.line(f"for (int64_t e = 0; e < {extent_of(out.shape[:-2]) * length}; e++)")
    at = f"e / {max(length, 1)} * {rows * columns} + e % {max(length, 1)} * {columns + 1}"
    call.line(f"  {out.pointer}[{at}] = {source};")


@ROWS.row("triangle")
def _triangle(call: Call) -> None:
    x = call.args[0]
    rows, columns = x.shape[-2:]
    shift = call.option("diagonal", 1, 0)
    kept = f"j - i {'<=' if call.node.op == 'Tril' else '>='} {shift}"
    matrices = x.size // (rows * columns) if x.size else 0
    head = f"for (int64_t n = 0; n < {matrices}; n++) for (int64_t i = 0; i < {rows}; i++) "
    call.line(f"{{ int64_t at = 0; {head}for (int64_t j = 0; j < {columns}; j++, at++)")
    call.line(f"  {call.out.pointer}[at] = {kept} ? {x.pointer}[at] : ({x.c_type})0; }}")


# ---- padding: the source index of each element, axis by axis -------------------------------------


@ROWS.row("pad")
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


@ROWS.row("resize")
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
    """Returns the padding before and after each axis; PyTorch's order starts at the last axis."""
    given = call.option("paddings", 1)
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
    """Emits a copy of `inner` into `outer` by index maps; with `back`, its gradient.

    Args:
        call: the primitive.
        maps: for each axis the index in `inner` of each index in `outer`; -1: outside.
        inner: the smaller array.
        outer: the larger array.
        value: the C++ value outside `inner`.
        back: sums the elements of `outer` into those of `inner` instead.
    """
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
        call.each("0")
    call.line(f"  int64_t at = 0; {head}{{")
    away = " || ".join(outside)
    if back:
        call.line(f"    if (!({away or 'false'})) {inner.pointer}[{spot}] += {outer.pointer}[at];")
    else:
        found = f"{inner.pointer}[{spot}]"
        chosen = f"{away} ? ({outer.c_type}){value} : {found}" if away else found
        call.line(f"    {outer.pointer}[at] = {chosen};")
    call.line("    at++; } }")
