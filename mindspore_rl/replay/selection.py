"""Which records of a table make a batch, as a function of a key and of the lanes' totals.

Every rank that knows the totals draws the same numbers, and resolves those that fall in lanes of
its own: no index is shipped, and the union of all ranks' rows is the same however lanes are spread.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.library import functions
from mindspore_rl.replay.table import Table
from mindspore_rl.rl.random import stream, uniform

STREAM, WINDOW_STREAM = stream("replay"), stream("window")
TRIES = 100


class Mode(IntEnum):
    """How records are drawn, each in proportion to its weight (1 in a table without weights)."""

    REPLACE = 0
    DISTINCT = 1
    STRATIFIED = 2


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
        probabilities: `[N] float64`, with which each was drawn.
        lengths: `[N] int32`, steps of each.
        records: from which could be drawn, about (exact where all have one weight).
    """

    ids: np.ndarray
    probabilities: np.ndarray
    lengths: np.ndarray


def draw(
    key: Key, totals: np.ndarray, count: int, mode: Mode = Mode.REPLACE, first: int = 0
) -> tuple[np.ndarray, np.ndarray, int]:
    """Draws lanes and places in them.

    Args:
        key: see `Key`.
        totals: `[lanes] uint64`, of the weights.
        count: N.
        mode: see `Mode`.
        first: random numbers of this key that were used already.

    Returns: lanes `[N] int32`, offsets `[N] uint64` below the lanes' totals, and how many random
        numbers were used.

    Raises:
        ReplayError: there is not enough to draw from.
    """
    lanes, offsets = np.empty(count, np.int32), np.empty(count, np.uint64)
    totals = np.ascontiguousarray(totals, np.uint64)
    places = (x.ctypes.data for x in (totals, lanes, offsets))
    used = functions().table_draw(
        key.seed, STREAM, key.step, first, mode, count, len(totals), *places
    )
    if used < 0:
        raise ReplayError(
            f"{count} records are to be drawn ({mode.name.lower()}) from lanes whose weights are "
            f"{totals.tolist()} in all; insert more first"
        )
    return lanes, offsets, used


def sample(table: Table, key: Key, count: int, mode: Mode = Mode.REPLACE) -> Drawn:
    """Draws from a table that this process has all lanes of.

    Raises:
        ReplayError: there is not enough to draw from.
    """
    totals = table.totals()
    lanes, offsets, used = draw(key, totals, count, mode)
    ids, weights, lengths = table.resolve(lanes, offsets)
    for _ in range(TRIES):
        again = np.flatnonzero(ids < 0)
        if not len(again):
            break
        # Somebody else has changed the table: drawn anew, from what it is now.
        totals = table.totals()
        more = draw(key, totals, len(again), Mode.REPLACE, used)
        used += more[2]
        ids[again], weights[again], lengths[again] = table.resolve(*more[:2])
    return Drawn(ids, weights / float(totals.sum()), lengths)


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
    places = np.maximum(lengths - window + 1, 1)
    numbers = uniform(key.seed, WINDOW_STREAM, np.array([key.step]), np.arange(len(places)), 1)
    return (numbers.reshape(-1) * places).astype(np.int32)
