"""Records and windows of all environments together, in their loop and after it, and priorities."""

from mindspore import ops

from tests.programs.small_agents import BaseLearner, SmallTrainer


class Learn(BaseLearner):
    def learn(self, msrl, batch):
        grads, means = msrl.gradient(self.loss, self.net, *batch)
        msrl.update(self.apply, grads)
        return means[0]


class AcrossTrainer(SmallTrainer):
    Learn = Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            loss = 0.0
            for _ in range(3):
                for _ in range(2):
                    action = msrl.agent_act(obs)
                    next_obs, _, reward, terminated, _ = msrl.env_step(action)
                    record = obs, action, reward + 0.1 * obs.sum(-1), terminated
                    msrl.replay_insert(*record, keep=80)
                    obs = next_obs
                seen, taken, got, ended = msrl.replay_sample(24, "uniform", steps=2)
                target = got[:, 0] + 0.9 * ops.where(ended[:, 0], 0.0 * got[:, 1], got[:, 1])
                loss += msrl.agent_learn((seen[:, 0], taken[:, 0], target))
            seen, taken, got, _ = msrl.replay_sample(48, "distinct")
            loss += msrl.agent_learn((seen, taken, got))
            seen, taken, got, _, ids, odds = msrl.replay_sample(16, "priority")
            msrl.replay_update(ids, ops.abs(got))
            msrl.report({"loss": loss, "last": msrl.agent_learn((seen, taken, got / odds))})
