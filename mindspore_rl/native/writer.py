"""The C++ of a cell: blocks of loops over fused element-wise nodes, and calls of kernels.

Every block is a function that gives the number of the next one. Numbers that outlive a fused loop
are in one memory area, whose layout is fixed here: what several blocks use has a place of its own,
what one block uses shares places with what is no longer needed.
"""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl import toolchain
from mindspore_rl.native.blocks import Block, Blocks, Jump, Unsupported, origin, outputs, tensors
from mindspore_rl.native.effects import (
    WRITES,
    check_overwritten,
    copy_stale,
    needs_of,
    place_of,
    root_of,
)
from mindspore_rl.native.program import Type, Value
from mindspore_rl.native.rows import indexing  # noqa: F401  (rows of the table)
from mindspore_rl.native.rows.composed import compose
from mindspore_rl.native.rows.elementwise import (
    BY_CHANNEL,
    C_TYPES,
    ELEMENTWISE,
    expression,
    literal,
    reads,
)
from mindspore_rl.native.rows.primitives import WRITERS, Call, Operand, known
from mindspore_rl.native.rows.views import FREE, VIEWS, is_view, strides_of
from mindspore_rl.native.tiles import tile

ALIGNED = 64
MOST_NODES = 20_000
"""Of a cell; the compiler would take minutes for more."""
MOST_STREAMS = 24
"""Arrays that one fused loop reads; more of them do not fit a core's registers and prefetchers."""


