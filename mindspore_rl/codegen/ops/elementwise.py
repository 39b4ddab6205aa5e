"""Rules of element-wise primitives: one scalar expression each.

Neighbouring nodes of one size are fused into one loop, see `fusion`.
"""

import math
import re
from typing import Any

import numpy as np

from mindspore_rl.codegen.cfg import Unsupported
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.primitives import PRIMITIVES

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
    name: primitive.cpp for name, primitive in PRIMITIVES.items() if primitive.cpp is not None
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
