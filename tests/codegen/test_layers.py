"""Layers and optimisers of RL code give the same results in native code and in MindSpore."""

import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from mindspore_rl.codegen import emit_unit, native_cell
from mindspore_rl.codegen.build_cfg import blocks_of
from mindspore_rl.codegen.ops import decompositions
from mindspore_rl.errors import MsrlError
from mindspore_rl.mindir.graph import Type, read
from mindspore_rl.platform import toolchain
from mindspore_rl.rl import random, recurrent
from mindspore_rl.rl.operators import drawn_rows
from mindspore_rl.runtime.rank.mindspore_cell import CompiledCell
from tests.codegen.units import both, graph_mode, native_of, node, tensor
from tests.tiers import quick


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
        self.key = nn.Dense(8, 8, has_bias=False)  # its gradient would be rounding only
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


class Windows(nn.Cell):
    """Pools that overlap or skip numbers, groups, and operators that widen an image."""

    def __init__(self):
        super().__init__()
        self.groups = nn.Conv2d(4, 6, 3, group=2, has_bias=True)
        self.wider = nn.Conv2dTranspose(6, 2, 4, 2, "pad", 1)
        self.most, self.same = nn.MaxPool2d(2, 2), nn.MaxPool2d(3, 2, "same")
        self.mean, self.near = nn.AvgPool2d(3, 2), nn.AvgPool2d(3, 2, "same")
        self.norm = nn.BatchNorm2d(6)
        self.norm.moving_mean.set_data(ms.Tensor(_floats(6)))
        self.last = nn.Dense(26, 3)

    def construct(self, x):
        x = self.wider(ops.prelu(self.norm(self.groups(x)), ms.Tensor([0.2])))
        parts = self.most(x[..., :4, :4]), self.same(x[..., :4]), self.mean(x), self.near(x)
        parts += ops.max_pool2d(x, 3, 2, 1), ops.adaptive_avg_pool2d(x, 2)
        sums = [ops.concat((p.sum((2, 3)), p.max((2, 3))), 1) for p in parts]
        return self.last(ops.concat((*sums, x[:, :, 0, 0]), 1))


class OneNumber(nn.Cell):
    """A dense layer with one output: its bias and the optimiser's state of it have one entry."""

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
    "Adagrad": lambda p: nn.Adagrad(p, learning_rate=1e-3),
    "Nesterov": lambda p: nn.SGD(p, 1e-3, momentum=0.9, nesterov=True),
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
        (Windows, "SGD", [_floats(2, 4, 6, 6)]),
        (Pixels, "Adam", [_floats(3, 3, 8, 8)]),
    ],
)
def test_steps_agree_with_mindspore(network, optimiser, inputs):
    ms.set_seed(1)  # Adam makes any rounding of a gradient that happens to be near 0 large
    net = network()
    net.set_train(False)
    cell = Step(net, OPTIMISERS[optimiser](net.trainable_params()))
    (wanted, state), (found, native) = both(cell, inputs)
    np.testing.assert_allclose(found[0], wanted[0], 1e-5)
    for name, value in state.items():
        largest = max(float(np.abs(value).max()), 1e-3)
        np.testing.assert_allclose(native[name], value, rtol=0, atol=2e-5 * largest, err_msg=name)


def test_an_effect_without_a_row_is_refused():
    net = OneNumber()
    cell = Step(net, nn.Adam(net.trainable_params(), 1e-3, use_amsgrad=True))
    with pytest.raises(MsrlError, match="no native form of"):
        both(cell, [_floats(3, 4)])


class Places(nn.Cell):
    """Indexing, assignments to elements, and views, whose gradients write to elements."""

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


