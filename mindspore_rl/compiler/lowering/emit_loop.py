"""Emits the Python loop that runs a fragment's cells."""

from dataclasses import dataclass
from typing import Any

from mindspore_rl.compiler.ir.dataflow import exposed
from mindspore_rl.compiler.ir.ir import Branch, Loop, Lowered, Op, Region, paths, site_of, walk
from mindspore_rl.compiler.ir.operations import Handlers
from mindspore_rl.compiler.lowering.cell_plan import kept, observations
from mindspore_rl.compiler.lowering.emit_cell import noise_size
from mindspore_rl.compiler.lowering.project import Projection
from mindspore_rl.compiler.lowering.regions import read_outside, regions_of
from mindspore_rl.compiler.lowering.source_text import (
    INDENT,
    assignment,
    class_name,
    columns,
    indented,
)
from mindspore_rl.compiler.lowering.target import Target, capacity
from mindspore_rl.plan.value import Value
from mindspore_rl.replay.across import ACROSS

VIEWS = ("copy", "glue")
"""Operations that do not need their operands on the host."""
NUMPY = {"constant", "env_steps", "progress"}
"""Operations whose emitted lines use NumPy."""
writes = Handlers("writes into a loop", lambda kind: kind.loop)


@dataclass(frozen=True)
class LoopWriter:
    """Emits the Python that runs the cells and every item outside them."""

    projection: Projection
    target: Target
    body: tuple[Lowered, ...]

    def text(self) -> str:
        """Emits the functions of loops in chunks, then the function `run`."""
        loops = [item for item, _ in paths(self.body) if isinstance(item, Loop)]
        in_chunks = [loop for loop in loops if loop.chunks > 1]
        apart = {region.name for loop in in_chunks for region in regions_of(loop.body)}
        own = [region for region in regions_of(self.body) if region.name not in apart]
        lines = [line for loop in in_chunks for line in self._one_chunk(loop)]
        lines += ["def run(w):"]
        doc = ", ".join(self.projection.fragment.components)
        lines += indented([f'"""{doc}."""', *self._cells(own), *self._items(self.body)])
        return "\n".join(lines) + "\n"

    def _cells(self, regions: list[Region]) -> list[str]:
        on_host = {
            name
            for item, _ in paths(self.body)
            if isinstance(item, Branch) or (isinstance(item, Op) and item.kind not in VIEWS)
            for name in item.reads
        }
        lines = []
        for region in regions:
            host = tuple(i for i, name in enumerate(region.outputs) if name in on_host)
            made = {name: op for op, _ in walk(region.items) for name in op.targets}
            seen = [name in made and name in observations(made[name]) for name in region.outputs]
            obs = tuple(i for i, found in enumerate(seen) if found)
            lines.append(
                f'{region.name}_cell = w.cell({class_name(region.name)}, "{region.name}", '
                f"to_host={host}{f', obs={obs}' if obs else ''})"
            )
        return lines

    def _one_chunk(self, loop: Loop) -> list[str]:
        """Emits a loop as a generator that runs it for one chunk of environments."""
        taken, given = _crossing(self.projection, loop.name)
        body = self._items(loop.body, loop)
        order = "those that are ready go" if loop.apart else "the next one goes"
        if not any(_waits(item) for item, _ in paths(loop.body)):
            body.append("yield")
        lines = [
            f'"""{loop.name} for one chunk; at each `yield` {order} on."""',
            *self._cells(regions_of(loop.body)),
            f"for {loop.index} in range({loop.count}):",
            *indented(body),
            f"return {_tuple(given)}",
        ]
        head = f"def {_chunk_name(loop)}({', '.join(('w', *taken))}):"
        return [head, *indented(lines), "", ""]

    def _all_chunks(self, loop: Loop) -> list[str]:
        """Emits the call that interleaves all chunks of a loop."""
        how = "as_ready" if loop.apart else "in_turn"
        taken, given = _crossing(self.projection, loop.name)
        inputs = _tuple(tuple(f"({v}, {self._axes(v)})" for v in taken))
        axes = _tuple(tuple(str(self._axes(v)) for v in given))
        call = f"w.{how}({_chunk_name(loop)}, {inputs}, {axes})"
        return [f"{_tuple(given)} = {call}" if given else call]

    def _axes(self, name: str) -> Any:
        """Returns the environment axis of a variable, see `runtime/rank/pipelined_loop.py`."""
        value = self.projection.values.get(name)
        return None if value is None else _axes(value)

    def _items(self, items: tuple[Lowered, ...], chunked: Loop | None = None) -> list[str]:
        lines: list[str] = []
        for at, item in enumerate(items):
            if isinstance(item, Region):
                call = f"{item.name}_cell({', '.join(item.inputs)})"
                lines.append(assignment(item.outputs, call))
            elif isinstance(item, Op):
                if chunked and _waits(item) and not (at and _waits(items[at - 1])):
                    edge = f' "{item.attr["message"]}"' if chunked.apart else ""
                    lines.append(f"yield{edge}")
                lines += writes[item.kind](self, item)
            elif isinstance(item, Loop):
                lines += self._loop(item, chunked)
            else:
                body = self._items(item.body, chunked) or ["pass"]
                lines += [f"if w.number({item.test}):", *indented(body)]
                if item.orelse:
                    lines += ["else:", *indented(self._items(item.orelse, chunked))]
        return lines

    def _loop(self, loop: Loop, chunked: Loop | None) -> list[str]:
        if loop.chunks > 1:
            return self._all_chunks(loop)
        if loop.kind == "iterations" and self.projection.serves:
            return self._serve(loop)
        head, first = f"for {loop.index} in range({loop.count}):", list[str]()
        if loop.kind == "iterations":
            head, first = self._iterations(loop.index)
        body, going = loop.body, loop.going
        if going is not None:
            first += [f"if not w.number({going.test}):", INDENT + "break"]
            body = going.body
        lines = [*first, *self._items(body, chunked)]
        return [head, *indented(lines if loop.body else [*lines, "pass"])]

    def _iterations(self, index: str) -> tuple[str, list[str]]:
        """Emits the head of the loop over iterations and the restore of carried variables.

        Checkpoints save the variables that are carried from one iteration to the next.
        """
        names = carried_variables(self.projection)
        carried = ", ".join(f'"{name}": {name}' for name in names)
        head = f"for {index} in w.iterations(lambda: {{{carried}}}):"
        if not names:
            return head, []
        quoted = ", ".join(f'"{name}"' for name in names)
        restored = f"({', '.join(names)},) = w.take_restored({quoted})"
        return head, ["if w.restored:", INDENT + restored]

    def _serve(self, loop: Loop) -> list[str]:
        """Emits the generator that serves one sender, and the loop that fires it on arrivals."""
        doc = "One sender's iteration; each `yield` leaves until its next message is here."
        return [
            "",
            f"def serve({loop.index}):",
            *indented([f'"""{doc}"""', *self._items(loop.body)]),
            "",
            "for sender in w.arrivals(serve):",
            INDENT + "w.fire(sender)",
        ]

    # ---- operations ------------------------------------------------------------------------

    @writes(*VIEWS)
    def _view(self, op: Op) -> list[str]:
        return [assignment(op.targets, op.args[0])]

    @writes("constant")
    def _constant(self, op: Op) -> list[str]:
        dtype = self.projection.values[op.targets[0]].dtype
        return [f'{op.targets[0]} = np.array({op.args[0]}, "{dtype}")']

    @writes("noise")
    def _noise(self, op: Op) -> list[str]:
        iteration = op.args[0] if op.args else "0"
        agents = ", by_agent=True" if op.attr["owner"] == "agents" else ""
        return [
            f'{op.targets[0]} = w.noise("{op.attr["purpose"]}", {iteration}, '
            f"{op.attr['rows']}, {noise_size(op)}{agents})"
        ]

    @writes("uniform_of_all")
    def _uniform_of_all(self, op: Op) -> list[str]:
        shape = f"{op.attr['rows']}, {op.attr['count']}, {op.attr['size']}"
        iteration = op.args[0] if op.args else "0"
        call = f'w.uniform_of_all("{op.attr["purpose"]}", {iteration}, {shape})'
        return [assignment(op.targets, call)]

    @writes("permutations")
    def _permutations(self, op: Op) -> list[str]:
        shape = f"{op.attr['rounds']}, {op.attr['steps']}"
        return [f'{op.targets[0]} = w.permutations("{site_of(op.name)}", {op.args[0]}, {shape})']

    @writes("dataset_windows", "dataset_transitions")
    def _dataset_windows(self, op: Op) -> list[str]:
        call = (
            f'w.dataset_windows("{op.attr["purpose"]}", {op.attr["path"]!r}, '
            f"{op.args[0] if op.args else 0}, {op.attr['rows']}, {op.attr['per_env']}, "
            f"{op.attr['length']})"
        )
        return [assignment(op.targets, call)]

    @writes("index", "unstack")
    def _index(self, op: Op) -> list[str]:
        return [f"{op.targets[0]} = {op.args[0]}[{op.args[1]}]"]

    @writes("joint")
    def _joint(self, op: Op) -> list[str]:
        value = op.args[0]
        return [f"{op.targets[0]} = {value}.reshape((len({value}), -1))"]

    @writes("env_steps")
    def _env_steps(self, op: Op) -> list[str]:
        steps = self.target.steps_per_iteration
        return [f"{op.targets[0]} = np.float32({op.args[0]} * {steps})"]

    @writes("env_index", "agent_index")
    def _numbers(self, op: Op) -> list[str]:
        return [assignment(op.targets, f"w.{op.kind}()")]

    @writes("progress")
    def _progress(self, op: Op) -> list[str]:
        return [f"{op.targets[0]} = np.float32(w.env_steps)"]

    @writes("env_reset")
    def _env_reset(self, op: Op) -> list[str]:
        return [assignment(op.targets, "w.env_reset()")]

    @writes("env_step")
    def _env_step(self, op: Op) -> list[str]:
        return [assignment(op.targets, f"w.env_step({op.args[0]})")]

    @writes("replay_insert")
    def _replay_insert(self, op: Op) -> list[str]:
        rows = capacity(self.projection.body)
        return [f"w.replay.write({rows}, {op.attr['index']}, {', '.join(op.args)})"]

    @writes("replay_extend")
    def _replay_extend(self, op: Op) -> list[str]:
        rows = capacity(self.projection.body)
        return [f"w.replay.extend({rows}, {op.attr['index']}, {', '.join(op.args)})"]

    @writes("replay_sample")
    def _replay_sample(self, op: Op) -> list[str]:
        return [columns(op.targets, f"w.replay.read({op.attr['rows']})")]

    @writes("replay_keep")
    def _replay_keep(self, op: Op) -> list[str]:
        return [f"{kept(op)}.write({', '.join(op.args)})"]

    @writes("replay_keep_rows")
    def _replay_keep_rows(self, op: Op) -> list[str]:
        return [f"{kept(op)}.extend({', '.join(op.args)})"]

    @writes("replay_draw")
    def _replay_draw(self, op: Op) -> list[str]:
        if op.attr["by"] in ACROSS or "count" in op.attr:
            return [columns(op.targets, self._drawn_across(op))]
        way = "draw_weighted" if op.attr["by"] == "priority" else "draw"
        given = (op.args[0], *[str(op.attr["steps"])][: op.attr["steps"]])
        call = f"{kept(op)}.{way}({', '.join(given)})"
        return [columns(op.targets, call)]

    def _drawn_across(self, op: Op) -> str:
        noise = (
            f'w.noise_of_all("{op.attr["purpose"]}", {op.attr["iteration"]}, {op.attr["rows"]}, '
            f"{2 * op.attr['per_env']})[{op.attr['turn']}]"
        )
        by_all = f'w.named_by_all["{op.replay}"]' if op.replay else "w.kept_by_all"
        if "count" in op.attr:
            how = f'{op.attr["count"]}, "{op.attr["by"]}", {op.attr["steps"]}'
            return f"{by_all}.draw_whole({noise}, {how})"
        distinct = op.attr["by"] == "distinct"
        return f"{by_all}.draw({noise}, {op.attr['steps']}, distinct={distinct})"

    @writes("replay_update")
    def _replay_update(self, op: Op) -> list[str]:
        return [f"{kept(op)}.update({', '.join(op.args)})"]

    @writes("stack")
    def _stack(self, op: Op) -> list[str]:
        index, value = op.args
        return [
            f'{op.targets[0]} = w.stack("{op.targets[0]}", {op.attr["rows"]}, {index}, {value})'
        ]

    @writes("send")
    def _send(self, op: Op) -> list[str]:
        values = f"{', '.join(op.args)}," if op.args else ""
        return [f'w.send("{op.attr["message"]}", ({values}))']

    @writes("receive")
    def _receive(self, op: Op) -> list[str]:
        if self.projection.serves:
            call = f'yield "{op.attr["message"]}"'
        else:
            call = f'w.receive("{op.attr["message"]}")'
        return [f"({', '.join(op.targets)},) = {call}" if op.targets else call]

    @writes("report")
    def _report(self, op: Op) -> list[str]:
        pairs = zip(op.attr["keys"], op.args, strict=True)
        inside = ", ".join(f'"{key}": {value}' for key, value in pairs)
        return [f"w.report({{{inside}}})"]

    @writes("record")
    def _record(self, op: Op) -> list[str]:
        buffer, *turns = op.args
        axis = ", ".join([str(op.attr["axis"]), *turns])
        return [f'w.record("{op.attr["key"]}", {buffer}, {axis})']

    @writes("unset")
    def _unset(self, op: Op) -> list[str]:
        return [f"{' = '.join(op.targets)} = None"]


writes.check()


def _waits(item: Lowered) -> bool:
    return isinstance(item, Op) and item.kind == "receive"


def _tuple(parts: tuple[str, ...]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _axes(value: Value) -> Any:
    return tuple(map(_axes, value.parts)) if value.parts else value.axis


def _chunk_name(loop: Loop) -> str:
    return f"chunk_of_{loop.name.replace('#', '_')}"


def _crossing(projection: Projection, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the variables that a loop takes from outside, and its own that are used outside."""
    loop = next(item for item, _ in paths(projection.body) if item.name == name)
    assert isinstance(loop, Loop)
    read = read_outside(projection.body, loop.body) | set(exposed(loop.body))
    own = dict.fromkeys(t for op, _ in walk(loop.body) for t in op.targets)
    given = tuple(v for v in own if v in read)
    return tuple(v for v in exposed(loop.body, given) if v != loop.index), given


def carried_variables(projection: Projection) -> tuple[str, ...]:
    """Returns the variables that an iteration takes from the previous one, in order."""
    for item in projection.body:
        if isinstance(item, Loop) and item.kind == "iterations":
            defined = {t for op, _ in walk(item.body) for t in op.targets}
            return tuple(n for n in exposed(item.body) if n in defined)
    return ()
