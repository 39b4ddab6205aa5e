"""Control-flow graph of a cell in static single assignment form."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mindspore_rl.errors import MsrlError
from mindspore_rl.mindir.graph import Value


class Unsupported(MsrlError):
    """What native code cannot say; MindSpore runs the cell."""


@dataclass(eq=False)
class Jump:
    """To a block, with values for its parameters."""

    target: "Block"
    args: list[Value]


@dataclass(eq=False)
class Block:
    """Nodes, then a jump, two of which the first is taken if a condition holds, or the results.

    Attributes:
        params: values that differ by where a jump comes from.
        condition: of the first jump.
    """

    name: str
    params: list[Value] = field(default_factory=list)
    nodes: list[Value] = field(default_factory=list)
    condition: Value | None = None
    jumps: list[Jump] = field(default_factory=list)
    results: list[Value] | None = None

    def ends(self) -> list[Value]:
        """What is read after all nodes."""
        read = [self.condition] if self.condition is not None else []
        return read + [a for jump in self.jumps for a in jump.args] + (self.results or [])


@dataclass(eq=False)
class Blocks:
    """A program as blocks, the first of which begins.

    Attributes:
        inputs: the tensors that it is called with, those in tuples in order.
        structure: of what it gives: nested tuples of positions in `results`.
    """

    blocks: list[Block]
    inputs: list[Value]
    weights: dict[str, Value]
    structure: Any

    @property
    def results(self) -> list[Value]:
        """The tensors that the program gives."""
        return next(block.results for block in self.blocks if block.results is not None)


def leaves(value: Any) -> list[Value]:
    """The tensors in nested tuples, without monads."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [] if value is None else [value]


def origin(value: Value) -> Value:
    """The node that computes a value."""
    return value.args[0] if value.op == "part" else value


def tensors(node: Value) -> list[Value]:
    """The tensors that a node takes, those in tuples included, in order."""
    return [leaf for arg in node.args for leaf in leaves(arg)]


def outputs(node: Value) -> list[Value]:
    """The tensors that a node gives."""
    return list(node.attrs["parts"]) if isinstance(node.type, tuple) else [node]


def give_parts(node: Value, types: tuple, names: Iterable[str]) -> None:
    """Makes a node's results several."""
    node.type = types
    node.attrs["parts"] = tuple(
        Value("part", name, [node], type=found, data=index)
        for index, (name, found) in enumerate(zip(names, types, strict=True))
    )


def substitute(block: Block, new: Callable[[Value], Value]) -> None:
    """Puts other values in place of those that a block reads."""

    def deep(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(deep(part) for part in value)
        return new(value) if isinstance(value, Value) else value

    for node in block.nodes:
        node.args = [deep(arg) for arg in node.args]
    block.condition = None if block.condition is None else deep(block.condition)
    for jump in block.jumps:
        jump.args = [deep(arg) for arg in jump.args]
    if block.results is not None:
        block.results = [deep(value) for value in block.results]
