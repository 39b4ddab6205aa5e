"""Random numbers and kept records that are drawn from the second iteration on, not in every turn.

Others are drawn in every iteration behind them, one in the same function.
"""

from dataclasses import dataclass

from tests.programs import small_agents
from tests.programs.small_agents import BaseLearner, SmallTrainer


@dataclass(frozen=True)
class Config(small_agents.Config):
    by: str = "stratified"


class Learn(BaseLearner):
    def shaken_loss(self, obs, action, reward, shake):
        return self.loss(obs, action, reward + shake.sum(-1))

    def step(self, msrl, batch, count):
        shake = msrl.uniform(count, 2)
        grads, means = msrl.gradient(self.shaken_loss, self.net, *batch, shake)
        msrl.update(self.apply, grads)
        return means[0]

    def learn(self, msrl):
        loss, other = 0.0, 0.0
        if msrl.env_steps() >= 100:
            for k in range(3):
                loss = self.step(msrl, msrl.replay_sample(40, self.config.by), 40)
                if self.config.by == "stratified" and (k % 2 == 1 or loss > 1.0):
                    other = other + self.step(msrl, msrl.replay_sample(16), 16)
        late = msrl.mean(msrl.uniform(40, 1))
        last = self.step(msrl, msrl.replay_sample(16), 16)
        return {"loss": loss, "other": other, "late": late, "last": last}


class LateTrainer(SmallTrainer):
    Config, Learn = Config, Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, _, reward, _, _ = msrl.env_step(action)
                msrl.replay_insert(obs, action, reward, keep=400)
                obs = next_obs
            msrl.report(msrl.agent_learn())
