"""Draws in proportion to priorities (Schaul et al. 2016, "Prioritized experience replay").

Weights are integers, so that their sums are exact in any order.
"""

import numpy as np

from mindspore_rl.errors import NumericsError, ReplayError
from mindspore_rl.rl.random import below

ONE, LARGEST = 1 << 20, 1 << 40


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
