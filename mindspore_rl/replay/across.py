"""Draws among the records of all environments, and maps them to rows of a batch.

Every rank knows how many records each environment has, so shared random numbers determine the whole
draw. A batch has equally many rows for each environment: drawn records fill their own
environment's rows first; the surplus fills, in order, the rows of environments that drew too few.
So the batch does not depend on the sharding of environments, and few records move between ranks.
"""

import numpy as np

from mindspore_rl.rl.random import below

ACROSS = ("uniform", "distinct")
"""The `by` arguments of a program for draws with and without replacement."""


def drawn_across(
    numbers: np.ndarray, records: np.ndarray, distinct: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Draws records uniformly from those of all environments together.

    Args:
        numbers: `[B, 2 k]` uniform in [0, 1), see `random.below`.
        records: number of records of each environment, `[B]`, below 0 like none; with `distinct`
            at least k.
        distinct: draws without replacement (Floyd's algorithm, Bentley 1987).

    Returns: for each row of the batch the index of the record and its environment, both `[k, B]`
        int64.
    """
    count, each, records = len(numbers), numbers.shape[1] // 2, np.maximum(records, 0)
    number, total = count * each, int(records.sum())
    most = total - number + 1 + np.arange(number) if distinct else total
    found = below(numbers, np.reshape(most, (-1, each) if distinct else ())).reshape(-1)
    if distinct:
        taken: set[int] = set()
        for at, place in enumerate(found.tolist()):
            found[at] = total - number + at if place in taken else place
            taken.add(int(found[at]))
    least = int(records.min())  # up to there the environments alternate
    more, above = records - least, found - count * least
    ends = np.cumsum(more)
    lanes = np.searchsorted(ends, above, "right")
    holders = np.where(above < 0, found % count, lanes)
    index = np.where(above < 0, found // count, least + above - (ends - more)[lanes % count])
    order = _sorted_in(holders, count, each)
    return index[order], holders[order]


def _sorted_in(holders: np.ndarray, count: int, each: int) -> np.ndarray:
    """Numbers the drawn record of each row `[k, B]`: of its own environment as far as they go."""
    order, drawn = np.argsort(holders, kind="stable"), np.bincount(holders, minlength=count)
    among = np.arange(len(holders)) - (np.cumsum(drawn) - drawn)[holders[order]]
    room = np.arange(each) < drawn[:, None]  # `[B, k]`: rows filled by their own environment
    rows = holders[order] * each + among
    rows[among >= each] = np.flatnonzero(~room)
    result = np.empty(count * each, np.int64)
    result[rows] = order
    return result.reshape(count, each).T
