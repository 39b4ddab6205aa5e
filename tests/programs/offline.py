"""Windows of a data set, read in loops and after them, together with rollouts."""

from dataclasses import dataclass

from tests.programs import small_agents
from tests.programs.small_agents import BaseLearner, SmallTrainer


@dataclass(frozen=True)
class Config(small_agents.Config):
    dataset: str = ""


class Learn(BaseLearner):
    def window_loss(self, obs, action, left, step, mask):
        loss, log_prob = self.loss(obs, action, left + 0.01 * step.astype("float32"))
        rows = mask.shape[0]
        weight = mask.astype("float32") / mask.sum(1, keepdims=True).astype("float32")
        return (loss.reshape((rows, -1)) * weight).sum(1), log_prob.reshape((rows, -1)).mean(1)

    def learn(self, msrl, batch):
        obs, action, _, left, step, mask = batch
        grads, means = msrl.gradient(self.window_loss, self.net, obs, action, left, step, mask)
        msrl.update(self.apply, grads)
        return means[0]


class Offline(SmallTrainer):
    Config, Learn = Config, Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            loss = 0.0
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                obs, _, _, _, _ = msrl.env_step(action)
            for _ in range(2):
                for _ in msrl.epochs(3):
                    batch = msrl.dataset_windows(self.config.dataset, 24, 5)
                    loss += msrl.agent_learn(batch)
            last = msrl.agent_learn(msrl.dataset_windows(self.config.dataset, 8, 9))
            msrl.report({"loss": loss, "last": last})
