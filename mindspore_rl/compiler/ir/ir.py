"""The dataflow graph: operations in a tree of loops, their values and edges.

The program keeps its loops: a `Program` is a tree of `Loop` and `Branch` whose leaves are `Op`.
Edges are not stored; `dataflow.definitions` derives them, loop-carried ones included, from the
tree.
"""

import ast
import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, cast

from mindspore_rl.compiler.ir.operations import OPERATIONS, Attributes, check_attributes
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
"""Names of compiled cells: a cell gets the first name whose kinds of operations it all contains."""


@dataclass(frozen=True)
class Where:
    """A line of the user's program."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text.strip()}"


class Expr(str):
    """An expression over variables: a tree, given or parsed once; as a string, the tree's text.

    Expressions with the same text are equal. Their trees are never changed.
    """

    tree: ast.expr

    def __new__(cls, given: str | ast.expr) -> "Expr":
        """Makes an expression, or returns a given one."""
        if isinstance(given, Expr):
            return given
        tree = ast.parse(given, mode="eval").body if isinstance(given, str) else given
        made = super().__new__(cls, ast.unparse(tree))
        made.tree = tree
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Expr, (self.tree,)

    @property
    def names(self) -> set[str]:
        """The variables and other names in it."""
        return {node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)}

    def substitute(self, others: Mapping[str, "Expr"]) -> "Expr":
        """Returns it with names replaced by other expressions."""

        class Substituted(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.AST:
                return others[node.id].tree if node.id in others else node

        return Expr(Substituted().visit(copy.deepcopy(self.tree)))

    def times(self, number: int) -> "Expr":
        """Returns its product with a number."""
        return Expr(ast.BinOp(self.tree, ast.Mult(), ast.Constant(number)))

    def plus(self, term: str) -> "Expr":
        """Returns its sum with a term, without a zero in front and without brackets."""
        tree = Expr(term).tree
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
            return self.plus(Expr(tree.left)).plus(Expr(tree.right))
        return Expr(tree if self == "0" else ast.BinOp(self.tree, ast.Add(), tree))


@dataclass(frozen=True)
class Op:
    """One operation of the training loop.

    Attributes:
        name: unique and readable, `env_step#1`.
        kind: a row of `operations.OPERATIONS`.
        targets: the variables that it defines.
        args: expressions over variables.
        reads: variables and effects that it uses.
        writes: effects that it changes.
        mark: the boundary's name (`boundary` only).
        attrs: further attributes, as pairs; its kind says which, and of what types.
    """

    name: str
    kind: str
    targets: tuple[str, ...]
    args: tuple[Expr, ...]
    reads: tuple[str, ...]
    where: Where
    writes: tuple[str, ...] = ()
    mark: str = ""
    attrs: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_attributes(self.name, self.kind, dict(self.attrs))

    @property
    def component(self) -> str:
        """The component that the operation belongs to, or `glue`."""
        return OPERATIONS[self.kind].component

    @property
    def defines(self) -> tuple[str, ...]:
        """Variables and effects that the operation defines."""
        return self.targets + self.writes

    @property
    def replay(self) -> str | None:
        """The name of the kept replay that it works on, perhaps empty; None: of no kept one."""
        of_trajectory = ("replay_insert", "replay_extend", "replay_sample")
        return None if self.kind in of_trajectory else self.attr.get("store", "")

    @property
    def call(self) -> str:
        """The arguments as source text of a call; `keys` are the names of the last ones."""
        keys = self.attr.get("keys", ())
        names = [""] * (len(self.args) - len(keys)) + [f"{key}=" for key in keys]
        return ", ".join(map("".join, zip(names, self.args, strict=True)))

    def told(self, text: str) -> str:
        """Writes a text about the operation with the names and expressions of its source line."""
        words = set(re.findall(r"\w+", self.where.text))

        def in_source(found: re.Match) -> str:
            base = found[0].rpartition("_")[0]
            return base if found[0] not in words and base in words else found[0]

        numbered = re.compile(r"\b[a-zA-Z]\w*_\d+\b")
        for target in self.targets if self.kind == "glue" and len(self.targets) == 1 else ():
            if numbered.sub(in_source, target) not in words:
                text = re.sub(rf"\b{target}\b", lambda _: f"`{self.args[0]}`", text)
        return numbered.sub(in_source, text)

    @property
    def by_function(self) -> bool:
        """True for an update by a function inside another, which a cell makes once."""
        return self.kind == "update" and "(" in self.attr["objects"][0]

    @property
    def attr(self) -> Attributes:
        """The attributes by name."""
        return cast(Attributes, dict(self.attrs))


@dataclass(frozen=True)
class Loop:
    """A loop with a static count; `iterations` has none.

    Attributes:
        chunks: number of parts of the environments that its turns are pipelined over, see
            `partition.chunks`.
        apart: the one fragment that runs its turns for each part, when that part is ready; empty:
            all fragments run them for each part, in turn.
    """

    name: str
    kind: str
    index: str
    count: int | None
    body: tuple["Item", ...]
    where: Where
    chunks: int = 1
    apart: str = ""

    @property
    def going(self) -> "Branch | None":
        """The branch that holds the whole body, if a flag may end the loop early; else None."""
        only = self.body[0] if len(self.body) == 1 else None
        return only if isinstance(only, Branch) and only.first else None


@dataclass(frozen=True)
class Branch:
    """An `if` on a replicated value.

    Attributes:
        first: whether it holds the whole body of a loop that may end early. Its test is the loop's
            flag, which is always true in the first turn.
    """

    name: str
    test: Expr
    reads: tuple[str, ...]
    body: tuple["Item", ...]
    orelse: tuple["Item", ...]
    where: Where
    first: bool = False


Item = Op | Loop | Branch


@dataclass(frozen=True)
class Region:
    """Items of a fragment that one cell runs, with the cell's input and output variables."""

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
        values: dtype, shape and axes of each variable, after `infer`.
        row_dependent: operations whose rows depend on other rows, with the evidence.
        unsplittable: operations whose result has an axis of environments that comes from no
            input, so that a replica cannot know its length.
        teams: number of agents of each team of a multi-agent environment.
        agents_mixed: operations in which an agent's part depends on other agents', with the
            evidence.
        left_out: lines that only tell the user something, such as `print(...)`; no rank runs them.
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
    left_out: tuple[Where, ...] = field(default=(), compare=False)

    @property
    def steps_per_env(self) -> int:
        """The number of steps that each environment takes in an iteration."""
        return sum(
            num_turns(loops)
            for op, loops in walk(self.body)
            if op.kind == "env_step" and any(loop.kind == "iterations" for loop in loops)
        )


