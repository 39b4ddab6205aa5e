"""Assigns the rows of a batch to ranks, those that hold the records first."""

import numpy as np

from mindspore_rl.replay.bindings import functions


def split(count: int, parts: int) -> tuple[int, ...]:
    """Shares that differ by one at most, the larger ones first."""
    return tuple(count // parts + (part < count % parts) for part in range(parts))


def assign(
    lanes: np.ndarray, holders: np.ndarray, quotas: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gives every rank its quota: what it holds, then what others hold too much of.

    As few rows move as can, and they move between neighbours: rank by rank, what is too much fills
    what is missing. So there are fewer messages than ranks, and hardly any between hosts whose
    ranks follow each other and have about what they need together.

    Args:
        lanes: `[B] int32`, of each row.
        holders: `[lanes] int64`, the rank that holds each lane.
        quotas: `[ranks] int64`, rows that each rank gets, B in all.

    Returns: which rank holds each row, and which gets it, `[B] int64` both.
    """
    found = np.empty((2, len(lanes)), np.int64)
    places = (x.ctypes.data for x in (lanes, holders))
    functions().table_assign(
        len(lanes), *places, len(quotas), quotas.ctypes.data, *(x.ctypes.data for x in found)
    )
    return found[0], found[1]
