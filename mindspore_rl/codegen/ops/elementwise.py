"""Rules of element-wise primitives: one scalar expression each.

Neighbouring nodes of one size are fused into one loop, see `fusion`.
"""

import math
import re
from typing import Any

import numpy as np

from mindspore_rl.codegen.cfg import Unsupported
from mindspore_rl.mindir.graph import Value

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
    "Addcmul": "{0} + {3} * {1} * {2}",
    "Addcdiv": "{0} + {3} * {1} / {2}",
    "Lerp": "{0} + {2} * ({1} - {0})",
    "LerpScalar": "{0} + {2} * ({1} - {0})",
    "Hypot": "hypotf({0}, {1})",
    "Mod": "fmodf({0}, {1})",
    "DivMod": "rounded({0} / {1}, {2})",
    "RemainderTensorTensor": "floor_mod({0}, {1})",
    "RemainderTensorScalar": "floor_mod({0}, {1})",
    "RemainderScalarTensor": "floor_mod({0}, {1})",
    "Xlogy": "({0} == 0.0f && {1} == {1} ? 0.0f : {0} * logf({1}))",
    "Maximum": "larger({0}, {1})",
    "Minimum": "smaller({0}, {1})",
    "Fmax": "fmaxf({0}, {1})",
    "Fmin": "fminf({0}, {1})",
    "ClampScalar": "smaller(larger({0}, {1}), {2})",
    "ClampTensor": "smaller(larger({0}, {1}), {2})",
    "Floor": "floorf({0})",
    "Ceil": "ceilf({0})",
    "Round": "rintf({0})",
    "Trunc": "truncf({0})",
    "Sign": "sign({0})",
    "Heaviside": "({0} == 0.0f ? {1} : {0} > 0.0f ? 1.0f : {0} < 0.0f ? 0.0f : {0})",
    "NanToNum": "({0} != {0} ? {1} : {0} == INFINITY ? {2} : {0} == -INFINITY ? {3} : {0})",
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
    "Asinh": "asinhf({0})",
    "Acosh": "acoshf({0})",
    "Atanh": "atanhf({0})",
    "Sinc": "({0} == 0.0f ? 1.0f : sinf(3.14159265f * {0}) / (3.14159265f * {0}))",
    "Erfinv": "erfinv({0})",
    "Lgamma": "lgammaf({0})",
    "Digamma": "digamma({0})",
    "Logit": "log_odds({0}, {1})",
    "Erf": "erff({0})",
    "Erfc": "erfcf({0})",
    "ReLU": "relu({0})",
    "ReLU6": "smaller(relu({0}), 6.0f)",
    "Sigmoid": "sigmoid({0})",
    "SiLU": "{0} * sigmoid({0})",
    "Softplus": "softplus({0})",
    "SoftplusExt": "({0} * {1} > {2} ? {0} : log1pf(expf(smaller({0} * {1}, {2}))) / {1})",
    "GeLU": "0.5f * {0} * (1.0f + tanhf(0.7978845608f * ({0} + 0.044715f * {0} * {0} * {0})))",
    "FastGeLU": "{0} / (1.0f + expf(-1.702f * std::abs({0}))) * "
    "expf(0.851f * ({0} - std::abs({0})))",
    "Elu": "({0} > 0.0f ? {0} : {1} * expm1f({0}))",
    "CeLU": "({0} > 0.0f ? {0} : {1} * expm1f({0} / {1}))",
    "SeLU": "1.05070098f * ({0} > 0.0f ? {0} : 1.67326324f * expm1f({0}))",
    "PReLU": "({0} > 0.0f ? {0} : {1} * {0})",
    "Mish": "{0} * tanhf(softplus({0}))",
    "Softsign": "{0} / (1.0f + std::abs({0}))",
    "HSwish": "({0} <= -3.0f ? 0.0f : {0} >= 3.0f ? {0} : {0} * ({0} + 3.0f) / 6.0f)",
    "HSigmoid": "smaller(larger({0} / 6.0f + 0.5f, 0.0f), 1.0f)",
    "HShrink": "(std::abs({0}) <= {1} ? 0.0f : {0})",
    "SoftShrink": "({0} > {1} ? {0} - {1} : {0} < -{1} ? {0} + {1} : {0} * 0.0f)",
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
    "AsinGrad": "{1} / sqrtf(1.0f - {0} * {0})",
    "ACosGrad": "-{1} / sqrtf(1.0f - {0} * {0})",
    "AtanGrad": "{1} / (1.0f + {0} * {0})",
    "AsinhGrad": "{1} / coshf({0})",
    "AcoshGrad": "{1} / sinhf({0})",
    "LogitGrad": "({2} >= 0.0f && ({1} < {2} || {1} > 1.0f - {2}) ? 0.0f : "
    "{0} / ({1} * (1.0f - {1})))",
    "SoftplusGradExt": "({1} * {2} > {3} ? {0} : {0} * sigmoid({1} * {2}))",
    "GeLUGrad": "{0} * gelu_slope({1})",
    "FastGeLUGrad": "{0} * sigmoid(1.702f * {1}) * "
    "(1.0f + 1.702f * {1} * (1.0f - sigmoid(1.702f * {1})))",
    "ReLU6Grad": "({1} > 0.0f && {1} < 6.0f ? {0} : 0.0f)",
    "EluGrad": "({1} > 0.0f ? {0} : {0} * ({1} + 1.0f))",
    "HSwishGrad": "({1} <= -3.0f ? 0.0f : {1} >= 3.0f ? {0} : {0} * ({1} / 3.0f + 0.5f))",
    "HSigmoidGrad": "({1} > -3.0f && {1} < 3.0f ? {0} / 6.0f : 0.0f)",
    "HShrinkGrad": "(std::abs({1}) <= {2} ? 0.0f : {0})",
    "SoftShrinkGrad": "(std::abs({1}) <= {2} ? 0.0f : {0})",
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
    "MaskedFillScalar": "({1} ? {2} : {0})",
    "InplaceMaskedFillTensor": "({1} ? {2} : {0})",
    "InplaceMaskedFillScalar": "({1} ? {2} : {0})",
    "IsClose": "({0} == {1} || {4} && {0} != {0} && {1} != {1} || std::abs({1}) < INFINITY && "
    "std::abs({0} - {1}) <= {3} + {2} * std::abs({1}))",
    # bits
    "BitwiseAnd": "{0} & {1}",
    "BitwiseAndTensor": "{0} & {1}",
    "BitwiseAndScalar": "{0} & {1}",
    "BitwiseOr": "{0} | {1}",
    "BitwiseOrTensor": "{0} | {1}",
    "BitwiseOrScalar": "{0} | {1}",
    "BitwiseXor": "{0} ^ {1}",
    "BitwiseXorTensor": "{0} ^ {1}",
    "BitwiseXorScalar": "{0} ^ {1}",
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
    "NewZeros": "0",
    "NewOnes": "1",
}


