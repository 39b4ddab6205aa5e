"""Operators on whole arrays against NumPy: sizes 1, odd, prime and zero, and NaN."""

import numpy as np
import pytest

from mindspore_rl.codegen.cfg import Unsupported
from mindspore_rl.codegen.effects import WRITES
from mindspore_rl.codegen.ops.all import WRITERS
from mindspore_rl.errors import MsrlError
from mindspore_rl.mindir.graph import Type
from mindspore_rl.platform import toolchain
from tests.codegen.units import node, number, run, tensor
from tests.tiers import quick

RNG = np.random.default_rng(1)
OTHERWISE = {*WRITES, "Custom", "LayerNorm", "LayerNormGrad", "Panels"}
OTHERWISE |= {"Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Conv2DTranspose"}
OTHERWISE |= {f"{kind}Pool{grad}" for kind in ("Max", "Avg") for grad in ("", "Grad")}
OTHERWISE |= {"MaxPoolWithArgmaxV2", "MaxPoolGradWithArgmaxV2"}
"""Operators with effects, our own operators and whole layers; cells test them."""


def _floats(*shape, nan=False):
    array = RNG.normal(size=shape).astype(np.float32)
    if nan and array.size:
        array.ravel()[array.size // 2] = np.nan
    return array


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True)) if x.size else x
    return e / e.sum(-1, keepdims=True)


def _log_softmax(x):
    return np.log(_softmax(x))


def _one_hot(index, depth):
    return (index[..., None] == np.arange(depth)).astype(np.float32)


class Cases:
    def __init__(self):
        self.inputs, self.nodes, self.wanted = {}, [], []

    def add(self, op, args, wanted, kinds=None, **attrs):
        """Adds a node of arrays and numbers; `kinds` are the dtypes of several results."""
        values = [self._value(arg) for arg in args]
        several = isinstance(wanted, tuple)
        types = tuple(Type(w.shape, w.dtype.name) for w in (wanted if several else (wanted,)))
        made = node(op, *values, type=types if several else types[0], **attrs)
        self.nodes.append(made)
        self.wanted.append((op, made, wanted if several else (wanted,)))

    def _value(self, arg):
        if isinstance(arg, list):
            return tuple(self._value(part) for part in arg)
        if not isinstance(arg, np.ndarray):
            return None if arg is None else number(arg)
        value = tensor(f"x{len(self.inputs)}", arg)
        self.inputs[value] = arg
        return value

    def check(self, level=None):
        results = [
            part
            for _, made, wanted in self.wanted
            for part in (made.attrs["parts"] if len(wanted) > 1 else [made])
        ]
        found = iter(run(self.nodes, self.inputs, results, level))
        for op, _, wanted in self.wanted:
            for array in wanted:
                np.testing.assert_allclose(next(found), array, 2e-5, 2e-6, err_msg=op)


