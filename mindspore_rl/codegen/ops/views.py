"""Rules of views: the same numbers in another shape or at other strides.

In C++ a view is only an offset and a stride for every axis.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mindspore_rl.codegen.cfg import Block, Unsupported, tensors
from mindspore_rl.codegen.ops.elementwise import ELEMENTWISE, plain, reads
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.primitives import PRIMITIVES

FREE = {op for op, primitive in PRIMITIVES.items() if primitive.view == "reshape"}
"""Primitives whose result is their first argument in another shape."""


def is_view(node: Value) -> bool:
    """Returns whether a node's result shares the memory of its argument."""
    return node.op in FREE and not node.attrs.get("copied")


def constant(node: Value, index: int, default: Any = None) -> Any:
    """Returns a constant argument of a node: a number or a tuple of numbers.

    Raises:
        Unsupported: the argument is computed.
    """
    if index >= len(node.args) or node.args[index] is None:
        return default
    value = node.args[index]
    if isinstance(value, tuple) and all(isinstance(v, Value) and v.op == "constant" for v in value):
        return tuple(plain(v.data) for v in value)
    if not isinstance(value, Value) or value.op != "constant":
        raise Unsupported(f"{node.op} with an argument that is computed")
    data = plain(value.data)
    return default if data is None else data


def option(node: Value, name: str, index: int, default: Any = None) -> Any:
    """Returns an attribute of a node, or the argument that replaces it in other versions."""
    return node.attrs.get(name, constant(node, index, default))


def axes_of(given: Any, rank: int = 0) -> tuple[int, ...]:
    """Returns axes as a tuple: a single axis alone, and all `rank` axes if none are given."""
    return (given,) if isinstance(given, int) else tuple(given or range(rank))


def axis_of(node: Value) -> Any:
    """Returns a node's axis or axes; None if it has none or means all."""
    primitive = PRIMITIVES[node.op]
    if "axis" in node.attrs or primitive.axis is None:
        return node.attrs.get("axis", primitive.default)
    return constant(node, primitive.axis, primitive.default)


def extent_of(shape: tuple[int, ...]) -> int:
    """Returns the number of elements of a shape."""
    return int(np.prod(shape, dtype=np.int64))


def strides_of(shape: tuple[int, ...]) -> list[int]:
    """Returns the strides of a contiguous array, in elements."""
    return [extent_of(shape[axis + 1 :]) for axis in range(len(shape))]


def _slice(node: Value) -> tuple[int, list[int]]:
    begin, strides = constant(node, 1), strides_of(node.args[0].type.shape)
    return sum(b * s for b, s in zip(begin, strides, strict=True)), strides


def _strided_slice(node: Value) -> tuple[int, list[int]]:
    given = [constant(node, i) for i in (1, 2, 3)] + [constant(node, i, 0) for i in range(4, 9)]
    return strided(node.args[0].type.shape, *given)


def strided(
    shape: tuple[int, ...],
    begin: Any,
    end: Any,
    step: Any,
    begin_mask: int,
    end_mask: int,
    ellipsis: int,
    new_axis: int,
    shrink: int,
) -> tuple[int, list[int]]:
    """Returns offset and strides of NumPy's x[a:b:c].

    Bits of the masks mark bounds that are left out and axes that are removed.
    """
    strides = strides_of(shape)
    if ellipsis or new_axis:
        raise Unsupported("StridedSlice with an ellipsis or a new axis")
    offset, kept = 0, []
    for axis, extent in enumerate(shape):
        if axis >= len(begin):
            kept.append(strides[axis])
            continue
        bound = slice(
            None if begin_mask >> axis & 1 else begin[axis],
            None if end_mask >> axis & 1 else end[axis],
            step[axis],
        )
        if shrink >> axis & 1:
            first = begin[axis] % extent
        else:
            first = bound.indices(extent)[0]
            kept.append(strides[axis] * step[axis])
        offset += first * strides[axis]
    return offset, kept


def _transposed(node: Value) -> tuple[int, list[int]]:
    strides = strides_of(node.args[0].type.shape)
    return 0, [strides[axis] for axis in constant(node, 1)]


