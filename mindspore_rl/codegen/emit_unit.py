"""Emits the C++ unit of a cell: a function for each block and one that moves between blocks.

The function of a block returns the number of the next block. A long block calls functions with its
parts, and a long unit is compiled as two, side by side.
"""

import re

from mindspore_rl.codegen.cfg import Block, Blocks, Jump, Unsupported, outputs
from mindspore_rl.codegen.effects import check_overwritten, copy_stale, place_of, update_in_place
from mindspore_rl.codegen.emit_body import lines_of
from mindspore_rl.codegen.emit_tiles import tile_functions
from mindspore_rl.codegen.fusion import Group, grouped
from mindspore_rl.codegen.memory_plan import ALIGNED, aligned
from mindspore_rl.codegen.operands import Operands, Shared
from mindspore_rl.codegen.ops.convolution import take_bytes
from mindspore_rl.codegen.ops.decompositions import compose
from mindspore_rl.codegen.ops.elementwise import C_TYPES
from mindspore_rl.codegen.ops.views import as_views
from mindspore_rl.codegen.simplify import drop_dead
from mindspore_rl.codegen.strided import read_in_place
from mindspore_rl.codegen.tiling import tile
from mindspore_rl.codegen.unit import Unit
from mindspore_rl.mindir.graph import Type
from mindspore_rl.mindir.primitives import PRIMITIVES
from mindspore_rl.mindir.source_lines import where
from mindspore_rl.platform.toolchain import HALVES

MAX_NODES = 20_000
"""Limit on the nodes of a cell; the C++ compiler would take minutes for more."""
PART_NODES = 100
"""Nodes of a function; the C++ compiler takes longer for one function than for two of half."""
LONG_LINES = 1_000
"""Lines above which a unit is compiled in two halves."""


def write(cell: Blocks, sources: dict[str, str]) -> Unit:
    """Emits the unit of a cell.

    Args:
        cell: the cell's blocks; changed in place.
        sources: source lines of nodes by scope, emitted as comments.

    Raises:
        Unsupported: one of its primitives has no rule.
    """
    blocks = cell.blocks
    compose(blocks)
    if take_bytes(blocks):
        drop_dead(blocks)
    _check(blocks, sources)
    as_views(blocks)
    check_overwritten(blocks)
    update_in_place(blocks)
    copy_stale(blocks)
    read_in_place(blocks)
    for block in blocks:
        tile(block, blocks)
    shared = Shared(sources)
    nodes = [n for block in blocks for n in block.nodes if n.op == "Tiles"]
    texts = [tile_functions(node, number, shared) for number, node in enumerate(nodes)]
    groups = {block: grouped(block) for block in blocks}
    operands = Operands(shared, [*cell.inputs, *cell.weights.values()], groups)
    numbers = {block: number for number, block in enumerate(blocks)}
    texts += [_block(block, numbers, groups[block], operands) for block in blocks]
    scratch = operands.memory.end
    header = [
        '#include "kernels.h"',
        "enum { DONE = -1, FAILED = -2 };",
        f"enum : int64_t {{ SCRATCH = {scratch} }};",
        *shared.declared,
    ]
    return Unit(
        _joined(header, [*texts, _entry(len(blocks), shared)]),
        aligned(scratch + 4 * operands.scratch_floats) + ALIGNED,
        tuple(value.type for value in cell.inputs),
        tuple(cell.weights),
        tuple(value.type for value in cell.results),
        cell.structure,
        tuple(shared.functions),
    )


def _check(blocks: list[Block], sources: dict[str, str]) -> None:
    """Checks that every primitive has a rule and every dtype a C type."""
    nodes = [node for block in blocks for node in block.nodes]
    if len(nodes) > MAX_NODES:
        raise Unsupported(f"{len(nodes)} operators are too many, {MAX_NODES} is the most")
    for node in nodes:
        if not PRIMITIVES[node.op].native:
            raise Unsupported(f"no native form of {where(node, sources)}")
        for found in (value.type for value in outputs(node)):
            if isinstance(found, Type) and found.dtype not in C_TYPES:
                raise Unsupported(f"numbers of type {found.dtype}")


def _entry(blocks: int, shared: Shared) -> str:
    parts = [call for name, call in shared.functions.items() if name.endswith(":in_parts")]
    begin = "".join(f"  several = ((in_parts){f})(nullptr, nullptr, 0) > 1;\n" for f in parts)
    cases = "\n".join(
        f"      case {i}: next = block_{i}(data, memory, functions, results); break;"
        for i in range(blocks)
    )
    return (
        'extern "C" int run(void **data, char *memory, void **functions, char *results) {\n'
        f"{begin}"
        "  int next = 0;\n  while (next >= 0)\n    switch (next) {\n"
        f"{cases}\n    }}\n  return next == DONE ? 0 : 1;\n}}\n"
    )


