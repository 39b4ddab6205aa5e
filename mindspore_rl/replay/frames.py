"""Frames of kept records: each is stored once, and records hold the numbers of their frames.

A stack of frames `[..., C, H, W]` repeats those of the record before, and the observation after a
step is that before the next. A written frame that equals one of this record, or of the records
beside it in its ring, is not stored again; so values are exact, whatever repeats.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.platform import toolchain
from mindspore_rl.platform.resources import available_memory
from mindspore_rl.replay.bindings import FLAGS
from mindspore_rl.replay.kept_table import Kind
from mindspore_rl.replay.rings import Rings, check_shapes

SOURCE = Path(__file__).with_name("frames.cpp")
LEAST_BYTES = 256
"""Size of a frame from which on it pays to store it once."""
BLOCK_BYTES = 1 << 24
"""Frames are allocated in blocks of at most this size, or of one frame if that is more."""
NUMBER = np.dtype(np.int32)
"""Type of a frame's number; 0: the frame of zeros that records have before they are written."""


def is_stack(dtype: np.dtype, record: Sequence[int]) -> bool:
    """Returns whether a column's records are stacks of images, `[..., C, H, W]`."""
    return dtype == np.uint8 and len(record) >= 3


def frames_of(dtype: np.dtype, record: Sequence[int]) -> int:
    """Returns the number of frames of a record that are stored once each; 0: none is."""
    once = is_stack(dtype, record) and math.prod(record[-2:]) >= LEAST_BYTES
    return math.prod(record[:-2]) if once else 0


def numbers_of(record: Sequence[int]) -> Kind:
    """Returns the kind of what a record holds of a stack: the numbers of its frames."""
    return NUMBER, (math.prod(record[:-2]),)


