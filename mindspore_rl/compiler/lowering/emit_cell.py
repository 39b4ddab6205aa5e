"""Emits a region as a MindSpore cell."""

from dataclasses import dataclass, replace
from typing import Any

from mindspore_rl.compiler.frontend.replay_rows import inserted
from mindspore_rl.compiler.frontend.rewrite import OWNERS, owned
from mindspore_rl.compiler.ir.ir import Branch, Expr, Item, Loop, Op, paths, site_of, walk
from mindspore_rl.compiler.ir.operations import Handlers
from mindspore_rl.compiler.lowering.cell_buffers import (
    buffer_setup,
    extents,
    grouped,
    load,
    row_at_hand,
    unrolled_loop,
    write_row,
)
from mindspore_rl.compiler.lowering.cell_plan import CellPlan, kept_column, owner
from mindspore_rl.compiler.lowering.regions import read_outside
from mindspore_rl.compiler.lowering.source_text import assignment, class_name, indented
from mindspore_rl.plan.plan import STATE
from mindspore_rl.plan.value import Value, reduced_count

writes = Handlers("writes into a cell", lambda kind: kind.cell)
makes = Handlers("makes the part of a cell for", lambda kind: kind.part)


@dataclass(frozen=True)
class CellWriter:
    """Emits the class of a cell from its plan."""

    plan: CellPlan

    def text(self) -> str:
        """Emits the class."""
        region = self.plan.region
        title = ", ".join(dict.fromkeys(op.kind for op, _ in walk(region.items)))
        lines = [
            f'"""{title}."""',
            "",
            "def __init__(self, w):",
            *indented(self._setup()),
            "",
            f"def construct({', '.join(('self', *region.inputs))}):",
            *indented([*self._items(region.items), *self._results()]),
        ]
        head = f"class {class_name(region.name)}(nn.Cell):"
        return "\n".join([head, *indented(lines), "", ""])

    def _setup(self) -> list[str]:
        plan = self.plan
        lines = ["super().__init__(auto_prefix=False)", "self.num_envs = len(w.env_indices)"]
        if plan.counts_agents:
            lines.append("self.num_agents = len(w.agents.share)")
        lines += [f"self.{owner} = w.{owner}" for owner in plan.owners]
        for item, _ in paths(plan.region.items):
            if item.name in plan.parts:
                lines.append(f"self.{plan.parts[item.name]} = {self._part(item)}")
            for row in plan.rows.get(item.name, ()):
                if row is plan.buffers[row.buffer]:
                    lines += buffer_setup(plan, row)
        return lines

    def _results(self) -> list[str]:
        values, outputs = self.plan.values, self.plan.region.outputs
        stacks = [op for op, _ in walk(self.plan.region.items) if op.kind == "stack"]
        rows = {op.targets[0]: op.attr["rows"] for op in stacks}
        lines = [load(self.plan, name, name, rows[name]) for name in outputs if name in rows]
        parts = {name: values[name].parts for name in outputs if name != STATE}
        given = ", ".join(_repacked(name, parts.get(name, ())) for name in outputs) or "0"
        return [*lines, f"return {given}"]

    def _items(self, items: tuple[Item, ...]) -> list[str]:
        lines: list[str] = []
        for item in items:
            if isinstance(item, Op):
                lines += writes[item.kind](self, item)
                continue
            starts = self.plan.starts[item.name]
            lines += [f"{name} = {_zeros(self.plan.values[name])}" for name in starts]
            lines += self._loop(item) if isinstance(item, Loop) else self._branch(item)
        return lines

    def _loop(self, loop: Loop) -> list[str]:
        if loop.name in self.plan.unrolled:
            return unrolled_loop(self.plan, loop, self._items(loop.body))
        part = self.plan.parts.get(loop.name)
        index, going = loop.index, loop.going
        test = f"{index} < {f'self.{part}' if part else loop.count or 1}"
        if going is not None:
            test = f"ms.ops.logical_and({test}, {going.test})"
        body, tuples = self._items((going or loop).body), self._tuples(loop)
        whole = [f"{name} = {_of_elements(name, parts)}" for name, parts in tuples.items()]
        apart = [f"{_of_elements(name, parts)} = {name}" for name, parts in tuples.items()]
        return [
            *apart,
            f"{index} = ms.Tensor(0, ms.int32)",
            f"while {test}:",
            *indented([*whole, *body, *apart, f"{index} = {index} + 1"]),
            *whole,
        ]

    def _tuples(self, loop: Loop) -> dict[str, tuple[Value, ...]]:
        """Returns the tuples that a loop changes and that are used after it, with their parts.

        MindSpore loses the length of a tuple of one element in a compiled `while`, and the types
        of any tuple's elements if `break` may end it. The elements of such a tuple are carried.
        """
        values = self.plan.values
        written = {name for op, _ in walk(loop.body) for name in op.targets if name in values}
        used = written & read_outside(self.plan.region.items, loop.body)
        return {
            name: parts
            for name in sorted(used)
            if (parts := values[name].parts) and (loop.going is not None or _has_single(parts))
        }

    def _branch(self, branch: Branch) -> list[str]:
        body = self._flags(branch, branch.body, True)
        lines = [f"if {owned(branch.test)}:", *indented(self._items(body) or ["pass"])]
        orelse = self._flags(branch, branch.orelse, False)
        return [*lines, "else:", *indented(self._items(orelse))] if orelse else lines

    def _flags(self, branch: Branch, items: tuple[Item, ...], holds: bool) -> tuple[Item, ...]:
        """Computes the constants that a branch sets from its condition, if there are several.

        In some nested loops, MindSpore compiles no branch that sets two variables to constants
        ("Cannot join the return values of different branches").
        """
        test, values = str(branch.test), self.plan.values
        written = {name for op, _ in walk(items) for name in op.targets}
        if test in written or test not in values or values[test].dtype != "bool":
            return items
        found: list[Item] = []
        for item in items:
            if not isinstance(item, Op) or item.kind != "constant":
                found.append(item)
                continue
            given = str(item.args[0])
            if given in ("True", "False"):
                same = (given == "True") is holds
                way = f"logical_or({test}, {test})" if same else f"logical_not({test})"
            else:
                sides = [given, "1" if given in ("0", "0.0") else "0"]
                dtype = _dtype(values[item.targets[0]])
                texts = [f"ms.Tensor({one}, ms.{dtype})" for one in sides[:: 1 if holds else -1]]
                way = f"where({test}, {', '.join(texts)})"
            found.append(replace(item, kind="glue", args=(Expr(f"ms.ops.{way}"),)))
        changed = sum(new is not old for new, old in zip(found, items, strict=True))
        return tuple(found) if changed > 1 else items

    # ---- parts -----------------------------------------------------------------------------

    def _part(self, item: Op | Loop) -> str:
        """Returns the expression that makes the cell's attribute for an operation or a loop."""
        if isinstance(item, Loop):
            return f"parts.turns({item.count or 1})"
        return makes[item.kind](self, item)

    @makes("noise")
    def _noise_part(self, op: Op) -> str:
        agents = ", w.agents" if op.attr["owner"] == "agents" else ""
        return (
            f"parts.NoiseTable(w.seed, {op.attr['purpose']!r}, {op.attr['rows']}, w.env_indices, "
            f"{noise_size(op)}{agents})"
        )

    @makes("env_index")
    def _env_index_part(self, op: Op) -> str:
        return f"parts.env_index(w.env_indices, {op.name!r})"

    @makes("agent_index")
    def _agent_index_part(self, op: Op) -> str:
        return f"parts.agent_index(w.agents, {op.name!r})"

    @makes("replay_draw")
    def _replay_draw_part(self, op: Op) -> str:
        return f"parts.Draws({op.attr['capacity']}, {op.attr['steps']}, w.env_indices)"

    @makes("permutations")
    def _permutations_part(self, op: Op) -> str:
        return (
            f"parts.PermutationTable(w.seed, {site_of(op.name)!r}, {op.attr['rounds']}, "
            f"w.env_indices, {self.plan.target.num_steps}, {op.attr['steps']})"
        )

    @makes("gradient")
    def _gradient_part(self, op: Op) -> str:
        loss, network = op.attr["objects"]
        value = self.plan.values[op.targets[-1]].leaves[0]
        count = self._samples(value.size, value)
        forms = f", {op.attr['forms']}" if "forms" in op.attr else ""
        made = f"{_of_rank(loss)}, {_of_rank(network)}"
        return f"operators.gradient_function({made}, {count}{forms})"

    @makes("agent_act")
    def _act_part(self, op: Op) -> str:
        forms = f", {op.attr['forms']}, {op.attr.get('keys', ())}" if "forms" in op.attr else ""
        return f"with_tuples(w.{owner(op)}.act{forms})"

    @makes("update")
    def _update_part(self, op: Op) -> str:
        return _of_rank(op.attr["objects"][0])

    @makes("all_reduce")
    def _all_reduce_part(self, op: Op) -> str:
        shapes = tuple(leaf.shape for t in op.targets for leaf in self.plan.values[t].leaves)
        name = op.name.removeprefix("all_reduce:")
        return f'parts.AllReduce(w.group, "{op.attr["reduction"]}", {shapes}, "{name}")'

    # ---- operations ------------------------------------------------------------------------

    @writes("function")
    def _function(self, op: Op) -> list[str]:
        return [assignment(op.targets, f"operators.{op.kind}({', '.join(op.args)})")]

    @writes("glue", "copy")
    def _expression(self, op: Op) -> list[str]:
        return [assignment(op.targets, owned(op.args[0]))]

    @writes("constant")
    def _constant(self, op: Op) -> list[str]:
        dtype = _dtype(self.plan.values[op.targets[0]])
        return [f"{op.targets[0]} = ms.Tensor({op.args[0]}, ms.{dtype})"]

    @writes("noise", "permutations")
    def _noise(self, op: Op) -> list[str]:
        iteration = op.args[0] if op.args else "ms.Tensor(0, ms.int32)"
        return [f"{op.targets[0]} = self.{self.plan.parts[op.name]}.table({iteration})"]

    @writes("index", "unstack")
    def _index(self, op: Op) -> list[str]:
        table, row = op.args
        text = f"{table}[{row}]" if row.isdecimal() else f"ms.ops.gather({table}, {row}, 0)"
        loop = self.plan.sliced.get(op.name)
        return [f"{op.targets[0]} = {row_at_hand(table, loop) if loop else text}"]

    @writes("env_steps")
    def _env_steps(self, op: Op) -> list[str]:
        steps = float(self.plan.target.steps_per_iteration)
        return [f"{op.targets[0]} = {op.args[0]}.astype(ms.float32) * {steps}"]

    @writes("env_index", "agent_index")
    def _numbers(self, op: Op) -> list[str]:
        return [f"{op.targets[0]} = self.{self.plan.parts[op.name]} * 1"]

    @writes("env_reset")
    def _env_reset(self, op: Op) -> list[str]:
        return [assignment(op.targets, f"self.environment.reset({', '.join(op.args)})")]

    @writes("env_step")
    def _env_step(self, op: Op) -> list[str]:
        (row,), reward = self.plan.rows[op.name], op.targets[3]
        lines = [assignment(op.targets, f"self.environment.step({', '.join((STATE, *op.args))})")]
        if row.variable != reward:
            lines.append(f"{row.variable} = {reward}.mean(1)")
        return lines + write_row(self.plan, row)

    @writes("agent_act")
    def _agent_act(self, op: Op) -> list[str]:
        method = self.plan.parts.get(op.name) or f"{owner(op)}.act"
        return [assignment(op.targets, f"self.{method}({op.call})")]

    @writes("stack", "replay_insert", "replay_keep")
    def _stack(self, op: Op) -> list[str]:
        return [line for row in self.plan.rows[op.name] for line in write_row(self.plan, row)]

    @writes("replay_extend")
    def _replay_extend(self, _: Op) -> list[str]:
        """Emits nothing: a received batch is used as the buffer, see `_replay_sample`."""
        return []

    @writes("replay_sample")
    def _replay_sample(self, op: Op) -> list[str]:
        ops = [other for other, _ in walk(self.plan.region.items)]
        for other in ops:
            if other.kind == "replay_extend":
                pairs = zip(op.targets, other.args, strict=True)
                return [f"{target} = {stack}" for target, stack in pairs]
        return [
            load(self.plan, target, f"replay_{column}", op.attr["rows"])
            for column, target in enumerate(op.targets)
        ]

    @writes("replay_draw")
    def _replay_draw(self, op: Op) -> list[str]:
        rows, part = f"{op.targets[0]}_rows", self.plan.parts[op.name]
        lines = [f"{rows} = self.{part}.rows({op.args[0]}, {inserted(op)})"]
        for column, target in enumerate(op.targets):
            cast = ".astype(ms.bool_)" if self.plan.values[target].dtype == "bool" else ""
            buffer = f"self.{kept_column(op, column)}"
            lines.append(f"{target} = operators.take_rows({buffer}, {rows}){cast}")
        return lines

    @writes("minibatch")
    def _minibatch(self, op: Op) -> list[str]:
        row, number, *values = op.args
        rows = f"{row}_{number}"
        shape = f"{op.attr['count']}, {op.attr['steps']}"
        lines = [f"{rows} = operators.minibatch_rows({row}, {number}, {shape})"]
        return lines + [
            f"{target} = operators.take_rows({value}, {rows})"
            for target, value in zip(op.targets, values, strict=True)
        ]

    @writes("gradient")
    def _gradient(self, op: Op) -> list[str]:
        call = f"self.{self.plan.parts[op.name]}({', '.join(op.args)})"
        return [assignment(op.targets, call)]

    @writes("update")
    def _update(self, op: Op) -> list[str]:
        (method,) = op.attr["objects"]
        if op.name in self.plan.parts:
            return [f"self.{self.plan.parts[op.name]}({', '.join(op.args)})"]
        return [f"{owned(Expr(method))}({', '.join(op.args)})"]

    @writes("reduction")
    def _reduction(self, op: Op) -> list[str]:
        keep = op.attr["keep"]
        lines = []
        for target, arg in zip(op.targets, op.args, strict=True):
            count: Any = reduced_count(self.plan.values[arg].shape, keep)
            if self.plan.values[target].axis is None:  # else the axis of environments is kept
                count = self._samples(count, self.plan.values[arg])
            lines.append(
                f'{target} = operators.reduce_samples("{op.kind}", {arg}, {keep}, {count})'
            )
        return lines

    def _samples(self, count: int, value: Value) -> str:
        """Returns the number of samples of a mean, as an expression.

        It counts the samples of all workers, or of those of `Projection.among`.
        """
        if self.plan.among and value.axis is not None:
            return f"{count // self.plan.target.num_envs * self.plan.among} * self.num_envs"
        return str(count)

    @writes("all_reduce")
    def _all_reduce(self, op: Op) -> list[str]:
        values = [(name, self.plan.values[name]) for name in op.targets]
        given = ", ".join(f"*{name}" if value.parts else name for name, value in values)
        lines = [f"reduced = self.{self.plan.parts[op.name]}.reduce({given})"]
        start = 0
        for name, value in values:
            end = start + len(value.leaves)
            lines.append(f"{name} = reduced[{f'{start}:{end}' if value.parts else start}]")
            start = end
        return lines


