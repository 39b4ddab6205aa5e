"""Index arithmetic of fused loops: offsets, strides and nests."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from mindspore_rl.codegen.cfg import Unsupported
from mindspore_rl.codegen.effects import place_of
from mindspore_rl.codegen.ops.elementwise import BY_CHANNEL
from mindspore_rl.codegen.ops.updates import UPDATES
from mindspore_rl.codegen.ops.views import strides_of
from mindspore_rl.mindir.graph import Type, Value


def is_number(arg: Any) -> bool:
    """Returns whether an argument of an element-wise node is a tensor or number operand."""
    if not isinstance(arg, Value):
        return False
    return isinstance(arg.type, Type) or isinstance(arg.data, (bool, int, float))


def loop_type(node: Value) -> Type:
    """Returns the type over whose elements a node loops: that of its result or its target."""
    found: Type = node.args[0].type if node.op in UPDATES else node.type
    return found


def straight(node: Value, arg: Value) -> bool:
    """Returns whether turn i of a node's loop reads exactly element i of what holds an argument."""
    if arg.type is None:
        return True
    root, offset = place_of(arg)
    shape = loop_type(node).shape
    same = arg.type.size == loop_type(node).size == root.type.size
    return same and offset == 0 and access(node, arg) == (0, strides_of(shape))


def access(node: Value, arg: Value) -> tuple[int, list[int]]:
    """Returns the offset and strides, by the node's axes, of an element-wise node's argument."""
    if node.op == "Strided":
        return node.attrs["offset"], list(node.attrs["strides"])
    shape, own = loop_type(node).shape, arg.type.shape
    if node.op in BY_CHANNEL and len(own) == 1 < arg.type.size and len(shape) > 1:
        return 0, [1 if axis == 1 else 0 for axis in range(len(shape))]
    if arg.type.size == loop_type(node).size:
        return 0, strides_of(shape)
    if len(own) > len(shape):
        raise Unsupported(f"{node.op} of shapes {own} and {shape}")
    own = (1,) * (len(shape) - len(own)) + own
    strides = strides_of(own)
    for axis, (mine, theirs) in enumerate(zip(own, shape, strict=True)):
        if mine not in (1, theirs):
            raise Unsupported(f"{node.op} of shapes {own} and {shape}")
        if mine == 1:
            strides[axis] = 0
    return 0, strides


def stride_at(shape: tuple[int, ...], strides: list[int], inner: int, extent: int) -> int:
    """Returns the stride of a loop of `extent` turns, each over `inner` elements of the node."""
    if extent == 1:
        return 0
    size, begin, step = 1, 1, None  # of contiguous axes, merged into one
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            continue
        if step is None or strides[axis] != step * (size // begin):
            begin, step = size, strides[axis]
        size *= shape[axis]
        if size > inner:
            return step * (inner // begin)
    return 0


def splits_of(node: Value, arg: Value) -> set[int]:
    """Returns the numbers of neighbouring elements after which an argument's stride changes."""
    shape = loop_type(node).shape
    if 0 in shape:
        return set()
    _, strides = access(node, arg)
    found: set[int] = set()
    size, expected = 1, None
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            continue
        if expected is not None and strides[axis] != expected:
            found.add(size)
        size *= shape[axis]
        expected = strides[axis] * shape[axis]
    return found


def chain(splits: Iterable[int], size: int) -> tuple[int, ...] | None:
    """Returns the splits in order if each divides the next, else None."""
    ordered = sorted(set(splits))
    for one, other in zip(ordered, [*ordered[1:], size], strict=False):
        if other % one:
            return None
    return tuple(ordered)


def turns_of(splits: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Returns the extents of the loops, outermost first."""
    bounds = [1, *splits, size]
    turns = [after // before for before, after in zip(bounds, bounds[1:], strict=False)]
    return tuple(reversed(turns))


def inner_of(turns: tuple[int, ...]) -> list[int]:
    """Returns the number of elements in one turn of each loop."""
    return [int(np.prod(turns[level + 1 :], dtype=np.int64)) for level in range(len(turns))]
