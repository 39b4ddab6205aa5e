"""Assigns the rows of a batch to ranks, those that hold the records first."""

import numpy as np

from mindspore_rl.replay.bindings import functions


def split(count: int, parts: int) -> tuple[int, ...]:
    """Splits a count into parts that differ by one at most, the larger ones first."""
    return tuple(count // parts + (part < count % parts) for part in range(parts))


def assign(
    lanes: np.ndarray, holders: np.ndarray, quotas: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Assigns every rank its quota of rows: first those it holds, then other ranks' surplus.

    As few rows as possible move, and they move between neighbours: rank by rank, the surplus fills
    the deficits. So there are fewer messages than ranks, and hardly any between hosts if
    consecutive ranks share a host and together hold about what they need.

    Args:
        lanes: `[B] int32`, the lane of each row.
        holders: `[lanes] int64`, the rank that holds each lane.
        quotas: `[ranks] int64`, rows that each rank gets, B in total.

    Returns: the rank that holds each row, and the rank that gets it, both `[B] int64`.
    """
    found = np.empty((2, len(lanes)), np.int64)
    places = (x.ctypes.data for x in (lanes, holders))
    functions().table_assign(
        len(lanes), *places, len(quotas), quotas.ctypes.data, *(x.ctypes.data for x in found)
    )
    return found[0], found[1]
