"""One variable marked at two places of a rollout, one of them under a run-time `if`."""

from tests.programs.small_agents import BaseLearner, SmallTrainer


class Learn(BaseLearner):
    def learn(self, msrl, batch):
        obs, action, weight = batch
        grads, means = msrl.boundary(
            "gradient", msrl.gradient(self.loss, self.net, obs, action, weight)
        )
        msrl.update(self.apply, grads)
        return {"loss": means[0]}


class MarksInBranches(SmallTrainer):
    Learn = Learn

    def train(self, msrl):
        obs = msrl.boundary("observation", msrl.env_reset())
        for _ in msrl.iterations():
            for step in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, _, reward, _, _ = msrl.boundary(
                    "observation", msrl.env_step(msrl.boundary("action", action))
                )
                before, done = msrl.boundary("transition", (obs, action))
                weight = msrl.boundary("transition", reward + 0.1 * step)
                if step % 3 == 1:
                    weight = msrl.boundary("transition", 0.5 * weight)
                msrl.replay_insert(before, done, weight)
                obs = next_obs
            batch = msrl.boundary("batch", msrl.replay_sample())
            msrl.report(msrl.agent_learn(batch))
