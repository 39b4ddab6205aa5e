"""Which rank gets which rows of a batch: first those that it holds itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def split(count: int, parts: int) -> tuple[int, ...]:
    """Shares that differ by one at most, the larger ones first."""
    return tuple(count // parts + (part < count % parts) for part in range(parts))


@dataclass(frozen=True)
class Assignment:
    """Who gets which rows, by their positions in the batch.

    Attributes:
        kept: of each rank, the rows that it holds and gets.
        moved: of a holder and another rank, the rows that the one sends to the other.
    """

    kept: tuple[np.ndarray, ...]
    moved: dict[tuple[int, int], np.ndarray]


def assign(holders: np.ndarray, quotas: Sequence[int]) -> Assignment:
    """Gives every rank its quota: what it holds, then what others hold too much of.

    As few rows move as can, and they move between neighbours: rank by rank, what is too much fills
    what is missing. So there are fewer messages than ranks, and hardly any between hosts whose
    ranks follow each other and have about what they need together.

    Args:
        holders: `[B]`, the rank that holds each row.
        quotas: rows that each rank gets, B in all.
    """
    order = np.argsort(holders, kind="stable")
    ends = np.cumsum(np.bincount(holders, minlength=len(quotas)))
    held = np.split(order, ends[:-1])
    kept = tuple(rows[:quota] for rows, quota in zip(held, quotas, strict=True))
    missing = [quota - len(rows) for rows, quota in zip(kept, quotas, strict=True)]
    moved: dict[tuple[int, int], np.ndarray] = {}
    rank = 0
    for holder, rows in enumerate(held):
        left = rows[quotas[holder] :]
        while len(left):
            while not missing[rank]:
                rank += 1
            moved[holder, rank] = left[: missing[rank]]
            left = left[missing[rank] :]
            missing[rank] -= len(moved[holder, rank])
    return Assignment(kept, moved)
