"""Rules that read or write at indices and slices."""

from typing import Any

from mindspore_rl.codegen.ops.registry import Call, Operand, Table, loops, place
from mindspore_rl.codegen.ops.views import extent_of, strided, strides_of

ROWS = Table()


# ---- indices of several axes, which select rows along the first axes -----------------------------


@ROWS.row("gather_places")
def _gather_places(call: Call) -> None:
    x, index = call.args[:2]
    width = extent_of(x.shape[index.shape[-1] :])
    target, source = f"{call.out.pointer} + i * {width}", f"{x.pointer} + at * {width}"
    _at_places(call, x, index, f"memcpy({target}, {source}, {width} * sizeof(*{x.pointer}));")


@ROWS.row("scatter_places")
def _scatter_places(call: Call) -> None:
    index, value = call.args[:2]
    call.each("0")
    _put_at_places(call, call.out, index, value, "{0} + {1}")


@ROWS.row("changed_places")
def _changed_places(call: Call) -> None:
    x, index, value = call.args[:3]
    call.copy(x)
    change = _CHANGES[call.node.op.removeprefix("TensorScatter")]
    _put_at_places(call, call.out, index, value, change)


@ROWS.row("update_places")
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
    """Emits a line for each index `i`, in which `at` is the row that it selects."""
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


# ---- indices of one axis, which select elements or rows ------------------------------------------


@ROWS.row("gather")
def _gather(call: Call) -> None:
    table, index = call.args[:2]
    if call.number(3, 0):
        raise call.unsupported()
    call.run("gather", (*table.split(call.axis()), index.size), table, index, call.out)


@ROWS.row("gather_along")
def _gather_along(call: Call) -> None:
    x, index = call.args[0], call.args[2]
    outer, count, inner = x.split(call.axis())
    along = index.split(call.axis())
    if (along[0], along[2]) != (outer, inner):
        raise call.unsupported()
    extents = (outer, count, along[1], inner)
    if call.node.op == "GatherD":
        call.run("gather_along", extents, x, index, call.out)
    else:
        call.run("scatter_along", extents, index, call.args[3], call.out)


@ROWS.row("one_hot")
def _one_hot(call: Call) -> None:
    index, out = call.args[0], call.out
    on, off = (a.pointer + "[0]" for a in call.args[2:4])
    outer, depth, inner = out.split(call.axis())
    head, (i, j, k) = loops((outer, depth, inner))
    call.line(
        f"{head}{out.pointer}[({i} * {depth} + {j}) * {inner} + {k}] = "
        f"{index.pointer}[{i} * {inner} + {k}] == {j} ? {on} : {off};"
    )


@ROWS.row("scatter_elements")
def _scatter_elements(call: Call) -> None:
    """Emits a scatter along one axis: the index array gives the position on that axis."""
    x, at = call.args[0], 1 if call.node.op == "TensorScatterElements" else 2
    index, value = call.args[at : at + 2]
    adds = call.node.op == "ScatterAddExt" or bool(call.number(4, 0))
    if call.number(4, 0) not in (0, 1):
        raise call.unsupported()
    axis = call.axis() % max(len(x.shape), 1)
    head, variables = loops(index.shape)
    strides = strides_of(x.shape)
    rest = [0 if i == axis else stride for i, stride in enumerate(strides)]
    source = "0" if value.size == 1 else place(variables, strides_of(value.shape))
    call.copy(x)
    call.line(f"{{ int64_t e = 0; {head}{{ int64_t k = {index.pointer}[e++];")
    call.line(f"  {_checked('k', x.shape[axis])}")
    spot = f"{call.out.pointer}[{place(variables, rest)} + k * {strides[axis]}]"
    call.line(f"  {spot} {'+=' if adds else '='} {value.pointer}[{source}]; }} }}")


