"""Element-wise primitives: an expression of single numbers each.

Neighbours of one size become one loop, see `writer`.
"""

import math
from typing import Any

import numpy as np

from mindspore_rl.native.control import Unsupported
from mindspore_rl.native.program import Value

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


def literal(data: Any, dtype: str) -> str:
    """A number in C++, in a dtype's type if it is a floating-point number."""
    data = plain(data)
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
    return plain(value.data) if value.op == "constant" else None


def plain(data: Any) -> Any:
    """Data with arrays as numbers and lists."""
    return data.tolist() if isinstance(data, np.ndarray) else data
