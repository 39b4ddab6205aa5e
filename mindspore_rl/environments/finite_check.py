"""Checks that rewards and observations are finite."""

from typing import Any

import numpy as np

LARGEST = np.sqrt(np.finfo(np.float32).max)
"""1.8e19: the square of a larger number, as in losses and variances, is infinite in float32."""


def all_trainable(array: np.ndarray) -> bool:
    """Returns whether an array's numbers are within `LARGEST`; `np.all` costs twice as much."""
    if array.dtype == np.uint8:
        return True
    return np.count_nonzero(np.abs(array) <= LARGEST) == array.size


def are_trainable(value: Any) -> bool:
    """Returns whether all numbers of a value of any kind are within `LARGEST`."""
    try:
        return all_trainable(np.asarray(value, np.float64))
    except (TypeError, ValueError):
        return False


def first_untrainable(array: np.ndarray) -> tuple[int, ...]:
    """Returns the index of the first number beyond `LARGEST`; there must be one."""
    return tuple(np.argwhere(~(np.abs(array) <= LARGEST))[0].tolist())


def untrainable(name: str, value: Any) -> str:
    """Describes the first number beyond `LARGEST` in an environment's result; there must be one."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return f"{name} is {value!r}, expected numbers"
    place = first_untrainable(array)
    return (
        f"{name}{list(place) or ''} is {array[place]:g}, expected finite numbers up to "
        f"{LARGEST:.1e}, whose squares are finite float32: scale or clip it in the environment"
    )
