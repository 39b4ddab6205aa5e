"""Primitives that are rewritten as others: losses, deviations, norms and some layers.

A rule returns a node's results as new nodes, which are fused and tiled like any others.
"""

from collections.abc import Callable
from typing import Any

from mindspore_rl.codegen.cfg import Block, Unsupported, outputs, substitute
from mindspore_rl.codegen.ops.views import axes_of, constant, extent_of
from mindspore_rl.mindir.graph import Type, Value
from mindspore_rl.mindir.primitives import PRIMITIVES

SUM, MEAN = 0, 1
"""MindSpore's numbers for the reductions of a loss."""


def compose(blocks: list[Block]) -> None:
    """Replaces the nodes that have a decomposition by it."""
    new: dict[Value, Value] = {}
    for block in blocks:
        nodes: list[Value] = []
        for node in block.nodes:
            made = _Maker(node, nodes)
            if node.op in COMPOSED:
                new |= dict(zip(outputs(node), COMPOSED[node.op](made), strict=True))
            else:
                nodes.append(node)
        block.nodes = nodes
    for block in blocks if new else []:
        substitute(block, lambda value: new.get(value, value))


class _Maker:
    """Builder of the nodes that replace one node."""

    def __init__(self, node: Value, nodes: list[Value]) -> None:
        self.node, self.nodes = node, nodes

    def number(self, index: int, default: Any = None) -> Any:
        """Returns a constant argument, see `constant`."""
        return constant(self.node, index, default)

    def given(self, index: int) -> Value | None:
        """Returns an optional argument; None if it is left out."""
        value = self.node.args[index]
        return value if value is not None and value.type is not None else None

    def unsupported(self) -> Unsupported:
        """Makes the error for arguments that the rule does not support."""
        return Unsupported(f"{self.node.op} with these arguments")

    def __call__(self, op: str, *args: Any, shape: tuple[int, ...] | None = None) -> Value:
        """Makes a node with the type of its first argument (of `Select`: of its third).

        Comparisons are boolean; `shape` overrides the shape.
        """
        values = [a if isinstance(a, Value) else Value("constant", "", data=a) for a in args]
        like = values[2 if op == "Select" else 0].type
        shape = like.shape if shape is None else shape
        dtype = "bool" if op in ("Greater", "Less") else like.dtype
        made = Value(op, self.node.name, values, {}, Type(shape, dtype), None, self.node.scope)
        self.nodes.append(made)
        return made

    def reduced(self, op: str, x: Value, axes: tuple[int, ...], keep: bool = False) -> Value:
        """Makes a sum or mean over axes, or over all axes if none are given."""
        rank = len(x.type.shape)
        places = {axis % rank for axis in axes} if axes else set(range(rank))
        shape = [
            1 if i in places else n for i, n in enumerate(x.type.shape) if keep or i not in places
        ]
        return self(op, x, tuple(sorted(places)), keep, shape=tuple(shape))

    def loss(self, each: Value, reduction: Any) -> list[Value]:
        """Reduces an elementwise loss."""
        if reduction in (SUM, "sum"):
            return [self.reduced("SumExt", each, ())]
        return [self.reduced("MeanExt", each, ())] if reduction in (MEAN, "mean") else [each]

    def loss_grad(self, each: Value, dy: Value, reduction: Any) -> list[Value]:
        """Makes the gradient by each element, from `dy`, the gradient by the reduced loss."""
        each = self("Mul", each, dy)
        return [self("Divs", each, float(each.type.size)) if reduction in (MEAN, "mean") else each]

    def weighed(self, x: Value, weight: Value | None) -> Value:
        """Multiplies by weights, if there are any."""
        return x if weight is None else self("Mul", x, weight)

    def by_channel(self, row: Value, like: Value) -> Value:
        """Reshapes a vector so that it broadcasts along the second axis."""
        rank = len(like.type.shape)
        shape = tuple(row.type.size if axis == 1 else 1 for axis in range(rank))
        return self("Reshape", row, shape, shape=shape)


def _smooth_l1(new: _Maker) -> list[Value]:
    x, y = new.node.args[:2]
    beta = new.number(2)
    off = new("Abs", new("Sub", x, y))
    near = new("Muls", new("Square", off), 0.5 / beta)
    each = new("Select", new("Less", off, beta), near, new("SubScalar", off, 0.5 * beta))
    return new.loss(each, new.number(3))


def _smooth_l1_grad(new: _Maker) -> list[Value]:
    x, y, dy = new.node.args[:3]
    slope = new("ClampScalar", new("Divs", new("Sub", x, y), new.number(3)), -1.0, 1.0)
    return new.loss_grad(slope, dy, new.number(4))


