"""Every row of the table against NumPy, with numbers that are none and arrays that are empty."""

import math

import numpy as np
import pytest
from units import node, number, run, tensor

from mindspore_rl.native.elementwise import ELEMENTWISE
from mindspore_rl.native.program import Type

SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 2.5, -3.5, 30.0, -90.0, 1e-8, 1e30],
    np.float32,
)
A, B = (m.ravel() for m in np.meshgrid(SPECIAL, SPECIAL))
INTS = np.array([0, 1, -1, 2, 7, -7, 100, -(2**31), 2**31 - 1], np.int32)
I0, I1 = (m.ravel() for m in np.meshgrid(INTS, INTS))
WORDS = np.array([0, 1, 5, 2**31, 2**32 - 1], np.uint32)
SHIFTS = np.array([0, 1, 13, 31, 5], np.uint32)
TRUTH = A > B


def _sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def _erf(x):
    return np.vectorize(math.erf, otypes=[float])(x)


def _softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


ONE = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Square": np.square,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Reciprocal": lambda x: 1 / x,
    "Inv": lambda x: 1 / x,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Trunc": np.trunc,
    "Sign": np.sign,
    "Exp": np.exp,
    "Expm1": np.expm1,
    "Log": np.log,
    "Log1p": np.log1p,
    "Log2": np.log2,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "ACos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Tanh": np.tanh,
    "Erf": _erf,
    "Erfc": np.vectorize(math.erfc, otypes=[float]),
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "Sigmoid": _sigmoid,
    "SiLU": lambda x: x * _sigmoid(x),
    "Softplus": _softplus,
    "GeLU": _gelu,
    "IsNan": np.isnan,
    "IsInf": np.isinf,
    "IsFinite": np.isfinite,
    "ZerosLike": np.zeros_like,
    "ZerosLikeExt": np.zeros_like,
    "OnesLike": np.ones_like,
    "TensorMove": lambda x: x,
    "Cast": lambda x: x,
}
TWO = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "RealDiv": np.divide,
    "FloorDiv": lambda a, b: np.floor(a / b),
    "FloorMod": np.mod,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Atan2": np.arctan2,
    "Pow": np.power,
    "BiasAdd": np.add,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "TanhGrad": lambda y, dy: dy * (1 - y * y),
    "ReluGrad": lambda dy, y: np.where(y > 0, dy, 0),
    "SigmoidGrad": lambda y, dy: dy * y * (1 - y),
    "SqrtGrad": lambda y, dy: dy * 0.5 / y,
    "RsqrtGrad": lambda y, dy: dy * -0.5 * y * y * y,
    "ReciprocalGrad": lambda y, dy: -dy * y * y,
    "InvGrad": lambda y, dy: -dy * y * y,
    "SoftplusGrad": lambda dy, x: dy * _sigmoid(x),
    "SiLUGrad": lambda dy, x: dy * _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "AbsGrad": lambda x, dy: dy * np.sign(x),
    "LogGrad": lambda x, dy: dy / x,
    "AddN": np.add,
}
SCALAR = {
    "AddScalar": np.add,
    "SubScalar": np.subtract,
    "Muls": np.multiply,
    "Divs": np.divide,
    "PowTensorScalar": np.power,
    "GreaterScalar": np.greater,
    "GreaterEqualScalar": np.greater_equal,
    "LessScalar": np.less,
    "LessEqualScalar": np.less_equal,
    "EqScalar": np.equal,
    "NeScalar": np.not_equal,
}
WORD = {
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "LeftShift": np.left_shift,
    "RightShift": np.right_shift,
}
LOGIC = {"LogicalAnd": np.logical_and, "LogicalOr": np.logical_or, "LogicalXor": np.logical_xor}
INTEGER = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Less": np.less,
    "Sign": lambda i, _: np.sign(i),
}
BOOLEAN = {"IsNan", "IsInf", "IsFinite", *LOGIC} | {
    name
    for name in ELEMENTWISE
    if name.startswith(("Greater", "Less", "Equal", "NotE", "EqS", "NeS"))
}


