"""Operators that generated cells call and that plain Python runs unchanged."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import ParameterTuple, Tensor, float32, float64, int32, nn, ops, value_and_grad
from mindspore.communication import get_group_size

from mindspore_rl.rl.random import UNIT


def gradient_function(loss: Callable, network: nn.Cell, count: int | None) -> Callable:
    """The gradient of (sum of per-sample losses) / count: one share of the mean's gradient.

    Args:
        loss: returns `[n]`, or a tuple of `[n]` whose first entry is differentiated.
        network: the cell by whose trainable parameters is differentiated.
        count: samples on all workers together; None: those that it is called with.

    Returns: a function of the loss's arguments that gives `(grads, means)`, both shares of sums.
    """
    scale = 1.0 / count if count else 0.0

    def mean_loss(*args):
        out = loss(*args)
        terms = out if isinstance(out, tuple) else (out,)
        share = scale if count else 1.0 / terms[0].size
        means = tuple([term.sum() * share for term in terms])
        return means[0], means

    differentiate = value_and_grad(
        mean_loss, None, ParameterTuple(network.trainable_params()), has_aux=True
    )

    def gradient(*args):
        (_, means), grads = differentiate(*args)
        return grads, means

    return gradient


def reduce_samples(kind: str, value: Tensor, keep: int, count: int) -> Tensor:
    """One share of a reduction over all but the last `keep` axes.

    Args:
        kind: `mean` (the sum over `count`), `sum`, `max` or `min`.
        value: any float array.
        keep: trailing axes that stay.
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
    """One flat bucket of several arrays, so that a collective is one call."""
    return ops.concat(tuple([leaf.reshape(-1) for leaf in leaves]))


def joint(value: Tensor) -> Tensor:
    """What all agents have, side by side: `[B, A, ...]` becomes `[B, n]`."""
    return value.reshape((value.shape[0], -1))


def minibatch_rows(permutation: Tensor, number: Tensor, count: int, steps: int = 0) -> Tensor:
    """Positions in a flattened `[T * B]` batch of minibatch `number` of `count`.

    Args:
        permutation: `[T, B]` int32 from `PermutationTable`, of segments `[T / steps, B]`.
        number: 0-d int32.
        count: minibatches in the batch.
        steps: of a segment; 0: single steps.

    Returns: `[T / count * B]` int32, time-major; of segments `[T / (count * steps) * B, steps]`.
    """
    rows = ops.gather(permutation.reshape((count, -1)), number, 0)
    if not steps:
        return rows
    behind = np.arange(steps, dtype=np.int32) * permutation.shape[1]
    return rows.expand_dims(-1) + Tensor(behind)


def take_rows(value: Tensor, rows: Tensor) -> Tensor:
    """`value` `[T, B, ...]` at positions `[n]` of the flattened batch, or `[n, steps]`."""
    flat = value.reshape((value.shape[0] * value.shape[1], *value.shape[2:]))
    return ops.gather(flat, rows, 0)


def drawn_rows(
    noise: Tensor, inserted: Tensor, capacity: int, columns: Tensor, steps: int = 0
) -> Tensor:
    """Positions in a flattened `[capacity * B]` replay of the records that random numbers choose.

    Args:
        noise: `[B, 2 k]` float32, uniform in [0, 1); these draw as `random.below`, bit for bit.
        inserted: 0-d int32, records of each environment that ever were.
        capacity: how many of them are kept.
        columns: `[B]` int32, 0 to B - 1.
        steps: of windows of records one after the other; 0: single records.

    Returns: `[k * B]` int32, environments innermost; of windows `[k * B, steps]`.
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
    """`[B, k * size]` numbers of each environment as `[k * B, size]`, environments innermost."""
    rows = noise.reshape((noise.shape[0], -1, size))
    return rows.transpose((1, 0, 2)).reshape((-1, size))


def entry(numbers: tuple, index: Any) -> Any:
    """`numbers[index]`, by an index that a cell has as a tensor."""
    if isinstance(index, Tensor):
        table = Tensor(numbers, float32 if isinstance(sum(numbers), float) else int32)
        return ops.gather(table, ops.where(index < 0, index + len(numbers), index), 0)
    return numbers[index]


def to_array(value: Any) -> np.ndarray:
    """A NumPy copy of a tensor, an array or a number."""
    return np.array(value.asnumpy() if isinstance(value, Tensor) else value)


def settle(value: Any) -> None:
    """Waits for the tensors in nested tuples: MindSpore raises an error at a later operation."""
    for leaf in leaves(value):
        if isinstance(leaf, Tensor):
            leaf.asnumpy()


def leaves(value: Any) -> list[Any]:
    """The arrays in nested tuples."""
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


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
