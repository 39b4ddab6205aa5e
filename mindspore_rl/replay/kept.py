"""Kept replay of a Python loop: rings of the newest records, one per environment."""

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_rl.errors import CheckpointError, ReplayError
from mindspore_rl.platform.resources import available_memory
from mindspore_rl.replay.weights import Weights, newest_rows, weights_of
from mindspore_rl.rl.random import below


class KeptReplay:
    """Ring buffers in columns `[capacity, B, ...]`, a lane for each environment.

    In a replay with priorities, the last column holds the weights.

    Args:
        num_envs: B.
        num_envs_of_job: on all ranks together.
        folder: where the columns are memory-mapped files; empty: in memory.

    Attributes:
        columns: arrays, or buffers of a cell that writes and draws by itself.
        dtypes: dtypes in which such buffers are saved.
        inserted: number of records ever inserted for each environment, `[B]` int64. They are equal
            where all environments write the same rows together, in synchronous runs.
        began: number of records of each environment of the job when the run began, int64.
        sources: in an asynchronous run: the environments whose records the next write has, in this
            order; else empty.
    """

    def __init__(self, num_envs: int, num_envs_of_job: int = 0, folder: str = "") -> None:
        self.folder = folder
        self.columns: list[Any] = []
        self.dtypes: list[str] = []
        self.inserted = np.zeros(num_envs, np.int64)
        self.began = np.zeros(num_envs_of_job or num_envs, np.int64)
        self.sources: list[slice] = []
        self._weights = Weights()
        self._places = slice(None)  # the written environments on the axis B

    def part(self, places: slice) -> "KeptReplay":
        """Returns a view of this replay for a writer of only some of the environments.

        Args:
            places: of these environments on the axis B.
        """
        part = KeptReplay(0, folder=self.folder)
        part.columns, part.inserted, part._weights = self.columns, self.inserted, self._weights
        part._places = places
        return part

    def write(self, capacity: int, *values: np.ndarray, weighted: bool = False) -> None:
        """Writes a record of each environment, values `[B, ...]`."""
        self.extend(capacity, *(value[None] for value in values), weighted=weighted)

    def extend(self, capacity: int, *stacks: np.ndarray, weighted: bool = False) -> None:
        """Writes several records of each environment, values `[rows, B, ...]`."""
        if not self.sources:
            self._extend(capacity, stacks, weighted)
            return
        first = 0
        for places in self.sources:
            end = first + places.stop - places.start
            self.part(places)._extend(capacity, [stack[:, first:end] for stack in stacks], weighted)
            first = end

    def _extend(self, capacity: int, stacks: Sequence[np.ndarray], weighted: bool) -> None:
        self._make(capacity, stacks, weighted)
        own = self.inserted[self._places]
        if (own != own[0]).any():  # after an asynchronous run
            for number, lane in enumerate(range(len(self.inserted))[self._places]):
                stack_of_lane = [stack[:, number : number + 1] for stack in stacks]
                self.part(slice(lane, lane + 1))._extend(capacity, stack_of_lane, weighted)
            return
        row, rows = int(own[0]) % capacity, len(stacks[0])
        if weighted:
            newest = self._weighed().largest(self._places)
            at = (row + np.arange(rows)) % capacity
            self._weighed().put(at, self._places, np.broadcast_to(newest, (rows, len(newest))))
        first = min(rows, capacity - row)
        for column, stack in zip(self._values, stacks, strict=True):
            column[row : row + first, self._places] = stack[:first]
            if first < rows:
                column[: rows - first, self._places] = stack[first:]
        own += rows

    def draw(self, noise: np.ndarray, steps: int = 0) -> tuple[np.ndarray, ...]:
        """Draws records uniformly, equally many for each environment, see `drawn_rows`.

        Args:
            noise: `[B, 2 k]` uniform in [0, 1), see `random.below`, or `[turns, B, 2 k]` for
                several draws.
            steps: consecutive records of a window; 0: single records.

        Returns: columns `[k * B, ...]`, environments innermost, windows `[k * B, steps, ...]`; for
            several draws `[turns, ...]`.
        """
        filled, capacity = self.filled, len(self.columns[0])
        rows = below(noise, (filled - max(steps, 1) + 1)[:, None]).swapaxes(-1, -2)
        if steps:
            rows = (self.inserted - filled + rows) % capacity
        return self._taken(self._values, rows, capacity, steps)

    def draw_weighted(self, noise: np.ndarray, steps: int = 0) -> tuple[np.ndarray, ...]:
        """Draws records in proportion to their priorities, see `weighted_rows`.

        Returns: columns `[k * B, ...]`, then the rows, for `update`, and the ratio of each row's
            probability to that of a uniform draw.
        """
        capacity = len(self.columns[0])
        newest = newest_rows(self.inserted, capacity, steps)
        rows, odds = self._weighed().draw(noise, self.filled, newest)
        taken = self._taken(self._values, rows, capacity, steps)
        return (*taken, rows.reshape(-1), odds.reshape(-1))

    @property
    def filled(self) -> np.ndarray:
        """Number of records of each environment that can be drawn, `[B]` int64."""
        return np.minimum(self.inserted, len(self.columns[0]))

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

    @property
    def _values(self) -> list[Any]:
        """The columns without the weights, if there are any; there must have been a write."""
        return self.columns if self._weights.rows is None else self.columns[:-1]

    def _weighed(self) -> Weights:
        """Returns the weights; rebuilds their sums if the column was made or restored."""
        if self._weights.rows is not self.columns[-1]:
            self._weights.take(self.columns[-1])
        return self._weights

    def _make(self, capacity: int, stacks: Sequence[np.ndarray], weighted: bool) -> None:
        """Allocates the columns before the first write, and checks the capacity."""
        if not self.columns:
            kinds = [(stack.shape[2:], stack.dtype) for stack in stacks]
            kinds += [((), np.dtype(np.int64))] if weighted else []
            extent = capacity, len(self.inserted)
            each = sum(math.prod(shape) * dtype.itemsize for shape, dtype in kinds)
            size, free = math.prod(extent) * each, available_memory()
            if size > free and not self.folder:
                raise ReplayError(
                    f"{capacity:,} records of each environment take {size / 1e6:,.0f} MB of "
                    f"memory, and {free / 1e6:,.0f} MB are free: keep fewer, or keep them in a "
                    "file (--replay-dir)"
                )
            self.columns += [self.empty((*extent, *shape), dtype) for shape, dtype in kinds]
        if weighted:
            self._weighed()
        if (found := len(self.columns[0])) != capacity:
            raise CheckpointError(
                f"the replay holds {found} records of each environment in the checkpoint and "
                f"{capacity} here: leave what is kept as it was"
            )