@ROWS.row("at_rows")
def _at_rows(call: Call) -> None:
    x = call.args[0]
    index, value = call.args[2], call.args[3]
    outer, count, inner = x.split(call.axis())
    call.copy(x)
    head, (o, i, j) = loops((outer, index.size, inner))
    call.line(f"{head}{{ int64_t k = {index.pointer}[{i}]; {_checked('k', count)}")
    spot = f"{call.out.pointer}[({o} * {count} + k) * {inner} + {j}]"
    if call.node.op == "IndexFill":
        call.line(f"  {spot} = {value.pointer}[0]; }}")
    else:
        step = f"{value.pointer}[({o} * {index.size} + {i}) * {inner} + {j}]"
        call.line(f"  {spot} += {step}; }}")


@ROWS.row("segments")
def _segments(call: Call) -> None:
    x, index, out = call.args[0], call.args[1], call.out
    inner = out.size // out.shape[0] if out.shape[0] else 0
    call.line(f"memset({out.pointer}, 0, {out.size} * sizeof(*{out.pointer}));")
    call.run("scatter_sum", (out.shape[0], inner, index.size), x, index, out)


@ROWS.row("segment_most")
def _segment_most(call: Call) -> None:
    x, index, out = call.args[0], call.args[1], call.out
    width = extent_of(out.shape[1:])
    largest = call.node.op.endswith("Max")
    limit = f"std::numeric_limits<{out.c_type}>"
    call.each(f"{limit}::lowest()" if largest else f"{limit}::max()")
    spot, given = f"{out.pointer}[k * {width} + j]", f"{x.pointer}[i * {width} + j]"
    call.line(f"for (int64_t i = 0; i < {index.size}; i++) {{ int64_t k = {index.pointer}[i];")
    call.line(f"  if (k < 0 || k >= {out.shape[0]}) continue;")
    call.line(f"  for (int64_t j = 0; j < {width}; j++)")
    call.line(f"    {spot} = {'larger' if largest else 'smaller'}({given}, {spot}); }}")


# ---- slices --------------------------------------------------------------------------------------


@ROWS.row("slice_grad")
def _slice_grad(call: Call) -> None:
    begin, end, step = (call.number(i) for i in (2, 3, 4))
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    masks = [call.option(name, 5 + i, 0) for i, name in enumerate(names)]
    offset, strides = strided(call.out.shape, begin, end, step, *masks)
    shape = _kept(call, strides)
    call.each("0")
    _put(call, call.args[0], shape, offset, strides)


@ROWS.row("block_grad")
def _block_grad(call: Call) -> None:
    strides = strides_of(call.out.shape)
    offset = sum(b * s for b, s in zip(call.number(2), strides, strict=True))
    call.each("0")
    _put(call, call.args[0], call.args[0].shape, offset, strides)


@ROWS.row("set_slice")
def _set_slice(call: Call) -> None:
    x, value = call.args[:2]
    begin, end, step = (call.number(i) for i in (2, 3, 4))
    offset, strides = strided(x.shape, begin, end, step, 0, 0, 0, 0, 0)
    spans = zip(begin, end, step, x.shape, strict=False)
    shape = tuple(len(range(n)[slice(b, e, s)]) for b, e, s, n in spans) + x.shape[len(begin) :]
    if value.size != extent_of(shape):
        raise call.unsupported()
    call.copy(x)
    _put(call, value, shape, offset, strides)


def _kept(call: Call, strides: list[int]) -> tuple[int, ...]:
    """Returns the shape of a slice, with one axis per stride, from the shape of its gradient.

    The gradient may lack axes of extent 1.
    """
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


def _put(call: Call, value: Operand, shape: tuple[int, ...], offset: int, strides: Any) -> None:
    """Emits the copy of an operand into a slice of the result."""
    head, variables = loops(shape)
    call.line(f"{{ int64_t at = 0; {head}")
    spot = f"{offset} + {place(variables, list(strides))}"
    call.line(f"  {call.out.pointer}[{spot}] = {value.pointer}[at++]; }}")
