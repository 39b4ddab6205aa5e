"""Kept replay of a Python loop: rings of the newest records, one per environment."""

import math
import mmap
import os
import tempfile
from typing import Any

import numpy as np

from mindspore_rl.errors import CheckpointError, ReplayError
from mindspore_rl.platform.resources import available_memory
from mindspore_rl.replay.weights import ONE, Weights, weights_of
from mindspore_rl.rl.random import below


class KeptReplay:
    """Ring buffers in columns `[capacity, B, ...]`; all environments write the same rows together.

    In a replay with priorities, the last column holds the weights.

    Args:
        folder: where the columns are memory-mapped files; empty: in memory.

    Attributes:
        columns: arrays, or buffers of a cell that writes and draws by itself.
        dtypes: dtypes in which such buffers are saved.
    """

    def __init__(self, folder: str = "") -> None:
        self.folder = folder
        self.columns: list[Any] = []
        self.dtypes: list[str] = []
        self._weights = Weights()
        self._part: tuple[slice, int] | None = None

    def part(self, places: slice, num_envs: int) -> "KeptReplay":
        """Returns a view of this replay for a writer of only some of the environments.

        Args:
            places: of these environments on the axis B.
            num_envs: B.
        """
        part = KeptReplay(self.folder)
        part.columns, part._part = self.columns, (places, num_envs)
        part._weights = self._weights
        return part

    def write(self, capacity: int, row: int, *values: np.ndarray, weighted: bool = False) -> None:
        """Writes a record of each environment, values `[B, ...]`."""
        if weighted:
            values = (*values, self._newest_weights(len(values[0])))
        self._make(capacity, values)
        if weighted:
            self._weighed().put(np.array([row]), self._places, values[-1][None])
        for column, value in zip(self.columns, values, strict=True):
            column[(row, self._part[0]) if self._part else row] = value

    def extend(self, capacity: int, row: int, *stacks: np.ndarray, weighted: bool = False) -> None:
        """Writes several records of each environment from a row on, values `[rows, B, ...]`."""
        if weighted:
            newest = self._newest_weights(stacks[0].shape[1])
            stacks = (*stacks, np.broadcast_to(newest, (len(stacks[0]), *newest.shape)))
        self._make(capacity, [stack[0] for stack in stacks])
        first = min(len(stacks[0]), capacity - row)
        if weighted:
            rows = (row + np.arange(len(stacks[0]))) % capacity
            self._weighed().put(rows, self._places, stacks[-1])
        for column, stack in zip(self.columns, stacks, strict=True):
            column[row : row + first] = stack[:first]
            column[: len(stack) - first] = stack[first:]

    def draw(
        self, noise: np.ndarray, inserted: int, capacity: int, steps: int = 0
    ) -> tuple[np.ndarray, ...]:
        """Draws records uniformly, equally many for each environment, see `drawn_rows`.

        Args:
            noise: `[B, 2 k]` uniform in [0, 1), see `random.below`, or `[turns, B, 2 k]` for
                several draws.
            inserted: number of records ever inserted for each environment.
            capacity: number of records kept for each environment.
            steps: consecutive records of a window; 0: single records.

        Returns: columns `[k * B, ...]`, environments innermost, windows `[k * B, steps, ...]`; for
            several draws `[turns, ...]`.
        """
        filled = min(inserted, capacity)
        rows = below(noise, filled - max(steps, 1) + 1).swapaxes(-1, -2)
        if steps:
            rows = (inserted - filled + rows) % capacity
        return self._taken(self._values, rows, capacity, steps)

    def draw_weighted(
        self, noise: np.ndarray, inserted: int, capacity: int, steps: int = 0
    ) -> tuple[np.ndarray, ...]:
        """Draws records in proportion to their priorities, see `weighted_rows`.

        Returns: columns `[k * B, ...]`, then the rows, for `update`, and the ratio of each row's
            probability to that of a uniform draw.
        """
        newest = [(inserted - 1 - i) % capacity for i in range(steps - 1)]
        rows, odds = self._weighed().draw(noise, min(inserted, capacity), newest)
        taken = self._taken(self._values, rows, capacity, steps)
        return (*taken, rows.reshape(-1), odds.reshape(-1))

    def records(
        self, rows: np.ndarray, places: np.ndarray, steps: int = 0
    ) -> tuple[np.ndarray, ...]:
        """Gathers records, or windows from there on, at rows `[n]` of the environments `places`."""
        if steps:
            rows = (rows[:, None] + np.arange(steps)) % len(self.columns[0])
            places = places[:, None]
        at = rows * self.columns[0].shape[1] + places
        return tuple(column.reshape(-1, *column.shape[2:]).take(at, 0) for column in self._values)

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities of rows, both `[k * B]`, environments innermost."""
        num_envs = self.columns[-1].shape[1]
        rows, found = (np.reshape(x, (-1, num_envs)) for x in (rows, priorities))
        self._weighed().update(rows, weights_of(found))

    def add(self, buffer: Any, dtype: str) -> None:
        """Registers a column that a cell writes and reads itself, perhaps in another dtype."""
        self.columns.append(buffer)
        self.dtypes.append(dtype)

    def restore(self, columns: list[np.ndarray]) -> None:
        """Replaces the columns by those of a checkpoint."""
        self.columns[:] = columns

    @staticmethod
    def _taken(
        columns: list[Any], rows: np.ndarray, capacity: int, steps: int
    ) -> tuple[np.ndarray, ...]:
        """Gathers rows `[..., k, B]` of columns as `[..., k * B, ...]`, or windows from there."""
        count, behind = rows.shape[-1], (steps,) if steps else ()
        if steps:
            rows = (rows[..., None, :] + np.arange(steps)[:, None]) % capacity
        places = rows * count + np.arange(count)
        if steps:
            places = places.swapaxes(-1, -2)
        places = places.reshape(*rows.shape[: -2 - len(behind)], -1, *behind)
        return tuple(column.reshape(-1, *column.shape[2:]).take(places, 0) for column in columns)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Allocates a column of zeros.

        Raises:
            ReplayError: the folder has too little space.
        """
        if not self.folder:
            return np.zeros(shape, dtype)
        count = math.prod(shape)
        size = max(1, count * dtype.itemsize)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:  # unnamed: freed when unmapped
                os.posix_fallocate(file.fileno(), 0, size)
                return np.frombuffer(mmap.mmap(file.fileno(), size), dtype, count).reshape(shape)
        except OSError as error:
            raise ReplayError(
                f"{size / 1e6:,.1f} MB of records cannot be kept in {self.folder} "
                f"({error.strerror}): free some space, or name another --replay-dir"
            ) from error

    def _newest_weights(self, num_envs: int) -> np.ndarray:
        """Returns the weights of new records: the largest of each environment, to be drawn soon."""
        if not self.columns:
            return np.full(num_envs, ONE, np.int64)
        return self._weighed().largest(self._places)

    @property
    def _values(self) -> list[Any]:
        """The columns without the weights, if there are any; there must have been a write."""
        return self.columns if self._weights.rows is None else self.columns[:-1]

    @property
    def _places(self) -> slice:
        """The written environments on the axis B."""
        return self._part[0] if self._part else slice(None)

    def _weighed(self) -> Weights:
        """Returns the weights; rebuilds their sums if the column was made or restored."""
        if self._weights.rows is not self.columns[-1]:
            self._weights.take(self.columns[-1])
        return self._weights

    def _make(self, capacity: int, values: Any) -> None:
        if not self.columns:
            each = self._part[1] / len(values[0]) if self._part else 1
            size, free = capacity * each * sum(value.nbytes for value in values), available_memory()
            if size > free and not self.folder:
                raise ReplayError(
                    f"{capacity:,} records of each environment take {size / 1e6:,.0f} MB of "
                    f"memory, and {free / 1e6:,.0f} MB are free: keep fewer, or keep them in a "
                    "file (--replay-dir)"
                )
        for value in () if self.columns else values:
            shape = value.shape[1:] if self._part else value.shape
            extent = (capacity, self._part[1]) if self._part else (capacity,)
            self.columns.append(self.empty((*extent, *shape), value.dtype))
        if (found := len(self.columns[0])) != capacity:
            raise CheckpointError(
                f"the replay holds {found} records of each environment in the checkpoint and "
                f"{capacity} here: leave what is kept as it was"
            )
