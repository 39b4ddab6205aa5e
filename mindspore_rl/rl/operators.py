"""Operators that generated cells call and that plain Python runs unchanged."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mindspore import (
    ParameterTuple,
    Tensor,
    bool_,
    float32,
    float64,
    int32,
    nn,
    ops,
    value_and_grad,
)
from mindspore.communication import get_group_size

from mindspore_rl.platform import mindspore_parser
from mindspore_rl.rl.by_place import Form, by_place, take_records
from mindspore_rl.rl.parameters import trainable
from mindspore_rl.rl.random import UNIT
from mindspore_rl.rl.records import is_record, made_of, values_of

take_records()

each = ops.Map()
"""Applies a function to the entries of tuples, as `map`: `each(function, ones, others)`.

MindSpore compiles it, with a primitive as the function, many times faster than a comprehension.
"""
reshape = ops.Reshape()
constant = ops.StopGradient()
NUMBERS = {"float": float32, "int": int32, "bool": bool_}
"""Types of Python's numbers in cells."""


def _share(term: Tensor, share: float) -> Tensor:
    return term.sum() * share


def gradient_function(
    loss: Callable, network: Any, count: int | None, forms: tuple[Form, ...] = ()
) -> Callable:
    """Makes the gradient of (sum of per-sample losses) / count, a partial sum of the mean's.

    Args:
        loss: returns `[n]`, or a tuple of `[n]` whose first entry is differentiated.
        network: the cell whose trainable parameters are differentiated by, or several, see
            `trainable`.
        count: samples on all workers together; None: the samples of each call.
        forms: the forms of the arguments, where records are given as tuples, see `by_place`.

    Returns: a function of the loss's arguments that returns `(grads, means, rows)`: two partial
        sums, and the tuple that the loss returned.
    """
    scale = 1.0 / count if count else 0.0
    loss = by_place(loss, forms)

    def mean_loss(*args):
        out = loss(*args)
        terms = out if isinstance(out, tuple) else (out,)
        share = scale if count else 1.0 / terms[0].size
        means = each(_share, terms, (share,) * len(terms))
        return means[0], means, terms

    differentiate = value_and_grad(
        mean_loss, None, ParameterTuple(trainable(network)), has_aux=True
    )

    def gradient(*args):
        (_, means, rows), grads = differentiate(*args)
        # Uncompiled, a later gradient of a loss that uses them would go on through this one.
        return grads, each(constant, means), each(constant, rows)

    return gradient


def reduce_samples(kind: str, value: Tensor, keep: int, count: int) -> Tensor:
    """Computes this replica's part of a reduction over all but the last `keep` axes.

    Args:
        kind: `mean` (the local sum divided by `count`), `sum`, `max` or `min`.
        value: any float array.
        keep: number of trailing axes that are not reduced.
        count: samples on all workers together (`mean` only).
    """
    axes = tuple(range(value.ndim - keep))
    if kind == "max":
        return ops.amax(value, axes)
    if kind == "min":
        return ops.amin(value, axes)
    total = value.sum(axes)
    return total * (1.0 / count) if kind == "mean" else total


def flatten(leaves: tuple) -> Tensor:
    """Concatenates arrays into one flat bucket, so that a collective is one call."""
    return ops.concat(each(reshape, leaves, ((-1,),) * len(leaves)))


def shaped(flat: Tensor, shapes: tuple) -> tuple:
    """Returns the parts of a flat vector `[P]` as arrays of these shapes, see `flatten`."""
    found: tuple = ()
    start = 0
    for shape in shapes:
        size = math.prod(shape)
        found = (*found, flat[start : start + size].reshape(shape))
        start += size
    return found


def rows(value: Any, count: int) -> Any:
    """Returns the rows of an array `[count, ...]` as a tuple; a tuple stays as it is.

    Raises:
        ValueError: the array has another number of rows.
    """
    if isinstance(value, tuple):
        return value
    if value.shape[0] != count:
        raise ValueError(f"{value.shape[0]} rows for {count} names")
    return tuple([value[k] for k in range(count)])


def joint(value: Tensor) -> Tensor:
    """Concatenates the values of all agents: `[B, A, ...]` becomes `[B, n]`."""
    return value.reshape((value.shape[0], -1))


def minibatch_rows(permutation: Tensor, number: Tensor, count: int, steps: int = 0) -> Tensor:
    """Returns the positions in a flattened `[T * B]` batch of minibatch `number` of `count`.

    Args:
        permutation: `[T, B]` int32 from `PermutationTable`; with segments `[T / steps, B]`.
        number: 0-d int32, index of the minibatch.
        count: minibatches in the batch.
        steps: steps of a segment; 0: single steps.

    Returns: `[T / count * B]` int32, time-major; with segments `[T / (count * steps) * B, steps]`.
    """
    rows = ops.gather(permutation.reshape((count, -1)), number, 0)
    if not steps:
        return rows
    behind = np.arange(steps, dtype=np.int32) * permutation.shape[1]
    return rows.expand_dims(-1) + Tensor(behind)


