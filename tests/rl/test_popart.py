"""PopArt, against the moments of all returns and the values before."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from mindspore_rl.rl.popart import PopArt


class Updated(nn.Cell):
    def __init__(self, rate):
        super().__init__()
        self.popart = PopArt(rate)
        self.weight = Parameter(Tensor([[0.5, -2.0]], ms.float32), name="weight")
        self.bias = Parameter(Tensor([0.3], ms.float32), name="bias")
        self.head = (self.weight, self.bias)

    def value(self, x):
        return self.popart.scaled(x @ self.weight.T + self.bias)

    def construct(self, x, mean, variance, count):
        before = self.value(x)
        self.popart.update(self.head, mean, variance, count)
        return before, self.value(x), self.popart.normalised(mean)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_new_statistics_change_no_value(mode):
    """Two batches count equally; with rate 1/2 a third counts half, as all before it together."""
    ms.set_context(mode=mode)
    net = Updated(0.5)
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((5, 2)).astype(np.float32))
    batches = [rng.normal(m, s, 20).astype(np.float32) for m, s in ((50, 9), (-300, 40), (1, 2))]
    for batch in batches:
        moments = (Tensor(np.float32(n)) for n in (batch.mean(), batch.var(), len(batch)))
        before, after, _ = (out.asnumpy() for out in net(x, *moments))
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=2e-3)
    first = np.concatenate(batches[:2])
    mean = (first.mean() + batches[2].mean()) / 2
    variance = (first.var() + batches[2].var()) / 2 + ((first.mean() - batches[2].mean()) / 2) ** 2
    statistics = net.popart.statistics
    np.testing.assert_allclose(statistics.mean.asnumpy(), mean, rtol=1e-4)
    np.testing.assert_allclose(statistics.variance.asnumpy(), variance, rtol=1e-4)
    value = Tensor(np.float32([mean + 3 * variance**0.5]))
    np.testing.assert_allclose(net.popart.normalised(value).asnumpy(), [3.0], rtol=1e-4)
    ms.set_context(mode=ms.GRAPH_MODE)
