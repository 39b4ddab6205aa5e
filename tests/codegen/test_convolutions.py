"""Convolutions and their gradients against NumPy, and on bytes."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from mindspore_rl.codegen.ops.convolution import operations
from mindspore_rl.mindir.graph import Type
from mindspore_rl.platform import toolchain
from tests.codegen.units import both, node, number, run, tensor
from tests.tiers import quick


def _random(*shape):
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype(np.float32)


def _taps(x, shape, stride, pads, dilation):
    """Returns `[taps, N, C, OH, OW]` numbers under each tap of each window, and their places."""
    tall, wide, rows, columns = shape
    top, bottom, left, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    places = [
        np.s_[..., i * dilation[0] :, j * dilation[1] :] for i in range(tall) for j in range(wide)
    ]
    steps = np.s_[..., :: stride[0], :: stride[1]]
    found = [padded[place][steps][..., :rows, :columns] for place in places]
    return np.stack(found), padded, places, steps


def _plain(x, w, dy, stride, pads, dilation):
    """Returns the convolution of images [N, C, H, W], and its gradients by weights and images."""
    tall, wide = w.shape[2:]
    taps, padded, places, steps = _taps(x, (tall, wide, *dy.shape[2:]), stride, pads, dilation)
    weights = w.reshape(*w.shape[:2], tall * wide)
    y = np.einsum("tnchw,oct->nohw", taps, weights)
    dw = np.einsum("tnchw,nohw->oct", taps, dy).reshape(w.shape)
    dx = np.zeros_like(padded)
    for tap, place in enumerate(places):
        part = np.einsum("nohw,oc->nchw", dy, weights[..., tap])
        dx[place][steps][..., : dy.shape[2], : dy.shape[3]] += part
    return y, dw, dx[..., pads[0] :, pads[2] :][..., : x.shape[2], : x.shape[3]]


CASES = {  # images, weights, results, stride, padding, dilation, groups
    "wide": ((2, 3, 9, 20), (40, 3, 3, 5), (2, 40, 9, 20), (1, 1), (1, 1, 2, 2), (1, 1), 1),
    "deep": ((3, 36, 7, 6), (5, 36, 2, 3), (3, 5, 3, 2), (2, 3), (0, 0, 0, 0), (1, 1), 1),
    "groups": ((2, 4, 11, 9), (6, 2, 3, 3), (2, 6, 5, 6), (2, 1), (2, 1, 0, 1), (2, 2), 2),
    "one number": ((4, 1, 1, 1), (1, 1, 1, 1), (4, 1, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "no images": ((0, 2, 4, 4), (3, 2, 3, 3), (0, 3, 2, 2), (1, 1), (0, 0, 0, 0), (1, 1), 1),
}


@pytest.mark.parametrize(
    ("case", "level"),
    [*((case, None) for case in CASES), *(("groups", n) for n in range(toolchain.level()))],
)
def test_convolutions_equal_numpy(case, level):
    *shapes, stride, pads, dilation, groups = CASES[case]
    x, w, dy = (_random(*shape) for shape in shapes)
    a, b, c = (tensor(name, array) for name, array in (("x", x), ("w", w), ("dy", dy)))
    given = {
        "stride": (1, 1, *stride), "pad_list": pads, "dilation": (1, 1, *dilation),
        "group": groups, "format": "NCHW",
    }  # fmt: skip
    calls = ("Conv2D", (a, b), dy), ("Conv2DBackpropFilter", (c, a, number(w.shape)), w)
    calls += (("Conv2DBackpropInput", (c, b, number(x.shape)), x),)
    nodes = [node(op, *args, type=Type(like.shape, "float32"), **given) for op, args, like in calls]
    found = run(nodes, {a: x, b: w, c: dy}, level=level)
    parts = [
        _plain(*part, stride, pads, dilation)
        for part in zip(
            np.split(x.astype(np.float64), groups, 1),
            np.split(w.astype(np.float64), groups, 0),
            np.split(dy.astype(np.float64), groups, 1),
            strict=True,
        )
    ]
    for got, axis, wanted in zip(found, (1, 0, 1), zip(*parts, strict=True), strict=True):
        np.testing.assert_allclose(got, np.concatenate(wanted, axis), 1e-4, 1e-4)


class Screen(nn.Cell):
    """The gradient by the weights of a convolution of bytes, divided by or times a number."""

    def __init__(self, pad, divisor, factor):
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 4, 2, pad_mode=pad)
        self.weights = ms.ParameterTuple(self.trainable_params())
        self.divisor, self.factor = divisor, factor

    def loss(self, x):
        x = x.astype(ms.float32)
        if self.divisor is not None:
            x = x / self.divisor
        if self.factor is not None:
            x = x * self.factor
        return ops.square(self.convolution(x)).sum()

    def construct(self, x):
        return ms.value_and_grad(self.loss, None, self.weights)(x)


@pytest.mark.parametrize(
    ("pad", "divisor", "factor"),
    quick(
        [("valid", 255.0, None), ("same", None, 0.01), ("valid", 2.0, 0.5), ("valid", None, None)],
        0,
        1,
    ),
)
def test_images_of_bytes_are_read_as_they_are(pad, divisor, factor, monkeypatch):
    texts = []
    library = toolchain.cell_library

    def noted(text, *rest):
        texts.append(text)
        return library(text, *rest)

    monkeypatch.setattr(toolchain, "cell_library", noted)
    x = np.random.default_rng(0).integers(0, 256, (3, 2, 9, 8), np.uint8)
    (wanted, _), (found, _) = both(Screen(pad, divisor, factor), [x])
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one, 1e-5, 1e-5 * np.abs(one).max())
    assert "const uint8_t" not in texts[0], "no loop reads the bytes"


def test_a_convolution_and_its_gradients_count_as_many_operations():
    images, weights, results, *_ = CASES["wide"]
    x, w, dy = (
        tensor(name, np.empty(s)) for name, s in (("x", images), ("w", weights), ("dy", results))
    )
    made = (
        node("Conv2D", x, w, type=dy.type),
        node("Conv2DBackpropFilter", dy, x, type=w.type),
        node("Conv2DBackpropInput", dy, w, type=x.type),
    )
    assert {operations(one) for one in made} == {2.0 * np.prod(results) * 3 * 3 * 5}
