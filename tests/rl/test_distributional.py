import math

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_rl.rl import distributional
from mindspore_rl.rl.action_distributions import standard_normal
from mindspore_rl.rl.noisy import NoisyMLP


def both(value, target):
    return distributional.quantile_loss(value, target), value


def test_quantile_loss_worked_by_hand(run):
    """Levels 1/4 and 3/4; errors beyond 1 count linearly."""
    value, target = np.array([[0.0, 2.0]], np.float32), np.array([[0.5, 4.0]], np.float32)
    first = (0.25 * 0.125 + 0.25 * 3.5) / 2  # errors 0.5 and 4, both above
    second = (0.25 * 1.0 + 0.75 * 1.5) / 2  # -1.5 below, 2 above
    np.testing.assert_allclose(run(both, value, target)[0], [first + second], rtol=1e-6)


def lowest(first, second):
    return distributional.lowest_quantiles((first, second), 1), first


def test_the_highest_of_all_critics_are_left_out(run):
    """One for each critic, here both of the second."""
    first, second = np.array([[3.0, 1.0]], np.float32), np.array([[5.0, 4.0]], np.float32)
    np.testing.assert_array_equal(run(lowest, first, second)[0], [[1.0, 3.0]])


def projection(probability, place, logits):
    atoms = Tensor([0.0, 1.0, 2.0], ms.float32)
    target = distributional.project(probability, place, atoms)
    return target, distributional.categorical_loss(logits, target)


def test_projection_worked_by_hand(run):
    """0.5 lies between the first two atoms; 3 and -2 are beyond the ends."""
    probability = np.array([[0.4, 0.5, 0.1], [0.0, 0.0, 1.0]], np.float32)
    place = np.array([[0.5, 3.0, -2.0], [7.0, 7.0, 1.0]], np.float32)
    logits = np.log(np.array([[0.2, 0.3, 0.5], [0.25, 0.5, 0.25]], np.float32))
    target, loss = run(projection, probability, place, logits)
    np.testing.assert_allclose(target, [[0.3, 0.2, 0.5], [0.0, 1.0, 0.0]], atol=1e-6)
    first = 0.3 * math.log(0.3 / 0.2) + 0.2 * math.log(0.2 / 0.3)
    np.testing.assert_allclose(loss, [first, math.log(2.0)], rtol=1e-4)


def test_noisy_layers_are_the_papers():
    """Every row of a batch: W x + b, plus noise of its own on W and b."""
    noisy = NoisyMLP(3, (4, 5), 2, seed=1, name_index=0)
    chance = np.random.default_rng(0)
    x, noise = chance.standard_normal((6, 3)), chance.random((6, noisy.noise_size))
    x, noise = x.astype(np.float32), noise.astype(np.float32)
    normal = standard_normal(Tensor(noise)).asnumpy()
    factor = np.sign(normal) * np.sqrt(np.abs(normal))
    hidden, at = noisy.first(Tensor(x)).asnumpy(), 0
    for i, (size, out) in enumerate(((4, 5), (5, 2))):
        layer, spread = noisy.means[i].layers[0], noisy.spreads[i]
        before, behind = factor[:, at : at + size], factor[:, at + size : at + size + out]
        at += size + out
        rows = []
        for row in range(6):
            weight = layer.weight.asnumpy() + spread.weight.asnumpy() * np.outer(
                behind[row], before[row]
            )
            bias = layer.bias.asnumpy() + spread.bias.asnumpy() * behind[row]
            rows.append(weight @ hidden[row] + bias)
        hidden = np.maximum(rows, 0) if i == 0 else np.array(rows)
    assert at * 2 == noisy.noise_size
    np.testing.assert_allclose(noisy(Tensor(x), Tensor(noise)).asnumpy(), hidden, atol=1e-5)
    without = [noisy.spreads[i].weight.asnumpy()[0, 0] for i in range(2)]
    np.testing.assert_allclose(without, [0.5 / 2, 0.5 / math.sqrt(5)], rtol=1e-6)
