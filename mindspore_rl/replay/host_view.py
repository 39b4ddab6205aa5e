"""Lanes of a sharded table that this process maps: its own, and those of its host."""

from collections.abc import Mapping, Sequence

import numpy as np

from mindspore_rl.replay.bindings import functions
from mindspore_rl.replay.records import Records
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table

PLACE = np.dtype([("base", "u8"), ("lane", "i8")])
"""Where a lane stands, see `index.h`."""


class Near(Records):
    """Records of these lanes, by ids and lanes of the whole table.

    Args:
        spec: of the whole table.
        tables: by the ranks that hold them.
        blocks: which lanes each rank has.
        rank: this one.
    """

    def __init__(
        self,
        spec: TableSpec,
        tables: Mapping[int, Table],
        blocks: Sequence[slice],
        rank: int,
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
        bases = [table.base for table, _ in self._tables]  # each is asked, lest one is closed
        return bases[0], self._address, self.spec.lanes

    def find(
        self,
        lanes: np.ndarray,
        offsets: np.ndarray | None,
        totals: np.ndarray,
        quotas: np.ndarray,
        far: np.ndarray,
    ) -> tuple[tuple[np.ndarray, ...], float, bool]:
        """The rows of a batch that this rank finds: those it gets of these, or sends of its own.

        Args:
            lanes: `[B] int32`, of each row.
            offsets: `[B] uint64`, each below its lane's total; without it no records are drawn.
            totals: `[lanes] float64`, by which a record's weight is its probability.
            quotas: `[ranks] int64`, rows that each gets.
            far: `[ranks, ranks] bool`, whether the second gets rows from the first by message.

        Returns: positions in the batch `[N] int64`, ascending, ids `[N] int64`, probabilities `[N]
            float64` and lengths `[N] int32` (see `resolve`); the smallest probability of the batch,
            or where records have weights of all rows of these lanes; whether an id is -1.
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
        positions, ids, probabilities, lengths = block[:-2].reshape(4, count)
        columns = positions, ids, probabilities.view(np.float64), lengths.view(np.int32)
        least = float(block[-2:].view(np.float64)[0])
        return tuple(column[:found] for column in columns), least, bool(block[-1])

    def table_of(self, lane: int) -> tuple[Table, slice]:
        """The table with a lane, and which lanes it has."""
        for table, block in self._tables:
            if block.start <= lane < block.stop:
                return table, block
        raise KeyError(lane)

    def totals(self, lane: int) -> np.ndarray:
        """What the weights of the lanes are in the table with one of them, `[lanes] uint64`."""
        table, block = self.table_of(lane)
        totals = np.zeros(self.spec.lanes, np.uint64)
        totals[block] = table.totals()
        return totals

    def peek(self, lane: int, order: int, count: int) -> np.ndarray:
        """See `Table.peek`, of the table with one of the lanes."""
        table, block = self.table_of(lane)
        first = table.peek(order, count)
        first["id"] = to_whole(first["id"], self.spec, block)
        return first


def to_part(ids: np.ndarray, spec: TableSpec, lanes: slice) -> np.ndarray:
    """Ids of the whole table as the ids of a table that has some of its lanes."""
    generations, places = np.divmod(ids, spec.lanes * spec.capacity)
    own = (lanes.stop - lanes.start) * spec.capacity
    return generations * own + places - lanes.start * spec.capacity


def to_whole(ids: np.ndarray, spec: TableSpec, lanes: slice) -> np.ndarray:
    """The other way round."""
    generations, places = np.divmod(ids, (lanes.stop - lanes.start) * spec.capacity)
    whole = spec.lanes * spec.capacity
    return generations * whole + places + lanes.start * spec.capacity