def _reductions(cases, nan):
    for shape in ((1,), (7,), (33, 5), (4, 64), (130, 3, 17)):
        x = _floats(*shape, nan=nan)
        for axis in (None, 0, -1):
            axes = () if axis is None else (axis,)
            cases.add("SumExt", [x, axes, False, None], np.asarray(x.sum(axis)))
            cases.add("ReduceSum", [x, axes], np.asarray(x.sum(axis)))
            cases.add("MeanExt", [x, axes, False, None], np.asarray(x.mean(axis)))
            cases.add("ReduceMean", [x, axes], np.asarray(x.mean(axis)))
            cases.add("ReduceMax", [x, axes], np.asarray(x.max(axis)))
            cases.add("ReduceMin", [x, axes], np.asarray(x.min(axis)))
            cases.add("AMax", [x, axes], np.asarray(x.max(axis)))
            cases.add("AMin", [x, axes], np.asarray(x.min(axis)))
            for op in ("ReduceProd", "ProdExt"):
                cases.add(op, [x[:5], axes], np.asarray(x[:5].prod(axis)))
        cases.add("Max", [x], np.asarray(x.max()))
        cases.add("Min", [x], np.asarray(x.min()))
        truth = x > 0
        cases.add("ReduceAll", [truth, (0,)], truth.all(0))
        cases.add("ReduceAny", [truth, (0,)], truth.any(0))
        cases.add("SumExt", [truth.astype(np.int32), (0,)], truth.sum(0).astype(np.int32))
        if not nan:
            cases.add("Argmax", [x, -1], np.asarray(x.argmax(-1).astype(np.int32)))
            cases.add("ArgMaxExt", [x, None, False], np.asarray(x.argmax()))
            cases.add("Argmin", [x, 0], np.asarray(x.argmin(0).astype(np.int32)))
            cases.add("ArgMinExt", [x, 0, False], np.asarray(x.argmin(0)))
            pair = np.asarray(x.argmax(0).astype(np.int32)), np.asarray(x.max(0))
            cases.add("ArgMaxWithValue", [x, 0, False], pair)
            pair = np.asarray(x.argmin(0).astype(np.int32)), np.asarray(x.min(0))
            cases.add("ArgMinWithValue", [x, 0, False], pair)
        cases.add("L2Loss", [x], np.asarray(0.5 * np.sum(x.astype(float) ** 2), np.float32))
    x = _floats(4, 5, 3, 2, nan=nan)
    for axes in ((0, 2), (1, 3), (0, 3), (0, 1, 3)):
        cases.add("SumExt", [x, axes, False, None], x.sum(axes))
        cases.add("ReduceMax", [x, axes], x.max(axes))
    cases.add("SumExt", [x > 0, (0, 2), False, None], (x > 0).sum((0, 2)))
    cases.add("ReduceMean", [x > 0, ()], np.asarray((x > 0).mean(), np.float32))
    x = _floats(33, 5, nan=nan)
    cases.add("BiasAddGrad", [x], x.sum(0))
    x = _floats(3, 5, 2, 2, nan=nan)
    cases.add("BiasAddGrad", [x], x.sum((0, 2, 3)))
    x = np.full((50_000, 3), 0.1, np.float32)  # a running sum is off by 1e-4
    cases.add("SumExt", [x, (0,), False, None], x.sum(0, np.float64).astype(np.float32))
    x = _floats(300, 600, nan=nan)
    cases.add("SumExt", [x, (0,), False, None], x.sum(0, np.float64).astype(np.float32))


def _products(cases, nan):
    for m, k, n in (
        (1, 1, 1),
        (7, 5, 3),
        (8, 64, 64),
        (33, 17, 2),
        (130, 64, 1),
        (40, 9, 20),
        (5, 3, 70),
    ):
        a, b = _floats(m, k, nan=nan), _floats(k, n)
        wanted = a @ b
        left, right = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
        for shape in ((64, 20), (7, 5), (1, 9), (16, 1)):
            x = _floats(*shape, nan=nan)
            cases.add("Turned", [x], np.ascontiguousarray(x.T))
        cases.add("MatMul", [a, b, False, False], wanted)
        cases.add("MatMul", [a, right, False, True], wanted)
        cases.add("MatMul", [left, b, True, False], wanted)
        cases.add("MatMul", [left, right, True, True], wanted)
        cases.add("MatMulExt", [a, b], wanted)
        cases.add("Mm", [a, b], wanted)
        bias = _floats(n)
        cases.add("Dense", [a, right, bias], wanted + bias)
    a, b = _floats(3, 4, 5, nan=nan), _floats(3, 5, 6)
    cases.add("BatchMatMul", [a, b, False, False], a @ b)
    cases.add("BatchMatMulExt", [a, b], a @ b)
    cases.add("MatMulExt", [a, b[0].copy()], a @ b[0])
    v, w = _floats(5), _floats(4)
    cases.add("MatMulExt", [a[0].copy(), v], a[0] @ v)
    cases.add("MatMulExt", [a, v], a @ v)
    cases.add("MatMulExt", [v, b], v @ b)
    cases.add("MatMulExt", [w, a[0].copy()], w @ a[0])
    cases.add("MatMulExt", [w, w], np.asarray(w @ w))
    cases.add("MatMulExt", [a[0].copy(), b], a[0] @ b)
    cases.add("BatchMatMul", [a[:1].copy(), b, False, False], a[:1] @ b)
    wide = _floats(2, 1, 5, 6)
    cases.add("MatMulExt", [a, wide], a @ wide)


