"""Converts values of a program to arrays on the host."""

from typing import Any

import numpy as np


def to_host(value: Any) -> np.ndarray:
    """Converts a tensor, array or number to an array, without a copy where possible."""
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


def host_leaves(value: Any) -> list[np.ndarray]:
    """Flattens nested tuples to a list of arrays on the host."""
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in host_leaves(part)]
    return [to_host(value)]
