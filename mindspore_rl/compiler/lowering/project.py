"""Projection: the training loop as one fragment sees it.

Loops are kept where the fragment has an operation inside, operations of other fragments are
dropped, and cut edges become `send`, `receive`, `stack` and `unstack`. An `all_reduce` follows each
partial sum.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mindspore_rl.compiler.ir.ir import Branch, Expr, Item, Loop, Op, num_turns, turn_index, walk
from mindspore_rl.compiler.ir.operations import ENVIRONMENT, PARAMETERS
from mindspore_rl.compiler.lowering.copy_propagation import tidy
from mindspore_rl.compiler.lowering.hoist_draws import draw_ahead
from mindspore_rl.compiler.partition.messages import Message
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.partition.replicate import Fragment
from mindspore_rl.errors import PolicyError
from mindspore_rl.plan.plan import STATE
from mindspore_rl.plan.value import Value

FRESH = "fresh"
"""Name of a boolean: the message is within the staleness bound (only with `drop_stale`)."""


@dataclass(frozen=True)
class Projection:
    """One fragment's program.

    Attributes:
        values: the values of the program's variables and of the buffers that projection adds.
        among: number of replicas of one size over whose samples gradients and means are; 0: over
            those of all environments.
        serves: whether the fragment fires once for each sender's message, in order of arrival.
    """

    fragment: Fragment
    body: tuple[Item, ...]
    values: dict[str, Value]
    among: int = 0
    serves: bool = False


def project(
    partition: Partition, name: str, in_graph: bool, record: tuple[str, ...] = ()
) -> Projection:
    """Projects the program on one fragment.

    Args:
        partition: the partitioned program.
        name: the fragment.
        in_graph: whether the environment is compiled.
        record: boundary marks whose values are recorded for inspection.
    """
    projector = _Projector(partition, partition.fragment(name), in_graph, record)
    body = _glue_before_sends(tidy(tuple(projector.items(partition.program.body, ()))))
    if not (in_graph and "environment" in partition.fragment(name).components):
        body = draw_ahead(body, projector.values)  # else the kept records are inside cells
    arrivals, serves, among = partition.arrivals, False, 0
    if arrivals is not None:
        serves = arrivals.consumer == name
        among = arrivals.consumers if serves else 1
    return Projection(partition.fragment(name), body, projector.values, among, serves)


class _Projector:
    def __init__(
        self, partition: Partition, fragment: Fragment, in_graph: bool, record: tuple[str, ...]
    ) -> None:
        self.partition, self.fragment, self.in_graph = partition, fragment, in_graph
        self.record = record
        self.values = dict(partition.program.values)
        self.outgoing = [m for m in partition.messages if m.source == fragment.name]
        self.incoming = [m for m in partition.messages if m.target == fragment.name]
        self.loop = {loop.name: loop for _, loops in walk(partition.program.body) for loop in loops}
        self.buffers: dict[tuple[str, str], str] = {}
        self.recorded: list[Op] = []
        self.rows = set[str]()
        """Boundaries of a gradient's rows, of which replicas' shares interleave: not recorded."""
        self.started: list[Op] = []
        self.conditions = 0
        arrivals = partition.arrivals
        self.drops = bool(arrivals and arrivals.drop_stale and arrivals.consumer == fragment.name)
        self.last_of_site: dict[str, str] = {}
        self.first_leaf: dict[str, int] = {}
        """The place of a boundary's first array in all that pass its site."""
        passed: dict[str, int] = {}
        ops = [op for op, _ in walk(partition.program.body)]
        rows = {name for op in ops if op.kind == "gradient" for name in op.targets[2:]}
        for op in ops:
            if op.kind == "boundary":
                if rows.intersection(op.reads):
                    self.rows.add(op.name)
                site = op.attr["site"]
                self.first_leaf[op.name] = passed.get(site, 0)
                passed[site] = passed.get(site, 0) + len(self.values[op.targets[0]].leaves)
                if op.name in fragment.ops:
                    self.last_of_site[site] = op.name

    def items(self, items: tuple[Item, ...], loops: tuple[Loop, ...]) -> Iterator[Item]:
        """Yields the items of a body that this fragment runs, with its communication."""
        for item in items:
            for message in self.incoming:
                if message.stacked and message.stacked[0] == item.name:
                    yield self._receive(message, item)
            if isinstance(item, Op):
                yield from self._op(item, loops)
            elif isinstance(item, Loop):
                body = tuple(self.items(item.body, (*loops, item)))
                if item.kind == "iterations":
                    body = (*self.started, *body, *self.recorded)
                if body or item.kind == "iterations":  # of a fragment with nothing to do, too
                    talks = any(op.kind in ("send", "receive") for op, _ in walk(body))
                    loop = replace(item, body=body)
                    if not talks or item.apart not in ("", self.fragment.name):
                        loop = replace(loop, chunks=1, apart="")
                    yield _extend(loop)
            else:
                assert isinstance(item, Branch)
                self.conditions += 1
                body = tuple(self.items(item.body, loops))
                orelse = tuple(self.items(item.orelse, loops))
                self.conditions -= 1
                if body or orelse:
                    yield replace(item, body=body, orelse=orelse)
            yield from self._after(item, loops)

    def _after(self, item: Item, loops: tuple[Loop, ...]) -> Iterator[Item]:
        for message in self.outgoing:
            if message.after == item.name:
                names = message.variables
                if message.stacked:
                    names = tuple(self._buffer(message.name, v, message.stacked) for v in names)
                values = tuple(v for v in names if v != PARAMETERS)
                yield self._message_op("send", message, item, args=values, reads=names)
        for message in self.incoming:
            if message.after == item.name and not message.stacked:
                yield self._receive(message, item)
                yield from self._record_sums(message, loops)

    def _receive(self, message: Message, item: Item) -> Op:
        targets = tuple(v for v in message.variables if v != PARAMETERS)
        if message.stacked:
            targets = tuple(self._buffer(message.name, v, message.stacked) for v in targets)
        if self.drops:
            targets = (*targets, FRESH)
            self.values[FRESH] = Value((), "bool")
        writes = (PARAMETERS,) if PARAMETERS in message.variables else ()
        return self._message_op("receive", message, item, targets=targets, writes=writes)

    def _message_op(self, kind: str, message: Message, item: Item, **rest) -> Op:
        return Op(
            f"{kind}:{message.name}",
            kind,
            rest.pop("targets", ()),
            tuple(map(Expr, rest.pop("args", ()))),
            rest.pop("reads", ()),
            item.where,
            attrs=(("message", message.name),),
            **rest,
        )

    def _rows(self, names: tuple[str, ...]) -> int:
        return num_turns(self.loop[name] for name in names)

    def _buffer(self, owner: str, variable: str, turns: tuple[str, ...]) -> str:
        """Returns the name of the buffer that stacks a variable over the turns of loops.

        Each message or record has a buffer of its own, so that a buffer has one writer: an unrolled
        loop writes several rows at once.
        """
        if (owner, variable) not in self.buffers:
            value = self.values[variable]
            name, number = f"{variable}_stack", 1
            while name in self.values:
                number += 1
                name = f"{variable}_{number}_stack"
            self.values[name] = value.behind(self._rows(turns))
            self.buffers[owner, variable] = name
        return self.buffers[owner, variable]

    def _keep(
        self, owner: str, variable: str, turns: tuple[str, ...], op: Op, loops: tuple[Loop, ...]
    ) -> Op:
        """Makes the operation that writes this turn's row of a buffer."""
        index, reads = _stack_index(turns, loops)
        return Op(
            f"stack:{owner}:{variable}",
            "stack",
            (self._buffer(owner, variable, turns),),
            (index, Expr(variable)),
            (variable, *reads),
            op.where,
            attrs=(("rows", self._rows(turns)),),
        )

    # ---- one operation ---------------------------------------------------------------------

    def _op(self, op: Op, loops: tuple[Loop, ...]) -> Iterator[Item]:
        if op.name in self.fragment.ops and not self._is_nothing(op):
            yield from self._own(op, loops)
        for message in self.outgoing:
            if message.stacked and message.site[-1] == op.name:
                for name in message.variables:
                    if self.values[name].dtype == "tuple":
                        raise PolicyError(
                            f"{op.where}\n  `{name}` is a tuple, made anew in every turn of a "
                            "loop, and would cross between fragments once, stacked over all "
                            "turns, which is for arrays: send its arrays by names of their own "
                            "or joined into one (`ops.concat`), or choose a policy without a cut "
                            "here"
                        )
                    yield self._keep(message.name, name, message.stacked, op, loops)
        for message in self.incoming:
            if message.stacked and message.site[-1] == op.name:
                index, reads = _stack_index(message.stacked, loops)
                for name in message.variables:
                    buffer = self._buffer(message.name, name, message.stacked)
                    yield Op(
                        f"unstack:{message.name}:{name}",
                        "unstack",
                        (name,),
                        (Expr(buffer), index),
                        (buffer, *reads),
                        op.where,
                    )
                yield from self._record_sums(message, loops)

    def _record_sums(self, message: Message, loops: tuple[Loop, ...]) -> Iterator[Op]:
        """Records what a message brings as a sum, of which its senders have only shares."""
        if message.mark not in self.record:
            return
        summed = [
            op
            for op, _ in walk(self.partition.program.body)
            if op.kind == "boundary"
            and (message.source, op.name) in self.partition.partial
            and op.targets[0] in message.variables
        ]
        for op in summed:
            yield from self._record(op, loops)

    def _own(self, op: Op, loops: tuple[Loop, ...]) -> Iterator[Item]:
        nothing = {v for v in op.reads if v in self.values and self.values[v].dtype == "none"}
        if nothing:
            op = replace(
                op,
                args=tuple(a for a in op.args if a not in nothing),
                reads=tuple(r for r in op.reads if r not in nothing),
            )
        if op.component == "environment" and self.in_graph:
            inner = tuple(r for r in op.reads if r != ENVIRONMENT)
            before = (STATE,) if op.kind == "env_step" else ()
            op = replace(op, targets=(STATE, *op.targets), writes=(), reads=(*inner, *before))
        if op.kind == "boundary":
            yield from self._marked(op, loops)
            return
        if op.kind == "env_steps" and self.partition.arrivals is not None:
            # Workers progress at different rates, so it is not a multiple of this replica's
            # iterations: it is read once, at the start of an iteration.
            self.started.append(replace(op, kind="progress", args=(), reads=()))
            return
        if op.kind == "update" and self.drops:
            yield Branch(f"if:{op.name}", Expr(FRESH), (FRESH,), (op,), (), op.where)
            return
        yield op
        if (self.fragment.name, op.name) in self.partition.reduced:
            kind = op.kind if op.kind in ("max", "min") else "sum"
            pairs = zip(op.targets, op.args, strict=True)
            split = self.fragment.split
            shares = tuple(
                target
                for target, arg in pairs
                if self.values[arg].split_by(split) and not self.values[target].split_by(split)
            )
            yield _all_reduce(op.name, kind, shares, op)

    def _marked(self, op: Op, loops: tuple[Loop, ...]) -> Iterator[Op]:
        """Yields a boundary as a copy; the last of its tuple all-reduces the tuple's partial sums.

        One collective sums the whole tuple.
        """
        yield replace(op, kind="copy")
        site, here = op.attr["site"], self.fragment.name
        if self.last_of_site[site] != op.name:
            return
        members = [
            o
            for o, _ in walk(self.partition.program.body)
            if o.kind == "boundary" and o.attr["site"] == site and o.name in self.fragment.ops
        ]
        summed = tuple(
            t for o in members for t in o.targets if (here, o.name) in self.partition.reduced
        )
        if summed:
            yield _all_reduce(site, "sum", summed, op)
        partial = any((here, o.name) in self.partition.partial for o in members)
        if op.mark in self.record and not partial:
            for member in members:
                yield from self._record(member, loops)

    def _record(self, op: Op, loops: tuple[Loop, ...]) -> Iterator[Op]:
        """Stacks a boundary's values over all turns; `record` writes them after each iteration."""
        key = f"{op.attr['site']}/{self.first_leaf[op.name]}"
        (name,) = op.targets
        value = self.values[name]
        if op.name in self.rows:
            return
        if value.parts:
            flat = f"{name}_flat"
            size = sum(leaf.size for leaf in value.leaves)
            dtype = np.result_type(*(leaf.dtype for leaf in value.leaves)).name
            self.values[flat] = Value((size,), dtype)
            yield Op(f"flatten:{name}", "flatten", (flat,), (Expr(name),), (name,), op.where)
            name = flat
        if not any(loop.kind == "iterations" for loop in loops):
            return
        turns = tuple(loop.name for loop in loops if loop.kind != "iterations")
        kept = [name]
        if self.conditions:  # marks the rows that were written in this iteration
            kept.append(f"{name}_turn")
            self.values[kept[1]] = Value((), "int32")
            turn = Expr(f"{loops[0].index} + 1")
            yield Op(f"turn:{name}", "glue", (kept[1],), (turn,), (loops[0].index,), op.where)
        for variable in kept:
            yield self._keep(op.name, variable, turns, op, loops)
        buffers = tuple(self._buffer(op.name, variable, turns) for variable in kept)
        if self.conditions:
            self.started.append(Op(f"unset:{op.name}", "unset", buffers, (), (), op.where))
        axis = self.values[buffers[0]].along(self.fragment.split)
        self.recorded.append(
            Op(
                f"record:{op.name}",
                "record",
                (),
                tuple(map(Expr, buffers)),
                buffers,
                op.where,
                attrs=(("key", key), ("axis", axis)),
            )
        )

    def _is_nothing(self, op: Op) -> bool:
        return op.kind in ("noise", "index") and self.values[op.targets[0]].dtype == "none"