def _swapped(node: Value) -> tuple[int, list[int]]:
    strides = strides_of(node.args[0].type.shape)
    one, other = constant(node, 1), constant(node, 2)
    strides[one], strides[other] = strides[other], strides[one]
    return 0, strides


def _broadcast(node: Value) -> tuple[int, list[int]]:
    shape, strides = node.args[0].type.shape, strides_of(node.args[0].type.shape)
    new = len(node.type.shape) - len(shape)
    own = [s if extent > 1 else 0 for s, extent in zip(strides, shape, strict=True)]
    return 0, [0] * new + own


def _reversed(node: Value) -> tuple[int, list[int]]:
    shape, strides = node.args[0].type.shape, strides_of(node.args[0].type.shape)
    offset = 0
    for axis in (axis % len(shape) for axis in axes_of(axis_of(node))):
        offset += (shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    return offset, strides


def _narrowed(node: Value) -> tuple[int, list[int]]:
    strides = strides_of(node.args[0].type.shape)
    return constant(node, 2) * strides[axis_of(node)], strides


def _selected(node: Value) -> tuple[int, list[int]]:
    strides = strides_of(node.args[0].type.shape)
    axis = axis_of(node) % len(strides)
    at = constant(node, 2) % node.args[0].type.shape[axis]
    return at * strides[axis], strides[:axis] + strides[axis + 1 :]


def _diagonal(node: Value) -> tuple[int, list[int]]:
    shape, strides = node.args[0].type.shape, strides_of(node.args[0].type.shape)
    shift, one, other = (constant(node, i, d) for i, d in ((1, 0), (2, 0), (3, 1)))
    if node.op == "MatrixDiagPartV3":
        one, other = -2, -1
    if node.op == "DiagPart" and len(shape) != 2:
        raise Unsupported("DiagPart of more axes than two")
    one, other = one % len(shape), other % len(shape)
    offset = shift * strides[other] if shift > 0 else -shift * strides[one]
    rest = [stride for axis, stride in enumerate(strides) if axis not in (one, other)]
    return offset, [*rest, strides[one] + strides[other]]


def _taken(part: Value) -> tuple[int, list[int]]:
    """Returns offset and strides of a result of `Unstack`, `Split` or `Meshgrid`."""
    node, index = part.attrs["of"], part.attrs["index"]
    if node.op == "Meshgrid":
        axis = index if constant(node, 1) == 0 or index > 1 else 1 - index
        return 0, [1 if i == axis else 0 for i in range(len(part.type.shape))]
    shape, strides = part.args[0].type.shape, strides_of(part.args[0].type.shape)
    axis = int(axis_of(node)) % len(shape)
    if node.op == "Unstack":
        return index * strides[axis], strides[:axis] + strides[axis + 1 :]
    before = sum(node.type[i].shape[axis] for i in range(index))
    return before * strides[axis], strides


OFFSETS: dict[str, Callable[[Value], tuple[int, list[int]]]] = {
    "slice": _slice,
    "strided_slice": _strided_slice,
    "transposed": _transposed,
    "swapped": _swapped,
    "broadcast": _broadcast,
    "reversed": _reversed,
    "narrowed": _narrowed,
    "selected": _selected,
    "taken": _taken,
    "diagonal": _diagonal,
}
"""Functions that give the offset and strides of a view, see `Primitive.view`."""


def as_views(blocks: list[Block]) -> None:
    """Rewrites slices, transpositions and the like as offsets and strides, free if contiguous."""
    for block in blocks:
        for node in block.nodes:
            view = PRIMITIVES[node.op].view
            if view in OFFSETS:
                _make_view(node, *OFFSETS[view](node))
            elif node.op == "AddN":
                node.args = tensors(node)
            elif node.op in ELEMENTWISE:  # drops arguments of which only shape or type matters
                read = reads(node.op)
                node.args = [arg if i in read else None for i, arg in enumerate(node.args)]


def _make_view(node: Value, offset: int, strides: list[int]) -> None:
    shape = node.type.shape
    moving = [
        (extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1
    ]
    inner, dense = 1, True
    for extent, stride in reversed(moving):
        dense = dense and stride == inner
        inner *= extent
    node.op, node.args = "View" if dense else "Strided", node.args[:1]
    node.attrs = {"offset": offset, "strides": tuple(strides)}