class Composed(nn.Cell):
    """Every primitive that is composed of others, and its gradient."""

    def __init__(self):
        super().__init__()
        self.normal, self.deviation = ops.L2Normalize(1), nn.BatchNorm1d(4)
        self.weighed = nn.SoftmaxCrossEntropyWithLogits()

    def values(self, x, y, p, q, image):
        one, two = ops.cosine_similarity(x, y, 1), ops.binary_cross_entropy(p, q)
        logits = ops.binary_cross_entropy_with_logits(x, q, p, q + 1.0)
        return (
            ops.smooth_l1_loss(x, y, 0.5), ops.smooth_l1_loss(x, y, 1.0, "mean"), one, two, logits,
            ops.binary_cross_entropy(p, q, reduction="none"), ops.kl_div(x, p),
            ops.kl_div(x, p, "sum"), self.weighed(x, p), ops.std(x, 1, ddof=1), ops.var(x),
            self.normal(x), ops.trace(x), ops.ger(x[0], y[1]), ops.norm(x, 1, 1),
            ops.prelu(x, y[0]), ops.dropout(x, 0.0), self.deviation(x),
            ops.adaptive_avg_pool2d(image, 2), ops.BiasAdd()(x, y[0]),
        )  # fmt: skip

    def loss(self, x, y, p, q, image):
        total = 0.0
        for value in self.values(x, y, p, q, image):
            total += (value * value).sum()
        return total

    def construct(self, x, y, p, q, image):
        gradients = ms.grad(self.loss, (0, 1, 2, 4))(x, y, p, q, image)
        return self.values(x, y, p, q, image), gradients


def test_what_is_composed_agrees_with_mindspore(monkeypatch):
    seen = set()

    def noted(op, rule):
        def made(new):
            seen.add(op)
            return rule(new)

        return made

    for op, rule in decompositions.COMPOSED.items():
        monkeypatch.setitem(decompositions.COMPOSED, op, noted(op, rule))
    shares = [np.random.default_rng(k).uniform(0.1, 0.9, (3, 4)).astype(np.float32) for k in (1, 2)]
    cell = Composed()
    cell.set_train(False)
    inputs = [_floats(3, 4), _floats(4, 4)[1:].copy(), *shares, _floats(2, 3, 4, 6)]
    (wanted, _), (found, _) = both(cell, inputs)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one, 2e-5, 1e-5 * np.abs(one).max())
    assert seen | {"DropoutGrad"} == set(decompositions.COMPOSED)


class Rows(nn.Cell):
    def __init__(self, capacity, steps):
        super().__init__()
        self.capacity, self.steps = capacity, steps
        self.columns = Tensor(np.arange(3, dtype=np.int32))

    def construct(self, noise, inserted):
        return drawn_rows(noise, inserted, self.capacity, self.columns, self.steps)


@pytest.mark.parametrize(("capacity", "steps", "inserted"), [(7, 3, 9), (10**8 + 1, 0, 2**30)])
def test_records_are_drawn_with_the_bits_of_numpy(capacity, steps, inserted):
    """Also with so many records that 24 bits cannot address each."""
    noise = random.uniform(1, 2, np.arange(1), np.arange(3), 128)[0]
    noise[0, ::64] = np.nextafter(np.float32(1), np.float32(0))  # the last number of the interval
    rows = random.below(noise, starts := min(inserted, capacity) - max(steps - 1, 0)).T
    assert rows.max() == starts - 1
    if steps:  # from the oldest one on
        rows = (inserted - capacity + rows[..., None] + np.arange(steps)) % capacity
    places = np.arange(3).reshape((3, 1) if steps else 3)
    expected = (rows * 3 + places).reshape((-1, steps) if steps else -1)
    for (found,), _ in both(Rows(capacity, steps), (Tensor(noise), Tensor(np.int32(inserted)))):
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected)


class Sequences(nn.Cell):
    """States of sequences and their gradients, by a loop and by one step after the other."""

    def __init__(self, layer, burn_in):
        super().__init__()
        self.layer, self.burn_in = layer, burn_in
        weights = ms.ParameterTuple(layer.trainable_params())
        self.derivative = ms.value_and_grad(self.loss, 2, weights)

    def by_loop(self, x, ended, state):
        return self.layer.states(x.reshape((-1, 3)), ended, state, self.burn_in)

    def by_steps(self, x, ended, state):
        found = ()
        for step in range(x.shape[1]):
            if step:
                state = tuple([recurrent.restarted(part, ended[:, step - 1]) for part in state])
            if step == self.burn_in:
                state = tuple([ops.stop_gradient(part) for part in state])
            _, state = self.layer(x[:, step], state)
            found += (state,)
        found = found[self.burn_in :]
        return tuple([ops.stack([one[i] for one in found], 1) for i in range(len(state))])

    def loss(self, loops, weight, x, ended, *state):
        states = self.by_loop if loops else self.by_steps
        return sum([(part**2 * weight).sum() for part in states(x, ended, state)])

    def construct(self, *inputs):
        return self.derivative(True, *inputs), self.derivative(False, *inputs)


