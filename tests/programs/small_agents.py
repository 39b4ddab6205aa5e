"""Shared parts of the test programs: a small network, an actor, a learner's update."""

from dataclasses import dataclass

from mindspore import nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.rl.action_distributions import categorical_log_prob, categorical_sample
from mindspore_rl.rl.networks import MLP


@dataclass(frozen=True)
class Config:
    env: str = "CartPole-v1"
    seed: int = 5
    num_envs: int = 8
    num_steps: int = 16
    total_steps: int = 1000
    gamma: float = 0.97
    learning_rate: float = 0.01
    update_epochs: int = 2
    num_minibatches: int = 2
    target_kl: float = 1e-4
    extra: bool = True


class Net(nn.Cell):
    def __init__(self, config, spec):
        super().__init__()
        self.policy = MLP(spec.obs_shape[0], (16,), spec.action_space.n, 0.5, config.seed, 1)
        self.critic = MLP(spec.obs_shape[0], (16,), 1, 1.0, config.seed, 2)

    def value(self, obs):
        return self.critic(obs.reshape((-1, obs.shape[-1]))).reshape(obs.shape[:-1])


class Act(Actor):
    noise_size = 1

    def __init__(self, net):
        super().__init__()
        self.net = net

    def act(self, obs, noise):
        return categorical_sample(self.net.policy(obs), noise)


class BaseLearner(Learner):
    def __init__(self, net, config):
        super().__init__()
        self.net, self.config = net, config
        self.optimizer = nn.Adam(net.trainable_params(), config.learning_rate)

    def loss(self, obs, action, target):
        obs = obs.reshape((-1, obs.shape[-1]))
        action, target = action.reshape(-1), target.reshape(-1)
        value = self.net.critic(obs).reshape(-1)
        log_prob = categorical_log_prob(self.net.policy(obs), action)
        advantage = ops.stop_gradient(target - value)
        return ops.square(target - value) - log_prob * advantage, log_prob

    def apply(self, grads):
        self.optimizer(grads)


class SmallTrainer(Trainer):
    """The trainer of a program whose classes are its attributes."""

    Config = Config
    Net, Act, Learn = Net, Act, BaseLearner

    def __init__(self, config, spec):
        super().__init__(config, spec)
        net = self.Net(config, spec)
        self.actor, self.learner = self.Act(net), self.Learn(net, config)
