"""Kept records of images, drawn as windows and by priority."""

from mindspore import nn, ops

from mindspore_rl.rl.networks import MLP
from tests.programs.small_agents import Act, BaseLearner, SmallTrainer


class Net(nn.Cell):
    def __init__(self, config, spec):
        super().__init__()
        size = spec.obs_shape[0] * spec.obs_shape[1] * spec.obs_shape[2]
        self.size, self.first = size, MLP(size, (8,), 4, 1.0, config.seed, 3)
        self.policy = nn.SequentialCell(self.first, nn.Dense(4, spec.action_space.n, "ones"))
        self.critic = nn.SequentialCell(self.first, nn.Dense(4, 1, "ones"))


class ActOnImages(Act):
    def act(self, obs, noise):
        return super().act(obs.reshape((-1, self.net.size)).astype("float32") / 255.0, noise)


class Learn(BaseLearner):
    def loss_of_images(self, obs, action, target):
        obs = obs.reshape((-1, self.net.size)).astype("float32") / 255.0
        return self.loss(obs, action, target)

    def learn(self, msrl, batch):
        grads, means = msrl.gradient(self.loss_of_images, self.net, *batch)
        msrl.update(self.apply, grads)
        return means[0]


class ImagesTrainer(SmallTrainer):
    Net, Act, Learn = Net, ActOnImages, Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in range(6):
                action = msrl.agent_act(obs)
                next_obs, final_obs, reward, _, _ = msrl.env_step(action)
                msrl.replay_insert(obs, action, reward, final_obs, keep=80)
                obs = next_obs
            seen, taken, got, after = msrl.replay_sample(16, steps=2)
            loss = msrl.agent_learn((seen[:, 0], taken[:, 0], got[:, 1]))
            loss += msrl.agent_learn((after[:, 1], taken[:, 0], got[:, 0]))
            seen, taken, got, after, ids, odds = msrl.replay_sample(24, "priority")
            msrl.replay_update(ids, ops.abs(got) + 0.5)
            msrl.report({"loss": loss, "last": msrl.agent_learn((seen, taken, got / odds))})
