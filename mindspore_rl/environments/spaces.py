"""What an action may be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Discrete:
    """One of `n` choices, 0 to n - 1; a batch of actions is `[B] int32`.

    Args:
        n: the number of choices.
    """

    n: int


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
