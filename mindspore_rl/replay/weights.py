"""Draws in proportion to priorities (Schaul et al. 2016, "Prioritized experience replay").

Weights are integers, so that their sums are exact in any order.
"""

import numpy as np

from mindspore_rl.errors import NumericsError, ReplayError
from mindspore_rl.rl.random import below

ONE, LARGEST = 1 << 20, 1 << 40
BLOCK = 64
"""Rows of a block: a draw searches the sums of blocks, then one block."""


def weights_of(priorities: np.ndarray) -> np.ndarray:
    """Converts priorities to weights: int64, at least 1.

    Raises:
        NumericsError: a priority is NaN.
        ReplayError: a priority is negative.
    """
    if not (priorities >= 0).all():
        least = priorities.min()
        if np.isnan(least):
            raise NumericsError("a priority is nan: the learner has diverged")
        raise ReplayError(f"a priority is {least:g}, expected 0 or more, such as ops.abs(error)")
    scaled = np.rint(priorities.astype(np.float64) * ONE)
    return np.clip(scaled, 1, LARGEST).astype(np.int64)


def weighted_rows(
    noise: np.ndarray, weights: np.ndarray, filled: np.ndarray, without: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws rows in proportion to weights, for each environment separately.

    Args:
        noise: `[B, 2 k]` uniform in [0, 1), see `random.below`.
        weights: `[rows, B]` int64; 0 behind the records.
        filled: number of records of each environment, `[B]`.
        without: rows that must not be drawn, `[n, B]`.

    Returns: rows `[k, B]` int32, and the ratio of each row's probability to that of a uniform draw,
        `[k, B]` float32.
    """
    weights = weights.copy()
    np.put_along_axis(weights, without, 0, axis=0)
    sums = np.cumsum(weights, axis=0)
    places = below(noise, sums[-1][:, None])
    found = (np.searchsorted(sums[:, b], places[b], "right") for b in range(len(noise)))
    rows = np.stack(list(found), axis=1).astype(np.int32)
    odds = np.take_along_axis(weights, rows, axis=0) * ((filled - len(without)) / sums[-1])
    return rows, odds.astype(np.float32)


def newest_rows(inserted: np.ndarray, capacity: int, steps: int) -> np.ndarray:
    """Returns the rows at which no window of `steps` records begins, `[steps - 1, B]`.

    Args:
        inserted: number of records ever inserted for each environment, `[B]`.
        capacity: rows of the ring.
        steps: records of a window; 0: single records.
    """
    return (inserted - 1 - np.arange(max(steps - 1, 0))[:, None]) % capacity


class Weights:
    """Weights of rows with sums of blocks, so that the cost of a draw hardly grows with the rows.

    Attributes:
        rows: `[rows, B]` int64; None before `take`.
    """

    def __init__(self) -> None:
        self.rows: np.ndarray | None = None
        self._sums = self._largest = np.zeros((0, 0), np.int64)
        self._changed: list[np.ndarray] = []  # blocks whose maximum is outdated

    def take(self, rows: np.ndarray) -> None:
        """Takes a column of weights, and builds its sums."""
        if len(rows) * LARGEST > np.iinfo(np.int64).max:
            raise ReplayError(
                f"{len(rows):,} records of each environment are kept by priority, expected fewer "
                f"than {(1 << 63) // LARGEST:,}: keep fewer, or have more environments"
            )
        self.rows, blocks = rows, -(-len(rows) // BLOCK)
        self._sums = np.add.reduceat(rows, np.arange(blocks) * BLOCK)
        self._largest, self._changed = np.maximum.reduceat(rows, np.arange(blocks) * BLOCK), []

    def largest(self, places: slice) -> np.ndarray:
        """Returns the largest weight of some environments, `[b]`; `ONE` for one without records."""
        assert self.rows is not None
        if self._changed:
            blocks = np.unique(np.concatenate(self._changed))
            inside = np.minimum(blocks[:, None] * BLOCK + np.arange(BLOCK), len(self.rows) - 1)
            self._largest[blocks], self._changed = self.rows[inside].max(1), []
        found = self._largest[:, places].max(0)
        return np.where(found > 0, found, ONE)

    def put(self, rows: np.ndarray, places: slice, values: np.ndarray) -> None:
        """Sets rows `[n]` of some environments to values `[n, b]`."""
        assert self.rows is not None
        own, blocks = self.rows[:, places], rows // BLOCK
        np.add.at(self._sums[:, places], blocks, values - own[rows])
        own[rows] = values
        self._changed.append(blocks)

    def _put_apart(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets rows `[n, B]`, different for each environment, to values as many."""
        assert self.rows is not None
        own = np.arange(self.rows.shape[1])
        np.add.at(self._sums, (rows // BLOCK, own), values - self.rows[rows, own])
        self.rows[rows, own] = values

    def update(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets rows `[k, B]`, different for each environment; the last of duplicates counts."""
        assert self.rows is not None
        count = rows.shape[1]
        entries = (rows * count + np.arange(count)).reshape(-1)[::-1]
        entries, last = np.unique(entries, return_index=True)
        weights, own = values.reshape(-1)[::-1][last], self.rows.reshape(-1)
        blocks = entries // count // BLOCK
        np.add.at(self._sums, (blocks, entries % count), weights - own[entries])
        own[entries] = weights
        self._changed.append(blocks)

    def draw(
        self, noise: np.ndarray, filled: np.ndarray, without: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws like `weighted_rows`."""
        assert self.rows is not None
        most, own = int(filled.max()), np.arange(len(noise))
        hidden = self.rows[without, own]
        self._put_apart(without, np.zeros_like(hidden))
        sums = np.cumsum(self._sums[: -(-most // BLOCK)], axis=0)
        places = below(noise, sums[-1][:, None]).T
        found = (np.searchsorted(sums[:, b], places[:, b], "right") for b in range(len(noise)))
        blocks = np.stack(list(found), axis=1)
        places -= sums[blocks, own] - self._sums[blocks, own]
        inside = np.minimum(blocks[..., None] * BLOCK + np.arange(BLOCK), most - 1)
        inside = inside * len(noise) + own[:, None]
        within = np.cumsum(self.rows.reshape(-1).take(inside), axis=-1)
        rows = blocks * BLOCK + (within <= places[..., None]).sum(-1)
        odds = self.rows[rows, own] * ((filled - len(without)) / sums[-1])
        self._put_apart(without, hidden)
        return rows.astype(np.int32), odds.astype(np.float32)
