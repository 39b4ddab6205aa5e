"""Row rules: from the shardings of a primitive's arguments to that of its result.

`mindir.primitives` names the rule of each primitive. A primitive without a rule is assumed to
possibly mix rows.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from mindspore_rl.compiler.analysis.row_lattice import REPLICATED, Call, Rule, Sharding, Undecided
from mindspore_rl.mindir.graph import Type


def _elementwise(call: Call) -> Sharding:
    """Keeps the rows of broadcast arguments if all have them on the same axis of the result."""
    places = {(r.axis - len(shape), r.inner) for r, shape in call.parts() if r.kind == "sharded"}
    behind, inner = call.one(places)
    return Sharding("sharded", len(call.out) + behind, inner)


def _reduces(call: Call) -> Sharding:
    """Handles reductions that remove axes or keep them with extent 1.

    A reduction over the row axis mixes rows even if its result is an index or a boolean.
    """
    sharding, axes = call.only(0), call.axes()
    if sharding.axis in axes:
        return call.mixed()
    first = call.node.type[0] if isinstance(call.node.type, tuple) else call.node.type
    kept = isinstance(first, Type) and len(first.shape) == len(call.shape(0))
    return replace(sharding, axis=sharding.axis - (not kept) * sum(a < sharding.axis for a in axes))


def _along(call: Call) -> Sharding:
    """Handles operations along axes that keep the other axes, such as cumulative sums."""
    sharding = call.only(0)
    return call.mixed() if sharding.axis in call.axes() else sharding


def _reshapes(call: Call) -> Sharding:
    """Finds the axis of rows after a reshape; mixed if no single axis has them."""
    sharding, before = call.only(0), call.shape(0)
    stride = sharding.inner * int(np.prod(before[sharding.axis + 1 :], dtype=int))
    for axis, extent in enumerate(call.out):
        behind = int(np.prod(call.out[axis + 1 :], dtype=int))
        if behind and stride % behind == 0 and extent % (stride // behind * call.count) == 0:
            return Sharding("sharded", axis, stride // behind)
    return call.mixed()


def _transposes(call: Call) -> Sharding:
    sharding, rank = call.only(0), len(call.shape(0))
    order = [axis % rank for axis in call.constant(1, "perm")]
    return replace(sharding, axis=order.index(sharding.axis))


def _swaps(call: Call) -> Sharding:
    sharding, rank = call.only(0), len(call.shape(0))
    one, other = (call.constant(at) % rank for at in (1, 2))
    return replace(sharding, axis={one: other, other: one}.get(sharding.axis, sharding.axis))


def _concatenates(call: Call) -> Sharding:
    parts = [(r, shape) for r, shape in call.parts() if shape]
    sharding = call.one({r for r, _ in parts if r.kind == "sharded"})
    axis = call.axis() % len(call.out)
    return (
        call.mixed()
        if axis == sharding.axis and any(r == REPLICATED for r, _ in parts)
        else sharding
    )


def _stacks(call: Call) -> Sharding:
    sharding = call.one({r for r, _ in call.parts() if r.kind == "sharded"})
    axis = call.axis() % len(call.out)
    return replace(sharding, axis=sharding.axis + (axis <= sharding.axis))


def _splits(call: Call) -> Sharding:
    """Handles primitives that split an axis into several results."""
    sharding = call.only(0)
    if sharding.axis not in call.axes():
        return sharding
    period, extents = sharding.inner * call.count, [t.shape[sharding.axis] for t in call.node.type]
    return call.mixed() if any(extent % period for extent in extents) else sharding


def _drops_axis(call: Call) -> Sharding:
    """Handles `Unstack(x, axis)` and `SelectExtView(x, dim, i)`, whose results lack the axis."""
    sharding, rank = call.only(0), len(call.shape(0))
    axis = call.axis() % rank
    if axis == sharding.axis:
        return call.mixed()
    return replace(sharding, axis=sharding.axis - (axis < sharding.axis))


def _slices_strided(call: Call) -> Sharding:
    sharding, shape = call.only(0), call.shape(0)
    begin, end, strides = (call.constant(at) for at in (1, 2, 3))
    masks = [call.constant(at, name) for at, name in enumerate(_MASKS, 4)]
    begin_mask, end_mask, ellipsis, new_axes, shrinks = masks
    if ellipsis or new_axes:
        raise Undecided
    gone = 0
    for axis in range(len(begin)):
        bit = 1 << axis
        if axis < sharding.axis:
            gone += bool(shrinks & bit)
        elif axis == sharding.axis:
            if shrinks & bit:
                return call.mixed()
            first = None if begin_mask & bit else begin[axis]
            last = None if end_mask & bit else end[axis]
            taken = np.arange(shape[axis])[first : last : strides[axis]]
            return call.laid_out(sharding, taken, axis - gone)
    return replace(sharding, axis=sharding.axis - gone)


_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def _slices(call: Call) -> Sharding:
    sharding = call.only(0)
    begin = call.constant(1)[sharding.axis]
    taken = begin + np.arange(call.out[sharding.axis])
    return call.laid_out(sharding, taken, sharding.axis)


def _slices_one(call: Call) -> Sharding:
    """Handles a range of one axis: `SliceExt(x, dim, start, end, step)`."""
    sharding, shape = call.only(0), call.shape(0)
    axis = call.axis() % len(shape)
    if axis != sharding.axis:
        return sharding
    taken = np.arange(shape[axis])[slice(*(call.constant(at) for at in (2, 3, 4)))]
    return call.laid_out(sharding, taken, axis)


def _narrows(call: Call) -> Sharding:
    """Handles `Narrow(x, dim, start, length)`."""
    sharding = call.only(0)
    start, length = call.constant(2), call.constant(3)
    if call.axis() % len(call.shape(0)) != sharding.axis:
        return sharding
    return call.laid_out(sharding, start + np.arange(length), sharding.axis)


def _gathers(call: Call) -> Sharding:
    table, indices = call.given[0], call.given[1]
    rank, more = len(call.shape(0)), len(call.shape(1))
    axis = call.axis() % rank
    if call.node.attrs.get("batch_dims") or (len(call.node.args) > 3 and call.constant(3)):
        raise Undecided
    if table == REPLICATED:
        return replace(indices, axis=axis + indices.axis)
    if indices != REPLICATED:
        if axis == table.axis:
            raise Undecided  # each row may gather its own entries
        return call.mixed()
    if axis != table.axis:
        return replace(table, axis=table.axis + (more - 1 if axis < table.axis else 0))
    taken = np.asarray(call.constant(1))
    if taken.ndim != 1:
        raise Undecided
    return call.laid_out(table, taken, axis)


def _gathers_elements(call: Call) -> Sharding:
    axis = call.axis() % len(call.out)
    sharding = call.one({call.given[0], call.given[2]} - {REPLICATED})
    if sharding.axis == axis and call.given[0] != REPLICATED:
        raise Undecided
    if call.out[sharding.axis] % (call.count * sharding.inner):
        return call.mixed()
    return sharding


def _scatters_elements(call: Call) -> Sharding:
    """Handles `TensorScatterElements(x, indices, updates)` along one axis."""
    axis = call.axis() % len(call.out)
    if any(sharding.axis == axis for sharding, _ in call.parts() if sharding.kind == "sharded"):
        raise Undecided
    return _elementwise(call)


def _gathers_points(call: Call) -> Sharding:
    """Handles `GatherNd`: the last axis of the indices is a point in the table's first axes."""
    table, indices = call.given[0], call.given[1]
    depth = call.shape(1)[-1]
    if table == REPLICATED and indices.axis < len(call.shape(1)) - 1:
        return indices
    if indices == REPLICATED and table.axis >= depth:
        return replace(table, axis=len(call.shape(1)) - 1 + table.axis - depth)
    raise Undecided


