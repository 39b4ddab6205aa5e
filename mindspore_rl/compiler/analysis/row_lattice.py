"""Lattice of row dependence, and the context that rules for primitives see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from mindspore_rl.mindir.graph import Type, Value
from mindspore_rl.mindir.primitives import PRIMITIVES


@dataclass(frozen=True)
class Sharding:
    """The rows that a value depends on.

    Attributes:
        kind: `replicated`: depends on no row; `sharded`: each entry depends on one row; `unknown`:
            an entry may depend on several rows; `mixed`: an entry depends on several rows.
        axis: the axis of rows (`sharded`); its entry i belongs to row `i // inner % count`.
        inner: consecutive entries of one row along the axis.
        by: the primitive that mixes rows, or that is not in the table.
    """

    kind: str = "replicated"
    axis: int = 0
    inner: int = 1
    by: str = ""


REPLICATED = Sharding()


class Undecided(Exception):  # noqa: N818
    """Raised by a rule that cannot determine the rows of a result."""


class Mixed(Exception):  # noqa: N818
    """Raised by a rule if an entry of the result depends on several rows."""


@dataclass(frozen=True)
class Call:
    """A node with the shardings of its arguments, as the rules of the table see it.

    Attributes:
        node: the call of a primitive.
        given: the `Sharding` of each argument, replicated or sharded; a tuple for a tuple.
        count: number of rows.
    """

    node: Value
    given: tuple
    count: int

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the result."""
        return _shape(self.node)

    def constant(self, position: int, name: str = "") -> Any:
        """Returns the attribute `name`, or else the constant argument at `position`."""
        if name in self.node.attrs:
            return self.node.attrs[name]
        if position < len(self.node.args) and self.node.args[position].op == "constant":
            data = self.node.args[position].data
            return data.tolist() if isinstance(data, np.ndarray) else data
        raise Undecided

    def axis(self) -> Any:
        """Returns the primitive's axis or axes, see `Primitive.axis`."""
        primitive = PRIMITIVES[self.node.op]
        position = len(self.node.args) if primitive.axis is None else primitive.axis
        missing = "axis" not in self.node.attrs and position >= len(self.node.args)
        if missing and primitive.default is not None:
            return primitive.default
        return self.constant(position, "axis")

    def axes(self) -> set[int]:
        """Returns the primitive's axes, counted from the front; all axes if none is given."""
        axes, rank = self.axis(), len(self.shape(0))
        axes = axes if isinstance(axes, (tuple, list)) else (axes,)
        return {axis % rank for axis in axes if axis is not None} or set(range(rank))

    def shape(self, position: int) -> tuple[int, ...]:
        """Returns the shape of an argument."""
        return _shape(self.node.args[position])

    def parts(self) -> list[tuple[Sharding, tuple[int, ...]]]:
        """Returns the sharding and shape of each array argument, with tuples flattened."""
        found: list[tuple[Sharding, tuple[int, ...]]] = []
        for arg, sharding in zip(self.node.args, self.given, strict=True):
            if isinstance(sharding, tuple):
                shapes = [t.shape if isinstance(t, Type) else () for t in arg.type]
                found += zip(sharding, shapes, strict=True)
            else:
                found.append((sharding, _shape(arg)))
        return found

    def only(self, position: int) -> Sharding:
        """Returns the sharding of an argument; raises `Undecided` if another is sharded too."""
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
        """Raises `Mixed`."""
        raise Mixed

    def one(self, places: set) -> Any:
        """Returns the common place of the arguments' rows; raises `Mixed` if there are several."""
        if len(places) > 1:
            self.mixed()
        (place,) = places
        return place

    def laid_out(self, sharding: Sharding, taken: np.ndarray, axis: int) -> Sharding:
        """Returns the sharding of a result that takes entries of an argument along its row axis.

        Args:
            sharding: the argument's.
            taken: indices of the entries taken, in order.
            axis: the row axis of the result.
        """
        rows = taken // sharding.inner % self.count
        for inner in range(1, len(rows) // self.count + 1):
            if np.array_equal(np.arange(len(rows)) // inner % self.count, rows):
                return Sharding("sharded", axis, inner)
        return self.mixed()


Rule = Callable[[Call], Any]


def _shape(value: Any) -> tuple[int, ...]:
    return value.type.shape if isinstance(value, Value) and isinstance(value.type, Type) else ()
