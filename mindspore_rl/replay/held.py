"""The rows of a batch that a rank finds in its own lanes, or in those of a rank of its host."""

import time
from dataclasses import dataclass

import numpy as np

from mindspore_rl.communication.communicator import Waiting
from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.assignment import Assignment
from mindspore_rl.replay.selection import Key, Mode, Order, draw, to_redraw, windows
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table

ROW = np.dtype([("id", "i8"), ("probability", "f8"), ("length", "i4"), ("first", "i4")])
TRIES, PAUSE_S = 100, 0.001


def to_local(ids: np.ndarray, spec: TableSpec, lanes: slice) -> np.ndarray:
    """Ids of the whole table as the ids of a table that has some of its lanes."""
    generations, places = np.divmod(ids, spec.lanes * spec.capacity)
    own = (lanes.stop - lanes.start) * spec.capacity
    return generations * own + places - lanes.start * spec.capacity


def to_global(ids: np.ndarray, spec: TableSpec, lanes: slice) -> np.ndarray:
    """The other way round."""
    generations, places = np.divmod(ids, (lanes.stop - lanes.start) * spec.capacity)
    whole = spec.lanes * spec.capacity
    return generations * whole + places + lanes.start * spec.capacity


@dataclass(frozen=True)
class Draws:
    """A batch as every rank draws it.

    Attributes:
        key: of the draws.
        mode: of the draws.
        lanes: `[B] int32`, of the whole table.
        places: `[B]`, where in its lane each draw fell (`selection.draw`), or in an order its id.
        used: random numbers of the key.
        totals: `[lanes] float64`, by which a record's weight is its probability.
        assignment: of the rows to ranks.
        reads: of a holder and another rank of its host, the rows that the one reads in the memory
            of the other, by their positions.
        messages: of two ranks, the rows that the one sends the other. These and reads may be of no
            row: where records have weights, all who get rows find, or are told by those who do, how
            small a probability can be.
    """

    key: Key
    mode: Mode | Order
    lanes: np.ndarray
    places: np.ndarray
    used: int
    totals: np.ndarray
    assignment: Assignment
    reads: dict[tuple[int, int], np.ndarray]
    messages: dict[tuple[int, int], np.ndarray]