class FrameStore:
    """Frames of one size, each with the number of times that records hold it.

    Args:
        frame_bytes: size of a frame.
        block: allocates zeros for a number of bytes; raises if there is no room.
        in_files: whether they are in files, so that the system is told which frames a draw reads
            when there are more than fit memory.
    """

    def __init__(
        self, frame_bytes: int, block: Callable[[int], np.ndarray], in_files: bool = False
    ) -> None:
        self.frame_bytes, self._new_block = frame_bytes, block
        self._in_files, self._announces = in_files, False
        self.per_block = 1 << max(0, int(math.log2(BLOCK_BYTES / frame_bytes)))
        self.blocks: list[np.ndarray] = []
        self._indices: list[np.ndarray] = []  # of each column, `[capacity, B, frames]`
        self._hashes = np.zeros(1, np.int64)
        self._uses, self._free = np.ones(1, NUMBER), np.zeros(1, NUMBER)
        self._counts = np.array([1, 0])  # numbers that are or were in use, and those free again
        self._grow()

    @property
    def used(self) -> int:
        """Number of frames that records hold."""
        return int(self._counts[0] - self._counts[1]) - 1

    @property
    def numbers(self) -> int:
        """The number behind that of the last frame."""
        return int(self._counts[0])

    def column(self, index: np.ndarray, record: tuple[int, ...]) -> "FrameColumn":
        """Makes a column of records of a shape, from zeros for their frames' numbers."""
        self._indices.append(index)
        lanes = np.arange(index.shape[1])
        return FrameColumn(index, record, self, len(self._indices) - 1, lanes)

    def put(self, column: int, slots: np.ndarray, lanes: np.ndarray, values: np.ndarray) -> None:
        """Writes records `[n, ...]` of a column at slots and lanes `[n]`, one after the other."""
        frames = self._indices[column].shape[2]
        while len(self.blocks) * self.per_block - self.used - 1 < len(slots) * frames:
            self._grow()
        slots, lanes = (np.ascontiguousarray(x, np.int64) for x in (slots, lanes))
        values = np.ascontiguousarray(values, np.uint8).reshape(-1, frames, self.frame_bytes)
        self._put(column, slots, lanes, values)

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """Gathers frames by their numbers `[n]`. Returns: `[n, frame_bytes]` uint8."""
        blocks, places = np.divmod(numbers, self.per_block)
        found = np.empty((len(numbers), self.frame_bytes), np.uint8)
        for block in np.unique(blocks).tolist():
            found[blocks == block] = self.blocks[block][places[blocks == block]]
        return found

    def _grow(self) -> None:
        size = self.per_block * self.frame_bytes
        self.blocks.append(self._new_block(size).reshape(self.per_block, -1))
        self._announces = self._in_files and size * len(self.blocks) > available_memory()
        count = len(self.blocks) * self.per_block
        for name in ("_hashes", "_uses", "_free"):
            old = getattr(self, name)
            grown = np.zeros(count, old.dtype)
            grown[: len(old)] = old
            setattr(self, name, grown)

    def _put(self, column: int, slots: np.ndarray, lanes: np.ndarray, values: np.ndarray) -> None:
        own = self._indices[column]
        for slot, lane, record in zip(slots.tolist(), lanes.tolist(), values, strict=True):
            for number in filter(None, own[slot, lane].tolist()):
                self._release(number)
            own[slot, lane] = 0
            near = [slot, slot - 1, (slot + 1) % len(own)]
            held = (index[near, lane].reshape(-1) for index in self._indices)
            known = {int(self._hashes[n]): int(n) for numbers in held for n in numbers if n}
            for place, frame in enumerate(record):
                key = hash(frame.tobytes())
                number = known.get(key, 0)
                if not number or (self._at(number) != frame).any():
                    known[key] = number = self._next()
                    self._at(number)[:], self._hashes[number] = frame, key
                self._uses[number] += 1
                own[slot, lane, place] = number

    def _at(self, number: int) -> np.ndarray:
        block, place = divmod(number, self.per_block)
        return self.blocks[block][place]

    def _next(self) -> int:
        if self._counts[1]:
            self._counts[1] -= 1
            return int(self._free[self._counts[1]])
        self._counts[0] += 1
        return int(self._counts[0]) - 1

    def _release(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            self._free[self._counts[1]] = number
            self._counts[1] += 1


class NativeFrameStore(FrameStore):
    """Frames that `frames.cpp` finds and copies."""

    _layout = np.empty(0, np.int64)

    def column(self, index: np.ndarray, record: tuple[int, ...]) -> "FrameColumn":
        """Makes a column of records of a shape, from zeros for their frames' numbers."""
        made = super().column(index, record)
        self._lay_out()
        return made

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """Gathers frames by their numbers `[n]`. Returns: `[n, frame_bytes]` uint8."""
        numbers = np.ascontiguousarray(numbers, NUMBER)
        found = np.empty((len(numbers), self.frame_bytes), np.uint8)
        given = len(numbers), numbers.ctypes.data, found.ctypes.data
        _functions().frames_take(self._layout.ctypes.data, *given)
        return found

    def _grow(self) -> None:
        super()._grow()
        self._lay_out()

    def _put(self, column: int, slots: np.ndarray, lanes: np.ndarray, values: np.ndarray) -> None:
        given = (x.ctypes.data for x in (slots, lanes, values))
        _functions().frames_put(self._layout.ctypes.data, column, len(slots), *given)

    def _lay_out(self) -> None:
        self._starts = np.array([block.ctypes.data for block in self.blocks], np.uint64)
        kept = self._hashes, self._uses, self._free, self._counts, self._starts
        layout = [self.frame_bytes, self.per_block.bit_length() - 1, len(self._indices)]
        layout += [self._announces]
        layout += [array.ctypes.data for array in kept]
        for index in self._indices:
            assert index[0, 0].flags.c_contiguous
            layout += [index.ctypes.data, *index.strides[:2], index.shape[2], len(index)]
        self._layout = np.array(layout, np.int64)


def make_store(frame_bytes: int, block: Callable[[int], np.ndarray], in_files: bool) -> FrameStore:
    """Makes a store of frames, see `FrameStore`. Raises: MsrlError: the compiler fails."""
    kind = FrameStore if toolchain.compiler() is None else NativeFrameStore
    return kind(frame_bytes, block, in_files)


class FrameColumn:
    """A column `[capacity, B, ...]` uint8 of records whose frames are in a store.

    It is written at slots and lanes, and its parts are read as arrays: `np.asarray(column[3:5])`.

    Attributes:
        index: the numbers of the frames, `[capacity, B, frames]`.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        index: np.ndarray,
        record: tuple[int, ...],
        store: FrameStore,
        number: int,
        lanes: np.ndarray | None,
    ) -> None:
        self.index, self.store = index, store
        self._record, self._number, self._lanes = record, number, lanes
        self.shape = (*index.shape[:-1], *record)
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, places: Any) -> "FrameColumn":
        """Returns a part; that of some lanes, `[:, lanes]`, can be written too."""
        lanes = None
        if isinstance(places, tuple) and places[0] == slice(None) and self._lanes is not None:
            lanes = self._lanes[places[1]]
        return FrameColumn(self.index[places], self._record, self.store, self._number, lanes)

    def __setitem__(self, places: tuple[np.ndarray, np.ndarray], values: np.ndarray) -> None:
        slots, lanes = places
        assert self._lanes is not None
        self.store.put(self._number, slots, self._lanes[lanes], values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        found = self.records(self.index)
        return found if dtype is None else found.astype(dtype, copy=False)

    def records(self, index: np.ndarray) -> np.ndarray:
        """Returns the records of frames by their numbers `[..., frames]`."""
        found = self.store.take(index.reshape(-1))
        return found.reshape(*index.shape[:-1], *self._record)


class FrameRings:
    """Rings of records, some columns of which are in stores of frames; see `Rings`.

    Args:
        rings: the same with the numbers of the frames.
        columns: of the records.
    """

    def __init__(self, rings: Rings, columns: Sequence[Any]) -> None:
        self._rings, self._columns = rings, columns
        self._lanes = np.arange(rings.num_envs)

    @property
    def inserted(self) -> np.ndarray:
        """Number of records ever inserted for each environment, `[B]`."""
        return self._rings.inserted

    def restore(self, inserted: np.ndarray) -> None:
        """Counts records `[B]` that were written into the columns and weights."""
        self._rings.restore(inserted)

    def draw(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows uniformly, see `KeptReplay.draw`."""
        return self._whole(self._rings.draw(noise, steps))

    def draw_weighted(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows by priority, see `KeptReplay.draw_weighted`."""
        *found, rows, odds = self._rings.draw_weighted(noise, steps)
        return (*self._whole(found), rows, odds)

    def records(self, rows: np.ndarray, places: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Gathers records, or windows from there on, at rows `[n]` of the environments `places`."""
        return self._whole(self._rings.records(rows, places, steps))

    def write(self, places: slice, values: tuple[np.ndarray, ...]) -> None:
        """Writes a record of each of some environments, values `[b, ...]`."""
        self.extend(places, [value[None] for value in values])

    def extend(self, places: slice, stacks: Sequence[np.ndarray]) -> None:
        """Writes records of some environments, values `[rows, b, ...]`."""
        check_shapes(self._columns, len(self._lanes[places]), stacks)
        turns = np.arange(len(stacks[0]))[:, None]
        slots = (self.inserted[places].astype(np.int64) + turns) % self._rings.capacity
        lanes = np.broadcast_to(self._lanes[places], slots.shape)
        found = []
        for column, stack in zip(self._columns, stacks, strict=True):
            if isinstance(column, FrameColumn):
                column[slots.reshape(-1), lanes.reshape(-1)] = stack
                found.append(column.index[slots, lanes])
            else:
                found.append(stack)
        self._rings.extend(places, found)

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities of rows, both `[k * B]`, environments innermost."""
        self._rings.update(rows, priorities)

    def _whole(self, found: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Returns records with their frames."""
        pairs = zip(self._columns, found, strict=True)
        return tuple([c.records(x) if isinstance(c, FrameColumn) else x for c, x in pairs])


@functools.cache
def _functions() -> ctypes.CDLL:
    """Loads the functions of `frames.cpp`. Raises: MsrlError."""
    found = ctypes.CDLL(str(toolchain.library(SOURCE, {}, (SOURCE.with_name("copying.h"),), FLAGS)))
    p, i = ctypes.c_void_p, ctypes.c_int64
    found.frames_put.restype, found.frames_put.argtypes = None, [p, i, i, p, p, p]
    found.frames_take.restype, found.frames_take.argtypes = None, [p, i, p, p]
    return found
