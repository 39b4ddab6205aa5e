"""A loss of one record that tells the errors of its rows, and an actor with keyword arguments."""

from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl.rl.action_distributions import categorical_sample
from mindspore_rl.rl.networks import MLP
from tests.programs import small_agents
from tests.programs.small_agents import BaseLearner, SmallTrainer

WIDTH = 4


class Outcome(NamedTuple):
    reward: Any
    next_obs: Any


class Step(NamedTuple):
    obs: Any
    action: Any
    outcome: Outcome
    state: tuple


class Net(nn.Cell):
    def __init__(self, config, spec):
        super().__init__()
        self.cell = MLP(spec.obs_shape[0] + WIDTH, (), WIDTH, 1.0, config.seed, 1)
        self.values = MLP(WIDTH, (), spec.action_space.n, 0.5, config.seed, 2)

    def turn(self, obs, state):
        hidden = ops.tanh(self.cell(ops.concat((obs, state[0]), -1)))
        return self.values(hidden), hidden


class Act(small_agents.Act):
    def act(self, obs, *, state, noise):
        values, hidden = self.net.turn(obs, state)
        return categorical_sample(values, noise), hidden


class Learn(BaseLearner):
    def target(self, step, scale):
        outcome = step.outcome
        return outcome.reward + scale * outcome.next_obs[..., 0]

    def loss(self, batch, weight):
        values, _ = self.net.turn(batch.obs, batch.state)
        value = (values * ops.one_hot(batch.action, 2)).sum(-1)
        error = self.target(batch, scale=0.1) - value
        return weight * ops.square(error), ops.abs(error)

    def learn(self, msrl):
        for _ in msrl.epochs(2):
            batch, ids, odds = msrl.replay_sample(16, "priority")
            grads, means, (_, error) = msrl.gradient(
                self.loss, self.net, batch, 1.0 / odds, rows=True
            )
            msrl.update(self.apply, grads)
            msrl.replay_update(ids, error + 0.01)
        return {"loss": means[0], "error": means[1], "largest": msrl.max(error)}


class Fields(SmallTrainer):
    Net, Act, Learn = Net, Act, Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        state = (ops.zeros((obs.shape[0], WIDTH)),)
        for _ in msrl.iterations():
            for _ in msrl.steps():
                before = state
                action, *state = msrl.agent_act(obs, state=state)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                outcome = Outcome(reward=reward, next_obs=final_obs)
                msrl.replay_insert(Step(obs, action, outcome, before), keep=80)
                obs, ended = next_obs, ops.logical_or(terminated, truncated)
                state = tuple(ops.where(ended.expand_dims(-1), 0.0, part) for part in state)
            msrl.report(msrl.agent_learn())
