"""How each primitive of MindSpore is written in C++: one table with a row each.

A primitive is element-wise (an expression of single numbers, fused with its neighbours into one
loop), or a view (numbers of its argument at other places, fused likewise or free), or it is written
by a function. One that is missing raises `Unsupported`: MindSpore then runs the cell.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindspore_rl.native.control import Unsupported
from mindspore_rl.native.program import Type, Value

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
}

ELEMENTWISE: dict[str, str] = {
    # arithmetic
    "Add": "{0} + {1}",
    "AddExt": "{0} + {2} * {1}",
    "AddScalar": "{0} + {1}",
    "Sub": "{0} - {1}",
    "SubExt": "{0} - {2} * {1}",
    "SubScalar": "{0} - {1}",
    "Mul": "{0} * {1}",
    "Muls": "{0} * {1}",
    "Div": "{0} / {1}",
    "Divs": "{0} / {1}",
    "RealDiv": "{0} / {1}",
    "FloorDiv": "floor_div({0}, {1})",
    "FloorMod": "floor_mod({0}, {1})",
    "Neg": "-{0}",
    "Abs": "std::abs({0})",
    "Square": "{0} * {0}",
    "Sqrt": "sqrtf({0})",
    "Rsqrt": "1.0f / sqrtf({0})",
    "Reciprocal": "1.0f / {0}",
    "Inv": "1.0f / {0}",
    "AddN": "",  # the sum of its arguments, see `expression`
    "Pow": "powf({0}, {1})",
    "PowTensorScalar": "powf({0}, {1})",
    "Maximum": "larger({0}, {1})",
    "Minimum": "smaller({0}, {1})",
    "ClampScalar": "smaller(larger({0}, {1}), {2})",
    "ClampTensor": "smaller(larger({0}, {1}), {2})",
    "Floor": "floorf({0})",
    "Ceil": "ceilf({0})",
    "Round": "rintf({0})",
    "Trunc": "truncf({0})",
    "Sign": "sign({0})",
    # functions
    "Exp": "expf({0})",
    "Expm1": "expm1f({0})",
    "Log": "logf({0})",
    "Log1p": "log1pf({0})",
    "Log2": "log2f({0})",
    "Sin": "sinf({0})",
    "Cos": "cosf({0})",
    "Tan": "tanf({0})",
    "Asin": "asinf({0})",
    "ACos": "acosf({0})",
    "Atan": "atanf({0})",
    "Atan2": "atan2f({0}, {1})",
    "Sinh": "sinhf({0})",
    "Cosh": "coshf({0})",
    "Tanh": "tanhf({0})",
    "Erf": "erff({0})",
    "Erfc": "erfcf({0})",
    "ReLU": "relu({0})",
    "ReLU6": "smaller(relu({0}), 6.0f)",
    "Sigmoid": "sigmoid({0})",
    "SiLU": "{0} * sigmoid({0})",
    "Softplus": "softplus({0})",
    "GeLU": "0.5f * {0} * (1.0f + tanhf(0.7978845608f * ({0} + 0.044715f * {0} * {0} * {0})))",
    # gradients, named as MindSpore orders their arguments
    "TanhGrad": "{1} * (1.0f - {0} * {0})",
    "ReluGrad": "({1} > 0.0f ? {0} : 0.0f)",
    "SigmoidGrad": "{1} * {0} * (1.0f - {0})",
    "SqrtGrad": "{1} * 0.5f / {0}",
    "RsqrtGrad": "{1} * -0.5f * {0} * {0} * {0}",
    "ReciprocalGrad": "-{1} * {0} * {0}",
    "InvGrad": "-{1} * {0} * {0}",
    "SoftplusGrad": "{0} * sigmoid({1})",
    "SiLUGrad": "{0} * sigmoid({1}) * (1.0f + {1} * (1.0f - sigmoid({1})))",
    "AbsGrad": "{1} * sign({0})",
    "LogGrad": "{1} / {0}",
    # comparisons and truth values
    "Greater": "{0} > {1}",
    "GreaterEqual": "{0} >= {1}",
    "Less": "{0} < {1}",
    "LessEqual": "{0} <= {1}",
    "Equal": "{0} == {1}",
    "NotEqual": "{0} != {1}",
    "GreaterScalar": "{0} > {1}",
    "GreaterEqualScalar": "{0} >= {1}",
    "LessScalar": "{0} < {1}",
    "LessEqualScalar": "{0} <= {1}",
    "EqScalar": "{0} == {1}",
    "NeScalar": "{0} != {1}",
    "LogicalAnd": "{0} && {1}",
    "LogicalOr": "{0} || {1}",
    "LogicalNot": "!{0}",
    "LogicalXor": "{0} != {1}",
    "IsNan": "{0} != {0}",
    "IsInf": "std::abs({0}) == INFINITY",
    "IsFinite": "std::abs({0}) < INFINITY",
    "Select": "({0} ? {1} : {2})",
    "MaskedFill": "({1} ? {2} : {0})",
    # bits
    "BitwiseAnd": "{0} & {1}",
    "BitwiseOr": "{0} | {1}",
    "BitwiseXor": "{0} ^ {1}",
    "LeftShift": "{0} << {1}",
    "RightShift": "{0} >> {1}",
    # copies
    "BiasAdd": "{0} + {1}",
    "Cast": "{0}",
    "TensorMove": "{0}",
    "Strided": "{0}",
    "ZerosLike": "0",
    "ZerosLikeExt": "0",
    "OnesLike": "1",
    "FillV2": "{1}",
    "FillScalar": "{1}",
    "Zeros": "0",
    "Ones": "1",
}

FREE = {"Load", "Reshape", "ExpandDims", "Squeeze", "Flatten", "FlattenExt", "View", "Identity"}
"""Primitives whose result is their first argument in another shape."""


@dataclass(frozen=True)
class Operand:
    """Where a tensor's numbers are: a C++ expression of a pointer to the first."""

    pointer: str
    type: Type

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's."""
        return self.type.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    @property
    def c_type(self) -> str:
        """Of an element."""
        return C_TYPES[self.type.dtype]

    def split(self, axis: int, count: int = 1) -> tuple[int, int, int]:
        """Extents before, of, and after some axes, each as one."""
        axis %= max(len(self.shape), 1)
        middle = self.shape[axis : axis + count]
        return _size(self.shape[:axis]), _size(middle), _size(self.shape[axis + count :])


