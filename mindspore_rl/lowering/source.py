"""Generated code: a fragment's regions as MindSpore cells and the Python loop around them.

The text is what runs: it is written beside the run, imported from there, and may be stepped
through in a debugger.
"""

import ast
from dataclasses import dataclass

from mindspore_rl.graph.ir import Branch, Loop, Lowered, Program, Region, walk
from mindspore_rl.lowering.cell_source import CellWriter, Target
from mindspore_rl.lowering.loop_source import LoopWriter, carried_variables
from mindspore_rl.lowering.project import Projection


@dataclass(frozen=True)
class Generated:
    """A fragment's source.

    Attributes:
        cells: names of its cells, in order.
        collectives: cells that hold a collective.
        needs_tensors: whether the process must import MindSpore.
        carried: variables that an iteration takes from the one before.
    """

    source: str
    cells: tuple[str, ...]
    collectives: tuple[str, ...]
    needs_tensors: bool
    carried: tuple[str, ...]


def generate(
    program: Program,
    projection: Projection,
    body: tuple[Lowered, ...],
    target: Target,
    title: str,
) -> Generated:
    """Writes the module of one fragment, whose regions were found."""
    regions = list(_regions(body))
    cells = [CellWriter(region, projection, target).text() for region in regions]
    loop = LoopWriter(projection, target, regions)
    run = loop.text(body)
    text = "\n".join(cells) + run
    # A name that only another fragment's expressions use stays out, and its module unimported.
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    lines = [
        f'"""{title}\n\nGenerated from the graph; this is what runs. Edits are overwritten."""\n'
    ]
    if "np" in used:
        lines.append("import numpy as np")
    if regions:
        lines += [
            "import mindspore as ms",
            "from mindspore import nn",
            "",
            "from mindspore_rl import operators",
            "from mindspore_rl.runtime.rank import cell as parts",
        ]
    lines += [
        f"from {module} import {name}" + (f" as {alias}" if alias != name else "")
        for alias, module, name in program.imports
        if alias in used
    ]
    collectives = tuple(
        r.name for r in regions if any(op.kind == "all_reduce" for op, _ in walk(r.items))
    )
    return Generated(
        "\n".join(lines) + "\n\n\n" + text,
        tuple(r.name for r in regions),
        collectives,
        bool(regions) or loop.touches_parameters,
        carried_variables(projection),
    )


def _regions(items: tuple[Lowered, ...]):
    for item in items:
        if isinstance(item, Region):
            yield item
        elif isinstance(item, Loop):
            yield from _regions(item.body)
        elif isinstance(item, Branch):
            yield from _regions(item.body + item.orelse)
