"""Sampler: the records of a batch, as a pure function of a key and the totals of lanes.

Every rank that knows the totals draws the same numbers, and resolves those that fall in lanes of
its own: no index is shipped, and the union of all ranks' rows is the same however lanes are spread.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np

from mindspore_rl.errors import HeldBackError, ReplayError
from mindspore_rl.replay.bindings import functions
from mindspore_rl.replay.rate_limiter import NO_WAIT, Wait, admit, check_batch, samples_held, until
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.rl.random import below, stream, uniform

STREAM, WINDOW_STREAM = stream("replay"), stream("window")
TRIES = 10_000


class Mode(IntEnum):
    """How records are drawn, each in proportion to its weight (1 in a table without weights)."""

    REPLACE = 0
    DISTINCT = 1
    STRATIFIED = 2


class Order(Enum):
    """Which records are first; a draw takes them, without chance, of all lanes at one moment.

    The first or last inserted: each lane in the order in which its records make way, lanes merged
    by how many records were inserted before. The largest weights: exact; of equal ones those of the
    first lane, and of the first places in it.
    """

    FIFO = 0
    LIFO = 1
    LARGEST = 2


@dataclass(frozen=True)
class Key:
    """What draws depend on.

    Args:
        seed: of the job.
        step: counts the batches.
    """

    seed: int
    step: int


@dataclass(frozen=True)
class Drawn:
    """Records.

    Attributes:
        ids: `[N] int64`.
        probabilities: `[N] float64`, with which each was drawn; 1 in an order.
        lengths: `[N] int32`, steps of each.
    """

    ids: np.ndarray
    probabilities: np.ndarray
    lengths: np.ndarray


def strata(count: int, lanes: int) -> np.ndarray:
    """The lane of each row of a stratified batch, `[N] int32`: as many of each, in order."""
    return (np.arange(count) * lanes // count).astype(np.int32)


def draw(
    key: Key,
    totals: np.ndarray,
    count: int,
    mode: Mode = Mode.REPLACE,
    first: int = 0,
    rows: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Draws lanes and places in them.

    Args:
        key: see `Key`.
        totals: `[lanes] uint64`, of the weights.
        count: N.
        mode: see `Mode`.
        first: random numbers of this key that were used already.
        rows: `[N] int32`, the lane of each row of a stratified draw; without it, `strata`.

    Returns: lanes `[N] int32`, offsets `[N] uint64` below the lanes' totals, and how many random
        numbers were used.

    Raises:
        HeldBackError: there is not enough to draw from.
    """
    lanes, offsets = np.empty(count, np.int32), np.empty(count, np.uint64)
    if mode is Mode.STRATIFIED:
        lanes[:] = strata(count, len(totals)) if rows is None else rows
    totals = np.ascontiguousarray(totals, np.uint64)
    places = totals.ctypes.data, lanes.ctypes.data, offsets.ctypes.data
    used = functions().table_draw(
        key.seed, STREAM, key.step, first, mode, count, len(totals), *places
    )
    if used < 0:
        raise _lacking(totals, count, mode, lanes)
    return lanes, offsets, used


def _lacking(totals: np.ndarray, count: int, mode: Mode, lanes: np.ndarray) -> HeldBackError:
    there = f"{int(totals.sum())} can be"
    if mode is Mode.STRATIFIED:
        there = (
            f"lanes {[lane for lane in np.unique(lanes).tolist() if not totals[lane]]} have none"
        )
    elif mode is Mode.REPLACE:
        there = "none can be"
    return HeldBackError(
        f"{count} records are to be drawn ({mode.name.lower()}) and {there}; insert more first"
    )


def sample(
    table: Table, key: Key, count: int, mode: Mode | Order = Mode.REPLACE, wait: Wait = NO_WAIT
) -> Drawn:
    """Draws from a table that this process has all lanes of.

    Args:
        table: to draw from.
        key: of the batch; an order has no use for it.
        count: N.
        mode: by chance, or the first in an order.
        wait: how long, if there is not enough to draw from, or the table's limit holds it back.

    Raises:
        ReplayError: the table never allows such a batch, or did not in time; nothing is drawn then.
    """
    check_draw(table.spec, count, mode)
    if isinstance(mode, Order):
        return until(table, lambda: _picked(table, mode, count), wait)
    batch = _Batch(table, key, count, mode)
    try:
        for _ in range(TRIES):
            batch.resolve(*until(table, batch.draw, wait))
            if not len(batch.rows):
                return Drawn(batch.ids, batch.probabilities, batch.lengths)
            # Somebody else has changed the table, or died over it.
            functions().table_mend(table.base)
        raise ReplayError(
            f"{len(batch.rows)} of {count} records are overwritten faster than they are drawn; "
            "raise the capacity"
        )
    except BaseException:
        batch.give_back()
        raise