def _joined(header: list[str], functions: list[str]) -> str:
    """Joins the text of a unit; if it is long, each function is in one of its halves."""
    lengths = [text.count("\n") for text in functions]
    if sum(lengths) <= LONG_LINES or len(functions) == 1:
        return "\n".join([*header, "", *functions])
    total, halves = [0, 0], [0] * len(functions)
    for number in sorted(range(len(functions)), key=lambda number: -lengths[number]):
        halves[number] = total.index(min(total))
        total[halves[number]] += lengths[number]
    local = [re.sub("^static ", "LOCAL ", text, flags=re.MULTILINE) for text in functions]
    heads = re.findall(r"^(LOCAL .*\)) \{$", "\n".join(local), re.MULTILINE)
    parts = [
        f"#if IN_HALF({half})\n{text}#endif\n" for half, text in zip(halves, local, strict=True)
    ]
    return "\n".join([*header, HALVES, *(f"{head};" for head in heads), "", *parts])


def _block(block: Block, numbers: dict[Block, int], groups: list[Group], operands: Operands) -> str:
    name, arguments = f"block_{numbers[block]}", "void **data, char *memory, void **functions"
    runs = _runs(groups)
    texts, lines = [], []
    if len(runs) == 1:
        lines = lines_of(groups, operands)
    else:
        for number, run in enumerate(runs):
            given = [*lines_of(run, operands), "return 0;"]
            texts.append(_function(f"{name}_{number}({arguments})", given, operands))
            lines.append(f"if ({name}_{number}(data, memory, functions)) return FAILED;")
        operands.begin()
    lines += _end(block, numbers, operands)
    return "\n".join([*texts, _function(f"{name}({arguments}, char *results)", lines, operands)])


def _runs(groups: list[Group]) -> list[list[Group]]:
    """Divides groups into runs of about `PART_NODES` nodes; there is at least one."""
    runs, nodes = [list[Group]()], 0
    for group in groups:
        if nodes > PART_NODES:
            runs.append([])
            nodes = 0
        runs[-1].append(group)
        nodes += len(group.nodes)
    return runs


def _function(head: str, lines: list[str], operands: Operands) -> str:
    body = "\n".join(f"  {line}" for line in [*operands.pointers(), *lines])
    return f"static int {head} {{\n{body}\n}}\n"


def _end(block: Block, numbers: dict[Block, int], operands: Operands) -> list[str]:
    """Emits the end of a block: its results, or jumps to other blocks."""
    if block.results is not None:
        lines, at = [], 0
        for value in block.results:
            operand = operands.operand(value)
            size = f"{operand.size} * sizeof({operand.c_type})"
            lines.append(f"memcpy(results + {at}, {operand.pointer}, {size});")
            at += aligned(operand.type.nbytes)
        return [*lines, "return DONE;"]
    if len(block.jumps) == 1:
        return _jump(block.jumps[0], numbers, operands)
    assert block.condition is not None
    return [
        f"if ({operands.operand(block.condition).pointer}[0]) {{",
        *_jump(block.jumps[0], numbers, operands),
        "} else {",
        *_jump(block.jumps[1], numbers, operands),
        "}",
    ]


def _jump(jump: Jump, numbers: dict[Block, int], operands: Operands) -> list[str]:
    """Emits a jump, which assigns all parameters of its target at once."""
    pairs = [
        (param, operands.operand(param), place_of(arg), operands.operand(arg))
        for param, arg in zip(jump.target.params, jump.args, strict=True)
        if place_of(arg) != (param, 0)
    ]
    targets = {param for param, *_ in pairs}
    copies, moves = [], []
    for number, (param, target, (root, _), source) in enumerate(pairs):
        size = f"{target.size} * sizeof({target.c_type})"
        given = source.pointer
        if target.type.dtype != source.type.dtype or target.size != source.size:
            raise Unsupported("a variable whose type changes in a loop")
        if root in targets and root is not param:
            given = f"c{number}"
            copies.append(f"  {target.c_type} {given}[{max(target.size, 1)}];")
            copies.append(f"  memcpy({given}, {source.pointer}, {size});")
        moves.append(f"  memmove({target.pointer}, {given}, {size});")
    return [*copies, *moves, f"  return {numbers[jump.target]};"]
