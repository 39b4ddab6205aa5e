"""The table of all primitives that code generation supports.

A primitive is element-wise (`elementwise`: a scalar expression, fused with its neighbours into one
loop), or a view (`views`: its argument with other strides, fused likewise or free), or it is
emitted by a function of the files here. A missing primitive raises `Unsupported`: MindSpore then
runs the cell.
"""

from mindspore_rl.codegen.ops import (
    axis,
    convolution,
    creation,
    indexing,
    inplace,
    matmul,
    reductions,
)
from mindspore_rl.codegen.ops.elementwise import ELEMENTWISE
from mindspore_rl.codegen.ops.views import FREE, VIEWS

_FILES = (matmul, reductions, axis, indexing, creation, convolution, inplace)
WRITERS = {name: row for file in _FILES for name, row in file.ROWS.items()}


def known(op: str) -> bool:
    """Returns whether the table has a rule for a primitive."""
    return op in ELEMENTWISE or op in FREE or op in WRITERS or op in VIEWS