def _rest(cases, nan):
    x, dy = _floats(9, 5, nan=nan), _floats(9, 5)
    soft, log_soft = _softmax(x), _log_softmax(x)
    cases.add("Softmax", [x, (-1,)], soft)
    cases.add("LogSoftmax", [x, -1], log_soft)
    cases.add("LogSoftmaxExt", [x, -1, None], log_soft)
    wanted = dy - np.exp(log_soft) * dy.sum(-1, keepdims=True)
    cases.add("LogSoftmaxGrad", [log_soft, dy, -1], wanted)
    wanted = soft * (dy - (soft * dy).sum(-1, keepdims=True))
    cases.add("SoftmaxBackward", [dy, soft, -1], wanted)
    index = np.array([3, 0, 8, 3], np.int32)
    cases.add("Gather", [x, index, 0, 0], x[index])
    cases.add("Gather", [x, index[:2] // 2, 1, 0], x[:, index[:2] // 2])
    sums = np.zeros((9, 5), np.float32)
    np.add.at(sums, index, dy[:4])
    cases.add("UnsortedSegmentSum", [dy[:4].copy(), index, 9], sums)
    along = RNG.integers(0, 5, (9, 2)).astype(np.int32)
    cases.add("GatherD", [x, -1, along], np.take_along_axis(x, along, -1))
    grad = np.zeros_like(x)
    np.add.at(grad, (np.arange(9)[:, None], along), dy[:, :2])
    cases.add("GatherDGradV2", [x, -1, along, dy[:, :2].copy()], grad)
    on, off = np.float32(1), np.float32(0)
    hot = _one_hot(along, 5)
    cases.add("OneHot", [along, 5, np.array(on), np.array(off), -1], hot)
    cases.add("Concat", [[x, dy, x[:, :1].copy()], 1], np.concatenate([x, dy, x[:, :1]], 1))
    cases.add("Concat", [[x, dy], 0], np.concatenate([x, dy], 0))
    cases.add("Stack", [[x, dy]], np.stack([x, dy], 1), axis=1)
    cases.add("Tile", [x, (2, 3)], np.tile(x, (2, 3)))
    cases.add("CumSum", [x, 0, False, False], x.cumsum(0))
    cases.add("CumsumExt", [x, -1, None], x.cumsum(-1))
    order = np.argsort(x, -1, kind="stable").astype(np.int32)
    cases.add("Sort", [x], (np.sort(x, -1), order), axis=-1, descending=False)
    order = np.argsort(-x, -1, kind="stable").astype(np.int32)
    cases.add("SortExt", [x, -1, True, True], (np.take_along_axis(x, order, -1), order))
    table = np.sort(_floats(3, 7), -1)
    value = _floats(3, 4)
    wanted = np.stack([np.searchsorted(t, v, "right") for t, v in zip(table, value, strict=True)])
    cases.add("SearchSorted", [table, value, None, None, True], wanted.astype(np.int32))
    cases.add("Range", [2, 11, 3, 100], np.arange(2, 11, 3))
    cases.add("Arange", [2, 11, 3, None], np.arange(2, 11, 3))


def _orders(cases, nan):
    x, dy = _floats(4, 5, 3, nan=nan), _floats(4, 5, 3)
    for axis in (0, 1, 2):

        def last(a, axis=axis):
            return np.moveaxis(a, axis, -1)

        def back(a, axis=axis):
            return np.ascontiguousarray(np.moveaxis(a, -1, axis))

        soft, log_soft = _softmax(last(x)), _log_softmax(last(x))
        cases.add("Softmax", [x, (axis,)], back(soft))
        cases.add("LogSoftmax", [x, axis], back(log_soft))
        d = last(dy)
        wanted = soft * (d - (soft * d).sum(-1, keepdims=True))
        cases.add("SoftmaxBackward", [dy, back(soft), axis], back(wanted))
        order = np.argsort(x, axis, kind="stable").astype(np.int32)
        cases.add("Sort", [x], (np.sort(x, axis), order), axis=axis, descending=False)
        for op, most in (("Cummax", np.maximum), ("Cummin", np.minimum)):
            wanted = most.accumulate(x, axis)
            reached = np.zeros(x.shape, np.int64)
            for i in range(x.shape[axis]):
                here = last(reached)  # a view
                found = last(x)[..., : i + 1] == last(wanted)[..., i : i + 1]
                found |= np.isnan(last(x)[..., : i + 1]) & np.isnan(last(wanted)[..., i : i + 1])
                here[..., i] = i - np.argmax(found[..., ::-1], -1)
            cases.add(op, [x, axis], (wanted, reached))
        cases.add("CumProd", [x, axis, False, False], x.cumprod(axis))
    many, back = _floats(201, 3, nan=nan), _floats(201, 3)
    many[7], many[8, 1] = -np.inf, np.inf
    with np.errstate(invalid="ignore"):
        log_soft = _log_softmax(many)
        wanted = back - np.exp(log_soft) * back.sum(-1, keepdims=True)
        cases.add("Softmax", [many, (-1,)], _softmax(many))
    cases.add("LogSoftmax", [many, -1], log_soft)
    cases.add("LogSoftmaxGrad", [log_soft, back, -1], wanted)
    shifted = np.concatenate([np.ones((1, 5, 3), np.float32), x[:-1].cumprod(0)])
    cases.add("CumProd", [x, 0, True, False], shifted)
    cases.add("CumsumExt", [x > 0, 1, None], (x > 0).cumsum(1))
    falling = np.argsort(-x, -1, kind="stable")
    if nan:  # the largest
        falling = np.argsort(-np.nan_to_num(x, nan=np.inf), -1, kind="stable")
    rising = np.argsort(x, -1, kind="stable")
    for op, extra, order in (
        ("TopK", (), falling),
        ("TopkExt", (-1, True), falling),
        ("TopkExt", (-1, False), rising),
    ):
        first = order[..., :2]
        pair = np.take_along_axis(x, first, -1), first.astype(np.int32)
        cases.add(op, [x, 2, *extra], pair)
    for op in ("LinSpace", "LinSpaceExt"):
        ends = np.float32(-1), np.float32(3)
        cases.add(op, [*map(np.array, ends), 6], np.linspace(*ends, 6, dtype=np.float32))


def _places(cases, nan):
    x, index = _floats(4, 5, 3, nan=nan), np.array([[1, 2], [3, 0], [1, -1]], np.int32)
    at = tuple(index.T)
    for op in ("GatherNd", "GatherNdExt"):
        cases.add(op, [x, index], x[at])
    for value in (_floats(3, 3), np.ones((3, 3), np.float32)):
        sums = np.zeros_like(x)
        np.add.at(sums, at, value)
        cases.add("ScatterNd", [index, value, x.shape], sums)
        for op, change in (
            ("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply),
            ("Max", np.maximum), ("Min", np.minimum),
        ):  # fmt: skip
            wanted = x.copy()
            change.at(wanted, at, value)
            cases.add(f"TensorScatter{op}", [x, index, value], wanted)
        wanted = x.copy()
        wanted[at] = value
        cases.add("TensorScatterUpdate", [x, index, value], wanted)
    once = np.stack([RNG.permutation(5)[:2] for _ in range(12)]).reshape(4, 3, 2)
    once = np.ascontiguousarray(once.swapaxes(1, 2)).astype(np.int32)
    value = _floats(4, 2, 3)
    wanted, added, filled = x.copy(), x.copy(), x.copy()
    np.put_along_axis(wanted, once, value, 1)
    np.put_along_axis(added, once, np.take_along_axis(x, once, 1) + value, 1)
    np.put_along_axis(filled, once, np.float32(2), 1)
    cases.add("Scatter", [x, 1, once, value, 0], wanted)
    cases.add("Scatter", [x, 1, once, value, 1], added)
    cases.add("ScatterAddExt", [x, 1, once, value], added)
    cases.add("ScatterValue", [x, 1, once, np.array(2, np.float32), 0], filled)
    cases.add("InplaceScatterSrc", [x.copy(), 1, once, value], wanted)
    cases.add("TensorScatterElements", [x, once, value, 1, 0], wanted)
    cases.add("TensorScatterElements", [x, once, value, 1, 1], added)
    rows = np.array([4, 0, 4], np.int32)
    value, wanted, filled = _floats(4, 3, 3), x.copy(), x.copy()
    np.add.at(wanted, (slice(None), rows), value)
    filled[:, rows] = 2
    cases.add("IndexAddExt", [x, 1, rows, value, 1], wanted)
    cases.add("IndexFill", [x, 1, rows, np.array(2, np.float32)], filled)
    for op, most, limit in (("Max", np.maximum, -1), ("Min", np.minimum, 1)):
        wanted = np.full((6, 5, 3), limit * np.finfo(np.float32).max, np.float32)
        most.at(wanted, [5, 0, 5, 2], x)
        segments = np.array([5, 0, 5, 2], np.int32)
        cases.add(f"UnsortedSegment{op}", [x, segments, 6], wanted)
    hot = np.moveaxis(_one_hot(rows[None], 5), -1, 1)
    on, off = np.array(1, np.float32), np.array(0, np.float32)
    cases.add("OneHot", [rows[None].copy(), 5, on, off, 1], np.ascontiguousarray(hot))


def _slices(cases, nan):
    masks = {"begin_mask": 0, "end_mask": 2, "ellipsis_mask": 0, "new_axis_mask": 0}
    for name, part in (("shrink", (2, slice(1, None, 2))), ("", (slice(2, 3), slice(1, None, 2)))):
        wanted = np.zeros((4, 6, 3), np.float32)
        dy = _floats(*wanted[part].shape, nan=nan)
        wanted[part] = dy
        given = [dy, wanted.shape, (2, 1), (3, 0), (1, 2)]
        cases.add("StridedSliceGrad", given, wanted, **masks, shrink_axis_mask=int(bool(name)))
    x, value = _floats(4, 6, 3, nan=nan), _floats(2, 5, 3)
    wanted, block = x.copy(), np.zeros_like(x)
    wanted[1::2, 1:] = value
    block[1:3, 1:] = value
    cases.add("TensorCopySlices", [x, value, (1, 1), (4, 6), (2, 1)], wanted)
    cases.add("SliceGrad", [value, x, (1, 1, 0), (2, 5, 3)], block)
    cases.add("Eye", [3, 5, 43], np.eye(3, 5, dtype=np.float32))
    v = _floats(5, nan=nan)
    cases.add("Diag", [v], np.diag(v))
    cases.add("TraceGrad", [v[:1].reshape(()).copy(), (4, 3)], np.eye(4, 3, dtype=np.float32) * 0
              + np.where(np.eye(4, 3) > 0, v[0], 0).astype(np.float32))  # fmt: skip
    wanted = np.zeros((4, 6, 6), np.float32)
    wanted[:, range(6), range(6)] = x[:, :, 0]
    put = x.copy()
    put[:, range(3), range(3)] = value[:1, 0]
    cases.add("MatrixSetDiagV3", [x, np.tile(value[:1, 0], (4, 1)), 0], put)
    cases.add("MatrixDiagV3", [x[:, :, 0].copy(), 0], wanted)
    cases.add("Tril", [x, 1], np.tril(x, 1))
    cases.add("Triu", [x, -1], np.triu(x, -1))
    fill = np.array(0.5, np.float32)
    sides = ((0, 0), (1, 2), (2, 0))
    wanted = np.pad(x, sides, constant_values=0.5)
    cases.add("PadV3", [x, (2, 0, 1, 2), fill], wanted, mode="constant")
    cases.add("ConstantPadND", [x, (2, 0, 1, 2), fill], wanted)
    cases.add("Pad", [x], np.pad(x, sides), paddings=sides)
    cases.add("PadV3", [x, (-1, 1), fill], np.pad(x[..., 1:], ((0, 0), (0, 0), (0, 1)),
              constant_values=0.5), mode="constant")  # fmt: skip
    numbers = np.arange(x.size).reshape(x.shape)
    for mode, kind in (("reflect", "reflect"), ("edge", "edge"), ("circular", "wrap"),
                       ("SYMMETRIC", "symmetric")):  # fmt: skip
        wanted = np.pad(x, sides, kind)
        dy, sums = _floats(*wanted.shape, nan=nan), np.zeros(x.size, np.float32)
        np.add.at(sums, np.pad(numbers, sides, kind).ravel(), dy.ravel())

        forward, back = ("PadV3", "PadV3Grad") if mode.islower() else ("MirrorPad", "MirrorPadGrad")
        given = (2, 0, 1, 2) if mode.islower() else sides
        cases.add(forward, [x, given], wanted, mode=mode)
        cases.add(back, [dy, given], sums.reshape(x.shape), mode=mode)
    x = _floats(1, 2, 4, 6, nan=nan)
    places = np.ix_([0], [0, 1], np.arange(8) // 2, np.arange(3) * 2)
    wanted, sums = x[places], np.zeros_like(x)
    np.add.at(sums, places, wanted)
    cases.add("ResizeNearestNeighborV2", [x, (8, 3), False, False], wanted)
    cases.add("ResizeNearestNeighborV2Grad", [wanted, (4, 6), False, False], sums)


@pytest.mark.parametrize("nan", quick([False, True], 0))
def test_rows_agree_with_numpy(nan):
    cases = Cases()
    with np.errstate(all="ignore"):
        for part in (_reductions, _products, _rest, _orders, _places, _slices):
            part(cases, nan)
    seen = {op for op, *_ in cases.wanted}
    assert nan or seen == set(WRITERS) - OTHERWISE
    cases.check()


@pytest.mark.parametrize("level", quick(range(toolchain.level() + 1), toolchain.level()))
def test_products_in_blocks_agree_with_numpy(level):
    """Several blocks of rows and of sums; few rows or columns, whose sums run along vectors."""
    cases, rng = Cases(), np.random.default_rng(2)
    shapes = (200, 800, 65), (7, 128, 66), (66, 256, 6), (43, 70, 3), (9, 17, 56), (9, 17, 44)
    for m, k, n in shapes:
        a, b = (rng.normal(size=s).astype(np.float32) for s in ((m, k), (k, n)))
        a /= np.float32(k)
        a[m // 2, k // 2] = np.nan
        left, right = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
        wanted = (a.astype(float) @ b).astype(np.float32)
        for turned in ((False, False), (False, True), (True, False), (True, True)):
            args = (left if turned[0] else a), (right if turned[1] else b), *turned
            cases.add("MatMul", [*args], wanted)
    cases.check(level)


@pytest.mark.parametrize("level", quick(range(toolchain.level() + 1), toolchain.level()))
def test_long_rows_agree_with_numpy(level):
    """Softmax and layer norm of rows that fill vectors or leave a rest, masked or with NaN."""
    cases = Cases()
    for rows, n in ((3, 16), (70, 61), (5, 130)):
        x, dy, gain, shift = (_floats(*shape) for shape in ((rows, n), (rows, n), (n,), (n,)))
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        h, scale = (x - mean) / np.sqrt(variance + 1e-5), 1 / np.sqrt(variance + 1e-5)
        args = [x, gain, shift, 1, 1, 1e-5]
        cases.add("LayerNorm", args, (h * gain + shift, mean, variance))
        d = dy * gain
        dx = scale * (d - d.mean(-1, keepdims=True) - h * (d * h).mean(-1, keepdims=True))
        args = [x, dy, variance, mean, gain, 1, 1]
        cases.add("LayerNormGrad", args, (dx, (dy * h).sum(0), dy.sum(0)), epsilon=1e-5)
        x = x.copy()
        x[:2, n // 2 :], x[1:, 0], x[2, 3] = -1e9, -np.inf, np.nan
        soft = _softmax(x)
        cases.add("Softmax", [x, (-1,)], soft)
        wanted = soft * (dy - (soft * dy).sum(-1, keepdims=True))
        cases.add("SoftmaxBackward", [dy, soft, -1], wanted)
    cases.check(level)


def test_empty_arrays():
    cases = Cases()
    none = np.zeros((0, 5), np.float32)
    cases.add("SumExt", [none, (0,), False, None], np.zeros(5, np.float32))
    cases.add("SumExt", [none, (), False, None], np.zeros((), np.float32))
    cases.add("ReduceMax", [np.zeros((5, 0), np.float32), (1,)], np.full(5, -np.inf, np.float32))
    cases.add("MatMul", [none, _floats(5, 3), False, False], np.zeros((0, 3), np.float32))
    cases.add("MatMul", [np.zeros((3, 0), np.float32), none], np.zeros((3, 5), np.float32))
    cases.add("Concat", [[none, _floats(2, 5) * 0], 0], np.zeros((2, 5), np.float32))
    for x in (none, np.zeros((5, 0), np.float32)):
        cases.add("LogSoftmax", [x, -1], x)
        cases.add("LogSoftmaxGrad", [x, x, -1], x)
        cases.add("Softmax", [x, (-1,)], x)
    cases.add("CumSum", [none, 0, False, False], none)
    cases.add("Slice", [_floats(4, 5), (1, 2), (3, 0)], np.zeros((3, 0), np.float32))
    cases.check()


def test_arguments_that_a_row_does_not_know_are_refused():
    cases = Cases()
    x = _floats(2, 3, 4)
    cases.add("TopkExt", [x, 1, 0, True], (x[:1].copy(), x[:1].astype(np.int32)))
    with pytest.raises(MsrlError, match="TopkExt with these arguments"):
        cases.check()


def test_rows_of_single_bytes_have_room_when_they_are_turned():
    """65 bytes, one more than a cache line, along an axis other than the last."""
    x = np.random.default_rng(5).permutation(65).astype(np.int8).reshape(13, 5)
    given = tensor("x", x)
    types = Type(x.shape, "int8"), Type(x.shape, "int32")
    made = node("Sort", given, type=types, axis=0, descending=False)
    values, index = run([made], {given: x}, list(made.attrs["parts"]))
    np.testing.assert_array_equal(values, np.sort(x, 0))
    np.testing.assert_array_equal(index, np.argsort(x, 0))


def test_loops_of_other_shapes_are_fused():
    """The rows of one loop fit into an iteration of the other; 24 is not a multiple of 16."""
    chance = np.random.default_rng(1)
    x, y = (chance.standard_normal(96).astype(np.float32) for _ in range(2))
    first, second = tensor("x", x.reshape(6, 16)), tensor("y", y.reshape(4, 3, 8))
    doubled = node("Add", first, first, type=Type((6, 16), "float32"))
    turned = node("Strided", second, type=Type((4, 8, 3), "float32"), offset=0, strides=(24, 1, 8))
    found = run([doubled, turned], {first: x.reshape(6, 16), second: y.reshape(4, 3, 8)})
    np.testing.assert_array_equal(found[0], x.reshape(6, 16) * 2)
    np.testing.assert_array_equal(found[1], y.reshape(4, 3, 8).transpose(0, 2, 1))


def test_a_loop_with_updates_reads_what_they_wrote():
    """Only element by element: the transposed array is read by other loops."""
    chance = np.random.default_rng(1)
    start, x = (chance.standard_normal((3, 3)).astype(np.float32) for _ in range(2))
    target, given = tensor("w", start), tensor("x", x)
    found = Type((3, 3), "float32")
    before = node("Strided", target, type=found, offset=0, strides=(1, 3))
    added = node("AssignAdd", target, node("Mul", given, given, type=found), type=found)
    after = node("Add", target, given, type=found)
    turned = node("Strided", target, type=found, offset=0, strides=(1, 3))
    last = node("AssignSub", target, turned, type=found)
    nodes = [before, added.args[1], added, after, turned, last]
    results = run(nodes, {target: start.copy(), given: x}, [before, after, turned, last])
    wanted = start + x * x
    expected = (start.T, wanted + x, wanted.T, wanted - wanted.T)
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-6, 1e-6)
    row = node("Reshape", target, type=Type((3,), "float32"), offset=3)
    with pytest.raises(Unsupported, match="AssignAdd of a part of an array"):
        run([node("AssignAdd", row, row, type=row.type)], {target: start})
