"""Implicit Q-learning from a data set (Kostrikov et al. 2021, arXiv 2110.06169).

A value network learns an upper expectile of the critics' values of the data's actions, the critics
learn from it, and the policy clones the actions with weights that grow with their advantage. So no
network is asked for the value of an action that the data do not have.

Option: AWAC (Nair et al. 2020, arXiv 2006.09359), whose value is that of the policy's own action.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Box
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import ActionScale, normal_log_prob, normal_sample
from mindspore_rl.rl.losses import advantage_weight, expectile_loss
from mindspore_rl.rl.networks import MLP, TwinCritics, flat_size
from mindspore_rl.rl.updates import polyak_update, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of IQL, for Pendulum-v1."""

    env: str = option("Pendulum-v1", "environment to play in")
    dataset: str = option("", "file of trajectories, see `msrl dataset`")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(16, "environment steps of each environment in an iteration")
    total_steps: int = option(30_000, "environment steps of the whole run")
    updates: int = option(32, "updates in an iteration", ge=1)
    batch_size: int = option(256, "transitions of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    gamma: float = option(0.95, "discount per step", ge=0, le=1)
    tau: float = option(0.01, "step of the target critics in an update", ge=0, le=1)
    reward_scale: float = option(0.1, "rewards of the data are multiplied by this", gt=0)
    expectile: float = option(0.8, "expectile of the value; 0.5: the mean", gt=0, le=1)
    beta: float = option(20.0, "inverse temperature of the advantages' weights", ge=0)
    most_weight: float = option(100.0, "bound of those weights", gt=0)
    awac: bool = option(False, "the value is that of the policy's action: AWAC")
    hidden: tuple[int, ...] = option((128, 128), "widths of the hidden layers (ReLU)", ge=1)


class Transition(NamedTuple):
    """Transitions of the data set `[n, ...]`."""

    obs: Any
    action: Any  # in [-1, 1]
    reward: Any
    terminated: Any
    next_obs: Any


class Policy(nn.Cell):
    """A Gaussian over actions, with a mean in (-1, 1) and one deviation for all observations."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, self.size = flat_size(spec), spec.action_space.size
        seed = config.seed
        self.body = MLP(self.obs_size, config.hidden, self.size, 1.0, seed, 1, "relu", "uniform")
        self.log_std = Parameter(Tensor(np.zeros(self.size, np.float32)), name="log_std")

    def deviation(self):
        """Returns: the deviation's logarithm `[k]`, bounded as the paper's code does."""
        return ops.clamp(self.log_std, -5.0, 2.0)

    def construct(self, obs):
        """Returns: the mean `[n, k]` of obs `[n, ...]`."""
        return ops.tanh(self.body(obs.reshape((-1, self.obs_size))))

    def sample(self, obs, noise):
        """Returns: actions `[n, k]` in [-1, 1]; noise `[n, 2 k]`."""
        return ops.clamp(normal_sample(self.construct(obs), self.deviation(), noise), -1.0, 1.0)


class IQLActor(Actor):
    """Samples from the policy."""

    def __init__(self, policy, spec):
        super().__init__()
        self.policy, self.scale = policy, ActionScale(spec.action_space)
        self.noise_size = 2 * policy.size

    def act(self, obs, noise):
        """Returns: action `[B, k]`."""
        return self.scale(self.policy.sample(obs, noise))

    def act_greedily(self, obs):
        """Returns: the mean action, for evaluation."""
        return self.scale(self.policy(obs))


class IQLLearner(Learner):
    """Updates on transitions of a data set."""

    def __init__(self, policy, critics, target, config, spec):
        super().__init__()
        self.policy, self.critics, self.target, self.config = policy, critics, target, config
        self.scale, size = ActionScale(spec.action_space), flat_size(spec)
        self.value = MLP(size, config.hidden, 1, 1.0, config.seed, 4, "relu", "uniform")
        self.online, self.followers = critics.trainable_params(), target_parameters(target)
        self.policy_optimizer = nn.Adam(policy.trainable_params(), config.learning_rate)
        self.critic_optimizer = nn.Adam(self.online, config.learning_rate)
        self.value_optimizer = nn.Adam(self.value.trainable_params(), config.learning_rate)

    def lower(self, obs, action):
        """Returns: `[n]`, the lower of the target critics' values."""
        first, second = self.target(obs, action)
        return ops.minimum(first, second)

    def value_of(self, obs, noise):
        """Returns: `[n]`, the values of obs `[n, ...]`."""
        if self.config.awac:
            return self.lower(obs, self.policy.sample(obs, noise))
        return self.value(obs.reshape((obs.shape[0], -1))).reshape(-1)

    def value_loss(self, batch, noise):
        """Per sample: the expectile loss (equation 5 of the paper), and the value."""
        value = self.value_of(batch.obs, noise)
        error = self.lower(batch.obs, batch.action) - value
        return expectile_loss(error, self.config.expectile), value

    def critic_loss(self, batch, noise):
        """Per sample: both critics' errors (equation 6), and the first value."""
        config = self.config
        going_on = config.gamma * (1.0 - batch.terminated.astype("float32"))
        goal = config.reward_scale * batch.reward + going_on * self.value_of(batch.next_obs, noise)
        goal = ops.stop_gradient(goal)
        first, second = self.critics(batch.obs, batch.action)
        return 0.5 * ops.square(first - goal) + 0.5 * ops.square(second - goal), first

    def policy_loss(self, batch, noise):
        """Per sample: the weighted negative log-probability of the action (equation 7)."""
        config = self.config
        advantage = self.lower(batch.obs, batch.action) - self.value_of(batch.obs, noise)
        weight = ops.stop_gradient(advantage_weight(advantage, config.beta, config.most_weight))
        mean = self.policy(batch.obs)
        return -weight * normal_log_prob(mean, self.policy.deviation(), batch.action), weight

    def apply_value(self, grads):
        """Takes one step of Adam."""
        self.value_optimizer(grads)

    def apply_policy(self, grads):
        """Takes one step of Adam."""
        self.policy_optimizer(grads)

    def apply_critics(self, grads):
        """Takes one step of Adam and moves the target critics."""
        self.critic_optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        value_loss, critic_loss, policy_loss, value, weight = 0.0, 0.0, 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            obs, action, reward, terminated, next_obs = msrl.dataset_transitions(
                config.dataset, config.batch_size
            )
            noise = msrl.uniform(config.batch_size, 2 * self.policy.size)
            batch = Transition(
                obs=obs,
                action=self.scale.inverse(action),
                reward=reward,
                terminated=terminated,
                next_obs=next_obs,
            )
            if not config.awac:
                grads, means = msrl.gradient(self.value_loss, self.value, batch, noise)
                value_loss = means[0]
                msrl.update(self.apply_value, grads)
            policy_grads, policy_means = msrl.gradient(self.policy_loss, self.policy, batch, noise)
            policy_loss, weight = policy_means
            msrl.update(self.apply_policy, policy_grads)
            critic_grads, critic_means = msrl.gradient(self.critic_loss, self.critics, batch, noise)
            critic_loss, value = critic_means
            msrl.update(self.apply_critics, critic_grads)
        return {
            "value_loss": value_loss,
            "critic_loss": critic_loss,
            "policy_loss": policy_loss,
            "q_value": value,
            "weight": weight,
        }


class IQLTrainer(Trainer):
    """IQL on any environment with bounded continuous actions and a flat observation."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Box) or not space.bounded:
            raise ConfigError(f"IQL takes bounded continuous actions; {spec.name} has {space}")
        sizes = spec.obs_shape, space.size, config.hidden, config.seed
        policy, critics, target = Policy(config, spec), TwinCritics(*sizes), TwinCritics(*sizes)
        self.actor = IQLActor(policy, spec)
        self.learner = IQLLearner(policy, critics, target, config, spec)

    def train(self, msrl):
        """Plays `num_steps` with the current policy, then learns from the data."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                obs, _, _, _, _ = msrl.env_step(action)
            msrl.report(msrl.agent_learn())
