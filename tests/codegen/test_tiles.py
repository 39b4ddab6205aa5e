"""Tests of batches that run in tiles, on one thread or several."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore import value_and_grad as derivative_of

from mindspore_rl.codegen import emit_loop, tiling
from mindspore_rl.codegen.cfg import Block
from mindspore_rl.codegen.native_cell import NativeCell
from mindspore_rl.codegen.ops import batch_rules
from mindspore_rl.mindir.graph import Type, Value
from mindspore_rl.platform.trial import Trial
from tests.codegen.units import both, native_of, node, number, run, tensor

ROWS = 96


def _floats(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


class Layers(nn.Cell):
    """As wide as a tile or a batch has rows, so that shapes alone do not distinguish them."""

    def __init__(self, width=ROWS, inputs=4):
        super().__init__()
        self.first, self.second = nn.Dense(inputs, width), nn.Dense(width, 3)

    def construct(self, x):
        return self.second(ops.tanh(self.first(x)))


class Learn(nn.Cell):
    """A loss, its gradient and one step."""

    def __init__(self, network, loss, optimiser=nn.Adam):
        super().__init__()
        self.network, self.optimiser = network, optimiser(network.trainable_params(), 1e-2)
        self.loss = loss
        self.derivative = derivative_of(self.loss_of, None, self.optimiser.parameters)

    def loss_of(self, *inputs):
        return self.loss(self.network, *inputs)

    def construct(self, *inputs):
        loss, gradients = self.derivative(*inputs)
        self.optimiser(gradients)
        return loss


def plain(network, x, target):
    return ops.square(network(x) - target).mean()


def likelihood(network, x, action):
    probability = ops.log_softmax(network(x), -1)
    return -ops.gather_elements(probability, 1, action.expand_dims(1)).mean()


def normalised(network, x, target):
    """A reduction over rows in the middle: two batches of tiles."""
    error = (network(x) - target).sum(-1)
    return ops.square((error - error.mean()) / (error.std() + 1e-6) + error).mean()


def greedy(network, x, target):
    """The largest result of each row, and another one by its place: one run of tiles."""
    found = network(x)
    known = ops.stop_gradient(found)
    best = ops.one_hot(known.argmax(-1), found.shape[-1])
    return ops.square((found * best).sum(-1) - known.amax(-1) - target[:, 0]).mean()


def agents(network, x, target):
    """Several agents in each row of the batch."""
    return ops.square(network(x).sum(1) - target).mean()


def chosen(network, x, index, target):
    return plain(network, ops.gather(x, index, 0), target)


class Attention(nn.Cell):
    """Masked self-attention of two heads, between layer norms."""

    def __init__(self, width=8, length=5):
        super().__init__()
        self.first, self.second = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.project, self.out = nn.Dense(width, 3 * width), nn.Dense(width, 3)
        self.later = ms.Tensor(np.triu(np.full((length, length), -1e9, np.float32), 1))

    def construct(self, x):
        rows, length, width = x.shape
        found = self.project(self.first(x).reshape((-1, width)))
        found = found.reshape((rows, length, 6, width // 2)).transpose((0, 2, 1, 3))
        scores = ops.matmul(found[:, :2], found[:, 2:4].transpose((0, 1, 3, 2))) + self.later
        seen = ops.matmul(ops.softmax(scores, -1), found[:, 4:]).transpose((0, 2, 1, 3))
        return self.out(self.second(x + seen.reshape(x.shape)))


class Rows(nn.Cell):
    """Results of each row, and of other rows."""

    def __init__(self):
        super().__init__()
        self.network = Layers(16)

    def construct(self, x):
        y = self.network(x)
        return y, y.sum(-1), ops.flip(y, (0,)), y[:, 1] * 2.0, y.sum(0)


class Image(nn.Cell):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, has_bias=True)
        self.most, self.mean = nn.MaxPool2d(3, 2, "same"), nn.AvgPool2d(2, 2)
        self.dense = nn.Dense(32, 3)

    def construct(self, x):
        x = ops.relu(self.convolution(x))
        both = ops.concat((self.most(x), self.mean(x)), 1)
        return self.dense(both.reshape(x.shape[0], 32))


IMAGE = (lambda: Learn(Image(), plain), [_floats(24, 2, 4, 4), _floats(24, 3)])
INDEX = np.random.default_rng(2).integers(0, 3, ROWS).astype(np.int32)
CASES = {
    "plain": (lambda: Learn(Layers(), plain), [_floats(ROWS, 4), _floats(ROWS, 3)]),
    "likelihood": (lambda: Learn(Layers(16), likelihood), [_floats(ROWS, 4), INDEX]),
    "normalised": (lambda: Learn(Layers(16), normalised), [_floats(ROWS, 4), _floats(ROWS, 3)]),
    "greedy": (lambda: Learn(Layers(16), greedy), [_floats(ROWS, 4), _floats(ROWS, 3)]),
    "agents": (lambda: Learn(Layers(), agents), [_floats(ROWS, 5, 4), _floats(ROWS, 3)]),
    "chosen": (lambda: Learn(Layers(16), chosen), [_floats(3, 4), INDEX, _floats(ROWS, 3)]),
    "rows": (Rows, [_floats(ROWS, 4)]),
    "image": IMAGE,
}


# Adam would divide the gradient of the keys' bias, which is rounding only, by its own size.
ATTENTION = (lambda: Learn(Attention(), plain, nn.SGD), [_floats(24, 5, 8), _floats(24, 5, 3)])


@pytest.fixture
def all_tiled(monkeypatch):
    """Enables tiles for any amount of work; yields the texts of the compiled cells."""
    monkeypatch.setattr(tiling, "MIN_WORK", 0)
    monkeypatch.setattr(tiling, "MAX_ROWS", 8)
    texts = []
    made = NativeCell.__init__

    def noted(self, unit, *rest):
        texts.append(unit.text)
        made(self, unit, *rest)

    monkeypatch.setattr(NativeCell, "__init__", noted)
    return texts


def _agreeing(cell, inputs, threads=1):
    """Checks native code against MindSpore. Returns: its results and the cell's new state."""
    (wanted, state), (found, native) = both(cell, inputs, threads=threads)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one, 2e-5, 1e-6)
    for name, value in state.items():
        largest = max(float(np.abs(value).max()), 1e-3)
        np.testing.assert_allclose(native[name], value, rtol=0, atol=2e-5 * largest, err_msg=name)
    return [*found, *native.values()]


