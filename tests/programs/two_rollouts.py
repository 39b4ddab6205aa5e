"""Two rollout loops and two samples in an iteration, one of them nested in a range."""

from mindspore_rl.rl.returns import lambda_returns
from tests.programs.small_agents import BaseLearner, SmallTrainer


class Learn(BaseLearner):
    def learn(self, msrl, batch, weight):
        obs, action, reward, terminated, truncated, final_obs = batch
        target = weight * lambda_returns(
            reward, self.net.value(final_obs), terminated, truncated, self.config.gamma
        )
        grads, means = msrl.gradient(self.loss, self.net, obs, action, target)
        msrl.update(self.apply, grads)
        return means[0]


class TwoRollouts(SmallTrainer):
    Learn = Learn

    def phase(self, msrl, weight):
        batch = msrl.replay_sample()
        return msrl.agent_learn(batch, weight)

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(obs, action, reward, terminated, truncated, final_obs)
                obs = next_obs
            first = self.phase(msrl, 1.0)
            bonus = reward * 0.1
            for half in range(2):
                for _ in msrl.steps():
                    action = msrl.agent_act(obs)
                    next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                    reward = reward + bonus * half
                    bonus = bonus * 0.9
                    msrl.replay_insert(obs, action, reward, terminated, truncated, final_obs)
                    obs = next_obs
            second = self.phase(msrl, 0.5)
            msrl.report({"first": first, "second": second, "both": first + second})