def _scatters_points(call: Call) -> Sharding:
    """Handles `TensorScatterUpdate(x, indices, updates)`: points in x's first axes, as above."""
    (x, indices, updates), depth = call.given[:3], call.shape(1)[-1]
    before = len(call.shape(1)) - 1 - depth  # axes of the indices in place of those of the points
    if indices != REPLICATED or (x != REPLICATED and x.axis < depth):
        raise Undecided
    places = [] if x == REPLICATED else [x]
    if updates != REPLICATED:
        if updates.axis < depth + before:
            raise Undecided
        places.append(replace(updates, axis=updates.axis - before))
    return call.one(set(places))


def _contracts(call: Call) -> Sharding:
    """Handles products of matrices, batched ones included."""
    given, shapes = call.given[:2], (call.shape(0), call.shape(1))
    transposed = [
        bool(call.node.attrs.get(name) or (len(call.node.args) > at and call.constant(at)))
        for at, name in ((2, "transpose_a"), (3, "transpose_b"))
    ]
    places = set()
    for at, (sharding, shape, turned) in enumerate(zip(given, shapes, transposed, strict=True)):
        if sharding == REPLICATED:
            continue
        behind = sharding.axis - len(shape)
        summed_up = -2 if (at == 0) == turned else -1
        if len(shape) == 1 or behind == summed_up:
            return call.mixed()
        if 1 in map(len, shapes):
            raise Undecided  # the axis of a vector is not in the result
        places.add((behind if behind < -2 else -2 + at, sharding.inner))
    behind, inner = call.one(places)
    return Sharding("sharded", len(call.out) + behind, inner)


