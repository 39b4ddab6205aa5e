"""Plans a cell from its region: inputs, outputs, state and buffers."""

from collections import Counter
from dataclasses import dataclass, replace

from mindspore_rl.compiler.frontend.replay_rows import position
from mindspore_rl.compiler.frontend.rewrite import OWNERS
from mindspore_rl.compiler.ir.ir import (
    Branch,
    Expr,
    Item,
    Loop,
    Op,
    Region,
    num_turns,
    paths,
    turn_index,
    walk,
)
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.compiler.lowering.project import Projection
from mindspore_rl.compiler.lowering.regions import read_outside
from mindspore_rl.compiler.lowering.target import Target, capacity
from mindspore_rl.errors import ProgramError
from mindspore_rl.plan.value import Value

UNROLL = 4
"""Turns of a rollout that are unrolled in one turn of MindSpore's `while`.

A turn of `while` costs MindSpore 35 us; each operator of an unrolled copy takes about 80 kB and
compile time. Native code is not unrolled.
"""


@dataclass(frozen=True)
class Row:
    """The write of an operation into a buffer of the cell.

    Attributes:
        buffer: the buffer's name.
        index: the row, as an expression.
        variable: the variable that is written.
        rows: number of rows of the buffer.
        ends: `terminated` and `truncated`, if the row is the reward of an environment's step.
        loop: the unrolled loop that writes the rows of a bundle together; empty: one by one.
        told: the name under which the runtime finds the variable; empty: it does not look for it.
        kept: the expression of the kept replay whose column the buffer is; empty: of none.
    """

    buffer: str
    index: str
    variable: str
    rows: int
    ends: tuple[str, ...] = ()
    loop: str = ""
    told: str = ""
    kept: str = ""

    @property
    def leading(self) -> tuple[int, ...]:
        """The buffer's axes before those of a row."""
        return (self.rows // UNROLL, UNROLL) if self.loop else (self.rows,)


@dataclass(frozen=True)
class CellPlan:
    """A region with the layout of its cell.

    Attributes:
        among: see `Projection`.
        owners: objects of the job that the cell's lines name.
        parts: the attributes that carry out an operation or hold a loop's count, by item.
        starts: variables that must be initialised before a loop or branch that sets them, by item.
        unrolled: loops of which one turn runs `UNROLL` turns of the program's loop.
        sliced: operations that take a row of a table in an unrolled loop, which loads the rows of
            a bundle at once; with the loop.
        rows: the buffer writes of each operation.
        buffers: one writer of each buffer.
    """

    region: Region
    values: dict[str, Value]
    target: Target
    among: int
    owners: tuple[str, ...]
    parts: dict[str, str]
    starts: dict[str, tuple[str, ...]]
    unrolled: frozenset[str]
    sliced: dict[str, Loop]
    rows: dict[str, tuple[Row, ...]]
    buffers: dict[str, Row]

    @property
    def counts_agents(self) -> bool:
        """True if an emitted shape has an axis of agents."""
        shaped = [name for names in self.starts.values() for name in names]
        shaped += [row.variable for row in self.buffers.values() if not row.ends]
        shaped += [op.args[0] for op, _ in walk(self.region.items) if op.name in self.sliced]
        return any(self.values[name].split_by("agent") for name in shaped)


def plan_cell(region: Region, projection: Projection, target: Target) -> CellPlan:
    """Plans the cell of a region.

    Raises:
        ProgramError: a loop calls `msrl.env_step` twice.
    """
    loops = [item for item, _ in paths(region.items) if isinstance(item, Loop)]
    unrolled = [loop for loop in loops if _unrolls(loop, target)]
    directly = {op.name: loop for loop in unrolled for op in loop.body if isinstance(op, Op)}
    rows = _rows(region, projection.values, directly)
    return CellPlan(
        region,
        projection.values,
        target,
        projection.among,
        _owners(region.items),
        _parts(region.items, target),
        _starts(region),
        frozenset(loop.name for loop in unrolled),
        _sliced(region.items, projection.values, directly),
        rows,
        {row.buffer: row for written in reversed(rows.values()) for row in written},
    )


def _unrolls(loop: Loop, target: Target) -> bool:
    whole = loop.kind == "steps" and (loop.count or 1) % UNROLL == 0
    return whole and not target.native and loop.going is None


def _owners(items: tuple[Item, ...]) -> tuple[str, ...]:
    found: set[str] = set()
    for item, _ in paths(items):
        if isinstance(item, Branch):
            found |= item.test.names
        elif isinstance(item, Op) and item.kind in ("glue", "copy"):
            found |= item.args[0].names
        elif isinstance(item, Op) and item.kind == "update":
            found |= Expr(item.attr["objects"][0]).names
        elif isinstance(item, Op) and item.component in ("actor", "environment"):
            found.add(owner(item))
    return tuple(owner for owner in (*OWNERS, "acting", "environment") if owner in found)


def owner(op: Op) -> str:
    """Names the object of the job whose method carries out an operation."""
    return "acting" if "lag" in op.attr else op.component


def _parts(items: tuple[Item, ...], target: Target) -> dict[str, str]:
    counts: Counter[str] = Counter()
    parts = {}
    for item, _ in paths(items):
        kind = "turns" if isinstance(item, Loop) and target.native else ""
        if isinstance(item, Op):
            kind = OPERATIONS[item.kind].part
            kind = "" if kind == "update" and not item.by_function else kind
            kind = "" if kind == "act" and "named" not in item.attr else kind
        if kind:
            counts[kind] += 1
            parts[item.name] = f"{kind}_{counts[kind]}"
    return parts


def _starts(region: Region) -> dict[str, tuple[str, ...]]:
    items = [item for item, _ in paths(region.items)]
    ends = {item.going.name for item in items if isinstance(item, Loop) and item.going}
    starts: dict[str, tuple[str, ...]] = {}
    defined = set(region.inputs)
    for item in items:
        if isinstance(item, Op):
            defined |= set(item.targets)
        elif item.name not in ends:
            body = item.body if isinstance(item, Loop) else item.body + item.orelse
            after = (read_outside(region.items, body) | set(region.outputs)) - defined
            kept = [op for op, _ in walk(body) if op.kind != "stack"]
            names = dict.fromkeys(name for op in kept for name in op.targets if name in after)
            starts[item.name] = tuple(names)
            defined |= set(names)
    return starts


def _sliced(
    items: tuple[Item, ...], values: dict[str, Value], directly: dict[str, Loop]
) -> dict[str, Loop]:
    found = {}
    for op, _ in walk(items):
        loop = directly.get(op.name)
        if loop is not None and op.kind in ("index", "unstack"):
            table, row = op.args
            made_there = any(table in other.targets for other, _ in walk(loop.body))
            if row == loop.index and not made_there and values[table].shape[0] == loop.count:
                found[op.name] = loop
    return found


def _rows(
    region: Region, values: dict[str, Value], directly: dict[str, Loop]
) -> dict[str, tuple[Row, ...]]:
    rows: dict[str, tuple[Row, ...]] = {}
    told: dict[str, str] = {}
    kinds = Counter(op.kind for op, _ in walk(region.items))
    steps = 0
    for op, loops in walk(region.items):
        written: tuple[Row, ...] = ()
        if op.kind == "env_step":
            _check_alone(region, op, loops)
            steps += 1
            told = {op.args[0]: "action", **observations(op)}
            reward, *ends = op.targets[3:]
            if len(values[reward].shape) > 1:  # several agents: their mean is recorded
                reward = f"{reward}_team"
            index, count = turn_index(loops), num_turns(loops)
            written = (Row(f"episodes_{steps}", index, reward, count, ends=tuple(ends)),)
        elif op.kind == "stack":
            index, name = op.args
            count = op.attr["rows"]
            written = (Row(op.targets[0], index, name, count, told=told.get(name, "")),)
        elif op.kind == "replay_insert":
            index, count = Expr(op.attr["index"]), capacity(region.items)
            written = tuple(
                Row(f"replay_{column}", index, name, count, told=told.get(name, ""))
                for column, name in enumerate(op.args)
            )
        elif op.kind == "replay_keep":
            written = tuple(
                Row(kept_column(op, column), position(op), name, op.attr["capacity"], kept=kept(op))
                for column, name in enumerate(op.args)
            )
        loop = directly.get(op.name)
        if loop is not None and (op.kind != "replay_insert" or kinds[op.kind] == 1):
            written = tuple(_together(row, loop) for row in written)
        rows[op.name] = written
    return rows


def kept(op: Op) -> str:
    """Returns the expression of a kept replay among the calls of generated code."""
    return f'w.named["{op.replay}"]' if op.replay else "w.kept"


def kept_column(op: Op, column: int) -> str:
    """Names the buffer of a column of a kept replay in a cell."""
    return f"kept_{op.replay}_{column}" if op.replay else f"kept_{column}"


def observations(op: Op) -> dict[str, str]:
    """Maps the observations that an in-graph environment returns to their roles, such as `obs`."""
    names = {"env_reset": ("obs",), "env_step": ("next_obs", "final_obs")}
    return dict(zip(op.targets[1:], names.get(op.kind, ()), strict=False))


def _together(row: Row, loop: Loop) -> Row:
    """Bundles a row's writes if the loop fills the buffer exactly, from the first row on."""
    fills = row.index == loop.index and row.rows == loop.count
    return replace(row, loop=loop.name) if fills else row


def _check_alone(region: Region, op: Op, loops: tuple[Loop, ...]) -> None:
    """Refuses two `msrl.env_step` calls in one loop.

    The steps of each call are recorded in a buffer of their own, so episodes that alternate between
    two calls would be counted wrongly.
    """
    for other, around in walk(region.items):
        shared = {loop.name for loop in loops} & {loop.name for loop in around}
        if other.kind == "env_step" and other is not op and shared:
            raise ProgramError(
                f"{op.where}\n  a loop calls msrl.env_step twice, here and at\n  "
                f"{other.where}\n  and an environment in the graph counts the steps of its "
                "episodes right for one call in a loop only: write the call once, in a loop "
                "inside (`for _ in range(2):`), or use an environment in Python"
            )
