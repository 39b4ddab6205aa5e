"""Batch rules: how each primitive treats the rows of a batch."""

from collections.abc import Callable, Iterable

from mindspore_rl.codegen.cfg import outputs
from mindspore_rl.codegen.ops.elementwise import BY_CHANNEL, ELEMENTWISE
from mindspore_rl.codegen.ops.matmul import PRODUCTS, read_of, turned
from mindspore_rl.codegen.ops.reductions import SUMS, reduced_axes
from mindspore_rl.codegen.ops.views import axes_of, axis_of, constant, option
from mindspore_rl.mindir.graph import Type, Value
from mindspore_rl.mindir.primitives import PRIMITIVES

BY_ROWS, SUM = "rows", "sum"
"""Kinds of results: one row for each row of the batch, or a sum over the batch."""
MAX_SUM = 32_768
"""Limit on the numbers of a sum over the batch that tiles add up: a core's cache holds them.

A larger product of two batches runs after the tiles, in parts of its rows.
"""
_Treated = tuple[list[str], list[bool]] | None
_Rule = Callable[[Value, list[Value], int], _Treated]
CONVOLUTIONS = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")


def has_rows(value: Value, batch: int) -> bool:
    """Returns whether a value's first axis is a multiple of the batch."""
    found = value.type
    return (
        isinstance(found, Type)
        and bool(found.shape)
        and found.size > 0
        and (found.shape[0] % batch == 0)
    )


def _elementwise(node: Value, args: list[Value], batch: int) -> _Treated:
    if not has_rows(node, batch):
        return None
    shape, sliced = node.type.shape, []
    bias = node.op in BY_CHANNEL and len(shape) > 1
    for position, arg in enumerate(args):
        own = arg.type.shape if isinstance(arg.type, Type) else ()
        if node.op == "Strided":
            sliced.append(True)
            if not _by_rows(node.type.shape, node.attrs["offset"], node.attrs["strides"], arg):
                return None
        elif not isinstance(arg.type, Type) or arg.type.size == 1 or bias and position == 1:
            sliced.append(False)
        elif arg.type.size == node.type.size or len(own) == len(shape) and own[0] == shape[0]:
            sliced.append(True)
        elif len(own) < len(shape) or own[0] == 1:
            sliced.append(False)
        else:
            return None
    return [BY_ROWS], sliced


def _by_rows(shape: tuple[int, ...], offset: int, strides: tuple[int, ...], arg: Value) -> bool:
    """Returns whether every row of what is read is of the same row of the argument."""
    inner = zip(shape[1:], strides[1:], strict=True)
    last = offset + sum((extent - 1) * stride for extent, stride in inner)
    row = strides[0]
    return row * shape[0] == arg.type.size and offset >= 0 and min(strides) >= 0 and last < row


def _product(node: Value, args: list[Value], batch: int) -> _Treated:
    one, other = args[:2]
    turned_one, turned_other = turned(node)
    rest = [False] * (len(args) - 2)
    reads = read_of(node, 0), read_of(node, 1)
    ranks = [len(read.shape) for read in reads]
    if ranks[0] > 1 and ranks[1] == 2 and not turned_one:
        return [BY_ROWS], [True, False, *rest]
    if ranks == [2, 2] and not turned_other and one.type.shape[0] == other.type.shape[0]:
        small = node.type.size <= MAX_SUM
        return ([SUM], [True, True, *rest]) if small else None
    if min(ranks) > 2 and ranks[0] == ranks[1]:
        pairs = zip(reads, (one, other), strict=True)
        own = all(_by_rows(read.shape, read.offset, read.strides, arg) for read, arg in pairs)
        return ([BY_ROWS], [True, True, *rest]) if own else None
    return None


def _sum(node: Value, args: list[Value], batch: int) -> _Treated:
    sliced = [i == 0 for i in range(len(args))]
    return [SUM if 0 in reduced_axes(node) else BY_ROWS], sliced