@dataclass(frozen=True)
class Call:
    """A primitive that is to be written.

    Attributes:
        args: an operand for a tensor, a list of them for a tuple, None for the rest.
        outs: where the results go.
        line: takes a line of C++.
        scratch: gives a pointer to so many floats.
        function: gives a pointer to a function of a library, `path:name`.
    """

    node: Value
    args: list[Any]
    outs: list[Operand]
    line: Callable[[str], None]
    scratch: Callable[[int], str]
    function: Callable[[str], str]

    @property
    def out(self) -> Operand:
        """The only result."""
        return self.outs[0]

    def number(self, index: int, default: Any = None) -> Any:
        """An argument that is compiled in."""
        return constant(self.node, index, default)

    def run(self, function: str, template: Any, *args: Any) -> None:
        """Writes a call of a function in kernels.h."""
        chosen = ", ".join(str(t).lower() if isinstance(t, bool) else str(t) for t in template)
        given = ", ".join(a.pointer if isinstance(a, Operand) else str(a) for a in args)
        self.line(f"{function}<{chosen}>({given});")

    def unsupported(self) -> Unsupported:
        """For arguments that the row does not know."""
        return Unsupported(f"{self.node.op} with these arguments")


WRITERS: dict[str, Callable[[Call], None]] = {}


def _row(*names: str) -> Callable:
    def add(function: Callable[[Call], None]) -> Callable[[Call], None]:
        WRITERS.update(dict.fromkeys(names, function))
        return function

    return add


def constant(node: Value, index: int, default: Any = None) -> Any:
    """An argument of a node that is compiled in: a number or a tuple of numbers.

    Raises:
        Unsupported: it is computed.
    """
    if index >= len(node.args) or node.args[index] is None:
        return default
    value = node.args[index]
    if isinstance(value, tuple) and all(isinstance(v, Value) and v.op == "constant" for v in value):
        return tuple(_plain(v.data) for v in value)
    if not isinstance(value, Value) or value.op != "constant":
        raise Unsupported(f"{node.op} with an argument that is computed")
    data = _plain(value.data)
    return default if data is None else data


def _plain(data: Any) -> Any:
    return data.tolist() if isinstance(data, np.ndarray) else data


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def is_view(node: Value) -> bool:
    """Whether a node gives the numbers of its argument where they are."""
    return node.op in FREE and not node.attrs.get("copied")


def known(op: str) -> bool:
    """Whether the table has a row for a primitive."""
    return op in ELEMENTWISE or op in FREE or op in WRITERS or op in VIEWS


def literal(data: Any, dtype: str) -> str:
    """A number in C++, in a dtype's type if it is a floating-point number."""
    data = _plain(data)
    while isinstance(data, list) and len(data) == 1:
        data = data[0]
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, int):
        if dtype == "uint32":
            return f"{data % 2**32}u"
        if not -(2**31) < data < 2**31:
            return f"{data}{'u' if data > 0 else ''}ll" if data != -(2**63) else "INT64_MIN"
        return str(data)
    if math.isnan(data):
        return "NAN"
    if data in (float("inf"), float("-inf")):
        return "INFINITY" if data > 0 else "(-INFINITY)"
    number = data if dtype == "float64" else float(np.float32(data))
    text = number.hex() + ("" if dtype == "float64" else "f")
    return f"({text})" if number < 0 else text