def _agreeing_on_threads(cell, inputs):
    """Checks native code against MindSpore, and that three threads give the same bits as one."""
    first = _agreeing(cell, inputs)
    for one, other in zip(first, _agreeing(cell, inputs, threads=3), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", CASES)
def test_tiles_give_what_mindspore_gives(case, all_tiled):
    make, inputs = CASES[case]
    ms.set_seed(1)  # Adam amplifies rounding where a gradient is almost zero
    _agreeing(make(), inputs)
    assert "static void tile_0" in all_tiled[0]
    assert ("static void tile_1" in all_tiled[0]) == (case in ("normalised", "agents"))


def test_weights_with_as_many_rows_as_the_batch_are_none_of_it(all_tiled):
    """Weights are copied and used at once, like those of a target network."""
    square = Type((ROWS, ROWS), "float32")
    x, weight = (Value("argument", name, type=square) for name in ("x", "weight"))
    copy = node("TensorMove", weight, type=square)
    doubled = node("Add", copy, copy, type=square)
    product = node("MatMul", x, copy, number(False), number(False), type=square)
    block = Block("b0", nodes=[copy, doubled, product], results=[doubled, product])
    tiling.tile(block, [block])
    (made,) = (found for found in block.nodes if found.op == "Tiles")
    assert [inner.op for inner in made.attrs["body"].nodes] == ["MatMul"]


def test_rows_that_meet_are_two_batches(all_tiled):
    both(CASES["normalised"][0](), CASES["normalised"][1])
    assert "static void tile_1" in all_tiled[0]


@pytest.mark.parametrize(
    ("case", "rows"), [("plain", 8), ("plain", 12), ("plain", 24), ("image", 8)]
)
def test_sums_over_rows_do_not_depend_on_the_number_of_threads(case, rows, all_tiled, monkeypatch):
    """Twelve tiles in eight parts, eight and four that are each a part: sums are added in pairs."""
    monkeypatch.setattr(tiling, "MAX_ROWS", rows)
    cell, inputs = CASES[case][0](), CASES[case][1]
    start = {p.name: p.asnumpy().copy() for p in cell.get_parameters()}
    outcomes = []
    for threads in (1, 3, 1, 2):
        for parameter in cell.get_parameters():
            parameter.asnumpy()[...] = start[parameter.name]
        _, (results, state) = both(cell, inputs, threads=threads)
        outcomes.append([*results, *state.values()])
    for outcome in outcomes[1:]:
        for one, other in zip(outcomes[0], outcome, strict=True):
            np.testing.assert_array_equal(one, other)
    assert ("meet<" in all_tiled[0]) == (case == "plain")


def test_wide_gradients_and_large_loops_run_in_parts_after_the_tiles(all_tiled, monkeypatch):
    monkeypatch.setattr(batch_rules, "MAX_SUM", 0)
    monkeypatch.setattr(tiling, "MIN_ELEMENTS", 10)
    monkeypatch.setattr(tiling, "MIN_LOOP", 10)
    monkeypatch.setattr(tiling, "MAX_PACKED_BYTES", 0)
    monkeypatch.setattr(emit_loop, "MIN_OWNED", 1)
    ms.set_seed(1)
    cell, inputs = Learn(Layers(48), plain), CASES["plain"][1]
    _agreeing_on_threads(cell, inputs)
    for part in ("product_part<48, 4, 96, true, false, 16>(part", "transpose<8, 4>("):
        assert part in all_tiled[0]
    assert "for (int64_t i0 = part * 192 / 8;" in all_tiled[0]
    assert "+ part * 192 / 8, (part + 1) * 192 / 8 - part * 192 / 8);" in all_tiled[0]
    assert "several = ((in_parts)functions[0])(nullptr, nullptr, 0) > 1;" in all_tiled[0]


def test_large_weights_are_stored_in_panels_once(all_tiled, monkeypatch):
    """Transposed, in several parts and sums; and as they are, for the gradient of the layer."""
    monkeypatch.setattr(tiling, "MIN_PANELS", 1000)
    ms.set_seed(1)
    cell, inputs = Learn(Layers(512, 400), plain, nn.SGD), [_floats(ROWS, 400), _floats(ROWS, 3)]
    _agreeing_on_threads(cell, inputs)
    for part in ("panels<64, 400, true, 400, 400>(", "panels<512, 3, false, 512, 3>("):
        assert part in all_tiled[0]
    assert "product_panels<8, 512, 400>(" in all_tiled[0]


def test_rows_of_weights_become_whole_vectors_once(all_tiled):
    """Each core makes its own; widths beside multiples of a vector's are filled up with zeros."""
    ms.set_seed(1)
    _agreeing_on_threads(Learn(Layers(20), plain), CASES["plain"][1])
    assert "thread_local char packed[" in all_tiled[0]
    assert "pack<20, 4, 4, true, 32>(" in all_tiled[0]
    assert ", 20, 4, false, false, 4, 32>(" in all_tiled[0]


def test_the_rows_of_a_large_sort_are_parts(monkeypatch, all_tiled):
    """Short rows by counting, long ones by a sort; equal numbers keep their order, NaN is last."""
    monkeypatch.setattr(tiling, "MIN_ELEMENTS", 10)
    for width, descending in ((40, False), (256, True), (300, False)):
        x = np.round(2 * _floats(12, width))
        x[:, 3::7] = np.nan
        given = tensor("x", x)
        types = Type(x.shape, "float32"), Type(x.shape, "int32")
        made = node("Sort", given, type=types, axis=-1, descending=descending)
        cell = native_of([made], {given: x}, made.attrs["parts"], threads=3)
        order = np.argsort(-x if descending else x, -1, kind="stable")
        values, index = cell(x)
        np.testing.assert_array_equal(index, order)
        np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
    assert len(all_tiled) == 3 and all("  sort_rows<2, " in text for text in all_tiled)


def test_the_parts_of_a_loop_cover_all_its_elements(monkeypatch):
    monkeypatch.setattr(tiling, "MIN_LOOP", 10)
    x, row = _floats(3, 7), _floats(7)
    given = tensor("x", x), tensor("row", row)
    made = node("Add", *given, type=Type(x.shape, "float32"))
    (found,) = run([made], dict(zip(given, (x, row), strict=True)))
    np.testing.assert_array_equal(found, x + row)


def test_the_parts_of_a_wide_product_are_columns(all_tiled):
    x, y = _floats(20, 128), _floats(20, 512)
    given = tensor("x", x), tensor("y", y)
    made = node("MatMul", *given, number(True), number(False), type=Type((128, 512), "float32"))
    (found,) = run([made], dict(zip(given, (x, y), strict=True)))
    assert "product_columns<128, 512, 20, true, false, 64>(part" in all_tiled[0]
    np.testing.assert_allclose(found, x.T @ y, 1e-5, 1e-5)


def test_images_and_their_pools_run_in_one_run_of_tiles_of_few_bytes(all_tiled, monkeypatch):
    """Eight images a tile; four if the largest array of a tile, of 64 numbers an image, fits."""
    both(IMAGE[0](), IMAGE[1])
    monkeypatch.setattr(tiling, "MAX_BYTES", 4 * 64 * 5)
    both(IMAGE[0](), IMAGE[1])
    for text, rows in zip(all_tiled, (8, 4), strict=True):
        assert "static void tile_1" not in text
        assert f"convolution<{rows}, " in text
        assert f"max_pool<{rows * 4}, " in text
        assert f"average_pool<{rows * 4}, " in text


def test_attention_is_one_run_of_tiles_that_reads_its_slices_in_place(all_tiled):
    ms.set_seed(1)
    _agreeing_on_threads(ATTENTION[0](), ATTENTION[1])
    text = all_tiled[0]
    assert "static void tile_1" not in text
    assert "tile < (part + 1) * 24 / 8" in text
    assert text.count("layer_norm<5, 8>(") == text.count("layer_norm_grad<5, 8>(") == 2
    products = [line.split(">")[0].split("<")[1] for line in text.splitlines() if "at++" in line]
    assert [p for p in products if p.startswith("5, ")] == [
        "5, 5, 4, false, true, 24, 24",  # queries and keys, of rows of 6 x 4 numbers
        "5, 4, 5, false, false, 5, 24",  # and values
        "5, 5, 4, false, true, 8, 24",
        "5, 4, 5, false, false, 5, 24",
        "5, 4, 5, true, false, 5, 24",
        "5, 4, 5, true, false, 5, 8",
    ]


def test_little_work_stays_in_one_piece(all_tiled, monkeypatch):
    monkeypatch.setattr(tiling, "MIN_WORK", 2_000_000)
    both(CASES["plain"][0](), CASES["plain"][1])
    assert "tile_0" not in all_tiled[0]


def test_a_cell_that_tries_one_thread_gives_the_same(all_tiled, monkeypatch):
    tried, begin = [], Trial.begin
    monkeypatch.setattr(Trial, "begin", lambda self: tried.append(begin(self)) or tried[-1])
    x, y = _floats(20, 128), _floats(20, 512)
    given = tensor("x", x), tensor("y", y)
    made = node("MatMul", *given, number(True), number(False), type=Type((128, 512), "float32"))
    cell = native_of([made], given, threads=3)
    (first,), (second,) = cell(x, y), cell(x, y)
    assert tried == [3, 1]
    np.testing.assert_array_equal(first, second)
