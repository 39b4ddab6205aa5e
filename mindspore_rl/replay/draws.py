"""The records of a batch, as a pure function of a key and the totals of lanes.

Every rank that knows the totals draws the same numbers, and resolves those that fall into its own
lanes: no index is sent, and the union of all ranks' rows is the same however the lanes are sharded.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from mindspore_rl.errors import HeldBackError, ReplayError
from mindspore_rl.replay.bindings import functions, in_parts
from mindspore_rl.replay.given import check_exponent
from mindspore_rl.replay.rate_limiter import NO_WAIT, Wait, admit, check_batch, samples_held, until
from mindspore_rl.replay.records import Buffers
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.rl.random import below, stream, uniform

STREAM, WINDOW_STREAM = stream("replay"), stream("window")
TRIES = 10_000
Copy = Callable[[np.ndarray, "Drawn"], np.ndarray]


class Mode(IntEnum):
    """Sampling modes: in proportion to weights (all 1 in a table without weights)."""

    REPLACE = 0
    DISTINCT = 1
    STRATIFIED = 2


class Order(Enum):
    """Deterministic orders; a draw takes the first records over all lanes, atomically.

    FIFO and LIFO: each lane in the order of its ring, lanes merged by the number of records
    inserted before. LARGEST: the largest weights, exact; ties go to the first lane, then to the
    first place in it.
    """

    FIFO = 0
    LIFO = 1
    LARGEST = 2


_WEIGHTED = {Mode.DISTINCT: False, Order.LARGEST: True}


@dataclass(frozen=True)
class Key:
    """The key of a draw, which determines its random numbers.

    Args:
        seed: of the job.
        step: number of the batch.
    """

    seed: int
    step: int


@dataclass(frozen=True)
class Drawn:
    """Drawn records.

    Attributes:
        ids: `[N] int64`.
        probabilities: `[N] float64`, of each draw; 1 in an `Order`.
        lengths: `[N] int32`, steps of each record.
    """

    ids: np.ndarray
    probabilities: np.ndarray
    lengths: np.ndarray


@functools.lru_cache(maxsize=64)
def strata(count: int, lanes: int) -> np.ndarray:
    """Returns the lane of each row of a stratified batch, `[N] int32`: equally many of each."""
    found = (np.arange(count) * lanes // count).astype(np.int32)
    found.setflags(write=False)
    return found


@functools.lru_cache(maxsize=64)
def _given(count: int, lanes: int) -> tuple[np.ndarray, np.ndarray, int, Any]:
    """Returns all rows of a batch, `strata` and its address, and the memory of `table_sample`."""
    rows, of_lanes = np.arange(count), strata(count, lanes)
    rows.setflags(write=False)
    return rows, of_lanes, of_lanes.ctypes.data, ctypes.c_int64 * (4 * count + 1)


def draw(
    key: Key,
    totals: np.ndarray,
    count: int,
    mode: Mode = Mode.REPLACE,
    first: int = 0,
    rows: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Draws lanes, and offsets within them.

    Args:
        key: see `Key`.
        totals: `[lanes] uint64`, the sums of the weights.
        count: N.
        mode: see `Mode`.
        first: number of this key's random numbers that are already used.
        rows: `[N] int32`, the lane of each row of a stratified draw; None: `strata`.

    Returns: lanes `[N] int32`, offsets `[N] uint64` below the lanes' totals, and how many random
        numbers are used now.

    Raises:
        HeldBackError: there are too few records to draw from.
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
    table: Table,
    key: Key,
    count: int,
    mode: Mode | Order = Mode.REPLACE,
    wait: Wait = NO_WAIT,
    copy: Copy | None = None,
    buffers: Buffers | None = None,
) -> Drawn:
    """Draws records from a table of which this process maps all lanes.

    Args:
        table: to draw from.
        key: of the batch; ignored by an `Order`.
        count: N.
        mode: a random mode, or an order whose first records are taken.
        wait: the maximum wait if records are lacking or the rate limiter holds the batch back.
        copy: copies the records at some rows of the batch, and returns whether each still existed;
            one that has been overwritten is replaced by another draw.
        buffers: to which `copy` would copy whole records: they are drawn and copied in one call.

    Raises:
        ReplayError: the table never allows such a batch, or did not in time; then nothing is drawn.
    """
    check_draw(table.spec, count, mode)
    if isinstance(mode, Order):
        return _first(table, count, mode, wait, copy)
    batch = _Batch(table, key, count, mode, copy)
    try:
        if buffers is not None and batch.sample(buffers):
            return Drawn(batch.ids, batch.probabilities, batch.lengths)
        for _ in range(TRIES):
            batch.resolve(*until(table, batch.draw, wait))
            if not len(batch.rows):
                return Drawn(batch.ids, batch.probabilities, batch.lengths)
            # Another process has changed the table, or has died while it did.
            functions().table_mend(table.base)
        raise _overwritten(len(batch.rows), count)
    except BaseException:
        batch.give_back()
        raise


class _Batch:
    """A batch under construction; draws that hit no record or a duplicate are repeated.

    Attributes:
        rows: still to be drawn.
        ids, probabilities, lengths: see `Drawn`; ids are -1 in `rows`.
    """

    def __init__(self, table: Table, key: Key, count: int, mode: Mode, copy: Copy | None) -> None:
        self._table, self._key, self._mode, self._copy = table, key, mode, copy
        self._used, given = 0, _given(count, table.spec.lanes)
        self.rows, self._strata, self._strata_at, memory = given
        self._found: Any = memory()
        self.ids = np.frombuffer(self._found, np.int64, count)
        self.probabilities = np.frombuffer(self._found, np.float64, count, 16 * count)
        self.lengths = np.frombuffer(self._found, np.int32, count, 24 * count)
        self.ids[:] = -1

    @property
    def _weights(self) -> np.ndarray:
        count = len(self.ids)
        return np.frombuffer(self._found, np.uint64, count, 8 * count)

    def sample(self, buffers: Buffers) -> bool:
        """Draws all rows and copies their records in one call, if the table allows it now.

        Returns: whether all rows are there.
        """
        table, key, count = self._table, self._key, len(self.ids)
        used = functions().table_sample(
            table.base, key.seed, STREAM, key.step, self._mode, count, self._strata_at,
            *table.layout, buffers.at(0), in_parts(), self._found,
        )  # fmt: skip
        if used < 0:
            return False
        self._used = used
        if not self._found[-1] and self._mode is not Mode.DISTINCT:
            return True
        whole = np.frombuffer(self._found, np.bool_, count, 28 * count)
        self.rows = np.union1d(to_redraw(self.ids, self._mode), np.flatnonzero(~whole))
        self._undo(self.rows)
        return not len(self.rows)

    def draw(self) -> tuple[np.ndarray, ...]:
        """Draws lanes and offsets for `rows`; also returns the totals. Raises: HeldBackError."""
        totals, lanes, mode = self._table.totals(), self._strata[self.rows], self._mode
        # Only REPLACE draws all rows again: else the table may have no more than the missing ones.
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
        """Resolves the draws to records, and finds the rows to draw again."""
        rows, ids = self.rows, self.ids
        ids[rows], weights, self.lengths[rows] = self._table.resolve(lanes, offsets)
        self._weights[rows], self.probabilities[rows] = weights, weights / float(totals.sum())
        if self._mode is Mode.STRATIFIED:
            of_lane = np.bincount(self._strata)[lanes]
            self.probabilities[rows] = weights / totals[lanes] * of_lane / len(ids)
        self.rows = to_redraw(ids, self._mode)
        self._undo(self.rows)
        if self._copy:
            found = rows[ids[rows] >= 0]
            gone = found[~self._copy(found, Drawn(ids, self.probabilities, self.lengths))]
            self._undo(gone)
            self.rows = np.union1d(self.rows, gone)

    def _undo(self, rows: np.ndarray) -> None:
        if len(rows):
            self._table.release(self.ids[rows], self._weights[rows])
            self.ids[rows] = -1

    def give_back(self) -> None:
        """Undoes the draws of a batch that is not used."""
        self._table.release(self.ids, self._weights)
        if self._used and self._table.spec.limited:
            functions().table_count(self._table.base, -len(self.ids))


def to_redraw(ids: np.ndarray, mode: Mode | Order) -> np.ndarray:
    """Finds rows to draw again: the record is gone or, without replacement, a duplicate.

    Two different draws can hit one record if a writer interferes: while a slot is being written,
    the others move up.

    Args:
        ids: `[N] int64`, -1 if the record is gone.
        mode: of the draw.
    """
    again = ids < 0
    if mode is Mode.DISTINCT:
        first = np.unique(ids, return_index=True)[1]
        again |= ~np.isin(np.arange(len(ids)), first)
    return np.flatnonzero(again)


def check_draw(spec: TableSpec, count: int, mode: Mode | Order) -> None:
    """Raises: ReplayError: a table never allows such a draw."""
    check_batch(spec, count)
    needed = _WEIGHTED.get(mode, spec.weighted)
    if spec.weighted != needed:
        raise ReplayError(
            f"records are drawn by {mode.name.lower()} from a table with weighted={spec.weighted}; "
            f"draw another way, or make it with weighted={needed}"
        )
    most = spec.lanes * spec.capacity
    if count < 1 or (count > most and mode not in (Mode.REPLACE, Mode.STRATIFIED)):
        raise ReplayError(f"{count} records are to be drawn, expected 1 to {most}")


def _first(table: Table, count: int, order: Order, wait: Wait, copy: Copy | None) -> Drawn:
    for _ in range(TRIES):
        ids, weights, lengths = until(table, lambda: _picked(table, order, count), wait)
        drawn = Drawn(ids, np.ones(count), lengths)
        if copy is None or copy(np.arange(count), drawn).all():
            return drawn
        table.release(ids, weights)
        if table.spec.limited:
            functions().table_count(table.base, -count)
    raise _overwritten(count, count)


def _overwritten(rows: int, count: int) -> ReplayError:
    return ReplayError(
        f"{rows} of {count} records are overwritten faster than they are drawn; raise the capacity"
    )


def _picked(table: Table, order: Order, count: int) -> tuple[np.ndarray, ...]:
    found = table.pick(order.value, count)
    if isinstance(found, tuple):
        return found
    if found < 0:
        raise samples_held(table, count)
    raise HeldBackError(
        f"{count} records are to be drawn ({order.name.lower()}) and {found} can be; insert more "
        "first"
    )


def importance_weights(
    probabilities: np.ndarray, exponent: float, least: float | None = None
) -> np.ndarray:
    """Returns importance-sampling weights `(N P(i))^-beta`, divided by the largest of the batch.

    Schaul et al. 2016, "Prioritized experience replay", section 3.4. N, the number of records,
    cancels out.

    Args:
        probabilities: `[B]`, of each draw.
        exponent: beta.
        least: the smallest probability in the batch, if these are a part of it.

    Returns: `[B] float32`, at most 1.
    """
    check_exponent(exponent)
    least = probabilities.min() if least is None else least
    return ((probabilities / least) ** -exponent).astype(np.float32)


def windows(key: Key, lengths: np.ndarray, window: int) -> np.ndarray:
    """Draws the first step of a window in each record, within the record if it is long enough.

    Args:
        key: of the batch.
        lengths: `[N]`, steps of each record.
        window: steps of a window.

    Returns: `[N] int32`; 0 in a record shorter than the window.
    """
    starts = np.maximum(lengths - window + 1, 1)
    numbers = uniform(key.seed, WINDOW_STREAM, np.array([key.step]), np.arange(len(starts)), 2)
    return below(numbers[0], starts[:, None])[:, 0].astype(np.int32)
