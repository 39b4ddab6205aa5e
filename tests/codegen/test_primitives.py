"""Every primitive of the table against NumPy, with NaN, infinities and empty arrays."""

import math

import numpy as np
import pytest
from scipy import special

from mindspore_rl.codegen.ops.elementwise import ELEMENTWISE
from mindspore_rl.mindir.graph import Type
from mindspore_rl.platform import toolchain
from tests.codegen.units import node, number, run, tensor
from tests.tiers import quick

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


def _tanh(x):
    s = x * x
    near = x * (((s + 378) * s + 17325) * s + 135135)
    near = near / (((28 * s + 3150) * s + 62370) * s + 135135)
    return np.where(np.abs(x) > 5, np.sign(x), near)


def _erf(x):
    return np.vectorize(math.erf, otypes=[float])(x)


def _softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def _gelu_slope(x):
    x = np.clip(x.astype(np.float64), -10, 10)
    t = np.tanh(0.7978845608 * (x + 0.044715 * x * x * x))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608 * (1 + 0.134145 * x * x)


def _fast_gelu_slope(x):
    return 1 + 1.702 * x * (1 - _sigmoid(1.702 * x))


def _shrink(x):
    return np.where(x > 0.3, x - 0.3, np.where(x < -0.3, x + 0.3, x * 0))


AS_NUMPY = (
    *("Abs", "Square", "Sqrt", "Floor", "Ceil", "Trunc", "Sign", "Exp", "Expm1", "Log", "Log1p"),
    *("Log2", "Sin", "Cos", "Tan", "Sinh", "Cosh", "IsNan", "IsInf", "IsFinite", "Sinc"),
)
ONE = {
    **{op: getattr(np, op.lower()) for op in AS_NUMPY},
    "Neg": np.negative,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Reciprocal": lambda x: 1 / x,
    "Inv": lambda x: 1 / x,
    "Round": np.rint,
    "Asin": np.arcsin,
    "ACos": np.arccos,
    "Atan": np.arctan,
    "Tanh": _tanh,
    "Erf": _erf,
    "Erfc": np.vectorize(math.erfc, otypes=[float]),
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU6": lambda x: np.minimum(np.maximum(x, 0), 6),
    "Sigmoid": _sigmoid,
    "SiLU": lambda x: x * _sigmoid(x),
    "Softplus": _softplus,
    "GeLU": _gelu,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Erfinv": special.erfinv,
    "SeLU": lambda x: 1.05070098 * np.where(x > 0, x, 1.67326324 * np.expm1(x)),
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "FastGeLU": lambda x: x / (1 + np.exp(-1.702 * np.abs(x))) * np.exp(0.851 * (x - np.abs(x))),
    "HSwish": lambda x: np.where(x <= -3, 0, np.where(x >= 3, x, x * (x + 3) / 6)),
    "HSigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "ZerosLike": np.zeros_like,
    "NewZeros": np.zeros_like,
    "NewOnes": np.ones_like,
    "ZerosLikeExt": np.zeros_like,
    "OnesLike": np.ones_like,
    "TensorMove": lambda x: x,
    "Cast": lambda x: x,
}
AS_NUMPYS = ("Maximum", "Minimum", "Greater", "Less", "Equal", "Hypot", "Fmax", "Fmin", "Heaviside")
TWO = {
    **{op: getattr(np, op.lower()) for op in AS_NUMPYS},
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "RealDiv": np.divide,
    "FloorDiv": lambda a, b: np.floor(a / b),
    "FloorMod": np.mod,
    "Atan2": np.arctan2,
    "Pow": np.power,
    "BiasAdd": np.add,
    "GreaterEqual": np.greater_equal,
    "LessEqual": np.less_equal,
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
    "Mod": np.fmod,
    "RemainderTensorTensor": np.mod,
    "RemainderScalarTensor": np.mod,
    "Xlogy": special.xlogy,
    "PReLU": lambda x, w: np.where(x > 0, x, w * x),
    "Elu": lambda x, w: np.where(x > 0, x, w * np.expm1(x)),
    "CeLU": lambda x, w: np.where(x > 0, x, w * np.expm1(x / w)),
    "AsinGrad": lambda x, dy: dy / np.sqrt(1 - x * x),
    "ACosGrad": lambda x, dy: -dy / np.sqrt(1 - x * x),
    "AtanGrad": lambda x, dy: dy / (1 + x * x),
    "AsinhGrad": lambda y, dy: dy / np.cosh(y),
    "AcoshGrad": lambda y, dy: dy / np.sinh(y),
    "FastGeLUGrad": lambda dy, x: dy * _sigmoid(1.702 * x) * _fast_gelu_slope(x),
    "ReLU6Grad": lambda dy, x: np.where((x > 0) & (x < 6), dy, 0),
    "EluGrad": lambda dy, y: np.where(y > 0, dy, dy * (y + 1)),
    "HSwishGrad": lambda dy, x: np.where(
        x <= -3, 0, np.where(x >= 3, dy, dy * (x / np.float32(3) + np.float32(0.5)))
    ),
    "HSigmoidGrad": lambda dy, x: np.where((x > -3) & (x < 3), dy / 6, 0),
}
SCALAR = {
    "AddScalar": np.add,
    "SubScalar": np.subtract,
    "Muls": np.multiply,
    "Divs": np.divide,
    "PowTensorScalar": np.power,
    "RemainderTensorScalar": np.mod,
    "HShrink": lambda x, edge: np.where(np.abs(x) <= edge, 0, x),
    "SoftShrink": lambda x, _: _shrink(x),
    "Logit": lambda x, edge: special.logit(np.clip(x, edge, 1 - edge)),
    "GreaterScalar": np.greater,
    "GreaterEqualScalar": np.greater_equal,
    "LessScalar": np.less,
    "LessEqualScalar": np.less_equal,
    "EqScalar": np.equal,
    "NeScalar": np.not_equal,
}
KINDS = ("", "Tensor", "Scalar")
WORD = {
    **{f"BitwiseAnd{kind}": np.bitwise_and for kind in KINDS},
    **{f"BitwiseOr{kind}": np.bitwise_or for kind in KINDS},
    **{f"BitwiseXor{kind}": np.bitwise_xor for kind in KINDS},
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
    "Div": lambda i, j: i / j.astype(np.float32),
}
BOOLEAN = {"IsNan", "IsInf", "IsFinite", "IsClose", *LOGIC} | {
    name
    for name in ELEMENTWISE
    if name.startswith(("Greater", "Less", "Equal", "NotE", "EqS", "NeS"))
}


