"""MADDPG: what its critics and policies take, and its losses, by hand."""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mindspore_rl import programs
from mindspore_rl.environments.registry import spec
from mindspore_rl.jobs import registry
from mindspore_rl.rl.action_distributions import straight_through
from mindspore_rl.rl.agents import of_agent, with_own

CLASS = programs.trainer_class(registry.find_algorithm("maddpg"))
N, AGENTS, SIZE = 5, 3, 5
ENV = "graph:simple_spread_v3"


def numbers(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def test_each_agent_finds_its_part_and_puts_in_its_own():
    value, own, agents = numbers(N, AGENTS, 2), numbers(N, 2, 2), (2, 0)
    members = Tensor(np.eye(AGENTS, dtype=np.float32)[list(agents)])
    found = of_agent(members, Tensor(value)).asnumpy()
    joint = with_own(members, Tensor(value), Tensor(own)).asnumpy()
    assert joint.shape == (N, 2, AGENTS * 2)
    for row, agent in enumerate(agents):
        assert np.array_equal(found[:, row], value[:, agent])
        wanted = value.copy()
        wanted[:, agent] = own[:, row]
        assert np.array_equal(joint[:, row], wanted.reshape(N, -1))


def test_straight_through_is_a_one_hot_with_the_gradient_of_the_softmax():
    logits, weight = Tensor(numbers(4, SIZE)), Tensor(numbers(4, SIZE) + 1)
    hot = straight_through(logits).asnumpy()
    np.testing.assert_allclose(hot, np.eye(SIZE)[logits.asnumpy().argmax(-1)], atol=1e-6)
    got, wanted = (
        ms.grad(lambda x, f=f: (f(x) * weight).sum())(logits).asnumpy()
        for f in (straight_through, lambda x: ops.softmax(x, -1))
    )
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_the_losses_are_those_of_the_paper():
    trainer = CLASS(CLASS.Config(env=ENV, hidden=(8,), temperature=0.5), spec(ENV))
    learner, agent = trainer.learner, Tensor(np.arange(AGENTS), ms.int32)
    size = trainer.spec.obs_shape[1]
    record = sys.modules[CLASS.__module__].Transition
    states, rewards = numbers(2, N, AGENTS, size), numbers(N, AGENTS)
    actions = np.random.default_rng(0).integers(0, SIZE, (N, AGENTS)).astype(np.int32)
    terminated = np.arange(N) % 2 == 0
    flat = [Tensor(state.reshape(N, -1)) for state in states]
    batch = record(flat[0], Tensor(actions), Tensor(rewards), flat[1], Tensor(terminated))
    noise = np.random.default_rng(1).random((N, AGENTS * SIZE), dtype=np.float32)
    error = learner.critic_loss(agent, batch)[0].asnumpy()
    loss = learner.policy_loss(agent, batch, Tensor(noise)).asnumpy()
    hot, gumbel = np.eye(SIZE, dtype=np.float32), -np.log(-np.log(noise.reshape(N, AGENTS, SIZE)))

    def logits(policies, i, state):
        return policies.networks.networks[i](Tensor(state[:, i])).asnumpy()

    def value(critics, i, taken, state):
        inputs = np.concatenate([taken.reshape(N, -1), state.reshape(N, -1)], 1)
        return critics.networks[i](Tensor(inputs)).asnumpy()[:, 0]

    following = np.stack(
        [hot[logits(learner.target_policies, i, states[1]).argmax(-1)] for i in range(AGENTS)], 1
    )
    for i in range(AGENTS):
        later = value(learner.target_critics, i, following, states[1])
        goal = rewards[:, i] + 0.95 * (1 - terminated) * later
        now = value(learner.critics, i, hot[actions], states[0])
        np.testing.assert_allclose(error[:, i], (now - goal) ** 2, rtol=1e-4, atol=1e-5)
        own, taken = logits(learner.policies, i, states[0]), hot[actions].copy()
        taken[:, i] = hot[(own + gumbel[:, i]).argmax(-1)]
        wanted = 1e-3 * (own**2).mean(-1) - value(learner.critics, i, taken, states[0])
        np.testing.assert_allclose(loss[:, i], wanted, rtol=1e-4, atol=1e-5)