def _all_reduce(name: str, reduction: str, shares: tuple[str, ...], op: Op) -> Op:
    attrs = (("reduction", reduction),)
    return Op(f"all_reduce:{name}", "all_reduce", shares, (), shares, op.where, attrs=attrs)


def _stack_index(names: tuple[str, ...], loops: tuple[Loop, ...]) -> tuple[Expr, tuple]:
    chosen = [loop for loop in loops if loop.name in names]
    return turn_index(chosen), tuple(loop.index for loop in chosen)


def _glue_before_sends(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Moves pure operations that follow a `send` before it, so that they join the cell there."""
    result: list[Item] = []
    for found in items:
        item = found
        if isinstance(item, Loop):
            item = replace(item, body=_glue_before_sends(item.body))
        position = len(result)
        if isinstance(item, Op) and item.kind in ("glue", "copy", "constant"):
            while position and _sends_others(result[position - 1], item.targets):
                position -= 1
        result.insert(position, item)
    return tuple(result)


def _sends_others(item: Item, names: tuple[str, ...]) -> bool:
    """Returns whether an item is a `send` that reads none of the variables `names`."""
    return isinstance(item, Op) and item.kind == "send" and not set(item.reads) & set(names)


def _extend(loop: Loop) -> Item:
    """Replaces a loop that only copies received rows into the replay buffer by one operation."""
    ops = [item for item in loop.body if isinstance(item, Op)]
    if not ops or len(ops) < len(loop.body):
        return loop
    *unstacks, insert = ops
    if insert.kind not in ("replay_insert", "replay_keep") or not all(
        op.kind == "unstack" and op.args[1] == loop.index for op in unstacks
    ):
        return loop
    stack_of = {op.targets[0]: op.args[0] for op in unstacks}
    if set(insert.args) - set(stack_of) or insert.attr["rows"] != loop.count:
        return loop
    stacks = tuple(stack_of[arg] for arg in insert.args)
    index = Expr(insert.attr["index"])
    start = Expr(getattr(index.tree, "left", ast.Constant(0)))
    if not start.isdecimal() or index != start.plus(loop.index):
        return loop
    kept = insert.kind == "replay_keep"
    return Op(
        f"{insert.name}:all",
        "replay_keep_rows" if kept else "replay_extend",
        (),
        stacks,
        (*stacks, *((insert.attr["iteration"],) if kept else ()), *insert.writes),
        insert.where,
        writes=insert.writes,
        attrs=tuple((dict(insert.attrs) | {"index": start}).items()),
    )
