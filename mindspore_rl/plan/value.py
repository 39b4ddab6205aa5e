"""Type of a variable: shape, dtype, and its axes of environments and agents."""

import math
from dataclasses import dataclass, replace

import numpy as np

_ENTRY_BYTES = {"none": 0, "bfloat16": 2}
"""Bytes of an entry of dtypes that NumPy does not know."""


@dataclass(frozen=True)
class Value:
    """The type of a variable; a tuple's elements are in `parts`.

    Attributes:
        shape: over all environments, e.g. `(128, 8, 4)`; `()` for a scalar or a tuple.
        axis: the axis of environments, or None for a replicated value.
        per_env: entries of that axis for one environment (minibatches hold several).
        agent_axis: the axis of agents, or None.
    """

    shape: tuple[int, ...]
    dtype: str
    axis: int | None = None
    per_env: int = 1
    parts: tuple["Value", ...] = ()
    agent_axis: int | None = None

    @property
    def leaves(self) -> tuple["Value", ...]:
        """The arrays of the value, in order."""
        if self.dtype != "tuple":
            return (self,)
        return tuple(leaf for part in self.parts for leaf in part.leaves)

    @property
    def split(self) -> bool:
        """True if the value has an axis of environments or of agents."""
        return self.split_by("env") or self.split_by("agent")

    def split_by(self, split: str) -> bool:
        """Returns whether the value is sharded by environments (`env`) or by agents (`agent`)."""
        return any(leaf.along(split) is not None for leaf in self.leaves)

    def along(self, split: str) -> int | None:
        """Returns the axis of environments (`env`) or of agents (`agent`) of an array."""
        return self.agent_axis if split == "agent" else self.axis

    def behind(self, rows: int) -> "Value":
        """Stacks the value of several turns along a new first axis: `[rows, ...]`."""
        axes = [None if axis is None else axis + 1 for axis in (self.axis, self.agent_axis)]
        return replace(self, shape=(rows, *self.shape), axis=axes[0], agent_axis=axes[1])

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def message_bytes(self) -> int:
        """The bytes of all arrays."""
        return sum(leaf.size * _entry_bytes(leaf.dtype) for leaf in self.leaves)


def _entry_bytes(dtype: str) -> int:
    known = _ENTRY_BYTES.get(dtype)
    return np.dtype(dtype).itemsize if known is None else known


def reduced_count(shape: tuple[int, ...], keep: int) -> int:
    """Counts the samples over which `reduce_samples` reduces."""
    return math.prod(shape[: len(shape) - keep])
