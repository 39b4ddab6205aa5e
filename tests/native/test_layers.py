"""Layers and optimisers that RL code uses, whole: by native code as by MindSpore."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from units import both


class GRU(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)

    def construct(self, x, h):
        return self.cell(x, h)


class LSTM(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)

    def construct(self, x, h, c):
        return self.cell(x, (h, c))[0]


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.query, self.value = nn.Dense(8, 8), nn.Dense(8, 8)
        self.key = nn.Dense(8, 8, has_bias=False)  # its gradient would be nothing but rounding
        self.norm = nn.LayerNorm((8,))

    def construct(self, x):
        x = self.norm(x)
        scores = ops.matmul(self.query(x), self.key(x).swapaxes(1, 2)) / 3.0
        return ops.gelu(ops.matmul(ops.softmax(scores, -1), self.value(x)))


class Pixels(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, pad_mode="valid", has_bias=True)
        self.second = nn.Conv2d(8, 5, 2, 1, pad_mode="same")
        self.last = nn.Dense(45, 2)

    def construct(self, x):
        x = ops.relu(self.second(ops.relu(self.first(x))))
        return self.last(x.reshape((x.shape[0], -1)))


class OneNumber(nn.Cell):
    """A dense layer with one output: its bias, and what an optimiser keeps of it, is one entry."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 1)

    def construct(self, x):
        return self.dense(x)


class Step(nn.Cell):
    """A gradient step on the square of a network's output."""

    def __init__(self, network, optimiser):
        super().__init__()
        self.network, self.optimiser = network, optimiser
        self.derivative = ms.value_and_grad(self.loss, None, optimiser.parameters)

    def loss(self, *inputs):
        return ops.square(self.network(*inputs)).sum()

    def construct(self, *inputs):
        loss, gradients = self.derivative(*inputs)
        self.optimiser(gradients)
        return loss


OPTIMISERS = {
    "Adam": lambda p: nn.Adam(p, 1e-3),
    "AdamW": lambda p: nn.AdamWeightDecay(p, 1e-3, weight_decay=0.1),
    "RMSProp": lambda p: nn.RMSProp(p, 1e-3, momentum=0.5),
    "SGD": lambda p: nn.SGD(p, 1e-3, momentum=0.9),
    "Momentum": lambda p: nn.Momentum(p, 1e-3, 0.9),
}


def _floats(*shape):
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("network", "optimiser", "inputs"),
    [
        (GRU, "SGD", [_floats(3, 4), _floats(3, 8)]),
        *((OneNumber, optimiser, [_floats(3, 4)]) for optimiser in OPTIMISERS),
        (LSTM, "RMSProp", [_floats(3, 4), _floats(3, 8), _floats(3, 8)]),
        (Attention, "AdamW", [_floats(2, 5, 8)]),
        (Pixels, "Momentum", [_floats(2, 3, 8, 8)]),
        (Pixels, "Adam", [_floats(3, 3, 8, 8)]),
    ],
)
def test_steps_agree_with_mindspore(network, optimiser, inputs):
    net = network()
    cell = Step(net, OPTIMISERS[optimiser](net.trainable_params()))
    (wanted, state), (found, native) = both(cell, inputs)
    np.testing.assert_allclose(found[0], wanted[0], 1e-5)
    for name, value in state.items():
        largest = max(float(np.abs(value).max()), 1e-3)
        np.testing.assert_allclose(native[name], value, rtol=0, atol=2e-5 * largest, err_msg=name)


class Places(nn.Cell):
    """Indexing, assignments to elements, and views, whose gradients write to places."""

    def loss(self, x, rows):
        x = x * 1.0
        grid = ops.meshgrid(x[0], x[1, 1:], indexing="ij")[1] * ops.meshgrid(x[0], x[2])[0][1:].T
        picked = x[rows, rows] * x[:, rows][0] + ops.diagonal(x) * x[1:, ::2].sum()
        x[1] = x[0] * 2.0
        x[rows, 0] = picked
        return (x**2).sum() + grid.sum() + ops.diag(x[0]).max(axis=1).sum()

    def construct(self, x, rows):
        return ms.value_and_grad(self.loss)(x, rows)


def test_places_agree_with_mindspore():
    (wanted, _), (found, _) = both(Places(), [_floats(3, 4), np.array([2, 0, 1], np.int32)])
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one, 1e-4, 1e-5)