@dataclass(frozen=True)
class Unit:
    """A cell as C++.

    Attributes:
        text: the source; its entry is
            `int run(void **data, char *memory, void **functions, char *results)`.
        memory_bytes: of the area that it works in.
        inputs: types of what it is called with.
        weights: names of the cell's parameters, in the order of their pointers.
        results: types of what it gives, each aligned in one area.
        structure: of the results, nested tuples of positions.
        functions: `library:name` of functions that it calls.
    """

    text: str
    memory_bytes: int
    inputs: tuple[Type, ...]
    weights: tuple[str, ...]
    results: tuple[Type, ...]
    structure: Any
    functions: tuple[str, ...]

    def to_json(self) -> str:
        """For `from_json`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Unit":
        """A unit that was kept."""

        def tuples(value: Any) -> Any:
            return tuple(map(tuples, value)) if isinstance(value, list) else value

        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("no unit")
        fields = {name: tuples(value) for name, value in found.items()}
        for name in ("inputs", "results"):
            fields[name] = tuple(Type(tuple(t["shape"]), t["dtype"]) for t in fields[name])
        unit = cls(**fields)
        for function in unit.functions:
            if not Path(function.rsplit(":", 1)[0]).exists():
                raise ValueError(f"{function} is gone")
        return unit


def write(blocks: Blocks, sources: dict[str, str]) -> Unit:
    """Writes a cell, with the source lines of its nodes, by scope, as comments.

    Raises:
        Unsupported: there is no row for one of its primitives.
    """
    return _Writer(blocks, sources).unit()


@dataclass
class _Group:
    """Nodes that are written together: an element-wise loop, or one call."""

    nodes: list[Value]
    splits: tuple[int, ...] = ()

    @property
    def fused(self) -> bool:
        return self.nodes[0].op in ELEMENTWISE


@dataclass
class _Places:
    """Byte offsets in the memory area."""

    offsets: dict[Value, int] = field(default_factory=dict)
    shared: int = 0
    end: int = 0


class _Writer:
    """Of a cell, or of the body of `Tiles` in one, which shares its constants and functions."""

    def __init__(
        self, blocks: Blocks, sources: dict[str, str], outer: "_Writer | None" = None
    ) -> None:
        self.blocks, self.sources = blocks, sources
        self.constants: dict[Any, str] = outer.constants if outer else {}
        self.declared: list[str] = outer.declared if outer else []
        self.functions: dict[str, str] = outer.functions if outer else {}
        self.names: dict[Value, str] = {}
        self.data: dict[Value, int] = {}
        self.places = _Places()
        self.scratch_floats = 0
        compose(blocks.blocks)
        count = sum(len(block.nodes) for block in blocks.blocks)
        if count > MOST_NODES:
            raise Unsupported(f"{count} operators are too many, {MOST_NODES} is the most")
        for block in blocks.blocks:
            for node in block.nodes:
                if not known(node.op):
                    raise Unsupported(self.where(node))
                for found in (value.type for value in outputs(node)):
                    if isinstance(found, Type) and found.dtype not in C_TYPES:
                        raise Unsupported(f"numbers of type {found.dtype}")
        _as_views(blocks)
        check_overwritten(blocks.blocks)

    # ---- where numbers are -----------------------------------------------------------------

    def operand(self, value: Value) -> Operand:
        """A value as C++ reads it."""
        if value.op == "constant":
            array = _array(value)
            return Operand(self._constant(array), Type(array.shape, array.dtype.name))
        root, offset = place_of(value)
        known_now = root.op == "constant"
        pointer = self._constant(_array(root)) if known_now else self._name(root)
        found = value.type
        if not isinstance(found, Type):
            raise Unsupported("a tuple where a tensor is expected")
        if found.dtype not in C_TYPES:
            raise Unsupported(f"numbers of type {found.dtype}")
        return Operand(f"({pointer} + {offset})" if offset else pointer, found)

    def _name(self, root: Value) -> str:
        if root not in self.names:
            self.names[root] = f"v{len(self.names)}"
        return self.names[root]

    def _constant(self, array: np.ndarray) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            name = self.constants[key] = f"k{len(self.constants)}"
            dtype = array.dtype.name
            numbers = ", ".join(literal(x, dtype) for x in array.reshape(-1).tolist()) or "0"
            self.declared.append(
                f"alignas(64) static const {C_TYPES[dtype]} {name}[] = {{{numbers}}};"
            )
        return self.constants[key]

    # ---- a unit ----------------------------------------------------------------------------

    def unit(self) -> Unit:
        blocks = self.blocks.blocks
        results = self.blocks.results
        weights = {w: name for name, w in self.blocks.weights.items()}
        for value in [*self.blocks.inputs, *weights]:
            self.data[value] = len(self.data)
        copy_stale(blocks)
        for block in blocks:
            tile(block, blocks)
        nodes = [n for block in blocks for n in block.nodes if n.op == "Tiles"]
        texts = [self._tiles(node, number) for number, node in enumerate(nodes)]
        groups = {block: _grouped(block) for block in blocks}
        self._allocate(groups)
        texts += [self._block(block, number, groups[block]) for number, block in enumerate(blocks)]
        texts.append(self._entry())
        scratch = self.places.end
        header = [
            '#include "kernels.h"',
            "enum { DONE = -1, FAILED = -2 };",
            f"enum : int64_t {{ SCRATCH = {scratch} }};",
            *self.declared,
        ]
        return Unit(
            "\n".join([*header, "", *texts]),
            _aligned(scratch + 4 * self.scratch_floats) + ALIGNED,
            tuple(value.type for value in self.blocks.inputs),
            tuple(weights.values()),
            tuple(value.type for value in results),
            self.blocks.structure,
            tuple(self.functions),
        )

    def _entry(self) -> str:
        cases = "\n".join(
            f"      case {i}: next = block_{i}(data, memory, functions, results); break;"
            for i in range(len(self.blocks.blocks))
        )
        return (
            'extern "C" int run(void **data, char *memory, void **functions, char *results) {\n'
            "  int next = 0;\n  while (next >= 0)\n    switch (next) {\n"
            f"{cases}\n    }}\n  return next == DONE ? 0 : 1;\n}}\n"
        )

    # ---- memory ----------------------------------------------------------------------------

    def _allocate(self, groups: dict[Block, list[_Group]]) -> None:
        """Gives every value that outlives its loop a place."""
        users: dict[Value, set[Block]] = {}
        for block in groups:
            for value in [v for n in block.nodes for v in tensors(n)] + block.ends():
                if value is not None:
                    users.setdefault(root_of(value), set()).add(block)
        home = {n: b for b in groups for n in b.nodes}
        lasting: list[Value] = [p for block in groups for p in block.params]
        for root, blocks in users.items():
            if origin(root) in home and blocks != {home[origin(root)]}:
                lasting.append(root)
        for value in dict.fromkeys(lasting):
            self.places.offsets[value] = self.places.shared
            self.places.shared += _aligned(_bytes(value.type))
        self.places.end = self.places.shared
        for block, found in groups.items():
            self._allocate_block(block, found)

    def _allocate_block(self, block: Block, groups: list[_Group]) -> None:
        last: dict[Value, int] = {}
        for number, group in enumerate(groups):
            inside = set(group.nodes) if group.fused else set()
            for node in group.nodes:
                for value in tensors(node):
                    root = root_of(value)
                    if root not in inside:
                        last[root] = number
        for value in block.ends():
            last[root_of(value)] = len(groups)
        free: list[tuple[int, int]] = []
        top = self.places.shared
        ending: dict[int, list[tuple[int, int]]] = {}
        for number, group in enumerate(groups):
            for node in group.nodes:
                for out in outputs(node):
                    if out in self.places.offsets or out in self.data or node.op in WRITES:
                        continue
                    if group.fused and out not in last:
                        continue  # lives in the loop only
                    size = _aligned(_bytes(out.type))
                    spot = next((f for f in free if f[1] >= size), None)
                    if spot is None:
                        at, top = top, top + size
                    else:
                        free.remove(spot)
                        at = spot[0]
                        if spot[1] > size:
                            free.append((at + size, spot[1] - size))
                    self.places.offsets[out] = at
                    ending.setdefault(last.get(out, number), []).append((at, size))
            free = _joined(free + ending.pop(number, []))
        self.places.end = max(self.places.end, top)

    # ---- blocks ----------------------------------------------------------------------------

    def _block(self, block: Block, number: int, groups: list[_Group]) -> str:
        lines = self._lines(groups)
        self._end(block, lines)
        pointers = [self._pointer(root, name) for root, name in self.names.items()]
        body = "\n".join(f"  {line}" for line in [*pointers, *lines])
        return (
            f"static int block_{number}(void **data, char *memory, void **functions, "
            "char *results) {\n"
            f"{body}\n}}\n"
        )

    def _lines(self, groups: list[_Group]) -> list[str]:
        self.names = {}
        lines: list[str] = []
        for group in groups:
            if group.fused:
                self._loop(group, lines)
            elif group.nodes[0].op == "Tiles":
                self._run_tiles(group.nodes[0], lines)
            else:
                self._call(group.nodes[0], lines)
        return lines

    # ---- tiles: a function of one tile, and one of a part of them all --------------------------

    def _tiles(self, node: Value, number: int) -> str:
        """The functions of a `Tiles` node, which gets room for what they work in."""
        attrs = node.attrs
        body, given = attrs["body"], attrs["given"]
        inner = _Writer(Blocks([body], given, {}, None), self.sources, self)
        tile_text = inner._tile(attrs["rows"], number)
        summed = [v.type for v in body.results[attrs["rows"] :]]
        places = [0]
        for found in summed:
            places.append(places[-1] + _aligned(found.size * np.dtype(found.dtype).itemsize))
        room = _aligned(places[-1] + _aligned(inner.places.end + 4 * inner.scratch_floats))
        attrs |= {"name": f"part_{number}", "places": places, "room": room}
        area = Type((room * attrs["at once"],), "uint8")
        attrs["parts"] += (Value("part", "room", [node], type=area, data=len(attrs["parts"])),)
        node.type += (area,)
        rows = body.results[: attrs["rows"]]
        steps = [
            *(n * np.dtype(v.type.dtype).itemsize
              for n, v in zip(attrs["advance"], given, strict=True)),
            *(v.type.size * np.dtype(v.type.dtype).itemsize for v in rows),
        ]  # fmt: skip
        pointers = [f"given[{i}] + tile * {step}" for i, step in enumerate(steps)]
        pointers += [f"room + {place}" for place in places[:-1]]
        return (
            f"{tile_text}static void part_{number}(void *context, int64_t part) {{\n"
            "  char *const *given = (char *const *)context;\n"
            f"  char *room = given[{len(steps)}] + part * {room};\n"
            f"  memset(room, 0, {places[-1]});\n"
            f"  for (int64_t tile = part * {attrs['count']} / {attrs['at once']}; "
            f"tile < (part + 1) * {attrs['count']} / {attrs['at once']}; tile++) {{\n"
            f"    void *data[] = {{{', '.join(pointers)}}};\n"
            f"    tile_{number}(data, room + {places[-1]});\n  }}\n}}\n"
        )

    def _tile(self, rows: int, number: int) -> str:
        """The function of one tile, as the writer of its body."""
        (block,) = self.blocks.blocks
        results = block.results or []
        for value in [*self.blocks.inputs, *results[:rows]]:
            self.data[value] = len(self.data)
        groups = _grouped(block)
        self._allocate({block: groups})
        lines = self._lines(groups)
        for position, value in enumerate(results[rows:], len(self.data)):
            operand = self.operand(value)
            kind = operand.c_type
            lines.append(f"{{ {kind} *const sum = ({kind} *)data[{position}];")
            lines.append(
                f"  for (int64_t i = 0; i < {operand.size}; i++) sum[i] += {operand.pointer}[i]; }}"
            )
        pointers = [self._pointer(root, name) for root, name in self.names.items()]
        scratch = f"enum : int64_t {{ SCRATCH = {self.places.end} }};"
        text = "\n".join(f"  {line}" for line in [scratch, *pointers, *lines])
        return f"static void tile_{number}(void **data, char *memory) {{\n{text}\n}}\n"

    def _run_tiles(self, node: Value, lines: list[str]) -> None:
        attrs = node.attrs
        *outs, room = attrs["parts"]
        rows, sums = outs[: attrs["rows"]], outs[attrs["rows"] :]
        name = f"{toolchain.threads()}:in_parts"
        function = self.functions.setdefault(name, f"functions[{len(self.functions)}]")
        given = [self.operand(value).pointer for value in (*node.args, *rows, room)]
        lines.append(f"{{ char *given[] = {{{', '.join(f'(char *){p}' for p in given)}}};")
        lines.append(f"  ((in_parts){function})({attrs['name']}, given, {attrs['at once']});")
        area = self.operand(room).pointer
        for value, place, divisor in zip(sums, attrs["places"], attrs["divisors"], strict=False):
            out = self.operand(value)
            mean = f" / {float(divisor)}f" if divisor > 1 else ""
            lines.append(
                f"  add_parts<{out.size}, {attrs['at once']}, {attrs['room']}>"
                f"(({out.c_type} *)({area} + {place}), {out.pointer});"
            )
            if mean:
                lines.append(
                    f"  for (int64_t i = 0; i < {out.size}; i++) "
                    f"{out.pointer}[i] = {out.pointer}[i]{mean};"
                )
        lines.append("}")

    def _pointer(self, root: Value, name: str) -> str:
        kind = C_TYPES[root.type.dtype]
        if root in self.data:
            return f"{kind} *const {name} = ({kind} *)data[{self.data[root]}];"
        if root not in self.places.offsets:
            raise AssertionError(f"{root} has no place")
        return f"{kind} *const {name} = ({kind} *)(memory + {self.places.offsets[root]});"

    def _call(self, node: Value, lines: list[str]) -> None:
        def argument(arg: Any) -> Any:
            if isinstance(arg, tuple):
                return [argument(part) for part in arg]
            if arg is None or (arg.type is None and not isinstance(arg.data, (int, float, bool))):
                return None
            return self.operand(arg)

        taken = 0

        def scratch(floats: int) -> str:
            nonlocal taken
            at, taken = taken, taken + -(-floats // 16) * 16
            self.scratch_floats = max(self.scratch_floats, taken)
            return f"((float *)(memory + SCRATCH) + {at})" if at else "(float *)(memory + SCRATCH)"

        def function(name: str) -> str:
            place = self.functions.setdefault(name, f"functions[{len(self.functions)}]")
            return f"((custom){place})"

        outs = [] if node.op in WRITES else [self.operand(out) for out in outputs(node)]
        start = len(lines)
        call = Call(node, [argument(a) for a in node.args], outs, lines.append, scratch, function)
        WRITERS[node.op](call)
        lines[start:start] = self.comment([node])

    def comment(self, nodes: list[Value]) -> list[str]:
        """Where nodes come from: source lines, cells around them, and variables."""
        scopes = dict.fromkeys(_scope(node) for node in nodes)
        names = dict.fromkeys(node.variable for node in nodes if node.variable)
        text = ", ".join(filter(None, scopes)) + (f": {', '.join(names)}" if names else "")
        lines = dict.fromkeys(self.sources.get(node.scope, "") for node in nodes)
        return [f"// {line}" for line in (*lines, text) if line]

    def where(self, node: Value) -> str:
        """A primitive without a row, and where it stands."""
        place = f" in {_scope(node)}" if _scope(node) else ""
        name = f", for `{node.variable}`" if node.variable else ""
        line = f" ({self.sources[node.scope]})" if node.scope in self.sources else ""
        return f"no native form of {node.op}{place}{name}{line}"

    def _loop(self, group: _Group, lines: list[str]) -> None:
        """One loop nest over all elements, innermost over neighbours in memory."""
        size = group.nodes[0].type.size
        if size == 0:
            return
        extents = _extents(group.splits, size)
        variables = [f"i{level}" for level in range(len(extents))]
        local: dict[Value, str] = {}
        loaded: dict[str, str] = {}
        body: list[str] = []
        lines += self.comment(group.nodes)

        def read(node: Value, arg: Any) -> str:
            if not _is_number(arg):
                return ""
            if arg.op == "constant" and (arg.type is None or arg.type.size == 1):
                return literal(arg.data, _number_type(node, arg))
            root, _ = place_of(arg)
            if root in local:
                return local[root]
            where = self._index(node, arg, extents, variables)
            if where not in loaded:
                loaded[where] = f"x{len(loaded)}"
                kind = C_TYPES[arg.type.dtype]
                body.append(f"const {kind} {loaded[where]} = {where};")
            return loaded[where]

        flat = " + ".join(
            _times(variable, stride)
            for variable, stride in zip(variables, _inner(extents), strict=True)
            if stride
        )
        for node in group.nodes:
            args = [read(node, arg) for arg in node.args]
            kind = C_TYPES[node.type.dtype]
            name = f"t{len(local)}"
            body.append(f"const {kind} {name} = ({kind})({expression(node, args)});")
            local[node] = name
            if node in self.places.offsets or node in self.data:
                body.append(f"{self._name(node)}[{flat if size > 1 else 0}] = {name};")
        if size == 1:
            lines += ["{", *(f"  {line}" for line in body), "}"]
            return
        for level, extent in enumerate(extents):
            if level == len(extents) - 1:
                lines.append("  " * level + "#pragma GCC ivdep")
            variable = variables[level]
            lines.append(
                "  " * level
                + f"for (int64_t {variable} = 0; {variable} < {extent}; {variable}++) {{"
            )
        lines += ["  " * len(extents) + line for line in body]
        lines.append("}" * len(extents))

    def _index(
        self, node: Value, arg: Value, extents: tuple[int, ...], variables: list[str]
    ) -> str:
        """An element of an argument at the place of the loop."""
        pointer = self.operand(arg).pointer
        offset, strides = _access(node, arg)
        terms = []
        for level, inner in enumerate(_inner(extents)):
            stride = _stride_at(node.type.shape, strides, inner, extents[level])
            if stride:
                terms.append(_times(variables[level], stride))
        if offset:
            terms.append(str(offset))
        return f"{pointer}[{' + '.join(terms) or 0}]"

    def _end(self, block: Block, lines: list[str]) -> None:
        numbers = {b: i for i, b in enumerate(self.blocks.blocks)}
        if block.results is not None:
            at = 0
            for value in block.results:
                operand = self.operand(value)
                size = f"{operand.size} * sizeof({operand.c_type})"
                lines.append(f"memcpy(results + {at}, {operand.pointer}, {size});")
                at += _aligned(operand.size * np.dtype(operand.type.dtype).itemsize)
            lines.append("return DONE;")
        elif len(block.jumps) == 1:
            self._jump(block.jumps[0], numbers, lines)
        else:
            assert block.condition is not None
            lines.append(f"if ({self.operand(block.condition).pointer}[0]) {{")
            self._jump(block.jumps[0], numbers, lines)
            lines.append("} else {")
            self._jump(block.jumps[1], numbers, lines)
            lines.append("}")

    def _jump(self, jump: Jump, numbers: dict[Block, int], lines: list[str]) -> None:
        """Parameters take their values all at once."""
        pairs = [
            (param, self.operand(param), root_of(arg), self.operand(arg))
            for param, arg in zip(jump.target.params, jump.args, strict=True)
            if place_of(arg) != (param, 0)
        ]
        targets = {param for param, *_ in pairs}
        for number, (param, target, root, source) in enumerate(pairs):
            size = f"{target.size} * sizeof({target.c_type})"
            if target.type.dtype != source.type.dtype or target.size != source.size:
                raise Unsupported("a variable whose type changes in a loop")
            if root in targets and root is not param:
                lines.append(f"  {target.c_type} c{number}[{max(target.size, 1)}];")
                lines.append(f"  memcpy(c{number}, {source.pointer}, {size});")
        for number, (param, target, root, source) in enumerate(pairs):
            size = f"{target.size} * sizeof({target.c_type})"
            kept = root in targets and root is not param
            given = f"c{number}" if kept else source.pointer
            lines.append(f"  memmove({target.pointer}, {given}, {size});")
        lines.append(f"  return {numbers[jump.target]};")


# ---- views ---------------------------------------------------------------------------------------


def _as_views(blocks: Blocks) -> None:
    """Slices, transpositions and the like become offsets and strides, free where they can be."""
    for block in blocks.blocks:
        for node in block.nodes:
            if node.op in VIEWS:
                _make_view(node, *VIEWS[node.op](node))
            elif node.op == "AddN":
                node.args = tensors(node)
            elif node.op in ELEMENTWISE:  # a shape or a pattern is not read
                read = reads(node.op)
                node.args = [arg if i in read else None for i, arg in enumerate(node.args)]


def _make_view(node: Value, offset: int, strides: list[int]) -> None:
    shape = node.type.shape
    moving = [
        (extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1
    ]
    inner, dense = 1, True
    for extent, stride in reversed(moving):
        dense = dense and stride == inner
        inner *= extent
    node.op, node.args = "View" if dense else "Strided", node.args[:1]
    node.attrs = {"offset": offset, "strides": tuple(strides)}


def _access(node: Value, arg: Value) -> tuple[int, list[int]]:
    """Offset and strides, by the node's axes, of an argument of an element-wise node."""
    if node.op == "Strided":
        return node.attrs["offset"], list(node.attrs["strides"])
    shape, own = node.type.shape, arg.type.shape
    if node.op in BY_CHANNEL and len(own) == 1 < arg.type.size and len(shape) > 1:
        return 0, [1 if axis == 1 else 0 for axis in range(len(shape))]
    if arg.type.size == node.type.size:
        return 0, strides_of(shape)
    if len(own) > len(shape):
        raise Unsupported(f"{node.op} of shapes {own} and {shape}")
    own = (1,) * (len(shape) - len(own)) + own
    strides = strides_of(own)
    for axis, (mine, theirs) in enumerate(zip(own, shape, strict=True)):
        if mine not in (1, theirs):
            raise Unsupported(f"{node.op} of shapes {own} and {shape}")
        if mine == 1:
            strides[axis] = 0
    return 0, strides


