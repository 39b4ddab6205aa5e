"""VDN and QMIX: the mixing network and the loss, by hand; where agents must be together."""

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.compiler.pipeline import JobRequest, prepare
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.rl.mixing import monotonic_mix

SPREAD = "graph:simple_spread_v3"
N, AGENTS = 5, 3


def made(**options):
    """Returns VDN's trainer and its module; the target's parameters are random ones."""
    cls = programs.trainer_class(registry.find_algorithm("vdn"))
    trainer = cls(cls.Config(hidden=(8,), mixing_size=4, **options), spec(SPREAD))
    chance = np.random.default_rng(0)
    for parameter in trainer.learner.target.get_parameters():
        parameter.set_data(Tensor(chance.standard_normal(parameter.shape), ms.float32))
    return trainer, sys.modules[cls.__module__]


def test_the_mixing_network_worked_by_hand():
    """Units 1 x 2 + |-3| x 1 - 1 = 4 and 0 x 2 + 1 x 1 - 2 = -1 of the agents' values 2 and 1."""
    values = Tensor([[2.0, 1.0]], ms.float32)
    first_weight = Tensor([[[1.0, 0.0], [-3.0, 1.0]]], ms.float32)
    first_bias, last_weight = Tensor([[-1.0, -2.0]], ms.float32), Tensor([[0.5, -2.0]], ms.float32)
    mixed = monotonic_mix(values, first_weight, first_bias, last_weight, Tensor([10.0], ms.float32))
    elu = np.exp(-1.0) - 1.0
    np.testing.assert_allclose(mixed.asnumpy(), [10.0 + 0.5 * 4.0 + 2.0 * elu], rtol=1e-5)


def test_the_teams_value_falls_with_no_agents_value():
    mixer = made()[0].learner.target.mixer
    chance = np.random.default_rng(1)
    values = chance.standard_normal((N, AGENTS)).astype(np.float32)
    state = Tensor(chance.standard_normal((N, AGENTS * 18)), ms.float32)
    before = mixer(Tensor(values), state).asnumpy()
    for agent in range(AGENTS):
        more = values + 0.5 * np.eye(AGENTS, dtype=np.float32)[agent]
        assert (mixer(Tensor(more), state).asnumpy() >= before).all()


@pytest.mark.parametrize("mixing", [True, False])
def test_the_loss_in_a_plain_loop(mixing):
    trainer, module = made(mixing=mixing, gamma=0.9)
    chance, size = np.random.default_rng(2), spec(SPREAD).obs_shape[1]
    obs, final_obs = chance.standard_normal((2, N, AGENTS, size)).astype(np.float32)
    action = chance.integers(0, 5, (N, AGENTS)).astype(np.int32)
    reward = chance.standard_normal((N, AGENTS)).astype(np.float32)
    terminated = np.array([False, True, False, False, True])
    arrays = (obs, obs.reshape(N, -1), action, reward, terminated, final_obs)
    batch = module.Transition(*map(Tensor, (*arrays, final_obs.reshape(N, -1))))
    loss, value = (part.asnumpy() for part in trainer.learner.loss(batch))

    def team_value(network, values, rows):
        if not mixing:
            return values.sum()
        mixer, state = network.mixer, Tensor(rows.reshape(1, -1))
        parts = (mixer.first_weight, mixer.first_bias, mixer.last_weight, mixer.last_bias)
        first, bias, last, end = (part(state).asnumpy()[0] for part in parts)
        hidden = values @ np.abs(first.reshape(AGENTS, -1)) + bias
        hidden = np.where(hidden > 0, hidden, np.exp(np.minimum(hidden, 0)) - 1)
        return hidden @ np.abs(last) + end[0]

    online, target = trainer.learner.network, trainer.learner.target
    for n in range(N):
        own = online(batch.obs).asnumpy()[n][np.arange(AGENTS), action[n]]
        expected = team_value(online, own, obs[n])
        best = online(batch.final_obs).asnumpy()[n].argmax(-1)
        following = target(batch.final_obs).asnumpy()[n][np.arange(AGENTS), best]
        goal = reward[n].mean()
        if not terminated[n]:
            goal += 0.9 * team_value(target, following, final_obs[n])
        error = abs(expected - goal)
        np.testing.assert_allclose(value[n], expected, rtol=1e-4, atol=1e-5)
        wanted = 0.5 * error**2 if error <= 1 else error - 0.5
        np.testing.assert_allclose(loss[n], wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mixing", [pytest.param(True, marks=pytest.mark.slow), False])
def test_agents_on_several_ranks_are_refused_with_the_line(mixing, tmp_path):
    file = registry.find_algorithm("vdn")
    config = programs.trainer_class(file).Config(
        mixing=mixing, num_envs=4, hidden=(8,), mixing_size=4
    )
    policy = registry.load_policy(registry.find_policy("Environments"))
    line = next(
        number
        for number, text in enumerate(file.read_text().splitlines(), 1)
        if "msrl.replay_insert(" in text
    )
    with pytest.raises(MsrlError, match="for all agents of an environment") as raised:
        prepare(JobRequest(file, policy, config, 2), Path(tmp_path))
    assert f"vdn.py:{line}" in str(raised.value)
    assert "--policy MultipleLearners" in str(raised.value)