def _like(array, op):
    return Type(array.shape, "bool" if op in BOOLEAN else array.dtype.name)


def _cases(a, b, i, j, word, shift, truth):
    """Nodes, with what they should give."""
    inputs = {}

    def given(name, array):
        value = tensor(name, array)
        inputs[value] = array
        return value

    va, vb = given("a", a), given("b", b)
    vi, vj = given("i", i), given("j", j)
    vw, vs = given("w", word), given("s", shift)
    vt = given("t", truth)
    wide = a.astype(np.float64), b.astype(np.float64)
    cases = [
        (node("LogicalNot", vt, type=_like(truth, "LogicalNot")), ~truth),
        (node("Select", vt, va, vb, type=_like(a, "")), np.where(truth, a, b)),
        (node("MaskedFill", va, vt, vb, type=_like(a, "")), np.where(truth, b, a)),
        (node("AddExt", va, vb, number(2), type=_like(a, "")), wide[0] + 2 * wide[1]),
        (node("SubExt", va, vb, number(2), type=_like(a, "")), wide[0] - 2 * wide[1]),
        (node("Cast", va, type=Type(a.shape, "bool")), a != 0),
        (node("Cast", vi, type=Type(i.shape, "float32")), i),
        (node("FillV2", None, number(2.5), type=_like(a, "")), np.full_like(a, 2.5)),
        (node("FillScalar", None, number(2.5), type=_like(a, "")), np.full_like(a, 2.5)),
        (node("Zeros", type=_like(a, "")), np.zeros_like(a)),
        (node("Ones", type=_like(a, "")), np.ones_like(a)),
        (
            node("Strided", va, type=_like(a, ""), offset=max(len(a) - 1, 0), strides=(-1,)),
            a[::-1],
        ),
    ]
    cases += [
        (node(op, va, number(-1.0), number(2.0), type=_like(a, op)), np.clip(a, -1, 2))
        for op in ("ClampScalar", "ClampTensor")
    ]
    cases += [(node(op, va, type=_like(a, op)), f(wide[0])) for op, f in ONE.items()]
    cases += [(node(op, va, vb, type=_like(a, op)), f(a, b)) for op, f in TWO.items()]
    for op, f in SCALAR.items():
        cases.append((node(op, va, number(0.3), type=_like(a, op)), f(wide[0], np.float32(0.3))))
    cases += [(node(op, vw, vs, type=_like(word, op)), f(word, shift)) for op, f in WORD.items()]
    other = truth[::-1]
    vo = given("o", other.copy())
    cases += [(node(op, vt, vo, type=_like(truth, op)), f(truth, other)) for op, f in LOGIC.items()]
    cases += [(node(op, vi, vj, type=_like(i, op)), f(i, j)) for op, f in INTEGER.items()]
    return inputs, cases


@pytest.mark.parametrize("level", [0, 1, 2])
def test_elementwise_rows_agree_with_numpy(level, levels):
    if level > levels:
        pytest.skip("this processor has no such vectors")
    with np.errstate(all="ignore"):
        inputs, cases = _cases(A, B, I0, I1, WORDS, SHIFTS, TRUTH)
    assert {made.op for made, _ in cases} == set(ELEMENTWISE)
    found = run([made for made, _ in cases], inputs, level=level)
    for (made, wanted), got in zip(cases, found, strict=True):
        with np.errstate(all="ignore"):
            wanted = np.asarray(wanted).astype(got.dtype)  # noqa: PLW2901
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), 3e-6, 1e-7, err_msg=made.op
        )


def test_elementwise_rows_of_empty_arrays():
    none = np.zeros(0, np.float32)
    inputs, cases = _cases(
        none, none, INTS[:0], INTS[:0], WORDS[:0], WORDS[:0], np.zeros(0, np.bool_)
    )
    assert all(got.shape == (0,) for got in run([made for made, _ in cases], inputs))