def literal(data: Any, dtype: str) -> str:
    """Returns a number as a C++ literal; a floating-point number in the type of a dtype."""
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


BY_CHANNEL = {"BiasAdd", "PReLU"}
"""Primitives whose second argument, if it is a vector, lies along the second axis."""
_OWN_TYPE = {"Maximum", "Minimum", "ClampScalar", "ClampTensor", "FloorDiv", "FloorMod"} | {
    name for name in ELEMENTWISE if name.startswith(("Remainder", "Div", "RealDiv"))
}
"""Primitives whose arguments are cast to the result's type first."""
_ANY_TYPE = {"abs", "larger", "smaller", "floor_div", "floor_mod", "sign"}
"""C++ functions that take numbers of any type."""


def expression(node: Value, args: list[str]) -> str:
    """Returns the C++ expression of an element-wise node from those of its arguments.

    An argument that is left out is an empty text.
    """
    op, dtype = node.op, node.type.dtype
    if op == "AddN":
        return " + ".join(args)
    if op in _OWN_TYPE:
        args = [arg and f"({C_TYPES[dtype]}){arg}" for arg in args]
    if op in ("PowTensorScalar", "Pow") and _exponent(node) in (1, 2):
        return " * ".join([args[0]] * int(_exponent(node)))
    text = _template(node, args).format(*args)
    if op == "Cast" and dtype == "bool":
        return f"{args[0]} != 0"
    if dtype == "float64":
        text = _of_doubles(text, op)
    if dtype.startswith(("int", "uint")):
        if set(re.findall(r"(\w+)\(", text)) - _ANY_TYPE - set(C_TYPES.values()):
            raise Unsupported(f"{op} of {dtype}")
        if dtype in ("int32", "int64") and op == "Cast":
            return f"to<{C_TYPES[dtype]}>({args[0]})"
    return text


def _template(node: Value, args: list[str]) -> str:
    """Returns the template of a node, adapted to arguments that are left out."""
    if node.op in ("ClampScalar", "ClampTensor") and not all(args[1:3]):
        return "larger({0}, {1})" if args[1] else "smaller({0}, {2})" if args[2] else "{0}"
    if node.op == "NanToNum":
        most = "std::numeric_limits<float>::max()"
        for position, default in enumerate(("0.0f", most, f"-{most}"), 1):
            args[position] = args[position] or default
    return ELEMENTWISE[node.op]


def _of_doubles(text: str, op: str) -> str:
    """Replaces float functions of the C library by those of double precision."""
    for name in set(re.findall(r"(\w+)\(", text)) - _ANY_TYPE:
        if not name.endswith("f"):
            raise Unsupported(f"{op} of float64")
        text = re.sub(rf"\b{name}\(", f"{name[:-1]}(", text)
    return text


def reads(op: str) -> set[int]:
    """Returns the positions of the arguments that an element-wise primitive reads."""
    return {int(position) for position in re.findall(r"{(\d)}", ELEMENTWISE[op])}


def _exponent(node: Value) -> Any:
    value = node.args[1]
    return plain(value.data) if value.op == "constant" else None


def plain(data: Any) -> Any:
    """Returns an array as a number or nested lists, other data unchanged."""
    return data.tolist() if isinstance(data, np.ndarray) else data
