"""MAPPO: parameters shared within a team and separate between teams, or each agent's own."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from mindspore_rl import programs
from mindspore_rl.environments.registry import spec
from mindspore_rl.jobs import registry
from mindspore_rl.rl.operators import gradient_function

N, TEAMS = 7, (3, 1)
AGENT = Tensor(np.arange(4), ms.int32)


@pytest.fixture(scope="module")
def trainer():
    """A trainer with two teams, of three agents and of one."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    name = "graph:simple_tag_v3"
    cls = programs.trainer_class(registry.find_algorithm("mappo"))
    return cls(cls.Config(env=name, hidden=(8,)), spec(name))


@pytest.fixture(scope="module")
def batch(trainer):
    """One minibatch, the arguments of `loss`, with unchanged old probabilities."""
    rng = np.random.default_rng(0)
    agents, size = trainer.spec.obs_shape
    obs = rng.normal(size=(N, agents, size)).astype(np.float32)
    obs[..., -2:] = np.repeat(np.eye(2), TEAMS, axis=0)
    action = rng.integers(0, trainer.spec.action_space.n, (N, agents)).astype(np.int32)
    rest = [rng.normal(size=(N, agents)).astype(np.float32) for _ in range(3)]
    return [Tensor(value) for value in (obs, obs.reshape(N, -1), action, *rest)]


def test_an_agent_goes_through_its_teams_network(trainer, batch):
    network = trainer.actor.network
    logits = network.logits(batch[0], AGENT).asnumpy()
    for team, agents in enumerate((slice(0, 3), slice(3, 4))):
        rows = Tensor(batch[0].asnumpy()[:, agents].reshape(-1, batch[0].shape[-1]))
        own = network.policies.networks[team](rows).asnumpy()
        assert np.allclose(logits[:, agents].reshape(own.shape), own, atol=1e-6)


def test_a_critic_sees_all_agents_and_a_policy_only_its_own(trainer, batch):
    network = trainer.actor.network
    obs, state = batch[:2]
    moved = obs.asnumpy().copy()
    moved[:, 1, 0] += 1.0
    other = Tensor(moved)
    change = (network.logits(other, AGENT) - network.logits(obs, AGENT)).asnumpy()
    changed = np.abs(change).max((0, 2)) > 0
    assert changed.tolist() == [False, True, False, False]
    value = network.value(obs, AGENT, state).asnumpy()
    joint = network.value(obs, AGENT, Tensor(moved.reshape(N, -1))).asnumpy()
    assert (np.abs(joint - value).max(0) > 0).all()


def test_a_team_learns_from_its_own_agents_and_by_their_mean(trainer, batch):
    """Each team's gradient is that of the team alone: its own agents' mean."""
    learner, network = trainer.learner, trainer.actor.network
    whole, *_ = gradient_function(learner.loss, network, None)(AGENT, *batch)
    names = [p.name for p in network.trainable_params()]

    def only(team, *args):
        agents = slice(0, 3) if team == 0 else slice(3, 4)
        own = [a if a.ndim == 2 and a.shape[1] > 4 else a[:, agents] for a in args]
        return learner.loss(AGENT[agents], *own)[0] / learner.weight[team]

    for team in range(2):
        alone, *_ = gradient_function(lambda *a, t=team: only(t, *a), network, None)(*batch)
        for name, got, wanted in zip(names, whole, alone, strict=True):
            if f"networks.{team}." in name:
                assert np.allclose(got.asnumpy(), wanted.asnumpy(), atol=1e-6), name
            else:
                assert not wanted.asnumpy().any(), name


def test_advantages_are_normalised_in_each_team(trainer, batch):
    learner = trainer.learner
    teams = trainer.actor.network.groups(batch[0], AGENT)
    advantage = Tensor(batch[4].asnumpy() * [1, 1, 1, 30] + np.float32(500))
    mean = learner.by_group(advantage, teams).mean((0, 1))
    centred = learner.centred(advantage, teams, mean)
    got = learner.normalised(centred, teams, ops.square(centred).mean((0, 1))).asnumpy()
    for team in (got[:, :3], got[:, 3:]):
        assert np.allclose([team.mean(), team.std()], [0.0, 1.0], atol=1e-3)


def test_each_networks_gradient_is_bounded(trainer, batch):
    learner, network = trainer.learner, trainer.actor.network
    grads, *_ = gradient_function(learner.loss, network, None)(AGENT, *batch)
    huge = tuple(grad * 1000.0 for grad in grads)
    clipped, norm = learner.clip(huge)
    norms = [
        np.sqrt(sum(np.square(g.asnumpy()).sum() for g in clipped[i : i + learner.tensors]))
        for i in range(0, len(clipped), learner.tensors)
    ]
    assert len(norms) == 4
    assert np.allclose(norms, trainer.config.max_grad_norm, rtol=1e-4)
    wanted = np.sqrt(sum(np.square(grad.asnumpy()).sum() for grad in huge))
    assert np.isclose(float(norm), wanted, rtol=1e-4)


def test_each_agent_has_its_own_networks(batch):
    """Rows go through the networks of their agents' numbers, whichever agents are here."""
    name = "graph:simple_tag_v3"
    cls = programs.trainer_class(registry.find_algorithm("mappo"))
    own = cls(cls.Config(env=name, hidden=(8,), shared=False, central=False), spec(name))
    network, obs = own.actor.network, batch[0]
    agent = AGENT
    logits, value = network.logits(obs, agent), network.value(obs, agent, batch[1])
    for i in range(4):
        rows = obs[:, i]
        alone = network.policies.networks[i](rows), network.critics.networks[i](rows)[:, 0]
        for got, wanted in zip((logits, value), alone, strict=True):
            assert np.allclose(got[:, i].asnumpy(), wanted.asnumpy(), atol=1e-6)
    some = network.logits(obs[:, 2:], agent[2:]).asnumpy()
    assert np.allclose(some, logits[:, 2:].asnumpy(), atol=1e-6)
    loss, weight = own.learner.loss(agent, *batch)[0].asnumpy(), own.learner.weight.asnumpy()
    assert loss.shape == (N, 4)
    assert weight.tolist() == [4.0] * 4  # of a mean over all agents, each has a quarter
