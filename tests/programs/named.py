"""An actor whose result has names, and steps that are instances of a dataclass."""

import dataclasses
from typing import Any, NamedTuple

from mindspore import ops

from mindspore_rl.rl.action_distributions import categorical_sample
from tests.programs import small_agents
from tests.programs.fields import WIDTH, Learn, Net
from tests.programs.small_agents import SmallTrainer


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
    state: tuple


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


class Named(SmallTrainer):
    Net, Act, Learn = Net, Act, Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        state, count = (ops.zeros((obs.shape[0], WIDTH)),), 0.0
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
                state = (ops.where(ended.expand_dims(-1), 0.0, hidden),)
                count = msrl.mean(more)
            msrl.report({**msrl.agent_learn(), "count": count})