def _stride_at(shape: tuple[int, ...], strides: list[int], inner: int, extent: int) -> int:
    """The stride of a loop of `extent` turns, each of which is `inner` elements of the node."""
    if extent == 1:
        return 0
    size = 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            continue
        if size * shape[axis] > inner:
            return strides[axis] * (inner // size)
        size *= shape[axis]
    return 0


def _splits(node: Value, arg: Value) -> set[int]:
    """Numbers of neighbouring elements between which an argument's stride changes."""
    shape = node.type.shape
    _, strides = _access(node, arg)
    found: set[int] = set()
    size, expected = 1, None
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] == 1:
            continue
        if expected is not None and strides[axis] != expected:
            found.add(size)
        size *= shape[axis]
        expected = strides[axis] * shape[axis]
    return found


def _chain(splits: Iterable[int], size: int) -> tuple[int, ...] | None:
    """Splits in order if each divides the next, else None."""
    ordered = sorted(set(splits))
    for one, other in zip(ordered, [*ordered[1:], size], strict=False):
        if other % one:
            return None
    return tuple(ordered)


def _extents(splits: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Turns of the loops, outermost first."""
    bounds = [1, *splits, size]
    turns = [after // before for before, after in zip(bounds, bounds[1:], strict=False)]
    return tuple(reversed(turns))


def _inner(extents: tuple[int, ...]) -> list[int]:
    return [int(np.prod(extents[level + 1 :], dtype=np.int64)) for level in range(len(extents))]


# ---- groups --------------------------------------------------------------------------------------


def _grouped(block: Block) -> list[_Group]:
    """Orders a block's nodes so that element-wise ones of one size come together."""
    nodes = [n for n in block.nodes if not is_view(n)]
    needs = needs_of(nodes)
    done: set[Value] = set()
    groups: list[_Group] = []
    waiting = nodes
    while waiting:
        first = next(n for n in waiting if needs[n] <= done)
        group = _Group([first])
        if first.op in FREE:
            first.op = "TensorMove"
        if group.fused:
            _grow(group, waiting, needs, done)
        done |= set(group.nodes)
        waiting = [n for n in waiting if n not in done]
        groups.append(group)
    return groups


def _grow(
    group: _Group,
    waiting: list[Value],
    needs: dict[Value, set[Value]],
    done: set[Value],
) -> None:
    """Adds every element-wise node of the same size that can run in the same loop."""
    size = group.nodes[0].type.size
    members: set[Value] = set()
    streams: set[Any] = set()
    splits: set[int] = set()
    group.nodes = []
    for node in waiting:
        if node.op not in ELEMENTWISE or not isinstance(node.type, Type):
            continue
        if node.type.size != size or not needs[node] <= done | members:
            continue
        args = [arg for arg in node.args if _is_number(arg)]
        outside = {root_of(arg) for arg in args if arg.op != "constant"} - members
        more = set(splits)
        for arg in args:
            if arg.type is None or root_of(arg) in members and arg.type.size == size:
                continue
            if arg.type.size != 1:
                more |= _splits(node, arg)
        if node.op == "Strided" and root_of(node.args[0]) in members:
            continue  # reads other elements than the one that the loop is at
        chain = _chain(more, size)
        if chain is None or (members and len(streams | outside) > MOST_STREAMS):
            if not members:
                raise Unsupported(f"{node.op} of shapes that do not nest")
            continue
        splits, streams = set(chain), streams | outside
        members.add(node)
        group.nodes.append(node)
    group.splits = tuple(sorted(splits))


# ---- small things --------------------------------------------------------------------------------


def _is_number(arg: Any) -> bool:
    """Whether an argument of an element-wise node is one of its operands."""
    if not isinstance(arg, Value):
        return False
    return isinstance(arg.type, Type) or isinstance(arg.data, (bool, int, float))


def _number_type(node: Value, arg: Value) -> str:
    if arg.type is not None:
        return arg.type.dtype
    others = [a.type.dtype for a in node.args if isinstance(a, Value) and a.type is not None]
    return next(iter(others), node.type.dtype)


def _array(value: Value) -> np.ndarray:
    """A constant as an array; numbers without a type are those of single precision."""
    if isinstance(value.data, np.ndarray):
        return value.data
    if isinstance(value.data, (bool, int)):
        return np.array(value.data)
    if isinstance(value.data, float):
        return np.array(value.data, np.float32)
    raise Unsupported(f"a constant of {type(value.data).__name__}")


def _bytes(found: Type) -> int:
    return max(found.size, 1) * np.dtype(found.dtype).itemsize


def _aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


def _joined(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for at, size in sorted(free):
        if joined and sum(joined[-1]) == at:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        else:
            joined.append((at, size))
    return joined


def _times(variable: str, stride: int) -> str:
    return variable if stride == 1 else f"{variable} * {stride}"


def _scope(node: Value) -> str:
    return "/".join(node.scope.removeprefix("Default/").split("/")[:-1])