def _cross_entropy(new: _Maker) -> list[Value]:
    """Decomposes the binary cross entropy of probabilities."""
    x, y = new.node.args[:2]
    hit = new("Mul", y, new("Log", new("AddScalar", x, 1e-12)))
    miss = new("Log", new("AddScalar", new("AddScalar", new("Neg", x), 1.0), 1e-12))
    missed = new("Mul", new("AddScalar", new("Neg", y), 1.0), miss)
    each = new("Neg", new("Add", hit, missed))
    return new.loss(new.weighed(each, new.given(2)), new.number(3))


def _cross_entropy_grad(new: _Maker) -> list[Value]:
    x, y, dy = new.node.args[:3]
    spread = new("Mul", x, new("AddScalar", new("Neg", x), 1.0))
    each = new("Div", new("Sub", x, y), new("ClampScalar", spread, 1e-12, None))
    return new.loss_grad(new.weighed(each, new.given(3)), dy, new.number(4))


def _logits_loss(new: _Maker) -> list[Value]:
    x, y = new.node.args[:2]
    tail = new("Log1p", new("Exp", new("Neg", new("Abs", x))))
    lost = new("Add", tail, new("ReLU", new("Neg", x)))
    positive = new.given(3)
    if positive is not None:
        share = new("Mul", y, new("SubScalar", positive, 1.0))
        lost = new("Mul", lost, new("AddScalar", share, 1.0))
    each = new("Add", new("Sub", x, new("Mul", x, y)), lost)
    return new.loss(new.weighed(each, new.given(2)), new.number(4))


def _logits_loss_grad(new: _Maker) -> list[Value]:
    dy, x, y = new.node.args[:3]
    positive = new.weighed(y, new.given(4))
    share = new("AddScalar", new("Sub", positive, y), 1.0)
    each = new("Sub", new("Mul", share, new("Sigmoid", x)), positive)
    return new.loss_grad(new.weighed(each, new.given(3)), dy, new.number(5))


def _divergence(new: _Maker) -> list[Value]:
    x, y = new.node.args[:2]
    return new.loss(new("Sub", new("Xlogy", y, y), new("Mul", y, x)), new.node.attrs["reduction"])


def _divergence_grad(new: _Maker) -> list[Value]:
    dy, _, y = new.node.args[:3]
    return new.loss_grad(new("Neg", y), dy, new.node.attrs["reduction"])


def _softmax_cross_entropy(new: _Maker) -> list[Value]:
    x, y = new.node.args[:2]
    log_soft = new("LogSoftmax", x, -1)
    loss = new("Neg", new.reduced("SumExt", new("Mul", y, log_soft), (-1,)))
    return [loss, new("Sub", new("Exp", log_soft), y)]


def _deviation(new: _Maker) -> list[Value]:
    x = new.node.args[0]
    axes = axes_of(new.number(1, ()))
    mean = new.reduced("MeanExt", x, axes, keep=True)
    squares = new.reduced("SumExt", new("Square", new("Sub", x, mean)), axes, keep=True)
    count = x.type.size // max(squares.type.size, 1) - bool(new.number(2, True))
    deviation = new("Sqrt", new("Divs", squares, float(count)))
    std, average = (found.type.shape for found in outputs(new.node))
    return [new("Reshape", deviation, std, shape=std), new("Reshape", mean, average, shape=average)]


def _norm(new: _Maker) -> list[Value]:
    x, attrs = new.node.args[0], new.node.attrs
    if attrs["p"] not in (1, 2):
        raise new.unsupported()
    each = new("Abs" if attrs["p"] == 1 else "Square", x)
    total = new.reduced("SumExt", each, axes_of(attrs["axis"]), attrs["keep_dims"])
    return [total if attrs["p"] == 1 else new("Sqrt", total)]


def _length(new: _Maker, x: Value) -> tuple[Value, tuple[int, ...]]:
    """Makes the lengths of vectors along an axis, with a lower bound. Returns: them, the axes."""
    attrs = new.node.attrs
    axes = axes_of(attrs["axis"])
    squares = new.reduced("SumExt", new("Square", x), axes, keep=True)
    return new("Sqrt", new("ClampScalar", squares, attrs["epsilon"], None)), axes


def _normal(new: _Maker) -> list[Value]:
    x = new.node.args[0]
    return [new("Div", x, _length(new, x)[0])]


def _normal_grad(new: _Maker) -> list[Value]:
    x, y, dy = new.node.args[:3]
    length, axes = _length(new, x)
    along = new.reduced("SumExt", new("Mul", y, dy), axes, keep=True)
    return [new("Div", new("Sub", dy, new("Mul", y, along)), length)]


def _trace(new: _Maker) -> list[Value]:
    x = new.node.args[0]
    diagonal = new("Diagonal", x, 0, 0, 1, shape=(min(x.type.shape),))
    return [new.reduced("SumExt", diagonal, ())]


def _outer(new: _Maker) -> list[Value]:
    x, y = new.node.args[:2]
    column = new("Reshape", x, (x.type.size, 1), shape=(x.type.size, 1))
    return [new("Mul", column, y, shape=(x.type.size, y.type.size))]


