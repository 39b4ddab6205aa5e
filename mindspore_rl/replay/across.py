"""Draws among the records of all environments, and maps them to rows of a batch.

A batch that is no multiple of the environments is the same on every rank, see `drawn_whole`.

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
    found = _drawn(numbers, count * each, int(records.sum()), distinct)
    index, holders = _located(found, records)
    order = _sorted_in(holders, count, each)
    return index[order], holders[order]


def drawn_whole(
    numbers: np.ndarray, records: np.ndarray, count: int, by: str
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a batch of any size from the records of all environments.

    Args:
        numbers: `[B, 2 k]` uniform in [0, 1), see `random.below`; k is the count / B, rounded up.
        records: number of records of each environment, see `drawn_across`.
        count: size of the batch.
        by: one of `ACROSS`; else each environment gives count / B records, rounded down, and the
            rest are drawn from all together.

    Returns: for each row of the batch the index of the record and its environment, both `[count]`
        int64.
    """
    lanes, each, records = len(numbers), count // len(numbers), np.maximum(records, 0)
    total = int(records.sum())
    if by in ACROSS:
        return _located(_drawn(numbers, count, total, by == "distinct"), records)
    own = below(numbers, records[:, None])[:, :each].T.reshape(-1)
    rest = below(numbers, np.array(total))[:, -1][: count - each * lanes]
    index, holders = _located(rest, records)
    every = np.tile(np.arange(lanes), each)
    return np.concatenate([own, index]), np.concatenate([every, holders])


def _drawn(numbers: np.ndarray, count: int, total: int, distinct: bool) -> np.ndarray:
    """Draws `count` of `total` records, with the first of the random numbers `[B, 2 k]`."""
    if not distinct:
        return below(numbers, np.array(total)).reshape(-1)[:count]
    each, places = numbers.shape[1] // 2, np.arange(len(numbers) * (numbers.shape[1] // 2))
    most = np.minimum(total - count + 1 + places, total)
    found = below(numbers, most.reshape(-1, each)).reshape(-1)[:count]
    taken: set[int] = set()
    for at, place in enumerate(found.tolist()):
        found[at] = total - count + at if place in taken else place
        taken.add(int(found[at]))
    return found


def _located(found: np.ndarray, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices and environments of records that are numbered over all of them."""
    count, least = len(records), int(records.min())  # up to there the environments alternate
    more, above = records - least, found - count * least
    ends = np.cumsum(more)
    lanes = np.searchsorted(ends, above, "right")
    holders = np.where(above < 0, found % count, lanes)
    index = np.where(above < 0, found // count, least + above - (ends - more)[lanes % count])
    return index, holders


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
