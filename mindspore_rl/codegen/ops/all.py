"""The kernels of the primitives that are not fused.

`mindir.primitives` says how each primitive is emitted. It is element-wise (`elementwise`: a scalar
expression, fused with its neighbours into one loop), or a view (`views`: its argument with other
strides, fused likewise or free), or a kernel, a function of the files here. A primitive without
native code raises `Unsupported`: MindSpore then runs the cell.
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
from mindspore_rl.mindir.primitives import PRIMITIVES

_FILES = (matmul, reductions, axis, indexing, creation, convolution, inplace)
KERNELS = {name: kernel for file in _FILES for name, kernel in file.ROWS.items()}
"""Functions that emit the C++ of a call, see `Primitive.kernel`."""
WRITERS = {op: KERNELS[row.kernel] for op, row in PRIMITIVES.items() if row.kernel}
