"""Draws from kept records: columns `[capacity, B, ...]`, in which each environment has a ring.

Draws by priority use the weights of a table, with their sums and maxima (`index.h`). Without a C++
compiler, NumPy draws the same records, by priority at a cost that grows with the number of records.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.platform import toolchain
from mindspore_rl.replay.bindings import FLAGS
from mindspore_rl.replay.spec import ALIGNMENT, index_header
from mindspore_rl.replay.weights import LARGEST, ONE, newest_rows, weighted_rows, weights_of
from mindspore_rl.rl.random import below

SOURCE = Path(__file__).with_name("rings.cpp")
ADDRESS, ITEMS = object.__basicsize__, tuple.__basicsize__
"""Where an array's address is in its Python object, and a tuple's items are in the tuple."""

Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]
"""Allocates an array of zeros."""


class Rings:
    """Rings of records, drawn by NumPy.

    Args:
        columns: `[capacity, B, ...]` each.
        weights: `[capacity, B]` int64; None: no record is drawn by priority.
        inserted: number of records ever inserted for each environment, `[B]` int64; who writes
            records counts them there.

    Attributes:
        capacity: records of each environment.
        weighted: whether there are weights.
    """

    def __init__(
        self, columns: Sequence[np.ndarray], weights: np.ndarray | None, inserted: np.ndarray
    ) -> None:
        self.columns, self.inserted = list(columns), inserted
        self.capacity, self.num_envs = columns[0].shape[:2]
        self.weighted, self._weights = weights is not None, weights

    @property
    def weights(self) -> np.ndarray:
        """The weights `[capacity, B]`, if there are any."""
        assert self._weights is not None
        return self._weights

    def draw(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows uniformly, see `KeptReplay.draw`."""
        filled = np.minimum(self.inserted, self.capacity)
        self._check(bool((filled >= max(steps, 1)).all()), steps)
        rows = below(noise, (filled - max(steps, 1) + 1)[:, None]).swapaxes(-1, -2)
        if steps:
            rows = self.inserted - filled + rows
        found = self.records(rows, np.arange(self.num_envs), steps)
        lead = (*rows.shape[:-2], -1, *(steps,)[:steps])
        pairs = zip(found, self.columns, strict=True)
        return tuple(records.reshape(*lead, *column.shape[2:]) for records, column in pairs)

    def draw_weighted(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows by priority, see `KeptReplay.draw_weighted`."""
        filled = np.minimum(self.inserted, self.capacity)
        self._check(bool((filled >= max(steps, 1)).all()), steps)
        newest = newest_rows(self.inserted, self.capacity, steps)
        rows, odds = weighted_rows(noise, self.weights, filled, newest)
        places = np.tile(np.arange(self.num_envs), len(rows))
        return (*self.records(rows.reshape(-1), places, steps), rows.reshape(-1), odds.reshape(-1))

    def records(self, rows: np.ndarray, places: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Gathers records, or windows from there on, at rows `[n]` of the environments `places`."""
        if steps:
            rows, places = rows[..., None] + np.arange(steps), places[..., None]
        at = rows % self.capacity, places
        return tuple(column[at] for column in self.columns)

    def write(self, places: slice, values: tuple[np.ndarray, ...]) -> None:
        """Writes a record of each of some environments, values `[b, ...]`."""
        self.extend(places, [value[None] for value in values])

    def extend(self, places: slice, stacks: Sequence[np.ndarray]) -> None:
        """Writes records of some environments, values `[rows, b, ...]`."""
        own, rows = self.inserted[places], len(stacks[0])
        if (own != own[0]).any():  # after an asynchronous run
            for number, lane in enumerate(range(self.num_envs)[places]):
                stacks_of_lane = [stack[:, number : number + 1] for stack in stacks]
                self.extend(slice(lane, lane + 1), stacks_of_lane)
            return
        if self.weighted:
            self._weigh(places, rows)
        first = int(own[0]) % self.capacity
        whole = min(rows, self.capacity - first)
        for column, stack in zip(self.columns, stacks, strict=True):
            column[first : first + whole, places] = stack[:whole]
            if whole < rows:
                column[: rows - whole, places] = stack[whole:]
        own += rows

    def _weigh(self, places: slice, rows: int) -> None:
        """Gives the next records the largest weight of their environment, to be drawn soon."""
        own, first = self.weights[:, places], self.inserted[places][0]
        largest = own.max(0)
        own[(first + np.arange(rows)) % self.capacity] = np.where(largest > 0, largest, ONE)

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities of rows, both `[k * B]`, environments innermost."""
        rows, found = (np.reshape(x, (-1, self.num_envs)) for x in (rows, priorities))
        self.weights[rows, np.arange(self.num_envs)] = weights_of(found)

    @staticmethod
    def _check(enough: bool, steps: int) -> None:
        if not enough:
            raise ReplayError(
                f"an environment has fewer records than the {max(steps, 1)} of one draw: insert "
                "more before the first draw"
            )


class NativeRings(Rings):
    """Rings of records, drawn by `rings.cpp`.

    Args:
        index: the table that holds the weights, see `_index`; None: none are held.
        on_disk: whether records are in a file that may not fit memory, so that the system is told
            which of them a draw reads.
    """

    def __init__(
        self,
        columns: Sequence[np.ndarray],
        weights: np.ndarray | None,
        inserted: np.ndarray,
        index: np.ndarray | None,
        on_disk: bool,
    ) -> None:
        super().__init__(columns, weights, inserted)
        self._shapes = [column.shape[2:] for column in columns]
        self._dtypes = [column.dtype for column in columns]
        self._sizes = [math.prod(column.shape[2:]) * column.itemsize for column in columns]
        self._strides = [np.empty((1, *c.shape[2:]), c.dtype).strides for c in columns]
        self._found: dict[tuple, tuple[int, int, int, list[int]]] = {}
        extent = self.capacity, self.num_envs, len(columns)
        at = inserted.ctypes.data, 0 if index is None else index.ctypes.data
        layout = [ADDRESS, ITEMS, *extent, *at, on_disk]
        for column, size in zip(columns, self._sizes, strict=True):
            assert column[0, 0].flags.c_contiguous
            layout += [column.ctypes.data, *column.strides[:2], size]
        self._layout, self._memory = np.array(layout, np.int64), index
        self._rings, self._functions = self._layout.ctypes.data, functions()
        if index is not None:
            self._functions.rings_rebuild(self._rings)

    def draw(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows uniformly, see `KeptReplay.draw`."""
        noise, *turns, each = self._numbers(noise)
        out = self._outputs((*turns, each * self.num_envs), steps)
        given = math.prod(turns), each, id(noise), steps, id(out)
        self._check(self._functions.rings_draw(self._rings, *given), steps)
        return out

    def draw_weighted(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows by priority, see `KeptReplay.draw_weighted`."""
        noise, each = self._numbers(noise)
        count = each * self.num_envs
        out, rows = self._outputs((count,), steps), np.empty(count, np.int32)
        odds = np.empty(count, np.float32)
        given = each, id(noise), steps, id(out), id(rows), id(odds)
        self._check(self._functions.rings_draw_weighted(self._rings, *given), steps)
        return (*out, rows, odds)

    def records(self, rows: np.ndarray, places: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Gathers records, or windows from there on, at rows `[n]` of the environments `places`."""
        rows, places = (np.ascontiguousarray(x, np.int64) for x in (rows, places))
        out = self._outputs((len(rows),), steps)
        given = len(rows), id(rows), id(places), max(steps, 1), id(out)
        if not self._functions.rings_gather(self._rings, *given):
            raise IndexError(f"rows {rows} of environments {places} are not all records")
        return out

    def write(self, places: slice, values: tuple[np.ndarray, ...]) -> None:
        """Writes a record of each of some environments, values `[b, ...]`."""
        *lanes, sizes = self._lanes(places.start, places.stop, places.step)
        if (
            [value.nbytes for value in values] == sizes
            and [value.dtype for value in values] == self._dtypes
            and [value.strides for value in values] == self._strides
        ):
            self._functions.rings_write(self._rings, *lanes, 1, id(values))
        else:
            super().write(places, values)

    def extend(self, places: slice, stacks: Sequence[np.ndarray]) -> None:
        """Writes records of some environments, values `[rows, b, ...]`."""
        *lanes, sizes = self._lanes(places.start, places.stop, places.step)
        values, rows = tuple(stacks), len(stacks[0])
        if (
            [value.nbytes for value in values] == [rows * size for size in sizes]
            and [value.dtype for value in values] == self._dtypes
            and all(value.flags.c_contiguous for value in values)
        ):
            self._functions.rings_write(self._rings, *lanes, rows, id(values))
        else:
            super().extend(places, stacks)

    def _weigh(self, places: slice, rows: int) -> None:
        *lanes, _ = self._lanes(places.start, places.stop, places.step)
        self._functions.rings_weigh(self._rings, *lanes, rows)

    def _lanes(self, *places: Any) -> tuple[int, int, int, list[int]]:
        """Returns a slice's first lane, step and number of lanes, and the bytes of their values."""
        if places not in self._found:
            own = range(self.num_envs)[slice(*places)]
            sizes = [len(own) * size for size in self._sizes]
            self._found[places] = own.start, own.step, len(own), sizes
        return self._found[places]

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities of rows, both `[k * B]`, environments innermost."""
        rows = np.ascontiguousarray(rows, np.int32)
        found = np.ascontiguousarray(priorities, np.float64)
        given = self._rings, rows.size, id(rows), id(found)
        if rows.size != found.size or not self._functions.rings_update(*given):
            super().update(rows, priorities)  # says what is wrong
            self._functions.rings_rebuild(self._rings)

    def _numbers(self, noise: np.ndarray) -> tuple:
        """Returns noise as `rings.cpp` reads it, then the number of its turns, and of draws."""
        noise = np.ascontiguousarray(noise, np.float32)
        assert noise.shape[-2] == self.num_envs
        return noise, *noise.shape[:-2], noise.shape[-1] // 2

    def _outputs(self, rows: tuple[int, ...], steps: int) -> tuple[np.ndarray, ...]:
        """Makes arrays to gather records, or windows, into."""
        lead = (*rows, steps) if steps else rows
        kinds = zip(self._shapes, self._dtypes, strict=True)
        return tuple([np.empty(lead + shape, dtype) for shape, dtype in kinds])


def make_rings(
    columns: Sequence[np.ndarray],
    weights: np.ndarray | None,
    inserted: np.ndarray,
    empty: Empty,
    on_disk: bool = False,
) -> Rings:
    """Makes rings of records, see `Rings` and `NativeRings`; copies the weights.

    Raises:
        ReplayError: the sum of the weights could exceed 63 bits.
        MsrlError: the compiler fails.
    """
    capacity = len(columns[0])
    if weights is not None and capacity * LARGEST > np.iinfo(np.int64).max:
        raise ReplayError(
            f"{capacity:,} records of each environment are kept by priority, expected fewer than "
            f"{(1 << 63) // LARGEST:,}: keep fewer, or have more environments"
        )
    if toolchain.compiler() is None:
        return Rings(columns, None if weights is None else np.array(weights), inserted)
    own, index = (None, None) if weights is None else _index(weights, empty)
    return NativeRings(columns, own, inserted, index, on_disk)


def _index(weights: np.ndarray, empty: Empty) -> tuple[np.ndarray, np.ndarray]:
    """Makes a table with weights `[capacity, B]`. Returns: a view of them, and the table."""
    capacity, num_envs = weights.shape
    header = index_header(num_envs, capacity)
    memory = empty((int(header["total_bytes"]) + ALIGNMENT,), np.dtype(np.uint8))
    memory = memory[-memory.ctypes.data % ALIGNMENT :]
    memory[: header.itemsize] = np.frombuffer(header.tobytes(), np.uint8)
    extent, begin = (num_envs, int(header["weights"])), int(header["weight_offset"])
    own = memory[begin:][: 8 * math.prod(extent)].view(np.int64).reshape(extent)[:, :capacity].T
    own[:] = weights
    return own, memory


def library() -> Path:
    """Returns the library of `rings.cpp`. Raises: MsrlError."""
    headers = SOURCE.with_name("copying.h"), SOURCE.with_name("index.h")
    return toolchain.library(SOURCE, {}, headers, FLAGS)


@functools.cache
def functions() -> ctypes.CDLL:
    """Loads the functions of `rings.cpp`, which keep the interpreter's lock. Raises: MsrlError."""
    probe = np.zeros(1)
    place = ctypes.c_void_p.from_address(id(probe) + ADDRESS).value
    assert place == probe.ctypes.data, "this NumPy lays its arrays out otherwise"
    found = ctypes.PyDLL(str(library()))
    p, i = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("rebuild", None, [p]),
        ("write", None, [p, i, i, i, i, p]),
        ("draw", ctypes.c_bool, [p, i, i, p, i, p]),
        ("draw_weighted", ctypes.c_bool, [p, i, p, i, p, p, p]),
        ("gather", ctypes.c_bool, [p, i, p, p, i, p]),
        ("weigh", None, [p, i, i, i, i]),
        ("update", ctypes.c_bool, [p, i, p, p]),
    ):
        function = getattr(found, f"rings_{name}")
        function.restype, function.argtypes = result, arguments
    return found
