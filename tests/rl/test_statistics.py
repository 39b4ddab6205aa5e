"""Means and variances of numbers whose mean is large compared with their deviation."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.environments.registry import spec
from mindspore_rl.jobs import registry
from mindspore_rl.plan.value import reduced_count
from mindspore_rl.rl import operators
from mindspore_rl.rl.operators import reduce_samples
from mindspore_rl.rl.statistics import group_means, moments
from mindspore_rl.runtime.reference import Reference


def mean(*values, keep):
    found = [reduce_samples("mean", v, keep, reduced_count(v.shape, keep)) for v in values]
    return tuple(found) if len(found) > 1 else found[0]


@pytest.fixture
def samples():
    noise = np.random.default_rng(0).standard_normal((64, 8, 5))
    return (np.array([0.0, 1e3, -1e4, 1e6, 7e5]) + noise * [1, 1, 1, 1, 0]).astype(np.float32)


def sum_of(*values, keep):
    return tuple(reduce_samples("sum", v, keep, reduced_count(v.shape, keep)) for v in values)


def test_means_of_groups():
    msrl, group = SimpleNamespace(sum=sum_of), Tensor(np.array([0, 2, 0, 2, 0], np.int32))
    value = np.array([1.0, 5.0, 2.0, np.inf, 6.0], np.float32)
    found = group_means(msrl, Tensor(value), group, 4).asnumpy()
    np.testing.assert_allclose(found, [3.0, 0.0, np.inf, 0.0])


def test_moments(samples):
    msrl = SimpleNamespace(mean=mean)
    found = [part.asnumpy() for part in moments(msrl, Tensor(samples), keep=1)]
    exact = samples.astype(np.float64)
    np.testing.assert_allclose(found[0], exact.mean((0, 1)), rtol=2e-7, atol=1e-6)
    np.testing.assert_allclose(found[1], exact.var((0, 1)), rtol=1e-5, atol=1e-8)
    whole = [float(part) for part in moments(msrl, Tensor(samples[..., 1]))]
    np.testing.assert_allclose(whole, [exact[..., 1].mean(), exact[..., 1].var()], rtol=1e-5)


def test_ppo_normalises_features_and_advantages_far_from_zero(samples):
    cls = programs.trainer_class(registry.find_algorithm("ppo"))
    config = cls.Config(num_steps=64, normalise_obs=True, update_epochs=1, num_minibatches=1)
    trainer = cls(config, spec("CartPole-v1"))
    reference = Reference(trainer, 1)
    advantages = []
    reference.recorder = lambda _, site, values: "advantage" in site and advantages.append(values)
    obs, shape = Tensor(samples[..., :4]), (64, 8)
    no, zeros = Tensor(np.zeros(shape, bool)), Tensor(np.zeros(shape, np.float32))
    # Every step is an episode: the advantage is the reward minus the value of few digits.
    reward, action = Tensor(samples[..., 2]), Tensor(np.zeros(shape, np.int32))
    batch = sys.modules[cls.__module__].Transition(
        obs, action, zeros, reward, no.logical_not(), no, obs, income=(), value=(), state=()
    )
    found = trainer.learner.learn(reference, batch)
    reference.environment.close()
    statistics = trainer.actor.network.obs_statistics
    exact = samples[..., :4].astype(np.float64)
    np.testing.assert_allclose(statistics.variance.asnumpy(), exact.var((0, 1)), rtol=1e-4)
    np.testing.assert_allclose(statistics.mean.asnumpy(), exact.mean((0, 1)), rtol=1e-4, atol=1e-4)
    assert abs(advantages[0][0].std() - 1) < 1e-3
    assert -0.1 < float(found["explained_variance"]) < 0.1


def test_discounted_sums_that_scale_rewards_go_on_over_rollouts():
    """With four steps per rollout, their variance was only a fraction of this."""
    cls = programs.trainer_class(registry.find_algorithm("ppo"))
    sizes = {"num_envs": 3, "num_steps": 4, "num_minibatches": 1, "update_epochs": 1}
    trainer = cls(cls.Config(normalise_reward=True, **sizes), spec("CartPole-v1"))
    steps = []
    reference = Reference(trainer, 12)
    reference.recorder = lambda _, site, values: "transition" in site and steps.append(values)
    reference.run()
    sums, running = [], np.zeros(3)
    for _, _, _, reward, terminated, truncated, *_ in steps:
        running = reward + 0.99 * running
        sums.append(running)
        running = np.where(terminated | truncated, 0.0, running)
    statistics = trainer.learner.reward_statistics
    assert np.max(sums) > 10.0
    np.testing.assert_allclose(float(statistics.mean), np.mean(sums), rtol=1e-5)
    np.testing.assert_allclose(float(statistics.variance), np.var(sums), rtol=1e-4)


class _Members:
    """ReduceScatter and AllGather among `count` members with equal values, seen by one of them."""

    def __init__(self, monkeypatch, count):
        self.count = count
        monkeypatch.setattr(operators, "get_group_size", lambda _: count)
        monkeypatch.setattr(operators.ops, "ReduceScatter", lambda *_: self.scatter)
        monkeypatch.setattr(operators.ops, "AllGather", lambda _: lambda part: self.total)

    def scatter(self, flat):
        assert flat.shape[0] % self.count == 0
        self.total = flat * self.count
        return self.total[: flat.shape[0] // self.count]


@pytest.mark.parametrize("size", [1, 3, 6, 7])
def test_a_sum_is_scattered_in_equal_parts_and_gathered(monkeypatch, size):
    members = _Members(monkeypatch, 3)
    values = np.arange(1, size + 1, dtype=np.float32)
    total = operators.ScatterAndGather("all")(Tensor(values))
    np.testing.assert_array_equal(total.asnumpy(), members.count * values)
