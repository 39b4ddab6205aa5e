"""Checks that rewards and observations are finite."""

from typing import Any

import numpy as np

LARGEST = np.sqrt(np.finfo(np.float32).max)
"""1.8e19: a larger number's square, as in a loss or a variance, is no finite float32."""


def all_trainable(array: np.ndarray) -> bool:
    """Whether an array holds only numbers within `LARGEST`; `np.all` costs twice as much."""
    if array.dtype == np.uint8:
        return True
    return np.count_nonzero(np.abs(array) <= LARGEST) == array.size


def are_trainable(value: Any) -> bool:
    """Whether a value of any kind is made of numbers within `LARGEST`."""
    try:
        return all_trainable(np.asarray(value, np.float64))
    except (TypeError, ValueError):
        return False


def first_untrainable(array: np.ndarray) -> tuple[int, ...]:
    """The index of the first number that is not within `LARGEST`; there must be one."""
    return tuple(np.argwhere(~(np.abs(array) <= LARGEST))[0].tolist())


def untrainable(name: str, value: Any) -> str:
    """Says which number it is of what an environment gave; there must be one."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return f"{name} is {value!r}, expected numbers"
    place = first_untrainable(array)
    return (
        f"{name}{list(place) or ''} is {array[place]:g}, expected finite numbers up to "
        f"{LARGEST:.1e}, whose squares are finite float32: scale or clip it in the environment"
    )
