"""Emits the body of a function: loops, kernel calls and runs of tiles."""

from typing import Any

from mindspore_rl.codegen.cfg import outputs
from mindspore_rl.codegen.effects import WRITES
from mindspore_rl.codegen.emit_loop import loop_of
from mindspore_rl.codegen.fusion import Group
from mindspore_rl.codegen.operands import Operands
from mindspore_rl.codegen.ops.all import WRITERS
from mindspore_rl.codegen.ops.registry import Call
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.source_lines import comment
from mindspore_rl.platform import toolchain


def lines_of(groups: list[Group], operands: Operands) -> list[str]:
    """Emits the body of a new function that runs groups in order."""
    operands.begin()
    lines: list[str] = []
    for group in groups:
        if group.fused:
            lines += loop_of(group, operands)
        elif group.nodes[0].op == "Tiles":
            lines += _run_tiles(group.nodes[0], operands)
        else:
            lines += _call(group.nodes[0], operands)
    return lines


def _call(node: Value, operands: Operands) -> list[str]:
    def argument(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return [argument(part) for part in arg]
        if arg is None or (arg.type is None and not isinstance(arg.data, (int, float, bool))):
            return None
        return operands.operand(arg)

    taken = 0

    def scratch(floats: int) -> str:
        nonlocal taken
        at, taken = taken, taken + -(-floats // 16) * 16
        operands.scratch_floats = max(operands.scratch_floats, taken)
        return f"((float *)(memory + SCRATCH) + {at})" if at else "(float *)(memory + SCRATCH)"

    def function(name: str) -> str:
        return f"((custom){operands.shared.function(name)})"

    outs = [] if node.op in WRITES else [operands.operand(out) for out in outputs(node)]
    args = [argument(arg) for arg in node.args]
    lines: list[str] = []
    WRITERS[node.op](Call(node, args, outs, lines.append, scratch, function))
    return comment([node], operands.shared.sources) + lines


def _run_tiles(node: Value, operands: Operands) -> list[str]:
    """Emits the run of a `Tiles` node: threads compute its parts, then their sums are added."""
    attrs = node.attrs
    *outs, room = attrs["parts"]
    rows, sums = outs[: attrs["rows"]], outs[attrs["rows"] :]
    function = operands.shared.function(f"{toolchain.threads()}:in_parts")
    given = [operands.operand(value).pointer for value in (*node.args, *rows, room)]
    given += ["done"] if attrs["meet"] else []
    given += ["run"] if attrs["packed"] else []
    counted = "static int64_t runs = 0; const int64_t run = __atomic_add_fetch(&runs, 1, 0);"
    lines = [
        f"{{ int done[{attrs['at once']}] = {{}};" if attrs["meet"] else "{",
        *([f"  {counted}"] if attrs["packed"] else []),
        f"  char *given[] = {{{', '.join(f'(char *){p}' for p in given)}}};",
        f"  ((in_parts){function})({attrs['name']}, given, {attrs['at once']});",
    ]
    area = operands.operand(room).pointer
    parts = 2 if attrs["meet"] else attrs["at once"]
    apart = attrs["room"] * attrs["at once"] // parts
    for value, place, divisor in zip(sums, attrs["places"], attrs["divisors"], strict=False):
        out = operands.operand(value)
        lines.append(
            f"  add_parts<{out.size}, {parts}, {apart}>"
            f"(({out.c_type} *)({area} + {place}), {out.pointer});"
        )
        if divisor > 1:
            lines.append(
                f"  for (int64_t i = 0; i < {out.size}; i++) "
                f"{out.pointer}[i] = {out.pointer}[i] / {float(divisor)}f;"
            )
    return [*lines, "}"]