def _by_batch(call: Call) -> Sharding:
    """Handles primitives of batches: rows on axis 0 of every argument stay on axis 0."""
    found = set(call.given) - {REPLICATED}
    if found != {Sharding("sharded", 0)}:
        raise Undecided
    return Sharding("sharded", 0)


def _convolves(call: Call) -> Sharding:
    """Handles convolutions: rows on axis 0 of the images stay there; weights are replicated."""
    sharding = call.only(0)
    if sharding.axis != 0:
        raise Undecided
    return sharding


def _normalises(call: Call) -> Any:
    """Handles `LayerNorm` over the last axes; its mean and deviation keep the other axes."""
    sharding, rank = call.only(0), len(call.shape(0))
    if call.node.op == "LayerNorm":
        begin = call.constant(3, "begin_norm_axis") % rank
    else:  # the argument is the normalised shape
        begin = rank - len(call.constant(1))
    return call.mixed() if sharding.axis >= begin else sharding


def _broadcasts(call: Call) -> Sharding:
    sharding = call.only(0)
    return replace(sharding, axis=sharding.axis + len(call.out) - len(call.shape(0)))


def _repeats(call: Call) -> Sharding:
    """Handles `RepeatElements` and `RepeatInterleaveInt`, which repeat each entry of an axis."""
    sharding = call.only(0)
    before, after = call.shape(0), call.out
    if len(before) != len(after):
        raise Undecided
    return replace(sharding, inner=sharding.inner * after[sharding.axis] // before[sharding.axis])


def _one_hot(call: Call) -> Sharding:
    sharding, rank = call.only(0), len(call.out)
    axis = call.axis() % rank
    return replace(sharding, axis=sharding.axis + (axis <= sharding.axis))


def _searches(call: Call) -> Sharding:
    """Handles `SearchSorted(sequence, values)` along the last axis of both."""
    sharding = call.one(set(call.given[:2]) - {REPLICATED})
    in_values = call.given[1] != REPLICATED and len(call.shape(0)) == 1
    if sharding.axis == len(call.shape(1)) - 1 and not in_values:
        return call.mixed()
    return sharding


RULES: dict[str, Rule] = {
    "first": lambda call: call.only(0),
    "mixes": lambda call: call.mixed(),
    "elementwise": _elementwise,
    "reduces": _reduces,
    "along": _along,
    "reshapes": _reshapes,
    "transposes": _transposes,
    "swaps": _swaps,
    "concatenates": _concatenates,
    "stacks": _stacks,
    "splits": _splits,
    "drops_axis": _drops_axis,
    "slices_strided": _slices_strided,
    "slices": _slices,
    "slices_one": _slices_one,
    "narrows": _narrows,
    "gathers": _gathers,
    "gathers_elements": _gathers_elements,
    "gathers_points": _gathers_points,
    "scatters_points": _scatters_points,
    "scatters_elements": _scatters_elements,
    "contracts": _contracts,
    "by_batch": _by_batch,
    "convolves": _convolves,
    "normalises": _normalises,
    "broadcasts": _broadcasts,
    "repeats": _repeats,
    "one_hot": _one_hot,
    "searches": _searches,
}
"""The rules by name, see `Primitive.rows`."""
