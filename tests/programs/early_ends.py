"""Loops that end early: `break` at three depths, `while`, and minibatches under a condition.

Statistics of the batch decide on updates, and a loop changes a parameter that it reads.
"""

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from tests.programs.small_agents import BaseLearner, SmallTrainer


class Learn(BaseLearner):
    def __init__(self, net, config):
        super().__init__(net, config)
        self.seen = Parameter(Tensor([0.5], ms.float32), name="seen")

    def follow(self, x):
        ops.assign(self.seen, 0.9 * self.seen + 0.1 * x)

    def phase(self, msrl, data, limit):
        taken, loss = 0.0, 0.0
        for epoch in msrl.epochs(3):
            for minibatch in msrl.minibatches(4, data):
                grads, means = msrl.gradient(self.loss, self.net, *minibatch)
                loss, log_prob = means
                taken += 1.0
                if ops.abs(log_prob) > limit:
                    last = 2.0 * loss
                    if epoch > 0:
                        break
                else:
                    last = loss
                msrl.update(self.apply, grads)
            if taken > 5.5:
                break
            limit = 0.999 * limit
        return taken, loss, last

    def learn(self, msrl, batch):
        obs, action, reward = batch
        mean, top = msrl.mean(reward * obs[:, :, 2]), msrl.max(obs[:, :, 2])
        target = reward
        for step in msrl.steps():
            target = 0.9 * target
            if step > 2 and top > 0.3:
                break
        scale, turn = mean, 0
        while turn < 6 and ops.abs(scale) < 0.12:
            scale = 1.7 * scale + 0.01
            turn += 1
        left = 0
        while left < 3:
            left += 1
            for _ in range(4):
                if scale * left > 0.2:
                    break
                scale = scale + 0.05
        if top > -5.0:
            for _ in range(2):
                msrl.update(self.follow, mean)
                if top > -4.0:
                    target = target * (1.0 + self.seen[0])
        target = msrl.boundary("advantage", target + scale)
        taken, loss, last = self.phase(msrl, (obs, action, target), 0.69)
        again = 0.0
        if taken < 6.5 and top < 5.0:
            for minibatch in msrl.minibatches(2, (obs, action, target)):
                grads, means = msrl.gradient(self.loss, self.net, *minibatch)
                msrl.update(self.apply, grads)
                again = means[0]
        return {"loss": loss, "taken": taken, "last": last, "turn": turn, "again": again}


class EarlyEnds(SmallTrainer):
    Learn = Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, _, reward, _, _ = msrl.env_step(action)
                msrl.replay_insert(obs, action, reward)
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
