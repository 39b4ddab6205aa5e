"""Control-flow graph of a cell in static single assignment form."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mindspore_rl.errors import MsrlError
from mindspore_rl.mindir.graph import Value


class Unsupported(MsrlError):
    """A cell has no native form; MindSpore runs it instead."""


@dataclass(eq=False)
class Jump:
    """A jump to a block, with values for its parameters."""

    target: "Block"
    args: list[Value]


@dataclass(eq=False)
class Block:
    """A basic block: nodes, then one jump, two conditional jumps, or the results.

    Attributes:
        params: values that depend on the jump taken to the block.
        condition: of two jumps, the first is taken if it is true.
    """

    name: str
    params: list[Value] = field(default_factory=list)
    nodes: list[Value] = field(default_factory=list)
    condition: Value | None = None
    jumps: list[Jump] = field(default_factory=list)
    results: list[Value] | None = None

    def ends(self) -> list[Value]:
        """Returns the values that are read after all nodes."""
        read = [self.condition] if self.condition is not None else []
        return read + [a for jump in self.jumps for a in jump.args] + (self.results or [])


@dataclass(eq=False)
class Blocks:
    """The control-flow graph of a program; the first block is its entry.

    Attributes:
        inputs: the tensors that it is called with, with tuples flattened.
        weights: the parameters, by name.
        structure: nested tuples of positions in `results`, the structure that it returns.
    """

    blocks: list[Block]
    inputs: list[Value]
    weights: dict[str, Value]
    structure: Any

    @property
    def results(self) -> list[Value]:
        """The tensors that the program returns."""
        return next(block.results for block in self.blocks if block.results is not None)


def leaves(value: Any) -> list[Value]:
    """Returns the tensors in nested tuples, without monads."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [] if value is None else [value]


def origin(value: Value) -> Value:
    """Returns the node that computes a value."""
    return value.args[0] if value.op == "part" else value


def tensors(node: Value) -> list[Value]:
    """Returns the tensors that a node takes, in order, with tuples flattened."""
    return [leaf for arg in node.args for leaf in leaves(arg)]


def outputs(node: Value) -> list[Value]:
    """Returns the tensors that a node computes."""
    return list(node.attrs["parts"]) if isinstance(node.type, tuple) else [node]


def give_parts(node: Value, types: tuple, names: Iterable[str]) -> None:
    """Gives a node several results, of the given types and names."""
    node.type = types
    node.attrs["parts"] = tuple(
        Value("part", name, [node], type=found, data=index)
        for index, (name, found) in enumerate(zip(names, types, strict=True))
    )


def substitute(block: Block, new: Callable[[Value], Value]) -> None:
    """Replaces every value that a block reads by `new` of it."""

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