def _prelu_grad(new: _Maker) -> list[Value]:
    dy, x, weight = new.node.args[:3]
    shared = weight.type.size == 1
    slope = weight if shared else new.by_channel(weight, x)
    above = new("Greater", x, 0.0)
    below = new("Select", above, 0.0, new("Mul", x, dy))
    axes = tuple(axis for axis in range(len(x.type.shape)) if shared or axis != 1)
    summed = new.reduced("SumExt", below, axes)
    dx = new("Select", above, dy, new("Mul", dy, slope))
    return [dx, new("Reshape", summed, weight.type.shape, shape=weight.type.shape)]


def _dropout(new: _Maker) -> list[Value]:
    """Decomposes dropout that keeps everything; native code draws no noise."""
    x = new.node.args[0]
    if new.number(1) != 1:
        raise Unsupported("Dropout, whose noise MindSpore draws")
    return [x, new("OnesLike", x)]


def _dropout_grad(new: _Maker) -> list[Value]:
    dy, mask = new.node.args[:2]
    return [new("Divs", new("Mul", dy, mask), new.node.attrs["keep_prob"])]


def _batch_norm(new: _Maker) -> list[Value]:
    """Decomposes batch norm with running statistics; training mode is unsupported."""
    x, gain, shift, mean, variance = new.node.args[:5]
    if new.number(5):
        raise Unsupported("BatchNorm in training")
    scale = new("Mul", gain, new("Rsqrt", new("AddScalar", variance, new.number(6))))
    centred = new("Sub", x, new.by_channel(mean, x))
    y = new("Add", new("Mul", centred, new.by_channel(scale, x)), new.by_channel(shift, x))
    return [y, mean, variance, mean, variance]


def _batch_norm_grad(new: _Maker) -> list[Value]:
    dy, x, gain, mean, variance = new.node.args[:5]
    if new.number(6):
        raise Unsupported("BatchNormGrad in training")
    inverse = new.by_channel(new("Rsqrt", new("AddScalar", variance, new.number(7))), x)
    centred = new("Mul", new("Sub", x, new.by_channel(mean, x)), inverse)
    others = tuple(axis for axis in range(len(x.type.shape)) if axis != 1)
    return [
        new("Mul", new("Mul", dy, inverse), new.by_channel(gain, x)),
        new.reduced("SumExt", new("Mul", dy, centred), others),
        new.reduced("SumExt", dy, others),
    ]


def _adaptive_average(new: _Maker) -> list[Value]:
    x, y = new.node.args[0], new.node.type
    shape, axes = _windows(new, x.type.shape, y.shape)
    parts = new.reduced("MeanExt", new("Reshape", x, shape, shape=shape), axes)
    return [new("Reshape", parts, y.shape, shape=y.shape)]


def _adaptive_average_grad(new: _Maker) -> list[Value]:
    dy, x = new.node.args[0], new.node.type
    shape, axes = _windows(new, x.shape, dy.type.shape)
    thin = tuple(1 if i in axes else n for i, n in enumerate(shape))
    each = new("Divs", dy, float(x.size // dy.type.size))
    wide = new("BroadcastTo", new("Reshape", each, thin, shape=thin), shape, shape=shape)
    return [new("Reshape", wide, x.shape, shape=x.shape)]


def _windows(
    new: _Maker, wide: tuple[int, ...], few: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns an image's shape with an axis for each window's extent, and those axes."""
    (height, width), (tall, across) = wide[-2:], few[-2:]
    if height % tall or width % across:
        raise new.unsupported()
    ahead = extent_of(wide[:-2])
    return (ahead, tall, height // tall, across, width // across), (2, 4)


DECOMPOSITIONS: dict[str, Callable[[_Maker], list[Value]]] = {
    "smooth_l1": _smooth_l1,
    "smooth_l1_grad": _smooth_l1_grad,
    "cross_entropy": _cross_entropy,
    "cross_entropy_grad": _cross_entropy_grad,
    "logits_loss": _logits_loss,
    "logits_loss_grad": _logits_loss_grad,
    "divergence": _divergence,
    "divergence_grad": _divergence_grad,
    "softmax_cross_entropy": _softmax_cross_entropy,
    "deviation": _deviation,
    "norm": _norm,
    "normal": _normal,
    "normal_grad": _normal_grad,
    "trace": _trace,
    "outer": _outer,
    "prelu_grad": _prelu_grad,
    "dropout": _dropout,
    "dropout_grad": _dropout_grad,
    "batch_norm": _batch_norm,
    "batch_norm_grad": _batch_norm_grad,
    "adaptive_average": _adaptive_average,
    "adaptive_average_grad": _adaptive_average_grad,
}
"""Functions that rewrite a primitive, see `Primitive.composed`."""
COMPOSED = {op: DECOMPOSITIONS[row.composed] for op, row in PRIMITIVES.items() if row.composed}