@pytest.mark.parametrize(("layer", "burn_in"), quick([(recurrent.GRU, 0), (recurrent.LSTM, 1)], 1))
def test_a_loop_over_time_equals_one_step_after_the_other(layer, burn_in):
    chance = np.random.default_rng(1)
    cell = Sequences(layer(3, 4, 1, 1), burn_in)
    shapes = (2, 3 - burn_in, 4), (2, 3, 3), *[(2, 4) for _ in cell.layer.state_sizes]
    weight, x, *state = (chance.normal(size=shape).astype(np.float32) for shape in shapes)
    inputs = [weight, x, np.array([[1, 0, 0], [0, 1, 0]], bool), *state]
    for results, _ in both(cell, inputs):
        half = len(results) // 2
        assert half == 5
        for one, other in zip(results[:half], results[half:], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


class Overwritten(nn.Cell):
    """A loop changes a row of two arrays in each turn; of one it still reads the old rows."""

    def construct(self, x):
        step = Tensor(0, ms.int32)
        first, second, total = ops.zeros_like(x), ops.zeros_like(x), ops.zeros_like(x)
        while step < 3:
            place, row = step.reshape((1, 1)), ops.gather(x, step, 0).expand_dims(0)
            first = ops.tensor_scatter_update(first, place, row)
            changed = ops.tensor_scatter_update(second, place, row)
            second, total, step = changed, total + 10.0 * second + changed, step + 1
        return first, second, total


def test_a_loop_overwrites_rows_that_nothing_else_reads():
    x = _floats(3, 4)
    for (first, second, total), _ in both(Overwritten(), [x]):
        np.testing.assert_array_equal(first, x)
        np.testing.assert_array_equal(second, x)
        np.testing.assert_allclose(total, x * np.float32([[23], [12], [1]]), rtol=1e-5)
    with graph_mode():
        graph = CompiledCell(Overwritten()).graph(x)
    blocks = blocks_of(read(graph.data))
    emit_unit.write(blocks, graph.sources)
    written = [node.op for block in blocks.blocks for node in block.nodes if "Scatter" in node.op]
    assert sorted(written) == ["ScatterNdUpdate", "TensorScatterUpdate"]


def test_a_long_unit_is_compiled_in_two_halves_and_a_long_block_in_parts(monkeypatch):
    monkeypatch.setattr(emit_unit, "LONG_LINES", 0)
    monkeypatch.setattr(emit_unit, "PART_NODES", 0)
    x = _floats(3, 4)
    with graph_mode():
        compiled = CompiledCell(Overwritten())
        unit = native_cell.unit_of(compiled.graph(x))
    assert "#if IN_HALF(1)" in unit.text
    assert re.search(r"if \(block_\d_1\(data, memory, functions\)\) return FAILED;", unit.text)
    library = toolchain.cell_library(unit.text, toolchain.level())
    first, second, total = native_cell.NativeCell(unit, library, {})(x)
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, x)
    np.testing.assert_allclose(total, x * np.float32([[23], [12], [1]]), rtol=1e-5)


def test_a_part_of_a_block_that_fails_ends_the_call(monkeypatch):
    monkeypatch.setattr(emit_unit, "PART_NODES", 0)
    x, at = _floats(3, 4), np.int32([[1]])
    given = tensor("x", x), tensor("at", at)
    float_rows, rows = Type((3, 4), "float32"), Type((1, 4), "float32")
    doubled = node("Add", given[0], given[0], type=float_rows)
    taken = node("GatherNd", doubled, given[1], type=rows)
    native = native_of([doubled, taken], given)
    np.testing.assert_array_equal(native(x, at)[1], 2.0 * x[1:2])
    with pytest.raises(RuntimeError, match="an operator in a native cell failed"):
        native(x, np.int32([[3]]))
