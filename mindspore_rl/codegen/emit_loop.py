"""Emits a loop nest over the elements of fused nodes and updates."""

import math
import re
from typing import Any

from mindspore_rl.codegen.effects import WRITES, root_of
from mindspore_rl.codegen.fusion import Group
from mindspore_rl.codegen.index_math import (
    access,
    inner_of,
    is_number,
    loop_type,
    stride_at,
    turns_of,
)
from mindspore_rl.codegen.operands import Operands
from mindspore_rl.codegen.ops.elementwise import C_TYPES, expression, literal
from mindspore_rl.codegen.ops.registry import in_parts, span
from mindspore_rl.codegen.ops.updates import UPDATES, statements
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.source_lines import comment

MIN_OWNED = 1024
"""Fewest numbers of an array whose lines a core takes before it writes them."""


def loop_of(group: Group, operands: Operands) -> list[str]:
    """Emits the loop nest of a group; the innermost loop runs over neighbours in memory."""
    size = loop_type(group.nodes[0]).size
    if size == 0:
        return []
    turns = turns_of(group.splits, size)
    lines = comment(group.nodes, operands.shared.sources)
    body = _Body(operands, turns)
    for node in group.nodes:
        (body.update if node.op in UPDATES else body.add)(node)
    if size == 1:
        return [*lines, "{", *(f"  {line}" for line in body.fixed + body.lines), "}"]
    parts, loops = max(node.attrs.get("in parts", 1) for node in group.nodes), []
    for level, (variable, extent) in enumerate(zip(body.variables, turns, strict=True)):
        indent = "  " * level
        if level == len(turns) - 1:
            loops.append(indent + "#pragma GCC ivdep")
        loops.append(f"{indent}{span(variable, extent, parts if level == 0 else 1)} {{")
    loops += ["  " * len(turns) + line for line in body.lines]
    whole = ["{", *body.fixed, *body.owned(parts), *loops, "}" * len(turns), "}"]
    return lines + in_parts(whole, parts, operands.shared.function)


class _Body:
    """Lines of one turn: each element is read once, and written if it is read after the loop.

    Attributes:
        fixed: lines before the loops, which read what is the same in all turns.
    """

    def __init__(self, operands: Operands, turns: tuple[int, ...]) -> None:
        self.operands, self.turns = operands, turns
        self.variables = [f"i{level}" for level in range(len(turns))]
        self.fixed: list[str] = []
        self.lines: list[str] = []
        self._made: dict[Value, str] = {}
        self._count = 0
        self._read: dict[str, str] = {}
        self._written: dict[str, None] = {}

    def add(self, node: Value) -> None:
        """Emits the computation of a node's element from those of its arguments."""
        args = [self._number(node, arg) for arg in node.args]
        kind = C_TYPES[node.type.dtype]
        name = self._new()
        self.lines.append(f"const {kind} {name} = ({kind})({expression(node, args)});")
        self._made[node] = name
        if self.operands.outlives(node):
            at = self._sum(inner_of(self.turns)) if node.type.size > 1 else 0
            self.lines.append(f"{self.operands.name(node)}[{at}] = {name};")
            self._write(node)

    def update(self, node: Value) -> None:
        """Emits the update of an element of the arguments that a node overwrites."""
        args = [self._number(node, arg) for arg in node.args]
        lines = []
        for position in WRITES[node.op]:
            arg, old = node.args[position], args[position]
            args[position] = self._made[root_of(arg)] = self._new()
            self.lines.append(f"{C_TYPES[arg.type.dtype]} {args[position]} = {old};")
            lines.append(f"{self._index(node, arg)} = {args[position]};")
            self._write(arg)
        self.lines += [f"{{ {statements(node, args)} }}", *lines]

    def _write(self, value: Value) -> None:
        """Notes a whole array that other cores may have read."""
        root, size = root_of(value), math.prod(self.turns)
        if root in self.operands.given and root.type.size == value.type.size == size:
            self._written[self.operands.name(root)] = None

    def owned(self, parts: int) -> list[str]:
        """Emits what comes before the loops: a core takes the lines that it is about to write."""
        extent, *inner = self.turns
        rest = math.prod(inner)
        if extent * rest < MIN_OWNED:
            return []
        start, count = "", f"{extent * rest}"
        if parts > 1:
            row, end = (f"{part} * {extent} / {parts}" for part in ("part", "(part + 1)"))
            start, count = f" + {row}", f"{end} - {row}"
            if rest > 1:
                start, count = f" + {row} * {rest}", f"({count}) * {rest}"
        return [f"own({array}{start}, {count});" for array in self._written]

    def _new(self) -> str:
        self._count += 1
        return f"t{self._count - 1}"

    def _number(self, node: Value, arg: Any) -> str:
        if not is_number(arg):
            return ""
        if arg.op == "constant" and (arg.type is None or arg.type.size == 1):
            return literal(arg.data, _number_type(node, arg))
        root = root_of(arg)
        if root in self._made:
            return self._made[root]
        where = self._index(node, arg)
        if where not in self._read:
            self._read[where] = f"x{len(self._read)}"
            kind = C_TYPES[arg.type.dtype]
            lines = self.fixed if re.search(r"\[\d+\]$", where) else self.lines
            lines.append(f"const {kind} {self._read[where]} = {where};")
        return self._read[where]

    def _index(self, node: Value, arg: Value) -> str:
        """Returns the element of an argument at the loop's current indices."""
        pointer = self.operands.operand(arg).pointer
        offset, strides = access(node, arg)
        spans = zip(inner_of(self.turns), self.turns, strict=True)
        steps = [
            stride_at(loop_type(node).shape, strides, inner, extent) for inner, extent in spans
        ]
        terms = [self._sum(steps), str(offset) if offset else ""]
        return f"{pointer}[{' + '.join(filter(None, terms)) or 0}]"

    def _sum(self, steps: list[int]) -> str:
        """Returns the offset of the current turn, given the step of each loop."""
        return " + ".join(
            variable if step == 1 else f"{variable} * {step}"
            for variable, step in zip(self.variables, steps, strict=True)
            if step
        )


def _number_type(node: Value, arg: Value) -> str:
    if arg.type is not None:
        return arg.type.dtype
    others = [a.type.dtype for a in node.args if isinstance(a, Value) and a.type is not None]
    return next(iter(others), loop_type(node).dtype)
