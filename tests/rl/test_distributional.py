import itertools
import math
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.environments import registry as by_name
from mindspore_rl.jobs import registry
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


def of_levels(value, target, levels):
    return distributional.quantile_loss(value, target, levels), distributional.cosines(levels, 3)


def test_the_loss_of_given_levels_worked_by_hand(run):
    """IQN: levels 0.1 and 0.5 of the same errors, and cos(pi i tau) of three i."""
    value, target = np.array([[0.0, 2.0]], np.float32), np.array([[0.5, 4.0]], np.float32)
    loss, features = run(of_levels, value, target, np.array([[0.1, 0.5]], np.float32))
    first = (0.1 * 0.125 + 0.1 * 3.5) / 2
    second = (0.5 * 1.0 + 0.5 * 1.5) / 2
    np.testing.assert_allclose(loss, [first + second], rtol=1e-6)
    expected = [[1.0, math.cos(0.1 * math.pi), math.cos(0.2 * math.pi)], [1.0, 0.0, -1.0]]
    np.testing.assert_allclose(features[0], expected, atol=1e-6)


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


def _softmax(x):
    found = np.exp(x - x.max(-1, keepdims=True))
    return found / found.sum(-1, keepdims=True)


@pytest.mark.parametrize("munchausen", [0.0, 0.9])
@pytest.mark.parametrize("atoms", [0, 5])
def test_the_target_of_dqn_in_a_plain_loop(atoms, munchausen):
    """Windows of two steps, the first of which ends some of them."""
    cls = programs.trainer_class(registry.find_algorithm("dqn"))
    options = {"atoms": atoms, "lowest": -2.0, "highest": 2.0, "munchausen": munchausen}
    config = cls.Config(n_step=2, temperature=0.5, hidden=(8,), duelling=True, **options)
    learner = cls(config, by_name.spec("CartPole-v1")).learner
    chance, gamma = np.random.default_rng(0), 0.99
    for parameter in learner.target.get_parameters():
        parameter.set_data(Tensor(chance.standard_normal(parameter.shape), ms.float32))
    obs, final_obs = chance.standard_normal((2, 6, 2, 4)).astype(np.float32)
    action, reward = chance.integers(0, 2, (6, 2)), chance.standard_normal((6, 2))
    terminated, truncated = chance.random((2, 6, 2)) < 0.3
    arrays = (obs, action.astype(np.int32), reward.astype(np.float32), terminated, truncated)
    batch = sys.modules[cls.__module__].Transition(*map(Tensor, (*arrays, final_obs)))
    loss, _, _ = learner.loss(batch, Tensor(np.full(6, 0.5, np.float32)))

    def of(network, rows):
        outputs = network.outputs(Tensor(rows)).asnumpy().astype(np.float64)
        support = np.linspace(-2.0, 2.0, max(atoms, 1))
        return outputs, (_softmax(outputs) * support).sum(-1) if atoms else outputs

    for n in range(6):
        end = 0 if terminated[n, 0] or truncated[n, 0] else 1
        total = sum(gamma**step * reward[n, step] for step in range(end + 1))
        factor = gamma ** (end + 1) * (not terminated[n, end])
        outputs, values = (x[0] for x in of(learner.target, final_obs[n, end][None]))
        online = of(learner.network, final_obs[n, end][None])[1][0]
        policy, bonus = np.eye(2)[online.argmax()], np.zeros(2)
        if munchausen:
            before = of(learner.target, obs[n, :1])[1][0]
            taken = 0.5 * np.log(_softmax(before / 0.5))[action[n, 0]]
            total += munchausen * min(max(taken, -1.0), 0.0)
            policy = _softmax(values / 0.5)
            bonus = -0.5 * np.log(policy)
        own = of(learner.network, obs[n, :1])[0][0, action[n, 0]]
        if atoms:
            support, wanted = np.linspace(-2.0, 2.0, atoms), np.zeros(atoms)
            for a, j in itertools.product(range(2), range(atoms)):
                place = min(max(total + factor * (support[j] + bonus[a]), -2.0), 2.0)
                place = (place + 2.0) / (support[1] - support[0])
                low, mass = min(int(place), atoms - 2), policy[a] * _softmax(outputs[a])[j]
                wanted[low] += mass * (low + 1 - place)
                wanted[low + 1] += mass * (place - low)
            error = (wanted * np.log(np.maximum(wanted, 1e-8) / _softmax(own))).sum()
        else:
            error = abs(own - total - factor * (policy * (values + bonus)).sum())
            error = error - 0.5 if error > 1.0 else 0.5 * error**2
        assert loss.asnumpy()[n] == pytest.approx(0.5 * error, rel=1e-3, abs=1e-5)
