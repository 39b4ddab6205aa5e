"""Layouts: turn an environment's observations (a Dict, a state's number, an image) into an array.

A layout is data: a run keeps it, and its policy takes what the environment gives.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindspore_rl.environments import images
from mindspore_rl.errors import MsrlError

_NUMBERS = "biuf"
_WHOLE = "iu"


@dataclass(frozen=True)
class Layout:
    """The layout of an observation space, in the order of gymnasium's `flatten`.

    Args:
        kind: `box`, `image`, `discrete`, `multi_discrete`, `multi_binary`, `dict` or `tuple`.
        shape: of one observation; of a `dict` and a `tuple` empty.
        choices: number of choices of each number of a `discrete` or a `multi_discrete`.
        starts: first choice of each.
        keys: of a `dict`, in order.
        parts: of a `dict` or a `tuple`, in order.
    """

    kind: str
    shape: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    parts: tuple["Layout", ...] = ()

    @classmethod
    def of(cls, space: Any) -> "Layout | None":
        """Returns the layout of a space of gym or gymnasium; None: it has parts of other kinds."""
        return cls("image", tuple(space.shape)) if images.is_image(space) else _part(space)

    def without(self, key: str) -> "Layout":
        """Returns the layout without a key, if it is a `dict` that has it."""
        if key not in self.keys:
            return self
        rest = [pair for pair in zip(self.keys, self.parts, strict=True) if pair[0] != key]
        keys, parts = zip(*rest, strict=True)
        return replace(self, keys=keys, parts=parts)

    @property
    def ordered(self) -> bool:
        """True if the same count of numbers may mean something else in another order."""
        return self.kind in ("dict", "tuple", "multi_discrete")

    def __str__(self) -> str:
        """The layout in the words of a space."""
        if self.kind == "dict":
            pairs = zip(self.keys, self.parts, strict=True)
            return f"Dict({', '.join(f'{key}: {part}' for key, part in pairs)})"
        if self.kind == "tuple":
            return f"Tuple({', '.join(map(str, self.parts))})"
        if self.choices:
            found = ", ".join(map(str, self.choices))
            return f"{'Discrete' if self.kind == 'discrete' else 'MultiDiscrete'}({found})"
        names = {"box": "Box", "image": "image", "multi_binary": "MultiBinary"}
        return f"{names[self.kind]}{self.shape}"

    def columns(self, path: str = "obs", begin: int = 0) -> Iterator[dict[str, Any]]:
        """Yields the place of each part in a flattened observation, from column `begin` on."""
        if self.kind in ("dict", "tuple"):
            for key, part in zip(self.keys or range(len(self.parts)), self.parts, strict=True):
                for found in part.columns(f"{path}[{key!r}]", begin):
                    yield found
                    begin = found["columns"][1]
        else:
            found = {"path": path, "kind": self.kind, "shape": self.shape}
            if self.choices:
                found |= {"choices": self.choices, "starts": self.starts}
            if self.kind != "image":
                end = begin + (sum(self.choices) or math.prod(self.shape))
                found["columns"] = [begin, end]
            yield found

    def flat(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Flattens what an environment gives, or a batch `[B, ...]` in each part of it.

        Args:
            obs: in the form of the space: of a Dict a mapping of its keys, of a Tuple a tuple.

        Returns: `[B, ...]` as a network takes it, float32 or, of images, uint8; and whether `obs`
            was a single observation, so that B is 1.

        Raises:
            MsrlError: a part is missing, is not in the space, or is of another shape.
        """
        if self.kind == "image":
            found, alone = self._array("obs", obs)
            if found.dtype != np.uint8:
                raise MsrlError(f"obs is {found.dtype}, expected images of uint8, 0 to 255")
            return np.stack([images.channels_first(one) for one in found]), alone
        parts = list(self._flat_parts("obs", obs))
        first, (_, rows, alone) = parts[0][0], parts[0]
        for path, array, single in parts:
            if single != alone or len(array) != len(rows):
                count, others = (
                    "one observation" if one else f"a batch of {len(of)}"
                    for one, of in ((alone, rows), (single, array))
                )
                raise MsrlError(f"{first} is {count} and {path} {others}, expected all of one kind")
        return np.concatenate([array for _, array, _ in parts], 1), alone

    def _flat_parts(self, path: str, obs: Any) -> Iterator[tuple[str, np.ndarray, bool]]:
        """Yields the path, the numbers `[B, n]` and whether it is a single one, of each part."""
        if self.kind == "dict":
            if not isinstance(obs, Mapping):
                raise MsrlError(f"{path} is {_told(obs)}, expected a mapping: {self}")
            lacking = [key for key in self.keys if key not in obs]
            extra = [key for key in obs if key not in self.keys]
            if lacking or extra:
                lacks = f"lacks {', '.join(map(repr, lacking))}" if lacking else ""
                has = f"has {', '.join(map(repr, extra))} too many" if extra else ""
                wrong = " and ".join(filter(None, (lacks, has)))
                raise MsrlError(f"{path} {wrong}, expected {self}")
            for key, part in zip(self.keys, self.parts, strict=True):
                yield from part._flat_parts(f"{path}[{key!r}]", obs[key])
        elif self.kind == "tuple":
            if not isinstance(obs, tuple | list) or len(obs) != len(self.parts):
                raise MsrlError(f"{path} is {_told(obs)}, expected {len(self.parts)} parts: {self}")
            for i, part in enumerate(self.parts):
                yield from part._flat_parts(f"{path}[{i}]", obs[i])
        else:
            found, alone = self._array(path, obs)
            if self.choices:
                found = self._one_hot(path, found)
            yield path, found.reshape(len(found), -1).astype(np.float32), alone

    def _array(self, path: str, obs: Any) -> tuple[np.ndarray, bool]:
        """Returns observations `[B, *shape]`, and whether `obs` was a single one."""
        try:
            found = np.asarray(obs)
        except ValueError:  # lists of different lengths
            found = np.empty((), object)
        if found.dtype.kind not in (_WHOLE if self.choices else _NUMBERS):
            numbers = "whole numbers" if self.choices else "numbers"
            raise MsrlError(f"{path} is {_told(obs)}, expected {numbers}: {self}")
        alone = found.shape == self.shape
        if alone:
            found = found[None]
        if found.shape[1:] != self.shape or found.ndim != len(self.shape) + 1 or not len(found):
            batch = str(("B", *self.shape)).replace("'", "")
            raise MsrlError(
                f"{path} has shape {np.shape(obs)}, expected {self.shape} of {self}, or a batch of "
                f"them, {batch}"
            )
        return found, alone

    def _one_hot(self, path: str, found: np.ndarray) -> np.ndarray:
        found = found.reshape(len(found), -1).astype(np.int64) - self.starts
        if ((found < 0) | (found >= self.choices)).any():
            row, column = np.argwhere((found < 0) | (found >= self.choices))[0]
            first = self.starts[column]
            raise MsrlError(
                f"{path} is {found[row, column] + first}, expected {first} to "
                f"{first + self.choices[column] - 1} of {self}"
            )
        columns = enumerate(self.choices)
        return np.concatenate([np.eye(size)[found[:, column]] for column, size in columns], 1)


