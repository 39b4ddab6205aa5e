"""Conditions on replicated values: no update if the policy has moved too far, nested in loops."""

from mindspore import ops

from mindspore_rl.rl.returns import lambda_returns
from tests.programs.small_agents import BaseLearner, SmallTrainer


class Learn(BaseLearner):
    def rate(self, msrl, kl, rate):
        if kl > self.config.target_kl:
            rate = rate * 0.5
        return rate

    def apply_with(self, grads, rate):
        ops.assign(self.optimizer.learning_rate, rate)
        self.optimizer(grads)

    def learn(self, msrl, batch):
        config = self.config
        obs, action, reward, terminated, truncated, final_obs = batch
        target = lambda_returns(
            reward, self.net.value(final_obs), terminated, truncated, config.gamma
        )
        skipped, total, early = 0.0, 0.0, 0.0
        rate = config.learning_rate + 0.0 * msrl.env_steps()
        for epoch in msrl.epochs(config.update_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, (obs, action, target)):
                grads, means = msrl.gradient(self.loss, self.net, *minibatch)
                loss, log_prob = means
                if epoch == 0:
                    early = loss
                total += loss
                kl = ops.abs(log_prob + 0.69)
                if kl < 0.002 and config.extra:
                    step = 2.0 * loss
                    msrl.update(self.apply_with, grads, rate)
                else:
                    step = loss
                    if kl < 0.01:
                        msrl.update(self.apply_with, grads, 0.1 * rate)
                    skipped += 1.0
                rate = self.rate(msrl, kl, rate)
                far = kl > 0.001
        if far:
            early = 0.5 * early
        early = msrl.boundary("advantage", early)
        count = config.update_epochs * config.num_minibatches
        losses = {"loss": total / count, "early": early}
        return {**losses, "skipped": skipped, "rate": rate, "last": step}


class KLStop(SmallTrainer):
    Learn = Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(obs, action, reward, terminated, truncated, final_obs)
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