def expression(node: Value, args: list[str]) -> str:
    """The value of an element-wise node, from those of its arguments."""
    op = node.op
    if op == "AddN":
        return " + ".join(args)
    if op in ("Maximum", "Minimum", "ClampScalar", "ClampTensor", "FloorDiv", "FloorMod"):
        args = [f"({C_TYPES[node.type.dtype]}){arg}" for arg in args]
    if op in ("PowTensorScalar", "Pow") and _exponent(node) in (1, 2):
        return " * ".join([args[0]] * int(_exponent(node)))
    text = ELEMENTWISE[op].format(*args)
    if node.type.dtype == "float64" and "f(" in text:
        raise Unsupported(f"{op} of float64")
    if op == "Cast" and node.type.dtype == "bool":
        return f"{args[0]} != 0"
    if node.type.dtype.startswith("int") or node.type.dtype.startswith("uint"):
        if "f(" in text:
            raise Unsupported(f"{op} of {node.type.dtype}")
        if node.type.dtype in ("int32", "int64") and op == "Cast":
            return f"to<{C_TYPES[node.type.dtype]}>({args[0]})"
    return text


def _exponent(node: Value) -> Any:
    value = node.args[1]
    return _plain(value.data) if value.op == "constant" else None


# ---- views: an offset and a stride for every axis ------------------------------------------------


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [_size(shape[axis + 1 :]) for axis in range(len(shape))]


def _slice(node: Value) -> tuple[int, list[int]]:
    begin, strides = constant(node, 1), _strides(node.args[0].type.shape)
    return sum(b * s for b, s in zip(begin, strides, strict=True)), strides


def _strided_slice(node: Value) -> tuple[int, list[int]]:
    """As NumPy's x[a:b:c]; masks say which bounds are left out and which axes go."""
    shape, strides = node.args[0].type.shape, _strides(node.args[0].type.shape)
    begin, end, step = (constant(node, i) for i in (1, 2, 3))
    begin_mask, end_mask, ellipsis, new_axis, shrink = (constant(node, i, 0) for i in range(4, 9))
    if ellipsis or new_axis:
        raise Unsupported("StridedSlice with an ellipsis or a new axis")
    offset, kept = 0, []
    for axis, extent in enumerate(shape):
        if axis >= len(begin):
            kept.append(strides[axis])
            continue
        bound = slice(
            None if begin_mask >> axis & 1 else begin[axis],
            None if end_mask >> axis & 1 else end[axis],
            step[axis],
        )
        if shrink >> axis & 1:
            first = begin[axis] % extent
        else:
            first = bound.indices(extent)[0]
            kept.append(strides[axis] * step[axis])
        offset += first * strides[axis]
    return offset, kept


def _transposed(node: Value) -> tuple[int, list[int]]:
    strides = _strides(node.args[0].type.shape)
    return 0, [strides[axis] for axis in constant(node, 1)]


def _swapped(node: Value) -> tuple[int, list[int]]:
    strides = _strides(node.args[0].type.shape)
    one, other = constant(node, 1), constant(node, 2)
    strides[one], strides[other] = strides[other], strides[one]
    return 0, strides


def _broadcast(node: Value) -> tuple[int, list[int]]:
    shape, strides = node.args[0].type.shape, _strides(node.args[0].type.shape)
    new = len(node.type.shape) - len(shape)
    own = [s if extent > 1 else 0 for s, extent in zip(strides, shape, strict=True)]
    return 0, [0] * new + own


