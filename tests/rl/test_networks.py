import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from mindspore_rl.networks import MLP, RunningMeanStd, orthogonal


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
def test_orthogonal(shape):
    weight = orthogonal(shape, 3.0, seed=1, index=2)
    assert weight.dtype == np.float32
    assert weight.shape == shape
    gram = weight @ weight.T if shape[0] < shape[1] else weight.T @ weight
    np.testing.assert_allclose(gram, 9.0 * np.eye(min(shape)), atol=1e-5)
    np.testing.assert_array_equal(weight, orthogonal(shape, 3.0, seed=1, index=2))
    for seed, index in ((1, 3), (2, 2), (1, (2, 1))):
        assert np.abs(weight - orthogonal(shape, 3.0, seed, index)).max() > 0.1


class Learner(nn.Cell):
    """What a compiled region does: forward and merge inside a loop."""

    def __init__(self):
        super().__init__()
        self.tanh = MLP(4, (8, 6), 2, 0.01, seed=5, name_index=0)
        self.relu = MLP(4, (8,), 2, 1.0, seed=5, name_index=1, activation="relu")
        self.stats = RunningMeanStd((4,))

    def construct(self, turn, x, means, variances, counts):
        while turn < 3:
            self.stats.merge(means[turn], variances[turn], counts[turn])
            turn = turn + 1
        return self.tanh(x), self.relu(x), self.stats.normalise(x, 1.5)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_networks_and_statistics(mode):
    ms.set_context(mode=mode)
    ms.set_context(jit_syntax_level=ms.STRICT)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 4)).astype(np.float32)
    batches = [(2 + 3 * rng.standard_normal((n, 4))).astype(np.float32) for n in (5, 1, 900)]
    learner = Learner()
    tanh, relu, normalised = learner(
        Tensor(0, ms.int32),
        Tensor(x),
        Tensor(np.stack([batch.mean(0) for batch in batches])),
        Tensor(np.stack([batch.var(0) for batch in batches])),
        Tensor(np.array([len(batch) for batch in batches], np.float32)),
    )

    root2 = np.sqrt(2.0)
    hidden = np.tanh(x @ orthogonal((8, 4), root2, 5, (0, 0)).T)
    hidden = np.tanh(hidden @ orthogonal((6, 8), root2, 5, (0, 1)).T)
    expected = hidden @ orthogonal((2, 6), 0.01, 5, (0, 2)).T
    np.testing.assert_allclose(tanh.asnumpy(), expected, rtol=1e-4, atol=1e-6)
    hidden = np.maximum(x @ orthogonal((8, 4), root2, 5, (1, 0)).T, 0.0)
    expected = hidden @ orthogonal((2, 8), 1.0, 5, (1, 1)).T
    np.testing.assert_allclose(relu.asnumpy(), expected, rtol=1e-4, atol=1e-6)

    seen = np.concatenate(batches).astype(np.float64)
    stats = learner.stats
    np.testing.assert_allclose(stats.mean.asnumpy(), seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats.variance.asnumpy(), seen.var(0), rtol=1e-4)
    np.testing.assert_allclose(stats.count.asnumpy(), 906.0, rtol=1e-6)
    expected = np.clip((x - seen.mean(0)) / seen.std(0), -1.5, 1.5)
    np.testing.assert_allclose(normalised.asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_only_the_layers_are_trained():
    names = [parameter.name for parameter in Learner().trainable_params()]
    assert len(names) == len(set(names)) == 10
    assert not any("stats" in name for name in names)


def test_unknown_activation():
    with pytest.raises(ValueError, match="'gelu'.*'relu', 'tanh'"):
        MLP(1, (), 1, 1.0, seed=0, name_index=0, activation="gelu")