def _best(node: Value, args: list[Value], batch: int) -> _Treated:
    """Handles extrema and their places, which must not be along the first axis."""
    axes = axes_of(axis_of(node))
    if not axes or any(axis % max(len(args[0].type.shape), 1) == 0 for axis in axes):
        return None
    return [BY_ROWS] * len(outputs(node)), [i == 0 for i in range(len(args))]


def _along(node: Value, args: list[Value], batch: int) -> _Treated:
    """Handles primitives along an axis, which must not be the first."""
    axes = axes_of(axis_of(node))
    first = outputs(node)[0].type
    if not axes or axes[0] % max(len(first.shape), 1) == 0:
        return None
    sliced = [isinstance(arg.type, Type) and arg.type.size > 1 for arg in args]
    return [BY_ROWS] * len(outputs(node)), sliced


def _gather(node: Value, args: list[Value], batch: int) -> _Treated:
    if axis_of(node) != 0 or constant(node, 3, 0):
        return None
    return [BY_ROWS], [i == 1 for i in range(len(args))]


def _repeated(node: Value, args: list[Value], batch: int) -> _Treated:
    """Handles `Tile`, which must not repeat along the first axis."""
    times, own = constant(node, 1), node.args[0].type.shape
    same = len(times) == len(own) and times[0] == 1
    return ([BY_ROWS], [i == 0 for i in range(len(args))]) if same else None


def _slice_grad(node: Value, args: list[Value], batch: int) -> _Treated:
    """Handles the gradient of a slice, which must have all of the first axis."""
    dy, found = node.args[0].type.shape, node.type.shape
    dropped = int(option(node, "shrink_axis_mask", 9, 0))
    kept = bool(dy) and not dropped & 1 and len(dy) == len(found) - dropped.bit_count()
    whole = kept and dy[0] == found[0] and constant(node, 4)[0] == 1
    return ([BY_ROWS], [i == 0 for i in range(len(args))]) if whole else None


def _layer_norm(node: Value, args: list[Value], batch: int) -> _Treated:
    """Handles layer norm, which must not normalise along the first axis, and its gradient."""
    forward = node.op == "LayerNorm"
    if constant(node, 3 if forward else 5, -1) % len(node.args[0].type.shape) == 0:
        return None
    rows = 1 if forward else 4
    return [BY_ROWS, *[BY_ROWS if forward else SUM] * 2], [i < rows for i in range(len(args))]


def _these(kinds: Iterable[str], *sliced: int) -> _Rule:
    kinds = list(kinds)

    def rule(node: Value, args: list[Value], batch: int) -> _Treated:
        return list(kinds), [i in sliced for i in range(len(args))]

    return rule


_ALONG = {"Concat", "OneHot", "Stack"} | {
    op
    for op, primitive in PRIMITIVES.items()
    if primitive.kernel in ("gather_along", "softmax", "softmax_grad")
}
_BEST = (op for op, primitive in PRIMITIVES.items() if primitive.kernel in ("arg", "fold"))
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(SUMS, _sum),
    "BiasAddGrad": _these([SUM], 0),
    **dict.fromkeys(_ALONG, _along),
    **dict.fromkeys(_BEST, _best),
    "Gather": _gather,
    "Tile": _repeated,
    "StridedSliceGrad": _slice_grad,
    "LayerNorm": _layer_norm,
    "LayerNormGrad": _layer_norm,
    "Conv2D": _these([BY_ROWS], 0),
    "Conv2DBackpropInput": _these([BY_ROWS], 0),
    "Conv2DBackpropFilter": _these([SUM], 0, 1),
    "MaxPool": _these([BY_ROWS], 0),
    "MaxPoolWithArgmaxV2": _these([BY_ROWS, BY_ROWS], 0),
    "AvgPool": _these([BY_ROWS], 0),
    **dict.fromkeys(
        ("MaxPoolGrad", "MaxPoolGradWithArgmaxV2", "AvgPoolGrad"), _these([BY_ROWS], 0, 1, 2)
    ),
}


def rule_of(node: Value) -> _Rule | None:
    """Returns the rule of a node, which gives the kinds of its results and its sliced tensors.

    None if the node mixes rows.
    """
    return _RULES.get(node.op) or (_elementwise if node.op in ELEMENTWISE else None)
