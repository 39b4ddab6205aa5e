"""Kept replay of a program: the newest records of each environment."""

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.platform import toolchain
from mindspore_rl.platform.resources import available_memory
from mindspore_rl.replay.frames import FrameRings, FrameStore, frames_of, make_store, numbers_of
from mindspore_rl.replay.kept_table import KeptTable, Kind
from mindspore_rl.replay.rings import Rings
from mindspore_rl.replay.spec import MAX_WEIGHTED

WEIGHT_BYTES = 10
"""Size of a record's weight, with its share of sums and maxima."""


class KeptReplay:
    """The newest records of each environment, in a table with a lane for each.

    The table is made by the first write. Without a C++ compiler, NumPy arrays take its place. A
    compiled cell that writes and draws by itself has buffers of its own. Columns of images are
    `FrameColumn`s, which hold each frame once.

    Args:
        num_envs: B.
        capacity: records that are kept of each environment.
        by_priority: whether records are drawn by priority.
        num_envs_of_job: on all ranks together.
        folder: where the table is a memory-mapped file; empty: in memory.

    Attributes:
        columns: `[capacity, B, ...]`, with priorities then the weights; or buffers of a cell.
        dtypes: dtypes in which such buffers are saved.
        began: number of records of each environment of the job when the run began, int64.
        sources: in an asynchronous run: the environments whose records the next write has, in this
            order; else empty.
    """

    def __init__(
        self,
        num_envs: int,
        capacity: int = 0,
        by_priority: bool = False,
        num_envs_of_job: int = 0,
        folder: str = "",
    ) -> None:
        self.num_envs, self.capacity, self.by_priority = num_envs, capacity, by_priority
        self.folder = folder
        self.columns: list[Any] = []
        self.dtypes: list[str] = []
        self.began = np.zeros(num_envs_of_job or num_envs, np.int64)
        self.sources: list[slice] = []
        self._inserted = np.zeros(num_envs, np.int64)  # of a cell
        self._places = slice(None)  # the written environments on the axis B
        self._whole = self  # that this one is a part of
        self._made: Rings | FrameRings | None = None

    def part(self, places: slice) -> "KeptReplay":
        """Returns a view of this replay for a writer of only some of the environments.

        Args:
            places: of these environments on the axis B.
        """
        part = KeptReplay(self.num_envs, self.capacity, self.by_priority, folder=self.folder)
        part.columns, part._whole, part._places = self.columns, self._whole, places
        return part

    @property
    def inserted(self) -> np.ndarray:
        """Number of records ever inserted for each environment, `[B]` int64.

        They are equal where all environments write the same rows together, in synchronous runs.
        """
        whole = self._whole
        return np.array(whole._made.inserted if whole._made else whole._inserted, np.int64)

    @inserted.setter
    def inserted(self, inserted: np.ndarray) -> None:
        """Counts records that were written into the columns of `allocate`, or by a cell."""
        self._inserted[:] = inserted
        if self._made:
            self._made.restore(inserted)

    def write(self, *values: np.ndarray) -> None:
        """Writes a record of each environment, values `[B, ...]`."""
        if self.sources or self._whole._made is None:
            self.extend(*(value[None] for value in values))
        else:
            self._whole._made.write(self._places, values)

    def extend(self, *stacks: np.ndarray) -> None:
        """Writes several records of each environment, values `[rows, B, ...]`."""
        whole, first = self._whole, 0
        if whole._made is None:
            whole._make([(stack.dtype, stack.shape[2:]) for stack in stacks])
        for places in self.sources or (self._places,):
            end = first + len(range(self.num_envs)[places])
            whole._rings.extend(places, [stack[:, first:end] for stack in stacks])
            first = end

    def draw(self, noise: np.ndarray, steps: int = 0) -> tuple[np.ndarray, ...]:
        """Draws records uniformly, equally many for each environment.

        Args:
            noise: `[B, 2 k]` uniform in [0, 1), see `random.below`, or `[turns, B, 2 k]` for
                several draws.
            steps: consecutive records of a window; 0: single records.

        Returns: columns `[k * B, ...]`, environments innermost, windows `[k * B, steps, ...]`; for
            several draws `[turns, ...]`.
        """
        return self._whole._rings.draw(noise, steps)

    def draw_weighted(self, noise: np.ndarray, steps: int = 0) -> tuple[np.ndarray, ...]:
        """Draws records in proportion to their priorities, see `weighted_rows`.

        Returns: columns `[k * B, ...]`, then the rows, for `update`, and the ratio of each row's
            probability to that of a uniform draw.
        """
        return self._whole._rings.draw_weighted(noise, steps)

    def records(
        self, rows: np.ndarray, places: np.ndarray, steps: int = 0
    ) -> tuple[np.ndarray, ...]:
        """Gathers records, or windows from there on, at rows `[n]` of the environments `places`."""
        return self._whole._rings.records(rows, places, steps)

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities of rows, both `[k * B]`, environments innermost."""
        self._whole._rings.update(rows, priorities)

    def add(self, buffer: Any, dtype: str) -> None:
        """Registers a column that a cell writes and reads itself, perhaps in another dtype."""
        self.columns.append(buffer)
        self.dtypes.append(dtype)

    def allocate(self, kinds: Sequence[Kind]) -> list[Any]:
        """Allocates the columns, to be written; then `inserted` is set.

        Args:
            kinds: of the columns, without the weights.

        Returns: the columns, and with priorities then the weights, all 0; for a cell new arrays.
        """
        if self.dtypes:
            lead = self.capacity, self.num_envs
            return [self._zeros((*lead, *record), dtype) for dtype, record in kinds]
        self._make(kinds)
        return self.columns

    @property
    def _rings(self) -> Rings | FrameRings:
        if self._made is None:
            raise ReplayError("nothing was inserted yet: insert more before the first draw")
        return self._made

    def _make(self, kinds: Sequence[Kind]) -> None:
        """Makes the table of records of these kinds, or arrays.

        Raises:
            ReplayError: there is too little space, or there are too many priorities.
        """
        capacity, num_envs, weighted = self.capacity, self.num_envs, self.by_priority
        if weighted and capacity * num_envs >= MAX_WEIGHTED:
            raise ReplayError(
                f"{capacity:,} records of each of {num_envs} environments are kept by priority, "
                f"expected fewer than {MAX_WEIGHTED:,} together: keep fewer"
            )
        stored = [_stored(*kind) for kind in kinds]
        frames = {math.prod(shape[-2:]) for dtype, shape in kinds if frames_of(dtype, shape)}
        each = sum(math.prod(shape) * dtype.itemsize for dtype, shape in stored) + sum(frames)
        size = capacity * num_envs * (each + WEIGHT_BYTES * weighted)
        self._check_room(size, f"{capacity:,} records of each environment take")
        if toolchain.compiler() is None:
            lead = capacity, num_envs
            columns = [self._zeros((*lead, *shape), dtype) for dtype, shape in stored]
            weights = np.zeros(lead, np.int64) if weighted else None
            made = Rings(columns, weights, np.zeros(num_envs, np.int64))
        else:
            room = available_memory() if self.folder else math.inf
            made = KeptTable(stored, capacity, num_envs, weighted, self._bytes, room)
        columns = self._framed(made.columns, kinds)
        self._made = FrameRings(made, columns) if frames else made
        self.columns[:] = [*columns, made.weights] if weighted else columns

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
        return self._bytes(size)

    def _bytes(self, size: int) -> np.ndarray:
        return self._zeros((size,), np.dtype(np.uint8))

    def _zeros(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
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

    def _check_room(self, size: int, what: str) -> None:
        if size > (free := available_memory()) and not self.folder:
            raise ReplayError(
                f"{what} {size / 1e6:,.0f} MB of memory, and {free / 1e6:,.0f} MB are free: keep "
                "fewer, or keep them in a file (--replay-dir)"
            )


def _stored(dtype: np.dtype, record: tuple[int, ...]) -> Kind:
    """Returns the dtype and shape of what a record holds of a column: itself, or its frames."""
    return numbers_of(record) if frames_of(dtype, record) else (dtype, record)
