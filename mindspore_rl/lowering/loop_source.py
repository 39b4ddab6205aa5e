"""The source of the Python that runs a fragment's cells."""

from collections.abc import Iterator
from typing import Any

from mindspore_rl.graph.flow import exposed
from mindspore_rl.graph.ir import Branch, Loop, Lowered, Op, Region, paths, walk
from mindspore_rl.lowering.cell_source import INDENT, Target, assignment, class_name, ends_early
from mindspore_rl.lowering.project import Projection
from mindspore_rl.plan.value import Value


class LoopWriter:
    """Writes the Python that runs the cells and everything that is not in one."""

    def __init__(self, projection: Projection, target: Target, regions: list[Region]) -> None:
        self.projection, self.target, self.regions = projection, target, regions
        self.lines: list[str] = []
        self.functions: list[str] = []
        self.on_host: set[str] = set()
        self.capacity = max(
            [op.attr("rows") for op, _ in walk(projection.body) if op.kind == "replay_sample"],
            default=0,
        )
        self.touches_parameters = any(
            "$parameters" in (*op.reads, *op.writes) for op, _ in walk(projection.body)
        )

    def text(self, body: tuple[Lowered, ...]) -> str:
        """The function `run`."""
        doc = ", ".join(self.projection.fragment.components)
        self.on_host = self._read_by(body)
        in_chunks = [r for loop in _chunk_loops(body) for r in _regions_of(loop.body)]
        self._line("def run(w):", 0)
        self._line(f'"""{doc}."""', 1)
        self._cells([region for region in self.regions if region not in in_chunks], 1)
        self._items(body, 1)
        return "\n".join([*self.functions, *self.lines]) + "\n"

    def _cells(self, regions: list[Region], depth: int) -> None:
        for region in regions:
            host = tuple(i for i, name in enumerate(region.outputs) if name in self.on_host)
            self._line(
                f'{region.name}_cell = w.cell({class_name(region.name)}, "{region.name}", '
                f"to_host={host})",
                depth,
            )

    def _loop_in_chunks(self, loop: Loop, depth: int) -> None:
        """A loop as a generator of one chunk, and the call that runs all chunks in turn."""
        name = f"chunk_of_{loop.name.replace('#', '_')}"
        taken, given = _crossing(self.projection, loop.name)
        outer, self.lines = self.lines, []
        self._line(f"def {name}({', '.join(('w', *taken))}):", 0)
        self._line(f'"""{loop.name} for one chunk; at each `yield` the next one goes on."""', 1)
        self._cells(_regions_of(loop.body), 1)
        self._line(f"for {loop.index} in range({loop.count}):", 1)
        self._items(loop.body, 2, chunked=True)
        if not any("yield" in line for line in self.lines[2:]):
            self._line("yield", 2)
        self._line(f"return {_tuple(given)}", 1)
        self.functions += [*self.lines, "", ""]
        self.lines = outer
        inputs = _tuple(tuple(f"({v}, {self._axes(v)})" for v in taken))
        axes = _tuple(tuple(str(self._axes(v)) for v in given))
        call = f"w.in_turn({name}, {inputs}, {axes})"
        self._line(f"{_tuple(given)} = {call}" if given else call, depth)

    def _axes(self, name: str) -> Any:
        """Where the environments of a variable lie, see `runtime/rank/chunks.py`."""
        value = self.projection.values.get(name)
        return None if value is None else _axes(value)

    def _read_by(self, items: tuple[Lowered, ...]) -> set[str]:
        """Variables that Python code reads, rather than a cell."""
        found: set[str] = set()
        for item in items:
            if isinstance(item, Op):
                found |= set(item.reads) if item.kind not in ("copy", "glue") else set()
            elif isinstance(item, Loop):
                found |= self._read_by(item.body)
            elif isinstance(item, Branch):
                found |= set(item.reads) | self._read_by(item.body + item.orelse)
        return found

    def _line(self, text: str, depth: int) -> None:
        self.lines.append(INDENT * depth + text)

    def _items(self, items: tuple[Lowered, ...], depth: int, chunked: bool = False) -> None:
        for position, item in enumerate(items):
            if isinstance(item, Region):
                self._line(
                    assignment(item.outputs, f"{item.name}_cell({', '.join(item.inputs)})"), depth
                )
            elif isinstance(item, Op):
                if chunked and _waits(item) and not (position and _waits(items[position - 1])):
                    self._line("yield", depth)
                for line in self._op(item):
                    self._line(line, depth)
            elif isinstance(item, Loop) and item.chunks > 1:
                self._loop_in_chunks(item, depth)
            elif isinstance(item, Loop):
                if item.kind == "iterations" and self.projection.serves:
                    self._turns(item, depth)
                    continue
                if item.kind == "iterations":
                    self._iterations(item.index, depth)
                else:
                    self._line(f"for {item.index} in range({item.count}):", depth)
                body, going = item.body, ends_early(item.body)
                if going is not None:
                    self._line(f"if not w.number({going.test}):", depth + 1)
                    self._line("break", depth + 2)
                    body = going.body
                self._items(body, depth + 1, chunked)
                if not item.body:
                    self._line("pass", depth + 1)
            else:
                self._line(f"if w.number({item.test}):", depth)
                self._items(item.body, depth + 1, chunked)
                if not item.body:
                    self._line("pass", depth + 1)
                if item.orelse:
                    self._line("else:", depth)
                    self._items(item.orelse, depth + 1, chunked)

    def _iterations(self, index: str, depth: int) -> None:
        """Variables carried from one iteration to the next go to checkpoints and come back."""
        names = carried_variables(self.projection)
        carried = ", ".join(f'"{name}": {name}' for name in names)
        self._line(f"for {index} in w.iterations(lambda: {{{carried}}}):", depth)
        if names:
            quoted = ", ".join(f'"{name}"' for name in names)
            self._line("if w.restored:", depth + 1)
            self._line(f"({', '.join(names)},) = w.take_restored({quoted})", depth + 2)

    def _turns(self, loop: Loop, depth: int) -> None:
        """What serves one sender, fired for whichever is there."""
        self._line("", 0)
        self._line(f"def turns({loop.index}):", depth)
        self._line(
            '"""One sender\'s iteration; each `yield` leaves until its next message is here."""',
            depth + 1,
        )
        self._items(loop.body, depth + 1)
        self._line("", 0)
        self._line("for sender in w.arrivals(turns):", depth)
        self._line("w.fire(sender)", depth + 1)

    def _op(self, op: Op) -> list[str]:
        special = getattr(self, f"_{op.kind}", None)
        if special is not None:
            return special(op)
        return [assignment(op.targets, op.args[0])]

    def _constant(self, op: Op) -> list[str]:
        dtype = self.projection.values[op.targets[0]].dtype
        return [f'{op.targets[0]} = np.array({op.args[0]}, "{dtype}")']

    def _noise(self, op: Op) -> list[str]:
        iteration = op.args[0] if op.args else "0"
        return [
            f'{op.targets[0]} = w.noise("{op.attr("purpose")}", {iteration}, '
            f'{op.attr("rows")}, "{op.attr("owner")}")'
        ]

    def _permutations(self, op: Op) -> list[str]:
        return [f'{op.targets[0]} = w.permutations("{op.name}", {op.args[0]}, {op.attr("rounds")})']

    def _index(self, op: Op) -> list[str]:
        return [f"{op.targets[0]} = {op.args[0]}[{op.args[1]}]"]

    _unstack = _index

    def _joint(self, op: Op) -> list[str]:
        value = op.args[0]
        return [f"{op.targets[0]} = {value}.reshape((len({value}), -1))"]

    def _env_steps(self, op: Op) -> list[str]:
        steps = self.target.steps_per_iteration
        return [f"{op.targets[0]} = np.float32({op.args[0]} * {steps})"]

    def _progress(self, op: Op) -> list[str]:
        return [f"{op.targets[0]} = np.float32(w.env_steps)"]

    def _env_reset(self, op: Op) -> list[str]:
        return [assignment(op.targets, "w.env_reset()")]

    def _env_step(self, op: Op) -> list[str]:
        return [assignment(op.targets, f"w.env_step({op.args[0]})")]

    def _replay_insert(self, op: Op) -> list[str]:
        return [f"w.replay.write({self.capacity}, {op.attr('index')}, {', '.join(op.args)})"]

    def _replay_extend(self, op: Op) -> list[str]:
        return [f"w.replay.extend({self.capacity}, {op.attr('start')}, {', '.join(op.args)})"]

    def _replay_sample(self, op: Op) -> list[str]:
        return [assignment(op.targets, f"w.replay.read({op.attr('rows')})")]

    def _stack(self, op: Op) -> list[str]:
        index, value = op.args
        return [
            f'{op.targets[0]} = w.stack("{op.targets[0]}", {op.attr("rows")}, {index}, {value})'
        ]

    def _send(self, op: Op) -> list[str]:
        values = f"{', '.join(op.args)}," if op.args else ""
        return [f'w.send("{op.attr("message")}", ({values}))']

    def _receive(self, op: Op) -> list[str]:
        if self.projection.serves:
            call = f'yield "{op.attr("message")}"'
        else:
            call = f'w.receive("{op.attr("message")}")'
        return [f"({', '.join(op.targets)},) = {call}" if op.targets else call]

    def _report(self, op: Op) -> list[str]:
        pairs = zip(op.attr("keys"), op.args, strict=True)
        inside = ", ".join(f'"{key}": {value}' for key, value in pairs)
        return [f"w.report({{{inside}}})"]

    def _record(self, op: Op) -> list[str]:
        buffer, *turns = op.args
        axis = ", ".join([str(op.attr("axis")), *turns])
        return [f'w.record("{op.attr("key")}", {buffer}, {axis})']

    def _unset(self, op: Op) -> list[str]:
        return [f"{' = '.join(op.targets)} = None"]


