"""Draws in proportion to priorities (Schaul et al. 2016, "Prioritized experience replay").

Weights are whole numbers, so that their sums are exact in any order.
"""

from collections.abc import Sequence

import numpy as np

ONE, LARGEST = 1 << 20, 1 << 40


def weights_of(priorities: np.ndarray) -> np.ndarray:
    """Weights, int64 of at least 1, of priorities that are not negative; nan counts as 0."""
    scaled = np.rint(np.nan_to_num(priorities, posinf=np.inf).astype(np.float64) * ONE)
    return np.clip(scaled, 1, LARGEST).astype(np.int64)


def weighted_rows(
    noise: np.ndarray, weights: np.ndarray, without: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Rows that random numbers choose in proportion to weights, for each environment by itself.

    Args:
        noise: `[B, k]` uniform in [0, 1).
        weights: `[rows, B]` int64.
        without: rows that are not drawn.

    Returns: rows `[k, B]` int32, and how much likelier each was than in a uniform draw, `[k, B]`
        float32.
    """
    weights = weights.copy() if len(without) else weights
    weights[list(without)] = 0
    sums = np.cumsum(weights, axis=0)
    places = np.minimum((noise.T.astype(np.float64) * sums[-1]).astype(np.int64), sums[-1] - 1)
    found = (np.searchsorted(sums[:, b], places[:, b], "right") for b in range(len(noise)))
    rows = np.stack(list(found), axis=1).astype(np.int32)
    odds = np.take_along_axis(weights, rows, axis=0) * ((len(weights) - len(without)) / sums[-1])
    return rows, odds.astype(np.float32)
