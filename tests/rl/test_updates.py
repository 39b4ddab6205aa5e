import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from mindspore_rl.rl.networks import MLP
from mindspore_rl.rl.updates import Adam, copy_every, polyak_update, target_parameters

TAU, RATES = 0.25, np.array([0.1, 0.01, 0.0], np.float32)


class Learner(nn.Cell):
    """Three updates with a rate each, in a loop that compiles."""

    def __init__(self):
        super().__init__()
        network, target = MLP(2, (), 3, 1.0, 1, 0), MLP(2, (), 3, 1.0, 1, 1)
        self.network, self.copy = network, target
        self.online, self.target = network.trainable_params(), target_parameters(target)
        self.optimizer = Adam(self.online, 5.0, eps=1e-5)

    def construct(self, turn, weights, biases, rates):
        while turn < 3:
            self.optimizer.apply((weights[turn], biases[turn]), rates[turn])
            polyak_update(self.target, self.online, TAU)
            turn = turn + 1
        return turn


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_adam_with_a_rate_for_each_step_and_a_target_that_follows(mode):
    ms.set_context(mode=mode)
    ms.set_context(jit_syntax_level=ms.STRICT)
    rng, learner = np.random.default_rng(0), Learner()
    assert not learner.copy.trainable_params()
    grads = [rng.standard_normal((3, *p.shape)).astype(np.float32) for p in learner.online]
    pairs = zip(learner.online, learner.target, grads, strict=True)
    expected = []
    for online, target, each in pairs:
        value, follower = online.asnumpy().astype(np.float64), target.asnumpy().astype(np.float64)
        first = second = 0.0
        for turn, (grad, rate) in enumerate(zip(each, RATES, strict=True), 1):
            first, second = 0.9 * first + 0.1 * grad, 0.999 * second + 0.001 * grad**2
            factor = rate * np.sqrt(1 - 0.999**turn) / (1 - 0.9**turn)
            value = value - factor * first / (np.sqrt(second) + 1e-5)
            follower = follower + TAU * (value - follower)
        expected += [value, follower]
    learner(Tensor(0, ms.int32), *map(Tensor, grads), Tensor(RATES))
    ms.set_context(mode=ms.GRAPH_MODE)
    pairs = zip(learner.online, learner.target, strict=True)
    found = [parameter.asnumpy() for pair in pairs for parameter in pair]
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_target_is_copied_after_every_third_update():
    online, target = ([Parameter(Tensor([x]), name=n)] for x, n in ((1.0, "online"), (5.0, "goal")))
    updates, found = Parameter(Tensor(0, ms.int32), name="updates"), []
    for value in range(7):
        online[0].set_data(Tensor([float(value)]))
        copy_every(target, online, updates, 3)
        found.append(float(target[0].asnumpy()[0]))
    assert found == [5.0, 5.0, 2.0, 2.0, 2.0, 5.0, 5.0]