def _reversed(node: Value) -> tuple[int, list[int]]:
    shape, strides = node.args[0].type.shape, _strides(node.args[0].type.shape)
    axes = node.attrs.get("axis", constant(node, 1))
    offset = 0
    for axis in (a % len(shape) for a in (axes if isinstance(axes, (tuple, list)) else (axes,))):
        offset += (shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    return offset, strides


def _narrowed(node: Value) -> tuple[int, list[int]]:
    strides = _strides(node.args[0].type.shape)
    return constant(node, 2) * strides[constant(node, 1)], strides


def _selected(node: Value) -> tuple[int, list[int]]:
    strides = _strides(node.args[0].type.shape)
    axis = constant(node, 1) % len(strides)
    at = constant(node, 2) % node.args[0].type.shape[axis]
    return at * strides[axis], strides[:axis] + strides[axis + 1 :]


def _taken(part: Value) -> tuple[int, list[int]]:
    """A result of `Unstack` or `Split`."""
    node, index = part.attrs["of"], part.attrs["index"]
    shape, strides = part.args[0].type.shape, _strides(part.args[0].type.shape)
    if node.op == "Unstack":
        axis = int(node.attrs.get("axis", constant(node, 1, 0))) % len(shape)
        return index * strides[axis], strides[:axis] + strides[axis + 1 :]
    if node.op == "Split":
        axis = int(node.attrs.get("axis", constant(node, 1, 0))) % len(shape)
    else:
        axis = int(constant(node, 2, 0)) % len(shape)
    before = sum(node.type[i].shape[axis] for i in range(index))
    return before * strides[axis], strides


VIEWS: dict[str, Callable[[Value], tuple[int, list[int]]]] = {
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "Transpose": _transposed,
    "TransposeExtView": _swapped,
    "BroadcastTo": _broadcast,
    "ReverseV2": _reversed,
    "Narrow": _narrowed,
    "SelectExt": _selected,
    "Taken": _taken,
}


# ---- rows by functions ---------------------------------------------------------------------------


@_row("MatMul", "MatMulExt", "BatchMatMul", "BatchMatMulExt", "Mm", "Dense")
def _product(call: Call) -> None:
    a, b = call.args[:2]
    turned_a, turned_b = turned(call.node)
    if min(len(a.shape), len(b.shape)) < 2 or a.type.dtype != "float32":
        raise call.unsupported()
    m, k = a.shape[-2:][::-1] if turned_a else a.shape[-2:]
    n = b.shape[-2] if turned_b else b.shape[-1]
    if call.node.op == "Dense" or len(b.shape) == 2 and not turned_a:
        batch: tuple[int, ...] = ()
        m = a.size // k if k else 0
    else:
        batch = call.out.shape[:-2]
        if a.shape[:-2] != batch or b.shape[:-2] != batch:
            raise call.unsupported()
    template = (m, n, k, turned_a, turned_b)
    room = call.scratch(k * (n + 15) + m * k)
    if not batch:
        call.run("product", template, a, b, call.out, room)
    else:
        call.line(f"for (int64_t i = 0; i < {_size(batch)}; i++)")
        call.run(
            "  product",
            template,
            f"{a.pointer} + i * {m * k}",
            f"{b.pointer} + i * {n * k}",
            f"{call.out.pointer} + i * {m * n}",
            room,
        )
    if call.node.op == "Dense" and len(call.args) > 2 and call.args[2] is not None:
        bias = call.args[2].pointer
        call.line(f"for (int64_t i = 0; i < {m}; i++)")
        call.line(
            f"  for (int64_t j = 0; j < {n}; j++) {call.out.pointer}[i * {n} + j] += {bias}[j];"
        )


def turned(node: Value) -> tuple[bool, bool]:
    """Which of a product's matrices are transposed."""
    if node.op == "Dense":
        return False, True
    attrs = node.attrs
    return (
        bool(attrs.get("transpose_a", constant(node, 2, False))),
        bool(attrs.get("transpose_b", constant(node, 3, False))),
    )


@_row("Turned")
def _turned(call: Call) -> None:
    """A matrix whose columns become rows; no primitive of MindSpore's."""
    columns, rows = call.out.shape
    call.run("transpose", (rows, columns), call.args[0], call.out, rows)


@_row("SumExt", "ReduceSum", "MeanExt", "ReduceMean")
def _sum(call: Call) -> None:
    x, out = call.args[0], call.out
    outer, count, inner = _reduced(call)
    if x.type.dtype == "float32":
        call.run("sum", (outer, count, inner), x, out)
    else:
        function = f"[](auto a, auto b) {{ return ({out.c_type})(a + b); }}"
        if x.type.dtype != out.type.dtype:
            raise call.unsupported()
        call.run("fold", (outer, count, inner), x, out, f"({out.c_type})0", function)
    if "Mean" in call.node.op:
        call.line(
            f"for (int64_t i = 0; i < {out.size}; i++) "
            f"{out.pointer}[i] = {out.pointer}[i] / {float(count)}f;"
        )


@_row(
    "ReduceMax", "ReduceMin", "AMax", "AMin", "Max", "Min", "ReduceAll", "ReduceAny", "ReduceProd"
)
def _fold(call: Call) -> None:
    t = call.out.c_type
    limits = f"std::numeric_limits<{t}>"
    largest = f"{limits}::has_infinity ? {limits}::infinity() : {limits}::max()"
    lowest = f"{limits}::has_infinity ? -{limits}::infinity() : {limits}::lowest()"
    op = call.node.op.removeprefix("Reduce").removeprefix("A")
    start, function = {
        "Max": (lowest, "larger(a, b)"),
        "Min": (largest, "smaller(a, b)"),
        "ll": ("true", "a && b"),
        "ny": ("false", "a || b"),
        "Prod": ("1", "a * b"),
    }[op]
    call.run(
        "fold",
        _reduced(call),
        call.args[0],
        call.out,
        f"({t})({start})",
        f"[]({t} a, {t} b) {{ return ({t})({function}); }}",
    )


def _reduced(call: Call) -> tuple[int, int, int]:
    """Extents before, of, and after the axes that are reduced."""
    shape, places = call.args[0].shape, reduced_axes(call.node)
    if not places:
        return call.args[0].size, 1, 1
    middle = range(places[0], places[-1] + 1)
    if any(p not in places and shape[p] != 1 for p in middle):
        raise call.unsupported()
    return (
        _size(shape[: places[0]]),
        _size(shape[middle.start : middle.stop]),
        _size(shape[middle.stop :]),
    )


def reduced_axes(node: Value) -> list[int]:
    """In order; an axis of one element is reduced or not, as it suits, and left out."""
    shape = node.args[0].type.shape
    axes = constant(node, 1, ()) if "axis" not in node.attrs else node.attrs["axis"]
    axes = (axes,) if isinstance(axes, int) else tuple(axes or range(len(shape)))
    places = sorted(axis % len(shape) for axis in axes) if shape else []
    return [p for p in places if shape[p] != 1]


@_row("BiasAddGrad")
def _bias_grad(call: Call) -> None:
    x = call.args[0]
    if len(x.shape) == 2:
        call.run("sum", (1, *x.shape), x, call.out)
        return
    outer, channels, inner = x.shape[0], x.shape[1], _size(x.shape[2:])
    room = call.scratch(outer * channels)
    call.run("sum", (outer * channels, inner, 1), x, room)
    call.run("sum", (1, outer, channels), room, call.out)


@_row("L2Loss")
def _half_square(call: Call) -> None:
    x = call.args[0]
    call.line(f"*{call.out.pointer} = 0.5f * sum_of<{x.size}>({x.pointer}, squared());")


def _last_axis(call: Call, axis: Any) -> tuple[int, int]:
    outer, count, inner = call.args[0].split(axis)
    if inner != 1 or call.args[0].type.dtype != "float32":
        raise call.unsupported()
    return outer, count


@_row("LogSoftmax", "LogSoftmaxExt")
def _log_softmax(call: Call) -> None:
    axis = call.node.attrs.get("axis", call.number(1, -1))
    call.run("log_softmax", _last_axis(call, axis), call.args[0], call.out)


@_row("Softmax")
def _softmax(call: Call) -> None:
    axis = call.node.attrs.get("axis", call.number(1, -1))
    axis = axis[0] if isinstance(axis, (tuple, list)) else axis
    call.run("softmax", _last_axis(call, axis), call.args[0], call.out)


@_row("LogSoftmaxGrad", "SoftmaxBackward")
def _log_softmax_grad(call: Call) -> None:
    first, second = call.args[:2]
    axis = call.node.attrs.get("axis", call.number(2, -1))
    if call.node.op == "SoftmaxBackward":
        call.run("softmax_grad", _last_axis(call, axis), second, first, call.out)
    else:
        call.run("log_softmax_grad", _last_axis(call, axis), first, second, call.out)


@_row("ArgMaxExt", "Argmax", "Argmin", "ArgMinExt", "ArgMaxWithValue", "ArgMinWithValue")
def _arg(call: Call) -> None:
    axis = call.node.attrs.get("axis", call.number(1))
    x = call.args[0]
    extents = (1, x.size, 1) if axis is None else x.split(axis)
    index, value = call.outs[0], call.outs[1] if len(call.outs) > 1 else f"({x.c_type} *)nullptr"
    call.run("arg_of", (*extents, "Max" in call.node.op or "max" in call.node.op), x, index, value)


@_row("Gather")
def _gather(call: Call) -> None:
    table, index = call.args[:2]
    if call.number(3, 0):
        raise call.unsupported()
    call.run("gather", (*table.split(call.number(2)), index.size), table, index, call.out)


@_row("UnsortedSegmentSum")
def _segments(call: Call) -> None:
    x, index, out = call.args[0], call.args[1], call.out
    inner = out.size // out.shape[0] if out.shape[0] else 0
    call.line(f"memset({out.pointer}, 0, {out.size} * sizeof(*{out.pointer}));")
    call.run("scatter_sum", (out.shape[0], inner, index.size), x, index, out)


@_row("GatherD", "GatherDGradV2")
def _gather_along(call: Call) -> None:
    x, index = call.args[0], call.args[2]
    outer, count, inner = x.split(call.number(1))
    along = index.split(call.number(1))
    if (along[0], along[2]) != (outer, inner):
        raise call.unsupported()
    extents = (outer, count, along[1], inner)
    if call.node.op == "GatherD":
        call.run("gather_along", extents, x, index, call.out)
    else:
        call.run("scatter_along", extents, index, call.args[3], call.out)


@_row("OneHot")
def _one_hot(call: Call) -> None:
    index, out = call.args[0], call.out
    on, off = (a.pointer + "[0]" for a in call.args[2:4])
    outer, depth, inner = out.split(call.node.attrs.get("axis", call.number(4, -1)))
    if inner != 1:
        raise call.unsupported()
    call.line(
        f"for (int64_t i = 0; i < {outer}; i++) for (int64_t j = 0; j < {depth}; j++) "
        f"{out.pointer}[i * {depth} + j] = {index.pointer}[i] == j ? {on} : {off};"
    )


@_row("Concat", "Stack")
def _concat(call: Call) -> None:
    out = call.out
    parts = call.args[0] if isinstance(call.args[0], list) else [call.args[0]]
    axis = call.node.attrs.get("axis", call.number(1, 0)) % max(len(out.shape), 1)
    outer = _size(out.shape[:axis])
    row = out.size // outer if outer else 0
    at = 0
    for part in parts:
        width = part.size // outer if outer else 0
        target, source = f"{out.pointer} + {at}", part.pointer
        if width > 8 or outer == 1:
            copy = (
                f"memcpy({target} + i * {row}, {source} + i * {width}, {width} * sizeof(*{source}))"
            )
            call.line(f"for (int64_t i = 0; i < {outer}; i++) {copy};")
        else:
            call.line(
                f"for (int64_t i = 0; i < {outer}; i++) for (int64_t j = 0; j < {width}; j++) "
                f"({target})[i * {row} + j] = {source}[i * {width} + j];"
            )
        at += width


@_row("Tile")
def _tile(call: Call) -> None:
    x, out = call.args[0], call.out
    times = call.number(1)
    shape = (1,) * (len(out.shape) - len(x.shape)) + x.shape
    strides = _strides(shape)
    loops, index = "", []
    for axis, (count, extent) in enumerate(zip(times, shape, strict=True)):
        loops += f"for (int64_t i{axis} = 0; i{axis} < {count * extent}; i{axis}++) "
        index.append(f"i{axis} % {extent} * {strides[axis]}")
    call.line(f"{{ int64_t at = 0; {loops}")
    call.line(f"  {out.pointer}[at++] = {x.pointer}[{' + '.join(index) or '0'}]; }}")


@_row("CumSum", "CumsumExt")
def _running_sum(call: Call) -> None:
    x = call.args[0]
    if x.type.dtype != call.out.type.dtype:
        raise call.unsupported()
    exclusive, backward = (
        (False, False)
        if call.node.op == "CumsumExt"
        else (
            bool(call.node.attrs.get("exclusive", call.number(2, False))),
            bool(call.node.attrs.get("reverse", call.number(3, False))),
        )
    )
    call.run("running_sum", (*x.split(call.number(1)), exclusive, backward), x, call.out)


@_row("Sort", "SortExt")
def _sort(call: Call) -> None:
    x = call.args[0]
    axis = call.node.attrs.get("axis", call.number(1, -1))
    descending = bool(call.node.attrs.get("descending", call.number(2, False)))
    outer, count, inner = x.split(axis)
    if inner != 1:
        raise call.unsupported()
    values, index = call.outs
    if index.type.dtype != "int32":
        raise call.unsupported()
    call.run("sort_rows", (outer, count, descending), x, values, index)


@_row("SearchSorted")
def _search(call: Call) -> None:
    table, values = call.args[:2]
    right = bool(call.node.attrs.get("right", call.number(4, False)))
    rows = _size(table.shape[:-1])
    wanted = values.size // rows if rows else 0
    if len(call.args) > 2 and call.args[2] is not None:
        raise call.unsupported()
    call.run("search", (rows, table.shape[-1], wanted, right), table, values, call.out)


@_row("Range", "Arange")
def _range(call: Call) -> None:
    start, step = call.number(0), call.number(2, 1)
    call.line(
        f"for (int64_t i = 0; i < {call.out.size}; i++) "
        f"{call.out.pointer}[i] = ({call.out.c_type})({start} + i * {step});"
    )


# ---- effects, see `control.WRITES` --------------------------------------------------------------


@_row("Assign")
def _assign(call: Call) -> None:
    target, value = call.args[:2]
    _same_type(call, target, value)
    call.line(
        f"memmove({target.pointer}, {value.pointer}, {target.size} * sizeof(*{target.pointer}));"
    )


@_row("AssignAdd", "AssignSub")
def _assign_add(call: Call) -> None:
    target, value = call.args[:2]
    _same_type(call, target, value)
    sign = "+" if call.node.op == "AssignAdd" else "-"
    call.line("#pragma GCC ivdep")
    call.line(
        f"for (int64_t i = 0; i < {target.size}; i++) "
        f"{target.pointer}[i] {sign}= {value.pointer}[i];"
    )


def _same_type(call: Call, target: Operand, value: Operand) -> None:
    if target.type.dtype != value.type.dtype or target.size != value.size:
        raise call.unsupported()


@_row("ScatterUpdate", "ScatterAdd")
def _scatter(call: Call) -> None:
    target, index, value = call.args[:3]
    _, rows, row = target.split(0)
    change = "=" if call.node.op == "ScatterUpdate" else "+="
    call.line(f"for (int64_t i = 0; i < {index.size}; i++) {{")
    call.line(f"  const int64_t at = {index.pointer}[i];")
    call.line(f"  if (at < 0 || at >= {rows}) return FAILED;")
    call.line(
        f"  for (int64_t j = 0; j < {row}; j++) "
        f"{target.pointer}[at * {row} + j] {change} {value.pointer}[i * {row} + j]; }}"
    )


@_row("ScatterNdUpdate")
def _scatter_places(call: Call) -> None:
    """Rows of the first axes that an index of several numbers names."""
    target, index, value = call.args[:3]
    axes = index.shape[-1]
    places, row = _size(index.shape[:-1]), _size(target.shape[axes:])
    call.line(f"for (int64_t i = 0; i < {places}; i++) {{ int64_t at = 0;")
    for axis, extent in enumerate(target.shape[:axes]):
        call.line(f"  {{ const int64_t k = {index.pointer}[i * {axes} + {axis}];")
        call.line(f"    if (k < 0 || k >= {extent}) return FAILED;")
        call.line(f"    at = at * {extent} + k; }}")
    call.line(f"  for (int64_t j = 0; j < {row}; j++) ")
    call.line(f"    {target.pointer}[at * {row} + j] = {value.pointer}[i * {row} + j]; }}")


@_row("Adam")
def _adam(call: Call) -> None:
    parameter, first, second = call.args[:3]
    numbers = [f"{arg.pointer}[0]" for arg in call.args[3:9]]
    nesterov = bool(call.node.attrs.get("use_nesterov", False))
    call.run("adam", (parameter.size, nesterov), parameter, first, second, *numbers, call.args[9])


@_row("AdamWeightDecay", "ApplyMomentum", "ApplyRMSProp", "SGD")
def _optimiser(call: Call) -> None:
    """One number of a parameter `p` after the other; `g` is its gradient, what changes is state."""
    first = call.args[0]
    names, lines = _UPDATES[call.node.op]
    attrs = {"decay": 0.0, "dampening": 0.0, **call.node.attrs}
    call.line("{")
    for name, arg in zip(names.split(), call.args, strict=False):
        if name == "g" or re.search(rf"\${name} -?=", lines):
            call.line(f"  {arg.c_type} *const {name}_ = ({arg.c_type} *){arg.pointer};")
            lines = re.sub(rf"\${name}\b", f"{name}_[i]", lines)
        else:
            call.line(f"  const float {name}_ = {arg.pointer}[0];")
            lines = re.sub(rf"\${name}\b", f"{name}_", lines)
    if attrs.get("nesterov") or attrs.get("use_nesterov"):
        raise call.unsupported()
    call.line(f"  const float weight_decay = {literal(attrs.get('weight_decay', 0.0), 'float32')};")
    call.line(f"  const float damping = {literal(attrs['dampening'], 'float32')};")
    call.line("#pragma GCC ivdep")
    call.line(f"  for (int64_t i = 0; i < {first.size}; i++) {{ {lines} }} }}")


_UPDATES = {
    "AdamWeightDecay": (
        "p m v rate beta1 beta2 epsilon decay g",
        "$m = $beta1 * $m + (1.0f - $beta1) * $g; $v = $beta2 * $v + (1.0f - $beta2) * $g * $g; "
        "$p -= $rate * ($m / (sqrtf($v) + $epsilon) + $decay * $p);",
    ),
    "ApplyMomentum": (
        "p sum rate g momentum",
        "$sum = $sum * $momentum + $g; $p -= $rate * $sum;",
    ),
    "ApplyRMSProp": (
        "p square moment rate g decay momentum epsilon",
        "$square = $decay * $square + (1.0f - $decay) * $g * $g; "
        "$moment = $momentum * $moment + $rate * $g / sqrtf($square + $epsilon); $p -= $moment;",
    ),
    "SGD": (
        "p g rate sum momentum first",
        "float step = $g + weight_decay * $p; if ($momentum > 0.0f) { "
        "$sum = $first > 0.0f ? step : $sum * $momentum + (1.0f - damping) * step; $first = 0.0f; "
        "step = $sum; } $p -= $rate * step;",
    ),
}


@_row("LayerNorm")
def _layer_norm(call: Call) -> None:
    x, gain, shift = call.args[:3]
    rows, width = _normalised(call, call.number(3, -1))
    epsilon = literal(float(call.number(5, 1e-7)), "float32")
    call.run("layer_norm", (rows, width), x, gain, shift, epsilon, *call.outs)


@_row("LayerNormGrad")
def _layer_norm_grad(call: Call) -> None:
    rows, width = _normalised(call, call.number(5, -1))
    epsilon = literal(float(call.node.attrs.get("epsilon", 1e-7)), "float32")
    call.run("layer_norm_grad", (rows, width), *call.args[:5], epsilon, *call.outs)


def _normalised(call: Call, axis: int) -> tuple[int, int]:
    shape = call.args[0].shape
    rows, width = _size(shape[: axis % len(shape)]), _size(shape[axis % len(shape) :])
    if call.args[0].type.dtype != "float32" or call.args[1].size not in (width, rows * width):
        raise call.unsupported()
    return rows, width


@_row("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")
def _convolution(call: Call) -> None:
    """By the columns of the image that each product takes, one image at a time."""
    op, attrs = call.node.op, call.node.attrs
    if attrs.get("group", 1) != 1 or attrs.get("format", "NCHW") != "NCHW":
        raise call.unsupported()
    x, weight, y = {
        "Conv2D": lambda: (call.args[0], call.args[1], call.out),
        "Conv2DBackpropFilter": lambda: (call.args[1], call.out, call.args[0]),
        "Conv2DBackpropInput": lambda: (call.out, call.args[1], call.args[0]),
    }[op]()
    (images, channels, height, width), (out, _, tall, wide) = x.shape, weight.shape
    top, _, left, _ = attrs["pad_list"]
    (down, across), (dilated, spread) = attrs["stride"][-2:], attrs["dilation"][-2:]
    places = y.shape[2] * y.shape[3]
    taken = channels * tall * wide
    window = (channels, height, width, tall, wide, down, across, top, left, dilated, spread)
    window += y.shape[2:]
    products = {  # rows, columns, summed, and which operand is turned
        "Conv2D": (out, places, taken, False, False),
        "Conv2DBackpropFilter": (out, taken, places, False, True),
        "Conv2DBackpropInput": (taken, places, out, True, False),
    }
    m, n, k, *turned = products[op]
    room = call.scratch(taken * places + m * n + k * (n + 15) + m * k + 64)
    call.line(f"{{ float *const columns = {room}, *const part = columns + {taken * places};")
    call.line(f"  float *const room = part + {m * n};")
    if op != "Conv2D":
        call.line(f"  memset({call.out.pointer}, 0, {call.out.size} * sizeof(float));")
    call.line(f"  for (int64_t n = 0; n < {images}; n++) {{")
    image, result = (
        f"{x.pointer} + n * {channels * height * width}",
        (f"{y.pointer} + n * {out * places}"),
    )
    if op != "Conv2DBackpropInput":
        call.run("columns_of", (*window, False), image, "columns")
    if op == "Conv2D":
        call.run("product", (m, n, k, *turned), weight, "columns", result, "room")
    elif op == "Conv2DBackpropFilter":
        call.run("product", (m, n, k, *turned), result, "columns", "part", "room")
        call.line(f"    for (int64_t i = 0; i < {m * n}; i++) {weight.pointer}[i] += part[i];")
    else:
        call.run("product", (m, n, k, *turned), weight, result, "columns", "room")
        call.run("columns_of", (*window, True), image, "columns")
    call.line("  } }")


@_row("Custom")
def _custom(call: Call) -> None:
    """An ahead-of-time operator of ours, called as MindSpore calls it."""
    if call.node.attrs.get("func_type") != "aot":
        raise call.unsupported()
    ins = [arg for arg in call.args if isinstance(arg, Operand)]
    every = [*ins, *call.outs]
    pointers = ", ".join(f"(void *){o.pointer}" for o in every)
    call.line(f"{{ void *data[] = {{{pointers}}};")
    call.line(f"  int ranks[] = {{{', '.join(str(len(o.shape)) for o in every)}}};")
    for i, operand in enumerate(every):
        call.line(f"  int64_t s{i}[] = {{{', '.join(map(str, operand.shape)) or 0}}};")
    call.line(f"  int64_t *shapes[] = {{{', '.join(f's{i}' for i in range(len(every)))}}};")
    names = ", ".join(f'"{o.type.dtype}"' for o in every)
    call.line(f"  const char *dtypes[] = {{{names}}};")
    function = call.function(call.node.attrs["func_name"])
    call.line(f"  if ({function}({len(every)}, data, ranks, shapes, dtypes, nullptr, nullptr))")
    call.line("    return FAILED; }")
