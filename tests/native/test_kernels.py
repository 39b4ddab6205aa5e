"""Rows that are functions of whole arrays against NumPy: sizes 1, odd, prime and none, and NaN."""

import numpy as np
import pytest
from units import node, number, run, tensor

from mindspore_rl.errors import MsrlError
from mindspore_rl.native.control import WRITES
from mindspore_rl.native.primitives import WRITERS
from mindspore_rl.native.program import Type

RNG = np.random.default_rng(1)
OTHERWISE = {*WRITES, "Custom", "LayerNorm", "LayerNormGrad"}
OTHERWISE |= {"Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"}
"""Rows with effects, operators of ours and whole layers: tested by cells."""
UNSUPPORTED = {"SliceGrad", "StridedSliceGrad", "PadV3", "ConstantPadND", "Pad"}


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
        """A node of arrays and numbers; `kinds` are the dtypes of several results."""
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
            cases.add("ReduceProd", [x[:5], axes], np.asarray(x[:5].prod(axis)))
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
    x = _floats(33, 5, nan=nan)
    cases.add("BiasAddGrad", [x], x.sum(0))
    x = _floats(3, 5, 2, 2, nan=nan)
    cases.add("BiasAddGrad", [x], x.sum((0, 2, 3)))


def _products(cases, nan):
    for m, k, n in ((1, 1, 1), (7, 5, 3), (8, 64, 64), (33, 17, 2), (130, 64, 1), (5, 3, 70)):
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


@pytest.mark.parametrize("nan", [False, True])
def test_rows_agree_with_numpy(nan):
    cases = Cases()
    with np.errstate(all="ignore"):
        for part in (_reductions, _products, _rest):
            part(cases, nan)
    seen = {op for op, *_ in cases.wanted}
    assert nan or seen == set(WRITERS) - OTHERWISE - UNSUPPORTED
    cases.check()


def test_empty_arrays():
    cases = Cases()
    none = np.zeros((0, 5), np.float32)
    cases.add("SumExt", [none, (0,), False, None], np.zeros(5, np.float32))
    cases.add("SumExt", [none, (), False, None], np.zeros((), np.float32))
    cases.add("ReduceMax", [np.zeros((5, 0), np.float32), (1,)], np.full(5, -np.inf, np.float32))
    cases.add("MatMul", [none, _floats(5, 3), False, False], np.zeros((0, 3), np.float32))
    cases.add("MatMul", [np.zeros((3, 0), np.float32), none], np.zeros((3, 5), np.float32))
    cases.add("Concat", [[none, _floats(2, 5) * 0], 0], np.zeros((2, 5), np.float32))
    cases.add("LogSoftmax", [none, -1], none)
    cases.add("CumSum", [none, 0, False, False], none)
    cases.check()


def test_arguments_that_a_row_does_not_know_are_refused():
    cases = Cases()
    x = _floats(2, 3, 4)
    cases.add("Softmax", [x, (0,)], x)
    with pytest.raises(MsrlError, match="Softmax with these arguments"):
        cases.check()
