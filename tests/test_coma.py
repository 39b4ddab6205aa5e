"""COMA: the counterfactual advantage, the critics' input and the losses, by hand."""

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.environments.registry import spec
from mindspore_rl.jobs import registry
from mindspore_rl.rl.losses import counterfactual_advantage

CLASS = programs.trainer_class(registry.find_algorithm("coma"))
N, AGENTS, SIZE = 4, 3, 5
ENV = "graph:simple_spread_v3"


def test_the_advantage_is_over_the_mean_of_the_agents_own_actions():
    """Probabilities 1/2, 1/4, 1/4 of values 4, 2, 6: a baseline of 4."""
    value = Tensor([[4.0, 2.0, 6.0]] * 3, ms.float32)
    logits = Tensor(np.log([[2.0, 1.0, 1.0]] * 3).astype(np.float32))
    advantage = counterfactual_advantage(value, logits, Tensor([0, 1, 2], ms.int32))
    np.testing.assert_allclose(advantage.asnumpy(), [0.0, -2.0, 2.0], atol=1e-5)


def test_a_critic_sees_the_state_and_the_others_actions():
    """Rows of agents 2 and 0, as a replica may hold them."""
    trainer = CLASS(CLASS.Config(env=ENV, hidden=(8,)), spec(ENV))
    critics, chance = trainer.learner.critics, np.random.default_rng(0)
    state = chance.standard_normal((N, AGENTS * spec(ENV).obs_shape[1])).astype(np.float32)
    actions = chance.integers(0, SIZE, (N, AGENTS)).astype(np.int32)
    agents = (2, 0)
    arguments = Tensor(state), Tensor(actions), Tensor(agents, ms.int32)
    values, taken = critics(*arguments).asnumpy(), critics.value(*arguments).asnumpy()
    loss, _ = trainer.learner.critic_loss(arguments[2], *arguments[:2], Tensor(taken + 2.0))
    np.testing.assert_allclose(loss.asnumpy(), np.full((N, 2), 2.0), rtol=1e-4)
    for row, agent in enumerate(agents):
        others = np.eye(SIZE, dtype=np.float32)[actions]
        others[:, agent] = 0.0
        inputs = np.concatenate([others.reshape(N, -1), state], 1)
        wanted = critics.networks.networks[agent](Tensor(inputs)).asnumpy()
        np.testing.assert_allclose(values[:, row], wanted, rtol=1e-4, atol=1e-5)
        wanted = wanted[np.arange(N), actions[:, agent]]
        np.testing.assert_allclose(taken[:, row], wanted, rtol=1e-4, atol=1e-5)


def test_the_policies_loss_in_a_plain_loop():
    trainer = CLASS(CLASS.Config(env=ENV, hidden=(8,), ent_coef=0.1), spec(ENV))
    policies, chance = trainer.actor.policies, np.random.default_rng(1)
    obs = chance.standard_normal((N, AGENTS, spec(ENV).obs_shape[1])).astype(np.float32)
    action = chance.integers(0, SIZE, (N, AGENTS)).astype(np.int32)
    advantage = chance.standard_normal((N, AGENTS)).astype(np.float32)
    agent = Tensor(np.arange(AGENTS), ms.int32)
    loss, _ = trainer.learner.policy_loss(agent, *map(Tensor, (obs, action, advantage)))
    best = policies.best(Tensor(obs.reshape(N, -1))).asnumpy()
    for i in range(AGENTS):
        logits = policies.networks.networks[i](Tensor(obs[:, i])).asnumpy()
        assert np.array_equal(best[:, i], logits.argmax(-1))
        policy = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        entropy = -(policy * np.log(policy)).sum(-1)
        gain = np.log(policy[np.arange(N), action[:, i]]) * advantage[:, i]
        np.testing.assert_allclose(loss[:, i].asnumpy(), -gain - 0.1 * entropy, atol=1e-5)