def _waits(item: Lowered) -> bool:
    return isinstance(item, Op) and item.kind == "receive"


def _tuple(parts: tuple[str, ...]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _axes(value: Value) -> Any:
    return tuple(map(_axes, value.parts)) if value.parts else value.axis


def _chunk_loops(items: tuple[Lowered, ...]) -> Iterator[Loop]:
    """Loops that run in chunks; they hold no others."""
    for item in items:
        if isinstance(item, Loop) and item.chunks > 1:
            yield item
        elif isinstance(item, Loop):
            yield from _chunk_loops(item.body)
        elif isinstance(item, Branch):
            yield from _chunk_loops(item.body + item.orelse)


def _regions_of(items: tuple[Lowered, ...]) -> list[Region]:
    found = [item for item in items if isinstance(item, Region)]
    for item in items:
        if isinstance(item, Branch):
            found += _regions_of(item.body + item.orelse)
    return found


def _crossing(projection: Projection, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Variables that a loop takes from around it, and those of its own that are used around it."""
    loop = next(item for item, _ in paths(projection.body) if item.name == name)
    assert isinstance(loop, Loop)
    inside = {item.name for item, _ in paths(loop.body)}
    read = set(exposed(loop.body)) | {
        variable
        for item, _ in paths(projection.body)
        if not isinstance(item, Loop) and item.name not in inside
        for variable in item.reads
    }
    own = dict.fromkeys(t for op, _ in walk(loop.body) for t in op.targets)
    given = tuple(v for v in own if v in read)
    return tuple(v for v in exposed(loop.body, given) if v != loop.index), given


def carried_variables(projection: Projection) -> tuple[str, ...]:
    """Variables that an iteration takes from the one before, in order."""
    for item in projection.body:
        if isinstance(item, Loop) and item.kind == "iterations":
            defined = {t for op, _ in walk(item.body) for t in op.targets}
            return tuple(n for n in exposed(item.body) if n in defined)
    return ()
