"""NamedTuples with fields that are tuples and other NamedTuples, inserted beside a tuple of one."""

from typing import Any, NamedTuple

from mindspore_rl.rl.losses import clip_by_global_norm
from tests.programs.small_agents import BaseLearner, SmallTrainer


class Outcome(NamedTuple):
    reward: Any
    next_obs: Any


class Step(NamedTuple):
    obs: Any
    action: Any
    outcome: Outcome
    memory: tuple = ()


class Minibatch(NamedTuple):
    obs: Any
    action: Any
    target: Any


class Learn(BaseLearner):
    def centred(self, msrl, outcome):
        return outcome._replace(reward=outcome.reward - msrl.mean(outcome.reward))

    def learn(self, msrl, inserted):
        batch, (again,) = inserted
        outcome = self.centred(msrl, batch.outcome)
        target = outcome.reward + 0.1 * again.next_obs[..., 0]
        if batch.memory:
            target = target + 0.1 * batch.memory[0][..., 0]
        parts = Minibatch(batch.obs, batch.action, target=target)
        for part, (shift, _) in msrl.minibatches(2, (parts, (target, batch.obs))):
            halved = part._replace(target=part.target - 0.5 * shift)
            grads, means = msrl.gradient(self.loss, self.net, *halved)
            grads, _ = clip_by_global_norm(grads, 0.5)
            msrl.update(self.apply, grads)
        return {"loss": means[0], "target": msrl.mean(target)}


class Records(SmallTrainer):
    Learn = Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        before = Outcome(0.0 * obs[:, 0], obs)
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, _, reward, _, _ = msrl.env_step(action)
                outcome = Outcome(reward=reward + before.reward, next_obs=next_obs)
                step = Step(obs, action, outcome, memory=(before.next_obs,))
                msrl.replay_insert(step, (outcome,))
                obs, before = next_obs, outcome._replace(reward=0.1 * reward)
            msrl.report(msrl.agent_learn(msrl.replay_sample()))