def _part(space: Any) -> Layout | None:
    """Returns the layout of a space as a part of another one, where images are numbers."""
    kinds = {kind.__name__ for kind in type(space).__mro__}
    shape = tuple(map(int, getattr(space, "shape", None) or ()))
    if "Discrete" in kinds:
        return Layout("discrete", (), (int(space.n),), (int(getattr(space, "start", 0)),))
    if "MultiDiscrete" in kinds:
        choices = tuple(np.ravel(space.nvec).tolist())
        first = np.broadcast_to(getattr(space, "start", 0), shape)
        return Layout("multi_discrete", shape, choices, tuple(np.ravel(first).tolist()))
    if "MultiBinary" in kinds or "Box" in kinds:
        return Layout("box" if "Box" in kinds else "multi_binary", shape)
    if "Dict" not in kinds and "Tuple" not in kinds:
        return None
    named = dict(space.spaces) if "Dict" in kinds else dict(enumerate(space.spaces))
    parts = tuple(part for one in named.values() if (part := _part(one)) is not None)
    if not parts or len(parts) < len(named):
        return None
    if "Tuple" in kinds:
        return Layout("tuple", parts=parts)
    keys = tuple(key for key in named if isinstance(key, str))
    return Layout("dict", keys=keys, parts=parts) if len(keys) == len(parts) else None


def _told(value: Any) -> str:
    """Describes a value that is no observation, in few words."""
    array = isinstance(value, np.ndarray)
    return f"an array {value.dtype} {value.shape}" if array else type(value).__name__
