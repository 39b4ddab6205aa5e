"""An actor whose result has names, steps of a dataclass, a loss that tells its rows' errors."""

import dataclasses
from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl.rl.action_distributions import categorical_sample
from mindspore_rl.rl.networks import MLP
from tests.programs import small_agents
from tests.programs.small_agents import BaseLearner, SmallTrainer

WIDTH = 4


class State(NamedTuple):
    hidden: Any


class Memory(NamedTuple):
    hidden: Any
    count: Any = 0.0


@dataclasses.dataclass(frozen=True)
class Decision:
    action: Any
    memory: Memory
    chance: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    reward: Any
    next_obs: Any


@dataclasses.dataclass(frozen=True)
class Step:
    obs: Any
    action: Any
    outcome: Outcome
    state: State


class Net(nn.Cell):
    def __init__(self, config, spec):
        super().__init__()
        self.cell = MLP(spec.obs_shape[0] + WIDTH, (), WIDTH, 1.0, config.seed, 1)
        self.values = MLP(WIDTH, (), spec.action_space.n, 0.5, config.seed, 2)

    def turn(self, obs, state):
        hidden = ops.tanh(self.cell(ops.concat((obs, state.hidden), -1)))
        return self.values(hidden), hidden


class Act(small_agents.Act):
    def act(self, obs, *, state, noise):
        values, hidden = self.net.turn(obs, state)
        memory = Memory((hidden,), 1.0 + 0.0 * noise[:, 0])
        return self.decided(values, memory, noise)

    def decided(self, values, memory, noise):
        decision = Decision(  # by name, in another order
            chance={"best": ops.amax(ops.softmax(values), -1)}["best"],
            action=categorical_sample(values, noise),
            memory=Memory(memory.hidden, 2.0 * memory.count),
        )
        return Decision(decision.action, decision.memory, 2.0 * decision.chance)


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


class Named(SmallTrainer):
    Net, Act, Learn = Net, Act, Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        state, count = State(ops.zeros((obs.shape[0], WIDTH))), 0.0
        for _ in msrl.iterations():
            for _ in msrl.steps():
                decision = msrl.agent_act(obs, state=state)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(decision.action)
                outcome = Outcome(reward=reward + decision.chance, next_obs=final_obs)
                step = Step(obs, decision.action, outcome, state)
                step = dataclasses.replace(step, action=decision.action)
                msrl.replay_insert(step, keep=80)
                obs, ended = next_obs, ops.logical_or(terminated, truncated)
                (hidden,), more = decision.memory
                state = State(ops.where(ended.expand_dims(-1), 0.0, hidden))
                count = msrl.mean(more)
            msrl.report({**msrl.agent_learn(), "count": count})
