"""Lattice of row dependence, and the context that rules for primitives see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from mindspore_rl.mindir.graph import Type, Value


@dataclass(frozen=True)
class Sharding:
    """Which rows a value is made of.

    Attributes:
        kind: `replicated`: of no row; `sharded`: each entry of one row; `unknown`: perhaps of
            several; `mixed`: of several.
        axis: along which the rows lie (`sharded`); entry i of it has row `i // inner % count`.
        by: the primitive that mixes rows, or that is not in the table.
    """

    kind: str = "replicated"
    axis: int = 0
    inner: int = 1
    by: str = ""


REPLICATED = Sharding()


class Undecided(Exception):  # noqa: N818
    """A rule cannot say where rows go."""


class Mixed(Exception):  # noqa: N818
    """A rule says that an entry of the result is of several rows."""


@dataclass(frozen=True)
class Call:
    """A node whose arguments are whole or made of rows, for the rules of the table."""

    node: Value
    given: tuple
    count: int

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the result."""
        return _shape(self.node)

    def constant(self, position: int, name: str = "") -> Any:
        """A constant among the arguments, or an attribute of that name."""
        if name in self.node.attrs:
            return self.node.attrs[name]
        if position < len(self.node.args) and self.node.args[position].op == "constant":
            data = self.node.args[position].data
            return data.tolist() if isinstance(data, np.ndarray) else data
        raise Undecided

    def axes(self, position: int, name: str, rank: int) -> set[int]:
        """Axes counted from the front; all of them where none are named."""
        axes = self.constant(position, name)
        axes = axes if isinstance(axes, (tuple, list)) else (axes,)
        return {axis % rank for axis in axes if axis is not None} or set(range(rank))

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of an argument."""
        return _shape(self.node.args[position])

    def parts(self) -> list[tuple[Sharding, tuple[int, ...]]]:
        """What is known of each array among the arguments, those of tuples included."""
        found: list[tuple[Sharding, tuple[int, ...]]] = []
        for arg, sharding in zip(self.node.args, self.given, strict=True):
            if isinstance(sharding, tuple):
                shapes = [t.shape if isinstance(t, Type) else () for t in arg.type]
                found += zip(sharding, shapes, strict=True)
            else:
                found.append((sharding, _shape(arg)))
        return found

    def only(self, position: int) -> Sharding:
        """The rows of one argument, where no other has any."""
        sharding = self.given[position]
        others = [other for at, other in enumerate(self.given) if at != position]
        if (
            isinstance(sharding, tuple)
            or sharding.kind != "sharded"
            or any(o != REPLICATED for o in others)
        ):
            raise Undecided
        return sharding

    def mixed(self) -> NoReturn:
        """Ends a rule that finds rows mixed."""
        raise Mixed

    def one(self, places: set) -> Any:
        """Where the rows of all arguments lie; in different places they mix."""
        if len(places) > 1:
            self.mixed()
        (place,) = places
        return place

    def laid_out(self, sharding: Sharding, taken: np.ndarray, axis: int) -> Sharding:
        """The result whose entries along an axis are those taken from an argument's."""
        rows = taken // sharding.inner % self.count
        for inner in range(1, len(rows) // self.count + 1):
            if np.array_equal(np.arange(len(rows)) // inner % self.count, rows):
                return Sharding("sharded", axis, inner)
        return self.mixed()


Rule = Callable[[Call], Any]


def _shape(value: Any) -> tuple[int, ...]:
    return value.type.shape if isinstance(value, Value) and isinstance(value.type, Type) else ()