def take_rows(value: Tensor, rows: Tensor) -> Tensor:
    """Takes `value` `[T, B, ...]` at positions `[n]` or `[n, steps]` of the flattened batch."""
    flat = value.reshape((value.shape[0] * value.shape[1], *value.shape[2:]))
    return ops.gather(flat, rows, 0)


def own_rows(value: Tensor, numbers: Tensor, axis: int) -> Tensor:
    """Takes the rows of some environments, whose numbers are `[B]` int32, along an axis."""
    return ops.gather(value, numbers, axis)


def drawn_rows(
    noise: Tensor, inserted: Tensor, capacity: int, columns: Tensor, steps: int = 0
) -> Tensor:
    """Draws records: returns their positions in a flattened `[capacity * B]` replay.

    Args:
        noise: `[B, 2 k]` float32, uniform in [0, 1); used as in `random.below`, bit for bit.
        inserted: 0-d int32, records of each environment inserted so far.
        capacity: records of each environment that are kept.
        columns: `[B]` int32, 0 to B - 1.
        steps: length of windows of consecutive records; 0: single records.

    Returns: `[k * B]` int32, environments innermost; with windows `[k * B, steps]`.
    """
    filled = ops.minimum(inserted, capacity)
    starts = filled - steps + 1 if steps else filled
    each = noise.shape[1] // 2
    first, second = noise[:, :each].astype(float64), noise[:, each:].astype(float64)
    rows = ((first + second * UNIT).T * starts.astype(float64)).astype(int32)
    if not steps:
        return (rows * columns.shape[0] + columns).reshape(-1)
    behind = (inserted - filled + rows).expand_dims(-1) + Tensor(np.arange(steps, dtype=np.int32))
    found = behind % capacity * columns.shape[0] + columns.expand_dims(-1)
    return found.reshape((-1, steps))


def uniform(noise: Tensor, size: int) -> Tensor:
    """Reshapes numbers `[B, k * size]` of environments to `[k * B, size]`, envs innermost."""
    rows = noise.reshape((noise.shape[0], -1, size))
    return rows.transpose((1, 0, 2)).reshape((-1, size))


def entry(numbers: tuple, index: Any) -> Any:
    """Returns `numbers[index]`; in a cell the index is a tensor."""
    if isinstance(index, Tensor):
        table = Tensor(numbers, float32 if isinstance(sum(numbers), float) else int32)
        return ops.gather(table, ops.where(index < 0, index + len(numbers), index), 0)
    return numbers[index]


def opposite(value: Any) -> Any:
    """Returns `not value`, see `number`."""
    return ops.logical_not(number("bool", value)) if isinstance(value, Tensor) else not value


def either(value: Any, other: float) -> Any:
    """Returns `value or other`, see `number`; MindSpore cannot join an array and a number."""
    if isinstance(value, Tensor):
        return ops.where(number("bool", value), value, other)
    return value or other


def both(value: Any, other: float) -> Any:
    """Returns `value and other`, see `either`."""
    if isinstance(value, Tensor):
        return ops.where(number("bool", value), other, value)
    return value and other


def number(kind: str, value: Any) -> Any:
    """Returns `float(value)`, `int(value)` or `bool(value)`; of an array, an array `[]`.

    Raises:
        ValueError: `value` is an array of several numbers.
    """
    if isinstance(value, Tensor):
        return _one(kind, value).astype(NUMBERS[kind])
    if kind == "float":
        return float(value)
    return int(value) if kind == "int" else bool(value)


def extreme(name: str, value: Any, other: Any) -> Any:
    """Returns `max(value, other)` or `min(value, other)`, as Python does also of NaN.

    Args:
        name: `max` or `min`.
        value: a number, or an array of one number.
        other: likewise.

    Raises:
        ValueError: one is an array of several numbers.
    """
    if isinstance(value, Tensor) or isinstance(other, Tensor):
        return mindspore_parser.extreme(name, _one(name, value), _one(name, other))
    return max(value, other) if name == "max" else min(value, other)