class _Batch:
    """A batch that is being drawn; what falls on no record, or on one twice, is drawn again.

    Attributes:
        rows: that are still to be drawn.
        ids, probabilities, lengths: see `Drawn`; ids are -1 in these rows.
    """

    def __init__(self, table: Table, key: Key, count: int, mode: Mode) -> None:
        self._table, self._key, self._mode = table, key, mode
        self._used, self._strata = 0, strata(count, table.spec.lanes)
        self.rows, self.ids = np.arange(count), np.full(count, -1)
        self.probabilities, self.lengths = np.empty(count), np.empty(count, np.int32)
        self._weights = np.empty(count, np.uint64)

    def draw(self) -> tuple[np.ndarray, ...]:
        """Lanes and offsets for the rows, of a table with such totals. Raises: HeldBackError."""
        totals, lanes, mode = self._table.totals(), self._strata[self.rows], self._mode
        # Those without replacement alone: others in the batch may be all that there is.
        count = len(self.rows) if mode is not Mode.REPLACE else len(self.ids)
        try:
            lanes, offsets, more = draw(self._key, totals, count, mode, self._used, lanes)
        except HeldBackError:
            if mode is not Mode.STRATIFIED:
                raise
            self._table.want(lanes)
            raise _lacking(totals, len(self.ids), mode, lanes) from None
        if not self._used:
            admit(self._table, len(self.ids))
        self._used += more
        rows = self.rows if mode is Mode.REPLACE else slice(None)
        return lanes[rows], offsets[rows], totals

    def resolve(self, lanes: np.ndarray, offsets: np.ndarray, totals: np.ndarray) -> None:
        """Takes the records that the rows fell on."""
        rows, ids = self.rows, self.ids
        ids[rows], weights, self.lengths[rows] = self._table.resolve(lanes, offsets)
        self._weights[rows], self.probabilities[rows] = weights, weights / float(totals.sum())
        if self._mode is Mode.STRATIFIED:
            of_lane = np.bincount(self._strata)[lanes]
            self.probabilities[rows] = weights / totals[lanes] * of_lane / len(ids)
        self.rows = to_redraw(ids, self._mode)
        if len(self.rows):
            self._table.release(ids[self.rows], self._weights[self.rows])
            ids[self.rows] = -1

    def give_back(self) -> None:
        """Undoes what was drawn of a batch that nobody gets."""
        self._table.release(self.ids, self._weights)
        if self._used and self._table.spec.limited:
            functions().table_count(self._table.base, -len(self.ids))


def to_redraw(ids: np.ndarray, mode: Mode | Order) -> np.ndarray:
    """The rows of a batch to be drawn again: a record is gone or, without replacement, there twice.

    Two different draws fall on one record where somebody writes between them: while one slot is
    being written the others move up.

    Args:
        ids: `[N] int64`, -1 where a record is gone.
        mode: how they were drawn.
    """
    again = ids < 0
    if mode is Mode.DISTINCT:
        first = np.unique(ids, return_index=True)[1]
        again |= ~np.isin(np.arange(len(ids)), first)
    return np.flatnonzero(again)


def check_draw(spec: TableSpec, count: int, mode: Mode | Order) -> None:
    """Raises: ReplayError: a table never allows such a draw."""
    check_batch(spec, count)
    needed = {Mode.DISTINCT: False, Order.LARGEST: True}.get(mode, spec.weighted)
    if spec.weighted != needed:
        raise ReplayError(
            f"records are drawn by {mode.name.lower()} from a table with weighted={spec.weighted}; "
            f"draw another way, or make it with weighted={needed}"
        )
    most = spec.lanes * spec.capacity
    if count < 1 or (count > most and mode not in (Mode.REPLACE, Mode.STRATIFIED)):
        raise ReplayError(f"{count} records are to be drawn, expected 1 to {most}")


def _picked(table: Table, order: Order, count: int) -> Drawn:
    found = table.pick(order.value, count)
    if isinstance(found, tuple):
        ids, _, lengths = found
        return Drawn(ids, np.ones(count), lengths)
    if found < 0:
        raise samples_held(table, count)
    raise HeldBackError(
        f"{count} records are to be drawn ({order.name.lower()}) and {found} can be; insert more "
        "first"
    )


def importance_weights(probabilities: np.ndarray, records: int, exponent: float) -> np.ndarray:
    """What undoes the bias of drawing by priority: `(N P(i))^-beta`, over the largest of a batch.

    Schaul et al. 2016, "Prioritized experience replay", section 3.4.

    Args:
        probabilities: `[B]`, with which each row was drawn.
        records: N, that could be drawn.
        exponent: beta.

    Returns: `[B] float32`, at most 1.
    """
    weights = (records * probabilities) ** -exponent
    return (weights / weights.max()).astype(np.float32)


def windows(key: Key, lengths: np.ndarray, window: int) -> np.ndarray:
    """Draws a first step in each record, such that a window lies within it where it can.

    Args:
        key: of the batch.
        lengths: `[N]`, steps of each record.
        window: steps.

    Returns: `[N] int32`; 0 in a record that is shorter than the window.
    """
    starts = np.maximum(lengths - window + 1, 1)
    numbers = uniform(key.seed, WINDOW_STREAM, np.array([key.step]), np.arange(len(starts)), 2)
    return below(numbers[0], starts[:, None])[:, 0].astype(np.int32)
