"""Kept records of two kinds of steps, drawn in their loop, as windows, and after it."""

from mindspore import ops

from tests.programs.small_agents import BaseLearner, SmallTrainer


class Learn(BaseLearner):
    def shaken_loss(self, obs, action, reward, shake):
        return self.loss(obs, action, reward + 0.1 * shake.sum(-1))

    def learn(self, msrl, batch, rows):
        shake = msrl.uniform(rows, 2)
        grads, means = msrl.gradient(self.shaken_loss, self.net, *batch, shake)
        msrl.update(self.apply, grads)
        return means[0]


class KeptTrainer(SmallTrainer):
    Learn = Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            loss = 0.0
            for _ in range(3):
                for _ in range(2):
                    action = msrl.agent_act(obs)
                    next_obs, final_obs, reward, _, _ = msrl.env_step(action)
                    weighed = reward + 0.01 * final_obs.sum(-1)
                    msrl.replay_insert(obs, action, weighed, keep=80)
                    obs = next_obs
                seen, taken, got = msrl.replay_sample(16, steps=2)
                batch = seen[:, 0], taken[:, 0], got[:, 0] + 0.9 * got[:, 1]
                loss += msrl.agent_learn(batch, 16)
            msrl.replay_insert(obs, action, ops.zeros_like(weighed), keep=80)
            batch = msrl.replay_sample(40)
            msrl.report({"loss": loss, "last": msrl.agent_learn(batch, 40)})
