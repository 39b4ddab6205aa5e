"""The dataflow graph: operations in a tree of loops, their values and edges.

The program keeps its loops: a `Program` is a tree of `Loop` and `Branch` whose leaves are `Op`.
Edges are not stored; `flow.definitions` derives them (and the loop-carried ones) from the tree.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.plan.value import Value

REGIONS: dict[str, set[str]] = {
    "iteration": {"agent_act", "gradient"},
    "learn": {"gradient"},
    "rollout": {"agent_act", "env_step"},
    "act": {"agent_act"},
    "reset": {"env_reset"},
    "update": {"update"},
    "compute": set(),
}
"""What compiled cells are called: the first whose kinds of operations are all in one."""


@dataclass(frozen=True)
class Where:
    """A line of the user's program."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text.strip()}"


@dataclass(frozen=True)
class Op:
    """One operation of the training loop.

    Attributes:
        name: unique and readable, `env_step#1`.
        kind: a row of `operations.OPERATIONS`.
        targets: the variables that it defines.
        args: Python expressions over variables.
        reads: variables and effects that it uses.
        writes: effects that it changes.
        mark: the boundary's name (`boundary` only).
        attrs: whatever else the kind needs, as pairs.
    """

    name: str
    kind: str
    targets: tuple[str, ...]
    args: tuple[str, ...]
    reads: tuple[str, ...]
    where: Where
    writes: tuple[str, ...] = ()
    mark: str = ""
    attrs: tuple[tuple[str, Any], ...] = ()

    @property
    def component(self) -> str:
        """The component it belongs to, or `glue`."""
        return OPERATIONS[self.kind].component

    @property
    def defines(self) -> tuple[str, ...]:
        """Variables and effects that it defines."""
        return self.targets + self.writes

    def attr(self, key: str) -> Any:
        """The attribute `key`; KeyError if this kind has none."""
        return dict(self.attrs)[key]


@dataclass(frozen=True)
class Loop:
    """A loop with a static count; `iterations` has none.

    Attributes:
        chunks: parts of the environments for which its turns run in turn, see `graph.cut.chunks`.
    """

    name: str
    kind: str
    index: str
    count: int | None
    body: tuple["Item", ...]
    where: Where
    chunks: int = 1

    @property
    def going(self) -> "Branch | None":
        """All of its body, if a flag may end it early."""
        only = self.body[0] if len(self.body) == 1 else None
        return only if isinstance(only, Branch) and only.first else None


@dataclass(frozen=True)
class Branch:
    """An `if` on a whole value.

    Attributes:
        first: whether it holds all of a loop's body and is taken in the first turn for sure: what
            ends a loop early makes its test false.
    """

    name: str
    test: str
    reads: tuple[str, ...]
    body: tuple["Item", ...]
    orelse: tuple["Item", ...]
    where: Where
    first: bool = False


Item = Op | Loop | Branch


@dataclass(frozen=True)
class Region:
    """Items of a fragment that one cell runs, with the variables that it takes and gives."""

    name: str
    items: tuple[Item, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


Lowered = Item | Region


@dataclass(frozen=True)
class Program:
    """A training loop as a graph.

    Attributes:
        imports: global names that expressions use: (name, module, name in that module).
        locals: variables of `train` and the names they have in its source.
        values: what is known of each variable, after `infer`.
        row_dependent: operations whose rows were seen to depend on other rows, with the evidence.
        unsplittable: operations whose result has an axis of environments that comes from no
            input, so that a replica cannot know how long it is.
        teams: agents of each team of a multi-agent environment.
        agents_mixed: operations in which an agent's part was seen to depend on other agents',
            with the evidence.
    """

    algorithm: str
    body: tuple[Item, ...]
    imports: tuple[tuple[str, str, str], ...] = ()
    locals: tuple[tuple[str, str], ...] = ()
    values: dict[str, Value] = field(default_factory=dict)
    row_dependent: dict[str, str] = field(default_factory=dict)
    unsplittable: tuple[str, ...] = ()
    teams: tuple[int, ...] = ()
    agents_mixed: dict[str, str] = field(default_factory=dict)

    @property
    def steps_per_env(self) -> int:
        """Steps that each environment takes in an iteration."""
        return sum(
            num_turns(loops)
            for op, loops in walk(self.body)
            if op.kind == "env_step" and any(loop.kind == "iterations" for loop in loops)
        )


def common(left: tuple[Loop, ...], right: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """The loops around both of two places, from those around each, outermost first."""
    pairs = zip(left, right, strict=False)
    return tuple(loop for loop, _ in takewhile(lambda pair: pair[0].name == pair[1].name, pairs))


def walk(items: tuple[Item, ...], loops: tuple[Loop, ...] = ()) -> Iterator[tuple[Op, tuple]]:
    """Every operation in program order with the loops around it, outermost first."""
    for item in items:
        if isinstance(item, Op):
            yield item, loops
        elif isinstance(item, Loop):
            yield from walk(item.body, (*loops, item))
        else:
            yield from walk(item.body, loops)
            yield from walk(item.orelse, loops)


def with_ops(items: tuple[Item, ...], changed: dict[str, Op]) -> tuple[Item, ...]:
    """The items of a body with other operations in the place of some, by their names."""
    result: list[Item] = []
    for item in items:
        if isinstance(item, Loop):
            result.append(replace(item, body=with_ops(item.body, changed)))
        elif isinstance(item, Branch):
            body, orelse = with_ops(item.body, changed), with_ops(item.orelse, changed)
            result.append(replace(item, body=body, orelse=orelse))
        else:
            result.append(changed.get(item.name, item))
    return tuple(result)


def num_turns(loops: Iterable[Loop]) -> int:
    """How often loops, one in the other, run what is in all of them; of `iterations`, one turn."""
    return math.prod(loop.count or 1 for loop in loops)


def turn_index(loops: Sequence[Loop]) -> str:
    """Which of these turns it is, as an expression: `epoch * 4 + minibatch`."""
    text = loops[0].index if loops else "0"
    for loop in loops[1:]:
        outer = f"({text})" if "+" in text else text
        text = f"{outer} * {loop.count} + {loop.index}"
    return text


def paths(
    items: tuple[Any, ...], around: tuple[Loop | Branch, ...] = ()
) -> Iterator[tuple[Any, tuple[Loop | Branch, ...]]]:
    """Every item in program order with the loops and branches around it, outermost first."""
    for item in items:
        yield item, around
        if isinstance(item, Loop):
            yield from paths(item.body, (*around, item))
        elif isinstance(item, Branch):
            yield from paths(item.body + item.orelse, (*around, item))


def messages_of(items: tuple[Item, ...], taken: bool) -> Iterator[Op]:
    """The messages of two turns of every loop, where every condition goes one way."""
    for item in items:
        if isinstance(item, Loop):
            for _ in range(min(item.count or 2, 2)):
                yield from messages_of(item.body, taken)
        elif isinstance(item, Branch):
            yield from messages_of(item.body if taken or item.first else item.orelse, taken)
        elif item.kind in ("send", "receive"):
            yield item
