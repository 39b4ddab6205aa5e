"""Kept records of a Python loop in a table, which native code writes and draws from (`kept.h`)."""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mindspore_rl.replay import bindings
from mindspore_rl.replay.rings import Rings, check_shapes
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table

ADDRESS, ITEMS = object.__basicsize__, tuple.__basicsize__
"""Where an array's address is in its Python object, and a tuple's items are in the tuple."""
Kind = tuple[np.dtype, tuple[int, ...]]
"""The dtype and the shape of a column's record."""


class KeptTable(Rings):
    """A sequential table in which each environment has a lane; see `Rings`.

    Args:
        kinds: of the columns.
        capacity: records of each environment.
        num_envs: B.
        weighted: whether records are drawn by priority.
        allocate: returns so many bytes of zeros, for the table.
        available: bytes of memory; a draw from a larger table has the system read all its records
            at once.

    Raises:
        ReplayError: there are more records with priorities than can be summed.
        MsrlError: the compiler fails.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        capacity: int,
        num_envs: int,
        weighted: bool,
        allocate: Callable[[int], np.ndarray],
        available: float = math.inf,
    ) -> None:
        # Large items first, so that all are aligned.
        order = sorted(range(len(kinds)), key=lambda number: -kinds[number][0].alignment)
        named = [(str(number), *kinds[number]) for number in order]
        columns = tuple(Column(name, shape, dtype.str) for name, dtype, shape in named)
        spec = TableSpec(columns, capacity, num_envs, weighted=weighted, sequential=True)
        self.table = Table.within(spec, allocate)
        places = [order.index(number) for number in range(len(kinds))]
        found = [self.table.column(place).swapaxes(0, 1) for place in places]
        weights = self.table.weights.view(np.int64).T if weighted else None
        super().__init__(found, weights, self.table.lanes["committed"])
        self._kinds = [(column.dtype, column.shape[2:]) for column in found]
        self._sizes = [columns[place].step_bytes for place in places]
        self._layouts = [(d, np.empty((1, *shape), d).strides) for d, shape in self._kinds]
        self._found: dict[tuple, tuple[int, int, int, list[int]]] = {}
        on_disk = int(spec.header()["total_bytes"]) > available
        layout = [ADDRESS, ITEMS, on_disk, self.table.base, len(places)]
        for place, size in zip(places, self._sizes, strict=True):
            layout += [int(spec.starts[place]), size]
        self._layout = np.array(layout, np.int64)
        self._kept, self._functions = self._layout.ctypes.data, functions()

    def restore(self, inserted: np.ndarray) -> None:
        """Counts records that were written into the columns, see `Rings.restore`."""
        counts = np.ascontiguousarray(inserted, np.int64)
        self._functions.kept_restore(self._kept, counts.ctypes.data)

    def draw(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows uniformly, see `KeptReplay.draw`."""
        noise, *turns, each = self._numbers(noise)
        out = self._outputs((*turns, each * self.num_envs), steps)
        given = math.prod(turns), each, id(noise), steps, id(out)
        self._check(self._functions.kept_draw(self._kept, *given), steps)
        return out

    def draw_weighted(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows by priority, see `KeptReplay.draw_weighted`."""
        noise, each = self._numbers(noise)
        count = each * self.num_envs
        out, rows = self._outputs((count,), steps), np.empty(count, np.int32)
        odds = np.empty(count, np.float32)
        given = each, id(noise), steps, id(out), id(rows), id(odds)
        self._check(self._functions.kept_draw_weighted(self._kept, *given), steps)
        return (*out, rows, odds)

    def records(self, rows: np.ndarray, places: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Gathers records, or windows from there on, at rows `[n]` of the environments `places`."""
        rows, places = (np.ascontiguousarray(x, np.int64) for x in (rows, places))
        out = self._outputs((len(rows),), steps)
        given = len(rows), id(rows), id(places), max(steps, 1), id(out)
        if not self._functions.kept_gather(self._kept, *given):
            raise IndexError(f"rows {rows} of environments {places} are not all records")
        return out

    def write(self, places: slice, values: tuple[np.ndarray, ...]) -> None:
        """Writes a record of each of some environments, values `[b, ...]`."""
        *lanes, sizes = self._lanes(places.start, places.stop, places.step)
        layouts = [(value.dtype, value.strides) for value in values]
        if layouts == self._layouts and [value.nbytes for value in values] == sizes:
            self._functions.kept_write(self._kept, *lanes, 1, id(values))
        else:
            self.extend(places, [value[None] for value in values])

    def extend(self, places: slice, stacks: Sequence[np.ndarray]) -> None:
        """Writes records of some environments, values `[rows, b, ...]`."""
        *lanes, _ = self._lanes(places.start, places.stop, places.step)
        check_shapes(self.columns, lanes[-1], stacks)
        pairs = zip(stacks, self._kinds, strict=True)
        values = tuple([np.ascontiguousarray(stack, dtype) for stack, (dtype, _) in pairs])
        self._functions.kept_write(self._kept, *lanes, len(values[0]), id(values))

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
        given = self._kept, rows.size, id(rows), id(found)
        if rows.size != found.size or not self._functions.kept_update(*given):
            super().update(rows, priorities)  # says what is wrong
            self.restore(self.inserted)

    def _numbers(self, noise: np.ndarray) -> tuple:
        """Returns noise as `kept.h` reads it, then the number of its turns, and of draws."""
        noise = np.ascontiguousarray(noise, np.float32)
        assert noise.shape[-2] == self.num_envs
        return noise, *noise.shape[:-2], noise.shape[-1] // 2

    def _outputs(self, rows: tuple[int, ...], steps: int) -> tuple[np.ndarray, ...]:
        """Makes arrays to gather records, or windows, into."""
        lead = (*rows, steps) if steps else rows
        return tuple([np.empty(lead + shape, dtype) for dtype, shape in self._kinds])


@functools.cache
def functions() -> ctypes.CDLL:
    """Loads the functions of `kept.h`, which keep the interpreter's lock. Raises: MsrlError."""
    probe = np.zeros(1)
    place = ctypes.c_void_p.from_address(id(probe) + ADDRESS).value
    assert place == probe.ctypes.data, "this NumPy lays its arrays out otherwise"
    found = ctypes.PyDLL(str(bindings.library()))
    p, i = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("write", None, [p, i, i, i, i, p]),
        ("draw", ctypes.c_bool, [p, i, i, p, i, p]),
        ("draw_weighted", ctypes.c_bool, [p, i, p, i, p, p, p]),
        ("gather", ctypes.c_bool, [p, i, p, p, i, p]),
        ("update", ctypes.c_bool, [p, i, p, p]),
        ("restore", None, [p, p]),
    ):
        function = getattr(found, f"kept_{name}")
        function.restype, function.argtypes = result, arguments
    return found