def _like(array, op):
    return Type(array.shape, "bool" if op in BOOLEAN else array.dtype.name)


def _cases(a, b, i, j, word, shift, truth):
    """Yields nodes with their expected results."""
    inputs = {}

    def given(name, array):
        value = tensor(name, array)
        inputs[value] = array
        return value

    va, vb = given("a", a), given("b", b)
    vi, vj = given("i", i), given("j", j)
    vw, vs = given("w", word), given("s", shift)
    vt = given("t", truth)
    positive = np.abs(np.nan_to_num(a)).clip(1e-3, 1e6)
    vp = given("p", positive)
    limited = np.nan_to_num(b).clip(-100, 100)
    vl = given("l", limited)
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
        (node("Strided", va, type=_like(a, ""), offset=max(len(a) - 1, 0), strides=(-1,)), a[::-1]),
    ]
    cases += [
        (node(op, va, number(-1.0), number(2.0), type=_like(a, op)), np.clip(a, -1, 2))
        for op in ("ClampScalar", "ClampTensor")
    ]
    three, none, half = number(0.3), number(None), np.float32(0.5)
    small = np.where(np.abs(a) <= np.float32(0.3), 0, b)
    for op, args, wanted in [
        ("ClampScalar", (va, none, number(2.0)), np.minimum(a, 2)),
        ("ClampTensor", (va, number(-1.0), none), np.maximum(a, -1)),
        ("MaskedFillScalar", (va, vt, number(0.5)), np.where(truth, half, a)),
        ("InplaceMaskedFillScalar", (given("c", a), vt, number(0.5)), np.where(truth, half, a)),
        ("InplaceMaskedFillTensor", (given("d", a), vt, number(0.5)), np.where(truth, half, a)),
        ("Addcmul", (va, vb, va, number(0.5)), a + half * b * a),
        ("Addcdiv", (va, vb, va, number(0.5)), a + half * b / a),
        ("Lerp", (va, vb, number(0.5)), a + half * (b - a)),
        ("LerpScalar", (va, vb, number(0.5)), a + half * (b - a)),
        ("DivMod", (va, vb, number(1)), np.trunc(a / b)),
        ("DivMod", (va, vb, number(2)), np.floor(a / b)),
        ("NanToNum", (va, none, none, none), np.nan_to_num(a)),
        ("NanToNum", (va, number(1.0), number(2.0), none), np.nan_to_num(a, True, 1, 2)),
        ("IsClose", (va, vb, number(1e-5), number(1e-8), number(False)), np.isclose(a, b)),
        (
            "IsClose",
            (va, vb, number(0.1), number(1.0), number(True)),
            np.isclose(a, b, np.float32(0.1), 1, True),
        ),
        ("SoftplusExt", (va, number(2.0), number(20.0)), _softplus(2 * wide[0]) / 2),
        (
            "SoftplusGradExt",
            (vb, va, number(2.0), number(20.0)),
            np.where(2 * a > 20, b, b * _sigmoid(2 * a)),
        ),
        ("HShrinkGrad", (vb, va, three), small),
        ("SoftShrinkGrad", (vb, va, three), small),
        ("Logit", (va, number(-1.0)), np.log(a / (1 - a))),
        ("LogitGrad", (vb, va, number(-1.0)), b / (a * (1 - a))),
        ("LogitGrad", (vb, va, three), np.where((a < 0.3) | (a > 0.7), 0, b / (a * (1 - a)))),
        ("GeLUGrad", (vl, va), limited * _gelu_slope(a)),
        ("Lgamma", (vp,), special.gammaln(positive)),
        ("Digamma", (vp,), special.digamma(positive.astype(np.float64))),
    ]:
        cases.append((node(op, *args, type=_like(a, op)), wanted))
    cases += [(node(op, va, type=_like(a, op)), f(wide[0])) for op, f in ONE.items()]
    cases += [(node(op, va, vb, type=_like(a, op)), f(a, b)) for op, f in TWO.items()]
    for op, f in SCALAR.items():
        cases.append((node(op, va, number(0.3), type=_like(a, op)), f(wide[0], np.float32(0.3))))
    cases += [(node(op, vw, vs, type=_like(word, op)), f(word, shift)) for op, f in WORD.items()]
    other = truth[::-1]
    vo = given("o", other.copy())
    cases += [(node(op, vt, vo, type=_like(truth, op)), f(truth, other)) for op, f in LOGIC.items()]
    for op, f in INTEGER.items():
        wanted = f(i, j)
        kind = Type(i.shape, "float32") if op == "Div" else _like(i, op)
        cases.append((node(op, vi, vj, type=kind), wanted))
    return inputs, cases


@pytest.mark.parametrize("level", quick(range(toolchain.level() + 1), toolchain.level()))
def test_elementwise_rows_agree_with_numpy(level):
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
