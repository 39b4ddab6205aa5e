"""A2C without minibatches: helpers, dictionaries, configuration and module constants."""

from mindspore_rl.rl.returns import lambda_returns
from tests.programs.small_agents import BaseLearner, SmallTrainer

SCALE = 0.5
OPTIONS = {"lam": 0.9, "rounds": (1, 2)}


def w(x, *, by=1.0):
    return x * by


def scalars(msrl, value, name="a", factor=1.0):
    spread = msrl.max(value) - msrl.min(value)
    return {f"{name}/mean": msrl.mean(value) * factor, f"{name}/spread": spread}


class Learn(BaseLearner):
    def learn(self, msrl, batch):
        obs, action, reward, terminated, truncated, final_obs = batch
        nn = self.config.gamma if self.config.extra else 1.0
        value = {"now": reward * 0.0, "next": self.net.value(final_obs)}
        target = lambda_returns(
            reward * SCALE, value["next"], terminated, truncated, nn, OPTIONS["lam"]
        )
        grads, means = msrl.gradient(self.loss, self.net, obs, action, target)
        msrl.update(self.apply, grads)
        loss, log_prob = means
        first = scalars(msrl, target, name="target")
        second = scalars(msrl, w(reward, by=2.0), factor=3.0, name="reward")
        return {"loss": loss, "log_prob": log_prob, **first, **second}


class A2C(SmallTrainer):
    Learn = Learn

    def move(self, msrl, obs):
        action = msrl.agent_act(obs)
        return action, msrl.env_step(action)

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, outcome = self.move(msrl, obs)
                next_obs, final_obs, reward, terminated, truncated = outcome
                msrl.replay_insert(obs, action, reward, terminated, truncated, final_obs)
                obs = next_obs
            w = msrl.replay_sample()
            value = msrl.agent_learn(w)
            msrl.report(value)
