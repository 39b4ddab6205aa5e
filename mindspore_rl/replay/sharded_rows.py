"""Finds rows of a sharded batch in the lanes of this rank and of its host."""

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from mindspore_rl.communication.communicator import Waiting
from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import Key, Mode, Order, draw, to_redraw, windows
from mindspore_rl.replay.host_view import HostView
from mindspore_rl.replay.records import Buffers

TRIES, PAUSE_S = 100, 0.001


@dataclass(frozen=True)
class BatchDraws:
    """A batch of draws, the same on every rank.

    Attributes:
        key: of the draws.
        mode: of the draws.
        lanes: `[B] int32`, lanes of the whole table.
        places: `[B]`, the offset of each draw in its lane (`draws.draw`), or its id in an order.
        used: random numbers of the key that are used.
        totals: `[lanes] float64`; a record's weight divided by its lane's entry is its probability.
        quotas: `[ranks] int64`, rows that each rank gets.
        far: `[ranks, ranks] bool`, whether the second rank gets rows from the first by message.
    """

    key: Key
    mode: Mode | Order
    lanes: np.ndarray
    places: np.ndarray
    used: int
    totals: np.ndarray
    quotas: np.ndarray
    far: np.ndarray


class ShardedRows:
    """The records of a batch that one rank finds.

    A record that has been overwritten is drawn again, with further random numbers of the same key,
    in the same lane, so that the other rows do not depend on it or on the sharding.

    Args:
        near: the lanes that the rank can read.
        draws: of the whole batch.
        window: steps of a row.
        waiting: called while no record can be drawn.

    Attributes:
        positions: `[N] int64`, of these records in the batch, ascending.
        ids: `[N] int64`.
        probabilities: `[N] float64`, of each draw.
        lengths: `[N] int32`, steps of each record.
        first: `[N] int32`, the step at which each window begins.
        least: the smallest probability in the batch that this rank knows, see `HostView.find`.

    Raises:
        ReplayError: these lanes have no more records to draw.
    """

    def __init__(self, near: HostView, draws: BatchDraws, window: int, waiting: Waiting) -> None:
        self._near, self._draws, self._window, self._waiting = near, draws, window, waiting
        order = isinstance(draws.mode, Order)
        places = None if order else draws.places
        found, self.least, gone = near.find(
            draws.lanes, places, draws.totals, draws.quotas, draws.far
        )
        self.positions, self.ids, self.probabilities, self.lengths = found
        self.first = np.zeros(len(self.positions), np.int32)
        self._lanes = draws.lanes[self.positions]
        self._tries: Counter[int] = Counter()
        if order:
            ids = draws.places[self.positions]
            claimed, self.lengths = near.claim(ids)
            self.ids, self.probabilities = np.where(claimed, ids, -1), np.ones(len(ids))
        if gone or order or draws.mode is Mode.DISTINCT:
            again = to_redraw(self.ids, draws.mode)
            if draws.mode is Mode.DISTINCT:
                self._give_back(self.ids[again])
                self.ids[again] = -1
            for at in again.tolist():
                self._draw_again(at)
        self._place_windows()

    def copy(self, part: slice | np.ndarray, buffers: Buffers, row: int) -> None:
        """Copies some of the records to the buffers' rows from `row` on."""
        whole = self._near.copy(self.ids[part], self.first[part], buffers, row)
        if whole.all():
            return
        numbers = np.arange(len(self.ids))[part]
        for i in np.flatnonzero(~whole).tolist():
            at = numbers[i : i + 1]
            while not whole[i]:  # ends: `_draw_again` raises after `TRIES`
                self._draw_again(int(at[0]))
                self._place_windows()
                whole[i] = self._near.copy(self.ids[at], self.first[at], buffers, row + i)[0]

    def rows(self, part: slice | np.ndarray) -> list[np.ndarray]:
        """Returns positions, ids, probabilities, lengths and first steps of some of the records."""
        columns = self.positions, self.ids, self.probabilities, self.lengths, self.first
        return [column[part] for column in columns]

    def _tried(self, at: int) -> bool:
        """Counts a try. Raises: ReplayError: it exceeds `TRIES`."""
        if self._tries[at] == TRIES:
            block = self._near.table_of(self._lanes[at])[1]
            raise ReplayError(
                f"a record of lane {self._lanes[at]} was overwritten after it had been drawn, "
                "or drawn as often as the table allows, and "
                f"lanes {block.start} to {block.stop - 1} gave no other in {TRIES} tries; raise "
                "the capacity of a lane, or draw fewer records"
            )
        self._tries[at] += 1
        return True

    def _draw_again(self, at: int) -> None:
        if isinstance(self._draws.mode, Order):
            self._take_next(at, self._draws.mode)
            return
        draws, lane = self._draws, self._lanes[at]
        numbers = draws.used + self.positions[at]
        while self._tried(at):
            totals = self._near.totals(lane)
            if totals[lane]:
                totals[np.arange(len(totals)) != lane] = 0
            if totals.any():
                again = (self._tries[at] - 1) * len(draws.lanes)
                lanes, offsets, _ = draw(draws.key, totals, 1, Mode.REPLACE, int(numbers + again))
                ids, weights, lengths = self._near.resolve(lanes, offsets)
                if draws.mode is Mode.DISTINCT and ids[0] in self.ids:
                    self._give_back(ids)
                elif ids[0] >= 0:
                    self._put(at, lanes[0], ids[0], float(weights[0]), lengths[0])
                    return
            else:  # all records are being written
                self._waiting()
                time.sleep(PAUSE_S)

    def _give_back(self, ids: np.ndarray) -> None:
        """Undoes draws of records that the batch already has, each with weight 1."""
        self._near.release(ids, np.ones(len(ids)))

    def _take_next(self, at: int, order: Order) -> None:
        """Replaces a record by its holder's first record in the order that is not in the batch."""
        while self._tried(at):
            lane = self._lanes[at]
            first = self._near.peek(lane, order.value, 2 * len(self._draws.lanes))
            known = np.concatenate([self._draws.places, self.ids])
            first = first[~np.isin(first["id"], known)][:1]
            if len(first) and self._near.claim(first["id"])[0][0]:
                spec, one = self._near.spec, first["id"][0]
                lane = one % (spec.lanes * spec.capacity) // spec.capacity
                self._put(at, lane, one, 1.0, first["length"][0])
                return
            self._waiting()
            time.sleep(PAUSE_S)

    def _put(self, at: int, lane: int, one: int, weight: float, length: int) -> None:
        self._lanes[at], self.ids[at], self.lengths[at] = lane, one, length
        self.probabilities[at] = weight / self._draws.totals[lane]
        self.least = min(self.least, self.probabilities[at])

    def _place_windows(self) -> None:
        if self._window >= self._near.spec.length:
            return
        lengths = np.zeros(len(self._draws.lanes), np.int32)
        lengths[self.positions] = self.lengths
        self.first[:] = windows(self._draws.key, lengths, self._window)[self.positions]
