"""Random numbers and records drawn from the second iteration on, before others in every one."""

from tests.programs.small_agents import BaseLearner, SmallTrainer


class Learn(BaseLearner):
    def shaken_loss(self, obs, action, reward, shake):
        return self.loss(obs, action, reward + shake.sum(-1))

    def learn(self, msrl, batch):
        loss = 0.0
        for _ in range(2):
            if msrl.env_steps() >= 100:
                shake = msrl.uniform(40, 2)
                grads, means = msrl.gradient(self.shaken_loss, self.net, *batch, shake)
                msrl.update(self.apply, grads)
                loss = means[0]
        late = msrl.uniform(40, 1)
        if msrl.env_steps() >= 100:
            for _ in range(2):
                ways = msrl.replay_sample(40), msrl.replay_sample(20, "distinct")
                for drawn in ways:
                    grads, means = msrl.gradient(self.loss, self.net, *drawn)
                    msrl.update(self.apply, grads)
                    loss += means[0]
        return {"loss": loss, "late": msrl.mean(late)}


class LateTrainer(SmallTrainer):
    Learn = Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, _, reward, _, _ = msrl.env_step(action)
                msrl.replay_insert(obs, action, reward, keep=400)
                obs = next_obs
            msrl.report(msrl.agent_learn(msrl.replay_sample(40)))
