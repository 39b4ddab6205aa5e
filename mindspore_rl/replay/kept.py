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
from mindspore_rl.replay.frames import (
    FrameColumn,
    FrameRings,
    FrameStore,
    Kind,
    frames_of,
    make_store,
    numbers_of,
)
from mindspore_rl.replay.rings import Rings, make_rings

WEIGHT_BYTES = 10
"""Size of a record's weight, with its share of sums and maxima."""


class KeptReplay:
    """Ring buffers in columns `[capacity, B, ...]`, a lane for each environment.

    The columns of a record are side by side in memory, and records of an environment follow each
    other. In a replay with priorities, the last column holds the weights. Columns of images are
    `FrameColumn`s, which hold each frame once.

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
        self._places = slice(None)  # the written environments on the axis B
        self._whole = self  # that this one is a part of
        self._made: Rings | FrameRings | None = None  # of the whole, with its present columns

    def part(self, places: slice) -> "KeptReplay":
        """Returns a view of this replay for a writer of only some of the environments.

        Args:
            places: of these environments on the axis B.
        """
        part = KeptReplay(0, folder=self.folder)
        part.columns, part.inserted, part._whole = self.columns, self.inserted, self._whole
        part._places = places
        return part

    def write(self, capacity: int, *values: np.ndarray, weighted: bool = False) -> None:
        """Writes a record of each environment, values `[B, ...]`."""
        if self.sources or self._whole._made is None:
            self.extend(capacity, *(value[None] for value in values), weighted=weighted)
        else:
            self._whole._rings(capacity, (), weighted).write(self._places, values)

    def extend(self, capacity: int, *stacks: np.ndarray, weighted: bool = False) -> None:
        """Writes several records of each environment, values `[rows, B, ...]`."""
        rings, first = self._whole._rings(capacity, stacks, weighted), 0
        for places in self.sources or (self._places,):
            end = first + len(self.inserted[places])
            rings.extend(places, [stack[:, first:end] for stack in stacks])
            first = end

    def draw(self, noise: np.ndarray, steps: int = 0) -> tuple[np.ndarray, ...]:
        """Draws records uniformly, equally many for each environment, see `drawn_rows`.

        Args:
            noise: `[B, 2 k]` uniform in [0, 1), see `random.below`, or `[turns, B, 2 k]` for
                several draws.
            steps: consecutive records of a window; 0: single records.

        Returns: columns `[k * B, ...]`, environments innermost, windows `[k * B, steps, ...]`; for
            several draws `[turns, ...]`.
        """
        return self._whole._rings().draw(noise, steps)

    def draw_weighted(self, noise: np.ndarray, steps: int = 0) -> tuple[np.ndarray, ...]:
        """Draws records in proportion to their priorities, see `weighted_rows`.

        Returns: columns `[k * B, ...]`, then the rows, for `update`, and the ratio of each row's
            probability to that of a uniform draw.
        """
        return self._whole._rings(weighted=True).draw_weighted(noise, steps)

    def records(
        self, rows: np.ndarray, places: np.ndarray, steps: int = 0
    ) -> tuple[np.ndarray, ...]:
        """Gathers records, or windows from there on, at rows `[n]` of the environments `places`."""
        return self._whole._rings().records(rows, places, steps)

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities of rows, both `[k * B]`, environments innermost."""
        self._whole._rings(weighted=True).update(rows, priorities)

    def add(self, buffer: Any, dtype: str) -> None:
        """Registers a column that a cell writes and reads itself, perhaps in another dtype."""
        self.columns.append(buffer)
        self.dtypes.append(dtype)

    def restore(self, columns: list[np.ndarray]) -> None:
        """Replaces the columns by those of a checkpoint."""
        self.columns[:], self._whole._made = columns, None

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Allocates an array of zeros.

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

    def _rings(
        self, capacity: int = 0, stacks: Sequence[np.ndarray] = (), weighted: bool = False
    ) -> Rings | FrameRings:
        """Returns the rings of the columns, which are made before the first write.

        Raises:
            CheckpointError: a checkpoint holds another number of records.
        """
        if self._made is None or weighted > self._made.weighted:
            weights: Any = np.broadcast_to(np.int64(0), (capacity, len(self.inserted)))
            columns = self.columns or self._new(capacity, stacks, weighted)
            if self.columns and weighted:
                *columns, weights = columns
            stored = [c.index if isinstance(c, FrameColumn) else c for c in columns]
            size = sum(column.nbytes for column in stored)
            on_disk = bool(self.folder) and size > available_memory()
            weights = weights if weighted else None
            made = make_rings(stored, weights, self.inserted, self.empty, on_disk)
            framed = any(isinstance(column, FrameColumn) for column in columns)
            self._made = FrameRings(made, columns) if framed else made
            self.columns[:] = [*columns, made.weights] if weighted else columns
        if capacity and (found := self._made.capacity) != capacity:
            raise CheckpointError(
                f"the replay holds {found} records of each environment in the checkpoint and "
                f"{capacity} here: leave what is kept as it was"
            )
        return self._made

    def _new(self, capacity: int, stacks: Sequence[np.ndarray], weighted: bool) -> list[np.ndarray]:
        """Allocates the columns of records like those in `[rows, B, ...]`, side by side."""
        kinds = [(stack.dtype, stack.shape[2:]) for stack in stacks]
        fields = [(str(n), *_stored(*kind)) for n, kind in enumerate(kinds)]
        record = np.dtype(sorted(fields, key=lambda field: -field[1].alignment), align=True)
        extent = len(self.inserted), capacity
        frames = {math.prod(shape[-2:]) for dtype, shape in kinds if frames_of(dtype, shape)}
        each = record.itemsize + WEIGHT_BYTES * weighted + sum(frames)  # a new one at least
        self._check_room(math.prod(extent) * each, f"{capacity:,} records of each environment take")
        block = self.empty(extent, record)
        return self._framed([block[name].swapaxes(0, 1) for name, *_ in fields], kinds)

    def allocate(self, capacity: int, kinds: Sequence[Kind]) -> list[Any]:
        """Allocates columns apart from each other, to be written and given to `restore`."""
        lead = capacity, len(self.inserted)
        if self.dtypes:  # of a cell
            return [self.empty((*lead, *record), dtype) for dtype, record in kinds]
        stored = (_stored(*kind) for kind in kinds)
        return self._framed(
            [self.empty((*lead, *record), dtype) for dtype, record in stored], kinds
        )

    def _framed(self, stored: list[np.ndarray], kinds: Sequence[Kind]) -> list[Any]:
        """Makes the columns of what is stored of them; frames of one size share a store."""
        stores, found = dict[int, FrameStore](), list[Any]()
        for array, (dtype, record) in zip(stored, kinds, strict=True):
            if frames_of(dtype, record):
                size = math.prod(record[-2:])
                store = stores.get(size) or make_store(size, self._block, bool(self.folder))
                stores[size] = store
                found.append(store.column(array, record))
            else:
                found.append(array)
        return found

    def _block(self, size: int) -> np.ndarray:
        """Allocates bytes for more frames."""
        self._check_room(size, "more frames of kept records take")
        return self.empty((size,), np.dtype(np.uint8))

    def _check_room(self, size: int, what: str) -> None:
        if size > (free := available_memory()) and not self.folder:
            raise ReplayError(
                f"{what} {size / 1e6:,.0f} MB of memory, and {free / 1e6:,.0f} MB are free: keep "
                "fewer, or keep them in a file (--replay-dir)"
            )


def _stored(dtype: np.dtype, record: tuple[int, ...]) -> Kind:
    """Returns the dtype and shape of what a record holds of a column: itself, or its frames."""
    return numbers_of(record) if frames_of(dtype, record) else (dtype, record)
