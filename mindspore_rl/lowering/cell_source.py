"""The source of a region as a MindSpore cell."""

from dataclasses import dataclass, replace
from typing import Any

from mindspore_rl.errors import ProgramError
from mindspore_rl.graph.ir import Branch, Item, Loop, Op, Region, paths, walk
from mindspore_rl.graph.operations import OPERATIONS
from mindspore_rl.graph.read.substitute import OWNERS, owned
from mindspore_rl.lowering.project import Projection
from mindspore_rl.plan.plan import STATE
from mindspore_rl.plan.value import Value, reduced_count

UNROLL = 4
"""Turns of a rollout in one turn of MindSpore's `while`; native code needs no copies.

A turn costs MindSpore 35 us; each operator of a copy takes about 80 kB and its compile time.
"""
INDENT = "    "


@dataclass(frozen=True)
class Target:
    """What code generation must know beside the graph.

    Attributes:
        num_envs: environments on all workers together.
        steps_per_iteration: of all environments together.
        native: whether cells may become native code, which is checked with one turn of each loop.
    """

    num_envs: int
    num_steps: int
    steps_per_iteration: int
    in_graph: bool
    native: bool = False


class CellWriter:
    """Writes one region as a cell."""

    def __init__(self, region: Region, projection: Projection, target: Target) -> None:
        self.region, self.values, self.target = region, projection.values, target
        self.alone = projection.alone
        self.setup: list[str] = []
        self.lines: list[str] = []
        self.defined: set[str] = set(region.inputs)
        self.counts: dict[str, int] = {}
        self.unrolled: Loop | None = None
        self.collected: dict[str, list[str]] = {}
        self.extended: tuple[str, ...] = ()
        self.sliced: dict[str, str] = {}
        self.truth: set[str] = set()
        self.told: dict[str, str] = {}
        self.chunked: set[str] = set()

    def text(self) -> str:
        """The class."""
        self._items(self.region.items, 2)
        stacks = {op.targets[0] for op, _ in walk(self.region.items) if op.kind == "stack"}
        for name in self.region.outputs:
            if name in stacks:
                self._line(self._loaded(name, f"self.{name}"), 2)
        parts = {name: self.values[name].parts for name in self.region.outputs if name != STATE}
        outputs = ", ".join(_repacked(o, parts.get(o, ())) for o in self.region.outputs) or "0"
        self.lines.append(f"{INDENT * 2}return {outputs}")
        title = ", ".join(dict.fromkeys(op.kind for op, _ in walk(self.region.items)))
        used = self._owners()
        init = [f"self.{owner} = w.{owner}" for owner in used] + self.setup
        if any("self.num_agents" in line for line in (*self.setup, *self.lines)):
            init.insert(0, "self.num_agents = len(w.agents.share)")
        lines = [
            f"class {class_name(self.region.name)}(nn.Cell):",
            f'{INDENT}"""{title}."""',
            "",
            f"{INDENT}def __init__(self, w):",
            f"{INDENT * 2}super().__init__(auto_prefix=False)",
            f"{INDENT * 2}self.num_envs = len(w.env_indices)",
            *(INDENT * 2 + line for line in init),
            "",
            f"{INDENT}def construct({', '.join(('self', *self.region.inputs))}):",
            *self.lines,
            "",
            "",
        ]
        return "\n".join(lines)

    def _owners(self) -> list[str]:
        text = "\n".join(self.lines)
        return [o for o in (*OWNERS, "environment") if f"self.{o}." in text]

    def _line(self, text: str, depth: int) -> None:
        self.lines.append(INDENT * depth + text)

    def _items(self, items: tuple[Item, ...], depth: int) -> None:
        for item in items:
            if isinstance(item, Op):
                for line in self._op(item):
                    self._line(line, depth)
                self.defined |= set(item.targets)
            elif isinstance(item, Loop):
                self._loop(item, depth)
            else:
                self._branch(item, depth)

    def _loop(self, loop: Loop, depth: int) -> None:
        self._start_values(loop, loop.body, depth)
        count, index = loop.count or 1, loop.index
        going = ends_early(loop.body)
        copies = not self.target.native and loop.kind == "steps" and count % UNROLL == 0
        if copies and going is None:
            self._unrolled_loop(loop, depth)
            return
        outer, self.unrolled = self.unrolled, None
        test, body = f"{index} < {self._turns(count)}", loop.body
        if going is not None:
            test, body = f"ms.ops.logical_and({test}, {going.test})", going.body
        self._line(f"{index} = ms.Tensor(0, ms.int32)", depth)
        self._line(f"while {test}:", depth)
        self._items(body, depth + 1)
        self._line(f"{index} = {index} + 1", depth + 1)
        self.unrolled = outer

    def _turns(self, count: int) -> str:
        return self._part("turns", f"parts.turns({count})") if self.target.native else str(count)

    def _unrolled_loop(self, loop: Loop, depth: int) -> None:
        """A compiled `while` over chunks of turns, with a Python `for` over those of a chunk."""
        count, index = loop.count or 1, loop.index
        self._line(f"{index}_chunk = ms.Tensor(0, ms.int32)", depth)
        self._line(f"while {index}_chunk < {self._turns(count // UNROLL)}:", depth)
        start = len(self.lines)
        outer = self.unrolled, self.collected, self.sliced
        self.unrolled, self.collected, self.sliced = loop, {}, {}
        self._line(f"for {index}_turn in range({UNROLL}):", depth + 1)
        self._line(f"{index} = {index}_chunk * {UNROLL} + {index}_turn", depth + 2)
        self._items(loop.body, depth + 2)
        for buffer, rows in self.collected.items():
            stacked = self._whole_row(buffer, [f"ms.ops.stack({name})" for name in rows])
            self._line(_write(buffer, f"{index}_chunk", stacked), depth + 1)
        first = [f"{name} = ()" for rows in self.collected.values() for name in rows]
        first += [
            f"{rows} = ms.ops.unstack(ms.ops.gather({table}.reshape({shape}), {index}_chunk, 0))"
            for table, rows in self.sliced.items()
            for shape in (self._chunked_shape(table),)
        ]
        self.lines[start:start] = [INDENT * (depth + 1) + line for line in first]
        self.unrolled, self.collected, self.sliced = outer
        self._line(f"{index}_chunk = {index}_chunk + 1", depth + 1)

    def _branch(self, branch: Branch, depth: int) -> None:
        self._start_values(branch, branch.body + branch.orelse, depth)
        outer, self.unrolled = self.unrolled, None
        self._line(f"if {owned(branch.test)}:", depth)
        self._items(branch.body, depth + 1)
        if not branch.body:
            self._line("pass", depth + 1)
        if branch.orelse:
            self._line("else:", depth)
            self._items(branch.orelse, depth + 1)
        self.unrolled = outer

    def _start_values(self, item: Loop | Branch, body: tuple[Item, ...], depth: int) -> None:
        """What is defined inside and used after must exist, with its type, before."""
        inside = {part.name for part, _ in paths(body)}
        after = {
            name
            for part, _ in paths(self.region.items)
            if not isinstance(part, Loop) and part.name not in inside
            for name in part.reads
        } | set(self.region.outputs)
        for op, _ in walk(body):
            for name in op.targets:
                if name in after and name not in self.defined and op.kind != "stack":
                    self._line(f"{name} = {self._zeros(self.values[name])}", depth)
                    self.defined.add(name)

    def _zeros(self, value: Value) -> str:
        if value.parts:
            return f"({', '.join(self._zeros(part) for part in value.parts)},)"
        if not value.shape:
            number = {"float32": "0.0", "bool": "False"}.get(value.dtype, "0")
            return f"ms.Tensor({number}, ms.{_dtype(value)})"
        return f"ms.ops.zeros({self._shape(value)}, ms.{_dtype(value)})"

    def _shape(self, value: Value) -> str:
        extents = [str(e) for e in value.shape]
        if value.axis is not None:
            extents[value.axis] = f"{value.per_env} * self.num_envs"
        if value.agent_axis is not None:
            extents[value.agent_axis] = "self.num_agents"
        return f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"

    # ---- operations ------------------------------------------------------------------------

    def _op(self, op: Op) -> list[str]:
        special = getattr(self, f"_{op.kind}", None)
        if special is not None:
            return special(op)
        if OPERATIONS[op.kind].reduces:
            return self._reduction(op)
        if op.kind in ("glue", "copy"):
            return [assignment(op.targets, owned(op.args[0]))]
        return [assignment(op.targets, f"operators.{op.kind}({', '.join(op.args)})")]

    def _part(self, kind: str, expression: str) -> str:
        """Adds an attribute of the cell and returns its name."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        name = f"{kind}_{self.counts[kind]}"
        self.setup.append(f"self.{name} = {expression}")
        return f"self.{name}"

    def _constant(self, op: Op) -> list[str]:
        return [
            f"{op.targets[0]} = ms.Tensor({op.args[0]}, ms.{_dtype(self.values[op.targets[0]])})"
        ]

    def _noise(self, op: Op) -> list[str]:
        size = "w.environment" if op.attr("owner") == "env" else "w.actor"
        agents = ", w.agents" if op.attr("owner") == "agents" else ""
        table = self._part(
            "noise",
            f"parts.NoiseTable(w.seed, {op.attr('purpose')!r}, "
            f"{op.attr('rows')}, w.env_indices, {size}.noise_size{agents})",
        )
        iteration = op.args[0] if op.args else "ms.Tensor(0, ms.int32)"
        return [f"{op.targets[0]} = {table}.table({iteration})"]

    def _permutations(self, op: Op) -> list[str]:
        table = self._part(
            "permutations",
            f"parts.PermutationTable(w.seed, {op.name!r}, "
            f"{op.attr('rounds')}, w.env_indices, {self.target.num_steps})",
        )
        return [f"{op.targets[0]} = {table}.table({op.args[0]})"]

    def _index(self, op: Op) -> list[str]:
        table, row = op.args
        loop = self.unrolled
        if (
            loop is not None
            and row == loop.index
            and table in self.defined
            and self.values[table].shape[0] == loop.count
        ):
            rows = self.sliced.setdefault(table, f"{table}_rows")
            return [f"{op.targets[0]} = {rows}[{loop.index}_turn]"]
        if row.isdecimal():
            return [f"{op.targets[0]} = {table}[{row}]"]
        return [f"{op.targets[0]} = ms.ops.gather({table}, {row}, 0)"]

    _unstack = _index

    def _env_steps(self, op: Op) -> list[str]:
        steps = float(self.target.steps_per_iteration)
        return [f"{op.targets[0]} = {op.args[0]}.astype(ms.float32) * {steps}"]

    def _env_reset(self, op: Op) -> list[str]:
        return [assignment(op.targets, f"self.environment.reset({', '.join(op.args)})")]

    def _env_step(self, op: Op) -> list[str]:
        _, _, _, reward, terminated, truncated = op.targets
        self.told = {op.args[0]: "action", op.targets[2]: "final_obs"}
        loops = next(loops for found, loops in walk(self.region.items) if found is op)
        self._check_alone(op, loops)
        rows = 1
        for loop in loops:
            rows *= loop.count or 1
        index = "0"
        for position, loop in enumerate(loops):
            index = loop.index if position == 0 else f"({index}) * {loop.count} + {loop.index}"
        self.counts["episodes"] = number = self.counts.get("episodes", 0) + 1
        episodes = f"self.episodes_{number}"
        lines = [assignment(op.targets, f"self.environment.step({', '.join((STATE, *op.args))})")]
        if len(self.values[reward].shape) > 1:  # of several agents, whose mean counts
            lines.append(f"{reward}_team = {reward}.mean(1)")
            reward = f"{reward}_team"
        lines += self._store(episodes, index, (reward, terminated, truncated), rows)
        self.setup.append(
            f'{episodes} = w.episode_buffer("{self.region.name}_{number}", '
            f"{self._rows(episodes, rows)})"
        )
        return lines

    def _check_alone(self, op: Op, loops: tuple[Loop, ...]) -> None:
        """Each call's steps are kept together, so that those of two would be counted in turn."""
        for other, around in walk(self.region.items):
            shared = {loop.name for loop in loops} & {loop.name for loop in around}
            if other.kind == "env_step" and other is not op and shared:
                raise ProgramError(
                    f"{op.where}\n  a loop calls msrl.env_step twice, here and at\n  "
                    f"{other.where}\n  and an environment in the graph counts the steps of its "
                    "episodes right for one call in a loop only: write the call once, in a loop "
                    "inside (`for _ in range(2):`), or use an environment in Python"
                )

    def _store(
        self, buffer: str, index: str, values: tuple[str, ...], rows: int, whole: bool = True
    ) -> list[str]:
        """Writes a row of a buffer.

        Rows of an unrolled loop are collected and written together, 1 us a row against 8 (and 25
        for `buffer[index] = value`); the buffer is then `[rows / UNROLL, UNROLL, ...]`.

        Args:
            buffer: `self.name`.
            index: the row.
            values: what is written; of an environment's step three, kept as two.
            rows: in the buffer.
            whole: whether the loop's turns fill the buffer from its first row on.
        """
        loop = self.unrolled
        if whole and loop is not None and index == loop.index and rows == loop.count:
            self.chunked.add(buffer)
            stem = buffer.removeprefix("self.")
            names = [f"{stem}_{value}" for value in values]
            self.collected[buffer] = names
            return [
                f"{name} = {name} + ({value},)" for name, value in zip(names, values, strict=True)
            ]
        return [_write(buffer, index, self._whole_row(buffer, list(values)))]

    def _whole_row(self, buffer: str, values: list[str]) -> str:
        """One row of a buffer; truth values are int8, which MindSpore can write on the CPU."""
        if len(values) == 3:  # reward, terminated, truncated of an environment
            ended = f"ms.ops.logical_or({values[1]}, {values[2]}).astype(ms.float32)"
            axis = 1 if buffer in self.chunked else 0
            return f"ms.ops.stack(({values[0]}, {ended}), {axis})"
        return f"{values[0]}.astype(ms.int8)" if buffer in self.truth else values[0]

    def _chunked_shape(self, table: str) -> str:
        value = self.values[table]
        row = replace(
            value,
            shape=value.shape[1:],
            axis=value.axis and value.axis - 1,
            agent_axis=value.agent_axis and value.agent_axis - 1,
        )
        rest = self._shape(row)
        return rest.replace("(", f"({value.shape[0] // UNROLL}, {UNROLL}, ", 1)

    def _rows(self, buffer: str, rows: int) -> tuple[int, ...]:
        """The leading axes of a buffer."""
        return (rows // UNROLL, UNROLL) if buffer in self.chunked else (rows,)

    def _agent_act(self, op: Op) -> list[str]:
        return [assignment(op.targets, f"self.actor.act({', '.join(op.args)})")]

    def _replay_insert(self, op: Op) -> list[str]:
        lines = []
        inserts = [o for o, _ in walk(self.region.items) if o.kind == "replay_insert"]
        for column, value in enumerate(op.args):
            name = f"self.replay_{column}"
            self._note_truth(name, value)
            lines += self._store(
                name, str(op.attr("index")), (value,), self._capacity(), whole=len(inserts) == 1
            )
            line = self._buffer(name, self.values[value], self._capacity())
            if line not in self.setup:
                self.setup.append(line)
                self._tell(name, value)
        return lines

    def _replay_extend(self, op: Op) -> list[str]:
        """A batch that arrives whole is the buffer."""
        self.extended = op.args
        return []

    def _replay_sample(self, op: Op) -> list[str]:
        rows = op.attr("rows")
        if self.extended:
            return [f"{t} = {stack}" for t, stack in zip(op.targets, self.extended, strict=True)]
        cut = "" if rows == self._capacity() else f"[0:{rows}]"
        return [
            self._loaded(target, f"self.replay_{column}", cut)
            for column, target in enumerate(op.targets)
        ]

    def _note_truth(self, buffer: str, variable: str) -> None:
        if self.values[variable].dtype == "bool":
            self.truth.add(buffer)

    def _loaded(self, name: str, buffer: str, cut: str = "") -> str:
        cast = ".astype(ms.bool_)" if self.values[name].dtype == "bool" else ""
        if buffer in self.chunked:
            cast = f".reshape({self._shape(self.values[name])}){cast}"
        return f"{name} = {buffer}{cut}{cast}"

    def _capacity(self) -> int:
        return max(
            op.attr("rows") for op, _ in walk(self.region.items) if op.kind == "replay_sample"
        )

    def _buffer(self, name: str, value: Value, rows: int) -> str:
        leading = ", ".join(str(extent) for extent in self._rows(name, rows))
        shape = self._shape(value).replace("(", f"({leading}, ", 1)
        return (
            f'{name} = parts.buffer({shape}, "{_buffer_dtype(value)}", '
            f'"{name.removeprefix("self.")}")'
        )

    def _stack(self, op: Op) -> list[str]:
        (index, value), buffer = op.args, f"self.{op.targets[0]}"
        self._note_truth(buffer, value)
        lines = self._store(buffer, index, (value,), op.attr("rows"))
        self.setup.append(self._buffer(buffer, self.values[value], op.attr("rows")))
        self._tell(buffer, value)
        return lines

    def _tell(self, buffer: str, value: str) -> None:
        """Tells the runtime where an environment's steps are kept, should it have to name one."""
        if value in self.told:
            self.setup.append(f'w.keep("{self.told[value]}", {buffer})')

    def _minibatch(self, op: Op) -> list[str]:
        row, number, *values = op.args
        rows = f"{row}_{number}"
        lines = [f"{rows} = operators.minibatch_rows({row}, {number}, {op.attr('count')})"]
        return lines + [
            f"{target} = operators.take_rows({value}, {rows})"
            for target, value in zip(op.targets, values, strict=True)
        ]

    def _gradient(self, op: Op) -> list[str]:
        loss, network = op.attr("objects")
        loss_value = self.values[f"{op.name}.loss"]
        count = self._samples(loss_value.size, loss_value)
        function = self._part(
            "gradient", f"operators.gradient_function(w.{loss}, w.{network}, {count})"
        )
        return [assignment(op.targets, f"{function}({', '.join(op.args)})")]

    def _update(self, op: Op) -> list[str]:
        (method,) = op.attr("objects")
        return [f"self.{method}({', '.join(op.args)})"]

    def _reduction(self, op: Op) -> list[str]:
        keep = op.attr("keep")
        lines = []
        for target, arg in zip(op.targets, op.args, strict=True):
            count: Any = reduced_count(self.values[arg].shape, keep)
            if self.values[target].axis is None:  # else each environment has its own
                count = self._samples(count, self.values[arg])
            lines.append(
                f'{target} = operators.reduce_samples("{op.kind}", {arg}, {keep}, {count})'
            )
        return lines

    def _samples(self, count: int, value: Value) -> str:
        """The samples of a mean: those of all workers, or of this one where each is on its own."""
        if self.alone and value.axis is not None:
            return f"{count // self.target.num_envs} * self.num_envs"
        return str(count)

    def _all_reduce(self, op: Op) -> list[str]:
        leaves = [(t, self.values[t].leaves) for t in op.targets]
        shapes = tuple(leaf.shape for _, parts in leaves for leaf in parts)
        name = op.name.removeprefix("all_reduce:")
        part = self._part(
            "reduce", f'parts.AllReduce(w.group, "{op.attr("reduction")}", {shapes}, "{name}")'
        )
        given = ", ".join(f"*{t}" if self.values[t].parts else t for t, _ in leaves)
        lines = [f"reduced = {part}.reduce({given})"]
        start = 0
        for name, parts in leaves:
            if self.values[name].parts:
                lines.append(f"{name} = reduced[{start}:{start + len(parts)}]")
            else:
                lines.append(f"{name} = reduced[{start}]")
            start += len(parts)
        return lines


def _repacked(name: str, parts: tuple[Value, ...]) -> str:
    """A tuple that a cell gives, anew if it or a tuple in it has one element.

    MindSpore gives such a tuple an axis too many if it went through a compiled `while`.
    """
    texts = [_repacked(f"{name}[{i}]", part.parts) for i, part in enumerate(parts)]
    as_it_is = len(texts) != 1 and texts == [f"{name}[{i}]" for i in range(len(texts))]
    return name if as_it_is else f"({', '.join(texts)},)"


def _write(buffer: str, index: str, value: str) -> str:
    if index.isdecimal():
        return f"{buffer}[{index}] = {value}"
    return f"ms.ops.scatter_update({buffer}, ({index}).reshape(1), ({value}).expand_dims(0))"


def ends_early(body: tuple[Any, ...]) -> Branch | None:
    """The whole of a loop's body, if a flag may end the loop."""
    only = body[0] if len(body) == 1 else None
    return only if isinstance(only, Branch) and only.first else None


def class_name(region: str) -> str:
    """`act_2` -> `Act2`."""
    return "".join(part.capitalize() for part in region.split("_"))


def assignment(targets: tuple[str, ...], call: str) -> str:
    """A call and what its results are called."""
    return f"{', '.join(targets)} = {call}" if targets else call


def _buffer_dtype(value: Value) -> str:
    return "int8" if value.dtype == "bool" else value.dtype


def _dtype(value: Value) -> str:
    return {"bool": "bool_"}.get(value.dtype, value.dtype)
