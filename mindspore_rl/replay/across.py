"""Draws among the records of all environments, and maps them to rows of a batch.

All environments have as many records, so random numbers that everybody knows say the whole draw. A
batch has as many rows of each environment: its own records come there first, and what one has too
many of, in order, goes to those that have too few. So the batch is the same whoever has which
environments, and few of its records move.
"""

import numpy as np

from mindspore_rl.rl.random import below

ACROSS = ("uniform", "distinct")
"""What a program calls them: with replacement, and without."""


def drawn_across(
    numbers: np.ndarray, records: int, distinct: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Records, each as likely as any other of all environments.

    Args:
        numbers: `[B, 2 k]` uniform in [0, 1), see `random.below`.
        records: of each environment; with `distinct` at least k.
        distinct: draws none twice (Floyd's way, Bentley 1987).

    Returns: for each row of the batch which of the records, and whose, `[k, B]` int64 both.
    """
    count, each = len(numbers), numbers.shape[1] // 2
    number, total = count * each, count * records
    most = total - number + 1 + np.arange(number) if distinct else total
    found = below(numbers, np.reshape(most, (-1, each) if distinct else ())).reshape(-1)
    if distinct:
        taken: set[int] = set()
        for at, place in enumerate(found.tolist()):
            found[at] = total - number + at if place in taken else place
            taken.add(int(found[at]))
    found = _sorted_in(found, found % count, count, each)
    return found // count, found % count


def _sorted_in(found: np.ndarray, holders: np.ndarray, count: int, each: int) -> np.ndarray:
    """What was drawn, at the rows `[k, B]` of its environments where these have room."""
    order, drawn = np.argsort(holders, kind="stable"), np.bincount(holders, minlength=count)
    among = np.arange(len(found)) - (np.cumsum(drawn) - drawn)[holders[order]]
    room = np.arange(each) < drawn[:, None]  # of each environment, which of its rows are taken
    rows = holders[order] * each + among
    rows[among >= each] = np.flatnonzero(~room)
    result = np.empty(count * each, np.int64)
    result[rows] = found[order]
    return result.reshape(count, each).T