def _one(name: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.size != 1:
        raise ValueError(f"`{name}` of an array of several numbers, expected one")
    return value.reshape(())


def only(values: Any) -> Any:
    """Returns the part of a tuple that has one, and any other value as it is."""
    if isinstance(values, tuple) and len(values) == 1:
        return values[0]
    return values


def folded(function: Any, values: tuple, *first: Any) -> Any:
    """Computes `functools.reduce`, which MindSpore does not compile."""
    total = first[0] if first else values[0]
    for value in values if first else values[1:]:
        total = function(total, value)
    return total


def numbers(count: int) -> Tensor:
    """Returns the array of a list of at most `count` numbers, which `put` fills."""
    return ops.zeros((count,), float32)


def put(numbers: Tensor, place: Any, value: Any) -> Tensor:
    """Returns a list's numbers `[n]` float32 with another one at a place.

    Raises:
        ValueError: `value` is something else than a real number.
    """
    if isinstance(value, Tensor) and (value.ndim > 0 or value.dtype != float32):
        raise ValueError(
            "a list that grows in a loop holds real numbers, and an array or a whole number is "
            "appended: append msrl.mean(...) or msrl.sum(...) of it, or insert the steps of all "
            "environments with msrl.replay_insert"
        )
    places = Tensor(np.arange(numbers.shape[0], dtype=np.int32))
    return ops.where(places == place, value, numbers)


def filled(array: Tensor, axis: int, place: Any, value: Any) -> Tensor:
    """Returns an array with another value at one place along an axis: `x[:, t] = value`.

    Raises:
        ValueError: the place is an array, such as a mask.
    """
    if isinstance(place, Tensor) and place.ndim > 0:
        raise ValueError("an array as the place of an assignment: write ops.where(mask, value, x)")
    size, behind = array.shape[axis], array.ndim - axis - 1
    places = Tensor(np.arange(size, dtype=np.int32)).reshape((size,) + (1,) * behind)
    if isinstance(value, Tensor):
        value = value.astype(array.dtype)
        if value.ndim > behind:
            value = value.expand_dims(value.ndim - behind)
    if isinstance(place, Tensor):
        place = ops.where(place < 0, place + size, place)
    elif place < 0:
        place += size
    return ops.where(places == place, value, array)


def reduce_numbers(kind: str, numbers: Tensor, count: Any) -> Tensor:
    """Reduces the first `count` of a list's numbers by `sum`, `mean`, `max` or `min`.

    The others are zero.
    """
    if kind in ("sum", "mean"):
        return numbers.sum() / count if kind == "mean" else numbers.sum()
    places = Tensor(np.arange(numbers.shape[0], dtype=np.int32))
    if kind == "max":
        return ops.amax(ops.where(places < count, numbers, -np.inf))
    return ops.amin(ops.where(places < count, numbers, np.inf))


def to_array(value: Any) -> np.ndarray:
    """Copies a tensor, an array or a number to a NumPy array."""
    return np.array(value.asnumpy() if isinstance(value, Tensor) else value)


def settle(value: Any) -> None:
    """Waits for the tensors in nested tuples, so that MindSpore's asynchronous errors show here."""
    for leaf in leaves(value):
        if isinstance(leaf, Tensor):
            leaf.asnumpy()


def leaves(value: Any) -> list[Any]:
    """Returns the arrays in nested tuples, records and dictionaries, flattened."""
    parts = _parts(value)
    return [value] if parts is None else [leaf for part in parts for leaf in leaves(part)]


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Returns the parts of a tuple, a list, a record or a dictionary; None for anything else."""
    if isinstance(value, dict):
        return tuple(value.values())
    if is_record(value):
        return values_of(value)
    return tuple(value) if isinstance(value, (tuple, list)) else None


def put_into(form: Any, arrays: Iterator[Any]) -> Any:
    """Arrays in the order of `leaves`, in the nested tuples and records of another value."""
    parts = _parts(form)
    if parts is None:
        return next(arrays)
    made = tuple([put_into(part, arrays) for part in parts])
    if isinstance(form, dict):
        return dict(zip(form, made, strict=True))
    return made_of(type(form), made) if is_record(form) else made


class GatherAndReduce(nn.Cell):
    """Maximum or minimum over a group; MindSpore's CPU group can only sum and gather."""

    def __init__(self, group: str, reduction: str) -> None:
        super().__init__()
        self.gather = ops.AllGather(group)
        self.members = get_group_size(group)
        self.function = ops.amax if reduction == "max" else ops.amin

    def construct(self, flat: Tensor) -> Tensor:
        """Reduces a flat bucket."""
        return self.function(self.gather(flat).reshape((self.members, -1)), 0)


class ScatterAndGather(nn.Cell):
    """Sum over a group by ReduceScatter and AllGather, as many bytes as AllReduce.

    With two AllReduces in a graph, MindSpore's GPU plug-in puts them on a stream of their own and
    fails to link it ("The pointer[send_actor] is null").
    """

    def __init__(self, group: str) -> None:
        super().__init__()
        self.scatter = ops.ReduceScatter(ops.ReduceOp.SUM, group)
        self.gather = ops.AllGather(group)
        self.members = get_group_size(group)

    def construct(self, flat: Tensor) -> Tensor:
        """Reduces a flat bucket, padded so that all members get equal parts."""
        missing = -flat.shape[0] % self.members
        padded = ops.concat((flat, ops.zeros((missing,), flat.dtype))) if missing else flat
        return self.gather(self.scatter(padded))[: flat.shape[0]]