def common(left: tuple[Loop, ...], right: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """Returns the common prefix of two loop nests: the loops around both of two places."""
    pairs = zip(left, right, strict=False)
    return tuple(loop for loop, _ in takewhile(lambda pair: pair[0].name == pair[1].name, pairs))


def site_of(name: str) -> str:
    """Returns an operation's name without its turn: `gradient#2` of `gradient#2.1`."""
    return name.partition(".")[0]


def walk(items: tuple[Item, ...], loops: tuple[Loop, ...] = ()) -> Iterator[tuple[Op, tuple]]:
    """Yields every operation in program order with the loops around it, outermost first."""
    for item in items:
        if isinstance(item, Op):
            yield item, loops
        elif isinstance(item, Loop):
            yield from walk(item.body, (*loops, item))
        else:
            yield from walk(item.body, loops)
            yield from walk(item.orelse, loops)


def with_ops(
    items: tuple[Item, ...], changed: Mapping[str, Op | tuple[Op, ...]]
) -> tuple[Item, ...]:
    """Returns the items of a body with operations replaced, each by one or several."""
    result: list[Item] = []
    for item in items:
        if isinstance(item, Loop):
            result.append(replace(item, body=with_ops(item.body, changed)))
        elif isinstance(item, Branch):
            body, orelse = with_ops(item.body, changed), with_ops(item.orelse, changed)
            result.append(replace(item, body=body, orelse=orelse))
        else:
            found = changed.get(item.name, item)
            result += found if isinstance(found, tuple) else (found,)
    return tuple(result)


def num_turns(loops: Iterable[Loop]) -> int:
    """Returns the product of the counts of nested loops; `iterations` counts as one turn."""
    return math.prod(loop.count or 1 for loop in loops)


def turn_index(loops: Sequence[Loop]) -> Expr:
    """Returns an expression of the flat turn number in nested loops: `epoch * 4 + minibatch`."""
    index = Expr(loops[0].index if loops else "0")
    for loop in loops[1:]:
        index = index.times(loop.count or 1).plus(loop.index)
    return index


def paths(
    items: tuple[Any, ...], around: tuple[Loop | Branch, ...] = ()
) -> Iterator[tuple[Any, tuple[Loop | Branch, ...]]]:
    """Yields every item in program order with the loops and branches around it, outermost first."""
    for item in items:
        yield item, around
        if isinstance(item, Loop):
            yield from paths(item.body, (*around, item))
        elif isinstance(item, Branch):
            yield from paths(item.body + item.orelse, (*around, item))


def messages_of(items: tuple[Item, ...], taken: bool) -> Iterator[Op]:
    """Yields the messages of two turns of every loop, with every condition `taken` or none."""
    for item in items:
        if isinstance(item, Loop):
            for _ in range(min(item.count or 2, 2)):
                yield from messages_of(item.body, taken)
        elif isinstance(item, Branch):
            yield from messages_of(item.body if taken or item.first else item.orelse, taken)
        elif item.kind in ("send", "receive"):
            yield item
