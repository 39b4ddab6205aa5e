"""Lattice of row dependence, and the context that rules for primitives see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from mindspore_rl.mindir.graph import Type, Value


@dataclass(frozen=True)
class Reach:
    """Which rows a value is made of.

    Attributes:
        kind: `whole`: of none; `rows`: each entry of one row; `unsure`: perhaps of several;
            `mixed`: of several.
        axis: along which the rows lie (`rows`); entry i of it has row `i // inner % count`.
        by: the primitive that mixes rows, or that is not in the table.
    """

    kind: str = "whole"
    axis: int = 0
    inner: int = 1
    by: str = ""


WHOLE = Reach()


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

    def parts(self) -> list[tuple[Reach, tuple[int, ...]]]:
        """What is known of each array among the arguments, those of tuples included."""
        found: list[tuple[Reach, tuple[int, ...]]] = []
        for arg, reach in zip(self.node.args, self.given, strict=True):
            if isinstance(reach, tuple):
                shapes = [t.shape if isinstance(t, Type) else () for t in arg.type]
                found += zip(reach, shapes, strict=True)
            else:
                found.append((reach, _shape(arg)))
        return found

    def only(self, position: int) -> Reach:
        """The rows of one argument, where no other has any."""
        reach = self.given[position]
        others = [other for at, other in enumerate(self.given) if at != position]
        if isinstance(reach, tuple) or reach.kind != "rows" or any(o != WHOLE for o in others):
            raise Undecided
        return reach

    def mixed(self) -> NoReturn:
        """Ends a rule that finds rows mixed."""
        raise Mixed

    def one(self, places: set) -> Any:
        """Where the rows of all arguments lie; in different places they mix."""
        if len(places) > 1:
            self.mixed()
        (place,) = places
        return place

    def laid_out(self, reach: Reach, taken: np.ndarray, axis: int) -> Reach:
        """The result whose entries along an axis are those taken from an argument's."""
        rows = taken // reach.inner % self.count
        for inner in range(1, len(rows) // self.count + 1):
            if np.array_equal(np.arange(len(rows)) // inner % self.count, rows):
                return Reach("rows", axis, inner)
        return self.mixed()


Rule = Callable[[Call], Any]


def _shape(value: Any) -> tuple[int, ...]:
    return value.type.shape if isinstance(value, Value) and isinstance(value.type, Type) else ()
