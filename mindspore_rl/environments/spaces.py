"""What an action may be."""

import math
import numbers
from dataclasses import dataclass
from typing import Any


def is_shape(value: Any) -> bool:
    """Whether a value is a tuple of whole numbers of at least 1."""
    return isinstance(value, tuple) and all(is_count(extent) for extent in value)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


@dataclass(frozen=True)
class Discrete:
    """One of `n` choices, 0 to n - 1; a batch of actions is `[B] int32`.

    Args:
        n: the number of choices.
    """

    n: int

    def __post_init__(self) -> None:
        if not is_count(self.n):
            raise ValueError(f"Discrete(n={self.n!r}), expected a whole number of at least 1")


@dataclass(frozen=True)
class Box:
    """Real numbers between bounds; a batch of actions is `[B, k] float32`.

    Args:
        shape: the shape of one action; k is its product.
        low: k lower bounds, row-major; `-inf` where there is none.
        high: k upper bounds.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not is_shape(self.shape):
            raise ValueError(f"Box(shape={self.shape!r}), expected a tuple of whole numbers")
        size = math.prod(self.shape)
        for key in ("low", "high"):
            bounds = getattr(self, key)
            if not isinstance(bounds, tuple) or len(bounds) != size:
                raise ValueError(f"Box({key}={bounds!r}), expected a tuple of {size} numbers")
