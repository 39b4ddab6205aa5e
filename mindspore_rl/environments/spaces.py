"""Action spaces: converts between a network's actions and an environment's."""

import functools
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_rl.environments.finite_check import LARGEST

_WIDTHS = (8, 16, 32, 64)
TYPES = (
    *(f"float{width}" for width in _WIDTHS[1:]),
    *(f"{kind}int{width}" for kind in ("", "u") for width in _WIDTHS),
)
"""Types of a Box's numbers."""


EXACT = 2**24
"""The largest number up to which float32 has every whole number."""


def is_shape(value: Any) -> bool:
    """Returns whether a value is a tuple of whole numbers of at least 1."""
    return isinstance(value, tuple) and all(is_count(extent) for extent in value)


def is_count(value: Any) -> bool:
    """Returns whether a value is a whole number of at least 1."""
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


class Bounds(tuple[float, ...]):
    """Numbers that compute as an array of them does, like the bounds of Gymnasium's Box."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the array, such as `max`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.array(self, np.float32), name)


def _computes(name: str) -> Callable:
    def computed(self: Bounds, *others: Any) -> Any:
        known = (int, float, tuple, list, np.ndarray, np.generic)
        if not all(isinstance(other, known) for other in others):
            return NotImplemented
        return getattr(np.array(self, np.float32), name)(*others)

    return computed


for _name in ("add", "sub", "mul", "truediv", "radd", "rsub", "rmul", "rtruediv", "neg", "abs"):
    setattr(Bounds, f"__{_name}__", _computes(f"__{_name}__"))


@dataclass(frozen=True)
class Box:
    """Numbers between bounds; a batch of a network's actions is `[B, k] float32`, see `taken`.

    Args:
        shape: the shape of one action; k is its product.
        low: k lower bounds, row-major, which become `Bounds`; `-inf` for none; a bound beyond
            `LARGEST` is none.
        high: k upper bounds.
        dtype: the type that the environment takes; for whole numbers, actions are rounded.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not is_shape(self.shape):
            raise ValueError(
                f"Box(shape={self.shape!r}), expected a tuple of whole numbers of at least 1"
            )
        for key in ("low", "high"):
            bounds = getattr(self, key)
            if not isinstance(bounds, tuple) or len(bounds) != self.size:
                raise ValueError(f"Box({key}={bounds!r}), expected a tuple of {self.size} numbers")
            real = (b if not abs(b) > LARGEST else math.copysign(math.inf, b) for b in bounds)
            object.__setattr__(self, key, Bounds(real))
        if self.dtype not in TYPES:
            raise ValueError(f"Box(dtype={self.dtype!r}), expected one of {', '.join(TYPES)}")

    @property
    def size(self) -> int:
        """k, the number of components of an action."""
        return math.prod(self.shape)

    @property
    def bounded(self) -> bool:
        """True if every number has both bounds."""
        return all(math.isfinite(bound) for bound in (*self.low, *self.high))

    @property
    def whole(self) -> bool:
        """True if actions are whole numbers."""
        return not self.dtype.startswith("float")

    @functools.cached_property
    def limits(self) -> tuple[np.ndarray, np.ndarray]:
        """`low` and `high` as arrays `[k]`, precise enough to compare with `dtype`."""
        kind = np.float32 if self.dtype in ("float16", "float32") else np.float64
        return np.array(self.low, kind), np.array(self.high, kind)


def clauses(*texts: str) -> str:
    """Joins those texts that are not empty."""
    return "; ".join(filter(None, texts))


def digits_lost(space: Any, path: str = "") -> str:
    """Warns of whole numbers that float32 rounds.

    Args:
        space: a space of observations of gym or gymnasium.
        path: the path to the space within another one.
    """
    parts = getattr(space, "spaces", None)
    if parts is not None:
        keys = parts if hasattr(parts, "keys") else range(len(parts))
        return clauses(*(digits_lost(parts[k], f"{path}[{k!r}]") for k in keys))
    if not hasattr(space, "high") or space.dtype.kind not in "iu":
        return ""  # others become one-hots
    most = max(int(np.max(space.high)), -int(np.min(space.low)))
    if most <= EXACT:
        return ""
    return (
        f"observations{path} are {space.dtype} up to {most:,}, and networks take float32, which "
        f"rounds whole numbers beyond {EXACT:,}: different ones may look the same; subtract an "
        "offset, scale, or split them into digits in the environment, or give narrower bounds"
    )


def taken(space: Discrete | Box, action: np.ndarray) -> np.ndarray:
    """Converts a network's actions to the environment's; no other function does.

    Args:
        space: the environment's action space.
        action: `[..., k]`, or for a Discrete space `[...]`.

    Returns: actions within the bounds, in the space's type and shape, `[..., *shape]`; those of a
        Discrete space unchanged.
    """
    if isinstance(space, Discrete):
        return action
    found = within(action, *space.limits, space.whole)
    return found.reshape(action.shape[:-1] + space.shape).astype(space.dtype, copy=False)


def within(action: Any, low: Any, high: Any, whole: bool, of: Any = np) -> Any:
    """Limits actions `[..., k]` to bounds `[k]`, with the operators of NumPy or MindSpore."""
    action = of.minimum(of.maximum(action, low), high)
    # ONNX cannot express the rounding that MindSpore writes.
    return of.floor(action + 0.5) if whole else action