writes.check()
makes.check()

_OF_RANK = {owner: Expr(f"w.{owner}") for owner in OWNERS}


def _of_rank(expression: str) -> Expr:
    """Replaces the names `trainer`, `actor` and `learner` by attributes of the rank, `w`."""
    return Expr(expression).substitute(_OF_RANK)


def noise_size(op: Op) -> str:
    """Returns an expression: random numbers that a call takes per turn and environment."""
    if op.attr["owner"] == "replay":
        return str(op.attr["size"])
    return "w.environment.noise_size" if op.attr["owner"] == "env" else "w.actor.noise_size"


def _repacked(name: str, parts: tuple[Value, ...]) -> str:
    """Rebuilds a tuple that a cell returns if it, or a tuple in it, has a single element.

    MindSpore adds an extra axis to such a tuple if it went through a compiled `while`.
    """
    texts = [_repacked(f"{name}[{i}]", part.parts) for i, part in enumerate(parts)]
    as_it_is = len(texts) != 1 and texts == [f"{name}[{i}]" for i in range(len(texts))]
    return name if as_it_is else f"({', '.join(texts)},)"


def _has_single(parts: tuple[Value, ...]) -> bool:
    """Returns whether a tuple, or a tuple in it, has a single element."""
    return len(parts) == 1 or any(_has_single(part.parts) for part in parts if part.parts)


def _of_elements(name: str, parts: tuple[Value, ...]) -> str:
    """Returns a tuple of variables for the elements of another one, and of the tuples in it."""
    if not parts:
        return f"{name}_"
    return (
        f"({', '.join(_of_elements(f'{name}_{i}', part.parts) for i, part in enumerate(parts))},)"
    )


def _zeros(value: Value) -> str:
    if value.parts:
        return f"({', '.join(_zeros(part) for part in value.parts)},)"
    if not value.shape:
        number = {"float32": "0.0", "bool": "False"}.get(value.dtype, "0")
        return f"ms.Tensor({number}, ms.{_dtype(value)})"
    return f"ms.ops.zeros({grouped((), extents(value))}, ms.{_dtype(value)})"


def _dtype(value: Value) -> str:
    return {"bool": "bool_"}.get(value.dtype, value.dtype)