class Held:
    """Records of a batch that are in one rank's lanes.

    One that has been overwritten is drawn again, by other numbers of the same key: within its lane,
    so that the others are drawn as they would have been, whoever holds them.

    Args:
        table: of these lanes.
        spec: of the whole table.
        own: which of its lanes these are.
        draws: of the whole batch.
        positions: `[N]` in the batch, ascending, of these records.
        window: steps of a row.
        waiting: called where a record is waited for.

    Attributes:
        least: the smallest probability of these records.

    Raises:
        ReplayError: there is nothing more to draw in these lanes.
    """

    def __init__(
        self,
        table: Table,
        spec: TableSpec,
        own: slice,
        draws: Draws,
        positions: np.ndarray,
        window: int,
        waiting: Waiting,
    ) -> None:
        self._table, self._spec, self._own, self._draws = table, spec, own, draws
        self._window, self._waiting = window, waiting
        self._positions, count = positions, len(positions)
        self._rows, self._ids = np.zeros(count, ROW), np.empty(count, np.int64)
        self._lanes = draws.lanes[self._positions] - np.int32(own.start)
        self._tries = np.zeros(count, np.int64)
        if count:
            found = self._drawn(draws.places[self._positions])
            self._note(slice(None), *found)
            for at in to_redraw(found[0], draws.mode):
                self._draw_again(at)
            self._place_windows(slice(None))
        self.least = float(self._rows["probability"].min(initial=np.inf))

    def gather(self, positions: np.ndarray, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Copies records.

        Args:
            positions: `[N]` in the batch, of records that are here.
            columns: to copy to, `[N, T, ...]`.

        Returns: `[N] ROW`.
        """
        index = np.searchsorted(self._positions, positions)
        if len(index):
            whole = self._copy(index, columns)
            for i in np.flatnonzero(~whole):
                at, row = index[i : i + 1], {name: x[i : i + 1] for name, x in columns.items()}
                while not whole[i]:  # `_draw_again` gives up, for it counts its tries
                    self._draw_again(at[0])
                    self._place_windows(at)
                    whole[i] = self._copy(at, row)[0]
        return self._rows[index]

    def _drawn(self, places: np.ndarray) -> tuple[np.ndarray, ...]:
        """Their ids (-1 where a record is gone), weights and lengths."""
        if not isinstance(self._draws.mode, Order):
            return self._table.resolve(self._lanes, places)
        ids = to_local(places, self._spec, self._own)
        lengths = self._table.entries["length"].reshape(-1)[ids % self._table.entries.size]
        return np.where(self._table.claim(ids), ids, -1), np.ones(len(ids), np.uint64), lengths

    def _copy(self, index: np.ndarray, columns: dict[str, np.ndarray]) -> np.ndarray:
        first = np.ascontiguousarray(self._rows["first"][index])
        return self._table.gather(self._ids[index], columns, first)

    def _note(
        self, at: slice | np.ndarray, ids: np.ndarray, weights: np.ndarray, lengths: np.ndarray
    ) -> None:
        self._ids[at] = ids
        rows = self._rows
        rows["id"][at] = to_global(ids, self._spec, self._own)
        totals = self._draws.totals[self._lanes[at] + self._own.start]
        rows["probability"][at] = weights / totals
        rows["length"][at] = lengths

    def _draw_again(self, at: int) -> None:
        if isinstance(self._draws.mode, Order):
            self._take_next(at, self._draws.mode)
            return
        draws, lane = self._draws, self._lanes[at]
        while self._tries[at] < TRIES:
            totals = self._table.totals()
            if totals[lane]:
                totals[np.arange(len(totals)) != lane] = 0
            first = draws.used + self._tries[at] * len(draws.lanes) + self._positions[at]
            self._tries[at] += 1
            if not totals.any():  # all that is here is being written
                self._waiting()
                time.sleep(PAUSE_S)
                continue
            lanes, offsets, _ = draw(draws.key, totals, 1, Mode.REPLACE, int(first))
            ids, weights, lengths = self._table.resolve(lanes, offsets)
            if ids[0] < 0 or (draws.mode == Mode.DISTINCT and ids[0] in self._ids):
                continue
            self._lanes[at] = lanes[0]
            self._note(np.array([at]), ids, weights, lengths)
            return
        raise self._gone(at)

    def _take_next(self, at: int, order: Order) -> None:
        """In place of a record the first in the order, of all that are here, not in the batch."""
        while self._tries[at] < TRIES:
            self._tries[at] += 1
            first = self._table.peek(order.value, 2 * len(self._draws.lanes))
            known = np.concatenate([self._draws.places, self._rows["id"]])
            first = first[~np.isin(to_global(first["id"], self._spec, self._own), known)][:1]
            if len(first) and self._table.claim(first["id"])[0]:
                self._lanes[at] = first["id"][0] // self._spec.capacity % len(self._table.lanes)
                self._note(np.array([at]), first["id"], np.ones(1, np.uint64), first["length"])
                return
            self._waiting()
            time.sleep(PAUSE_S)
        raise self._gone(at)

    def _gone(self, at: int) -> ReplayError:
        return ReplayError(
            f"a record of lane {self._own.start + self._lanes[at]} was overwritten after it had "
            f"been drawn, and lanes {self._own.start} to {self._own.stop - 1} gave no other in "
            f"{TRIES} tries; raise the capacity of a lane, or draw fewer records"
        )

    def _place_windows(self, at: slice | np.ndarray) -> None:
        if self._window >= self._spec.length:
            return
        positions = self._positions[at]
        lengths = np.zeros(len(self._draws.lanes), np.int32)
        lengths[positions] = self._rows["length"][at]
        first = windows(self._draws.key, lengths, self._window)
        self._rows["first"][at] = first[positions]
