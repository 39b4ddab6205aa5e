"""Emits a fragment's module: its cells and the loop around them.

The module is saved in the run directory and imported from there, so a debugger can step through it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mindspore_rl.compiler.ir.ir import Expr, Loop, Lowered, Op, Program, paths, walk
from mindspore_rl.compiler.ir.operations import PARAMETERS
from mindspore_rl.compiler.lowering.cell_plan import plan_cell
from mindspore_rl.compiler.lowering.emit_cell import CellWriter
from mindspore_rl.compiler.lowering.emit_loop import NUMPY, LoopWriter, carried_variables
from mindspore_rl.compiler.lowering.project import Projection
from mindspore_rl.compiler.lowering.regions import regions_of
from mindspore_rl.compiler.lowering.target import Target


@dataclass(frozen=True)
class Generated:
    """The generated source of a fragment.

    Attributes:
        cells: names of its cells, in order.
        collectives: names of the cells that contain a collective.
        needs_tensors: whether the process must import MindSpore.
        carried: variables that an iteration takes from the previous one.
    """

    source: str
    cells: tuple[str, ...]
    collectives: tuple[str, ...]
    needs_tensors: bool
    carried: tuple[str, ...]


def generate(
    program: Program, projection: Projection, body: tuple[Lowered, ...], target: Target, title: str
) -> Generated:
    """Generates the module of one fragment from its body with regions.

    Args:
        program: the whole program, for its imports.
        projection: the fragment's program.
        body: its items, with regions in their place.
        target: parameters of code generation.
        title: first line of the module's docstring.
    """
    regions = regions_of(body)
    cells = [CellWriter(plan_cell(region, projection, target)).text() for region in regions]
    text = "\n".join(cells) + LoopWriter(projection, target, body).text()
    doc = f'"""{title}\n\nGenerated from the graph; this is what runs. Edits are overwritten."""'
    collectives = tuple(
        r.name for r in regions if any(op.kind == "all_reduce" for op, _ in walk(r.items))
    )
    has_parameters = "update" in projection.fragment.components or any(
        PARAMETERS in (*op.reads, *op.writes) for op, _ in walk(projection.body)
    )
    return Generated(
        "\n".join([doc, "", *_imports(program, projection, body), "", "", text]),
        tuple(r.name for r in regions),
        collectives,
        bool(regions) or has_parameters,
        carried_variables(projection),
    )


def _imports(program: Program, projection: Projection, body: tuple[Lowered, ...]) -> Iterator[str]:
    if NUMPY & {item.kind for item, _ in paths(body) if isinstance(item, Op)}:
        yield "import numpy as np"
    if regions_of(body):
        yield "import mindspore as ms"
        yield "from mindspore import nn"
        yield ""
        yield "from mindspore_rl.rl import operators"
        if any("named" in op.attr for op, _ in walk(projection.body)):
            yield "from mindspore_rl.rl.by_place import with_tuples"
        yield "from mindspore_rl.runtime.rank import cell_parts as parts"
    # Names that only other fragments use are left out, so that their modules are not imported.
    items = [item for item, _ in paths(projection.body) if not isinstance(item, Loop)]
    trees = [tree for i in items for tree in (i.args if isinstance(i, Op) else (i.test,))]
    trees += [Expr(path) for i in items if isinstance(i, Op) for path in i.attr.get("objects", ())]
    used = {name for tree in trees for name in tree.names}
    for alias, module, name in program.imports:
        if alias in used:
            yield f"from {module} import {name}" + (f" as {alias}" if alias != name else "")
