"""Lanes of a sharded table that this process maps: its own, and those of its host."""

from collections.abc import Mapping, Sequence

import numpy as np

from mindspore_rl.replay.bindings import functions, in_parts
from mindspore_rl.replay.draws import STREAM, Key, Mode, strata
from mindspore_rl.replay.records import Buffers, Records
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table

PLACE = np.dtype([("base", "u8"), ("lane", "i8")])
"""Address of a lane's table and the lane's index in it, see `index.h`."""


class HostView(Records):
    """Records of the mapped lanes, addressed by ids and lanes of the whole table.

    Args:
        spec: of the whole table.
        tables: the mapped tables, by the ranks that hold them.
        blocks: lanes of each rank.
        rank: this rank.
    """

    def __init__(
        self, spec: TableSpec, tables: Mapping[int, Table], blocks: Sequence[slice], rank: int
    ) -> None:
        super().__init__(spec)
        self._rank = rank
        self._holders = np.repeat(np.arange(len(blocks)), [b.stop - b.start for b in blocks])
        self._tables = [(table, blocks[holder]) for holder, table in tables.items()]
        self._places = np.zeros(spec.lanes, PLACE)
        for table, block in self._tables:
            self._places["base"][block] = table.base
            self._places["lane"][block] = np.arange(len(table.lanes))
        self._address = self._places.ctypes.data

    def _where(self) -> tuple[int, int | None, int]:
        bases = [table.base for table, _ in self._tables]  # raises if a table is closed
        return bases[0], self._address, self.spec.lanes

    def find(
        self,
        lanes: np.ndarray,
        offsets: np.ndarray | None,
        totals: np.ndarray,
        quotas: np.ndarray,
        far: np.ndarray,
    ) -> tuple[tuple[np.ndarray, ...], float, bool]:
        """Finds the batch rows that this rank gets from the mapped lanes or sends from its own.

        Args:
            lanes: `[B] int32`, the lane of each row.
            offsets: `[B] uint64`, each below its lane's total; None: no records are drawn.
            totals: `[lanes] float64`; a record's weight divided by its lane's entry is its
                probability.
            quotas: `[ranks] int64`, rows that each rank gets.
            far: `[ranks, ranks] bool`, whether the second rank gets rows from the first by message.

        Returns: positions in the batch `[N] int64`, ascending, ids `[N] int64`, probabilities `[N]
            float64` and lengths `[N] int32` (see `resolve`); the smallest probability of these
            rows, in a weighted table of all rows in the mapped lanes; whether any id is -1.
        """
        count = len(lanes)
        block = np.empty(4 * count + 2, np.int64)
        start = block.ctypes.data
        places = range(start, start + 32 * count, 8 * count)
        found = functions().table_find(
            *self._where(), count, lanes.ctypes.data,
            None if offsets is None else offsets.ctypes.data, totals.ctypes.data,
            self._holders.ctypes.data, len(quotas), quotas.ctypes.data, self._rank,
            far.ctypes.data, *places, start + 32 * count, start + 32 * count + 8,
        )  # fmt: skip
        return *_found(block, found), bool(block[-1])

    def share(
        self,
        key: Key,
        mode: Mode,
        totals: np.ndarray,
        quotas: np.ndarray,
        far: np.ndarray,
        buffers: Buffers,
    ) -> tuple[tuple[np.ndarray, ...], float] | None:
        """Draws a batch from known totals, and copies the whole records that this rank gets.

        Returns: see `find`; None if records are lacking or change meanwhile.
        """
        count = int(quotas.sum())
        block = np.empty(4 * count + 2, np.int64)
        found = functions().table_share(
            *self._where(), key.seed, STREAM, key.step, mode, count,
            strata(count, self.spec.lanes).ctypes.data, totals.ctypes.data,
            self._holders.ctypes.data, len(quotas), quotas.ctypes.data, self._rank,
            far.ctypes.data, *self.layout, buffers.at(0), in_parts(), block.ctypes.data,
        )  # fmt: skip
        return None if found < 0 else _found(block, found)

    def table_of(self, lane: int) -> tuple[Table, slice]:
        """Returns the table that holds a lane, and the lanes of that table."""
        for table, block in self._tables:
            if block.start <= lane < block.stop:
                return table, block
        raise KeyError(lane)

    def totals(self, lane: int) -> np.ndarray:
        """Returns the total weights of the lanes of one lane's table, `[lanes] uint64`, else 0."""
        table, block = self.table_of(lane)
        totals = np.zeros(self.spec.lanes, np.uint64)
        totals[block] = table.totals()
        return totals

    def peek(self, lane: int, order: int, count: int) -> np.ndarray:
        """Returns the first records in an order of the table with a lane, see `Table.peek`."""
        table, block = self.table_of(lane)
        first = table.peek(order, count)
        first["id"] = to_whole(first["id"], self.spec, block)
        return first


def _found(block: np.ndarray, rows: int) -> tuple[tuple[np.ndarray, ...], float]:
    """Returns the columns that `table_find` wrote, and the smallest probability."""
    positions, ids, probabilities, lengths = block[:-2].reshape(4, -1)
    columns = positions, ids, probabilities.view(np.float64), lengths.view(np.int32)
    return tuple(column[:rows] for column in columns), float(block[-2:].view(np.float64)[0])


def to_part(ids: np.ndarray, spec: TableSpec, lanes: slice) -> np.ndarray:
    """Converts ids of the whole table to ids of a table that holds some of its lanes."""
    generations, places = np.divmod(ids, spec.lanes * spec.capacity)
    own = (lanes.stop - lanes.start) * spec.capacity
    return generations * own + places - lanes.start * spec.capacity


def to_whole(ids: np.ndarray, spec: TableSpec, lanes: slice) -> np.ndarray:
    """Converts ids of a table that holds some of the lanes to ids of the whole table."""
    generations, places = np.divmod(ids, (lanes.stop - lanes.start) * spec.capacity)
    whole = spec.lanes * spec.capacity
    return generations * whole + places + lanes.start * spec.capacity
