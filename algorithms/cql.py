"""Conservative Q-learning from a data set (Kumar et al. 2020, arXiv 2006.04779).

Soft actor-critic whose critics also learn to value the data's actions above the others, so that the
policy does not trust values of actions that the data do not have.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Box
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import ActionScale, squashed_normal_sample
from mindspore_rl.rl.losses import conservative_gap
from mindspore_rl.rl.networks import MLP, TwinCritics, flat_size
from mindspore_rl.rl.updates import polyak_update, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of CQL, for Pendulum-v1."""

    env: str = option("Pendulum-v1", "environment to play in")
    dataset: str = option("", "file of trajectories, see `msrl dataset`")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(16, "environment steps of each environment in an iteration")
    total_steps: int = option(20_000, "environment steps of the whole run")
    updates: int = option(16, "updates in an iteration", ge=1)
    batch_size: int = option(128, "transitions of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size of the critics and the temperature", ge=0)
    policy_learning_rate: float = option(3e-4, "Adam's step size of the policy", ge=0)
    gamma: float = option(0.95, "discount per step", ge=0, le=1)
    tau: float = option(0.01, "step of the target critics in an update", ge=0, le=1)
    reward_scale: float = option(1.0, "rewards of the data are multiplied by this", gt=0)
    conservative: float = option(1.0, "weight alpha of the regulariser; 0: SAC", ge=0)
    samples: int = option(4, "actions of each kind that it draws; the paper has 10", ge=1)
    hidden: tuple[int, ...] = option((128, 128), "widths of the hidden layers (ReLU)", ge=1)


class Transition(NamedTuple):
    """Transitions of the data set `[n, ...]`."""

    obs: Any
    action: Any  # in [-1, 1]
    reward: Any
    terminated: Any
    next_obs: Any


class Policy(nn.Cell):
    """A squashed Gaussian over actions in (-1, 1)."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, self.size = flat_size(spec), spec.action_space.size
        out_size, seed = 2 * self.size, config.seed
        self.body = MLP(self.obs_size, config.hidden, out_size, 1.0, seed, 1, "relu", "uniform")

    def sample(self, obs, noise):
        """Returns: action `[n, k]` and its log-probability `[n]` of obs `[n, ...]`."""
        return self.samples(obs, noise, 1)

    def samples(self, obs, noise, count):
        """Returns: actions `[n count, k]`, `count` for each of obs `[n, ...]`, as in `sample`."""
        found = repeated(self.body(obs.reshape((-1, self.obs_size))), count)
        log_std = ops.clamp(found[:, self.size :], -5.0, 2.0)
        return squashed_normal_sample(found[:, : self.size], log_std, noise)

    def mean(self, obs):
        """Returns: the squashed mean of the distribution, `[n, k]`."""
        return ops.tanh(self.body(obs.reshape((-1, self.obs_size)))[:, : self.size])


def repeated(rows, count):
    """Returns: `[n count, k]`, each of rows `[n, k]` `count` times."""
    return ops.stack([rows] * count, 1).reshape((-1, rows.shape[-1]))


class CQLActor(Actor):
    """Samples from the policy."""

    def __init__(self, policy, spec):
        super().__init__()
        self.policy, self.scale = policy, ActionScale(spec.action_space)
        self.noise_size = 2 * policy.size

    def act(self, obs, noise):
        """Returns: action `[B, k]`."""
        action, _ = self.policy.sample(obs, noise)
        return self.scale(action)

    def act_greedily(self, obs):
        """Returns: the squashed mean, for evaluation."""
        return self.scale(self.policy.mean(obs))


class CQLLearner(Learner):
    """Updates on transitions of a data set."""

    def __init__(self, policy, critics, target, config, spec):
        super().__init__()
        self.policy, self.critics, self.target, self.config = policy, critics, target, config
        self.scale, self.target_entropy = ActionScale(spec.action_space), -float(policy.size)
        self.log_alpha = Parameter(Tensor(np.zeros((), np.float32)), name="log_alpha")
        self.online, self.followers = critics.trainable_params(), target_parameters(target)
        self.policy_optimizer = nn.Adam(policy.trainable_params(), config.policy_learning_rate)
        self.critic_optimizer = nn.Adam(self.online, config.learning_rate)
        self.alpha_optimizer = nn.Adam(ParameterTuple([self.log_alpha]), config.learning_rate)

    def sampled(self, batch, noise):
        """Draws m uniform actions, m of the policy, and m of it at the next observation.

        Returns: these `[n 3m, k]` and their log-densities `[n, 3m]`; noise is `[n, 5 m k]`.
        """
        many, size, rows = self.config.samples, self.policy.size, batch.obs.shape[0]
        part = many * size
        uniform = 2.0 * noise[:, :part].reshape((rows, many, size)) - 1.0
        here = noise[:, part : 3 * part].reshape((-1, 2 * size))
        there = noise[:, 3 * part :].reshape((-1, 2 * size))
        chosen, density = self.policy.samples(batch.obs, here, many)
        following, next_density = self.policy.samples(batch.next_obs, there, many)
        shape = rows, many, size
        actions = ops.concat((uniform, chosen.reshape(shape), following.reshape(shape)), 1)
        flat = ops.zeros_like(uniform[:, :, 0]) - size * math.log(2.0)
        densities = (flat, density.reshape((rows, many)), next_density.reshape((rows, many)))
        actions, densities = actions.reshape((-1, size)), ops.concat(densities, 1)
        return ops.stop_gradient(actions), ops.stop_gradient(densities)

    def critic_loss(self, batch, noise, other_noise):
        """Per sample: errors and regularisers of both critics (equation 4), a value, a gap."""
        config, rows = self.config, batch.obs.shape[0]
        following, log_prob = self.policy.sample(batch.next_obs, noise)
        first, second = self.target(batch.next_obs, following)
        soft = ops.minimum(first, second) - ops.exp(self.log_alpha) * log_prob
        going_on = config.gamma * (1.0 - batch.terminated.astype("float32"))
        goal = ops.stop_gradient(config.reward_scale * batch.reward + going_on * soft)
        first, second = self.critics(batch.obs, batch.action)
        error = 0.5 * ops.square(first - goal) + 0.5 * ops.square(second - goal)
        actions, density = self.sampled(batch, other_noise)
        obs = repeated(batch.obs.reshape((rows, -1)), 3 * config.samples)
        one, other = self.critics(obs, actions)
        gap = conservative_gap(one.reshape((rows, -1)), density, first)
        gap = gap + conservative_gap(other.reshape((rows, -1)), density, second)
        return error + config.conservative * gap, first, gap

    def policy_loss(self, obs, noise):
        """Per sample: SAC's loss of the policy, then the log-probability of its action."""
        action, log_prob = self.policy.sample(obs, noise)
        first, second = self.critics(obs, action)
        return ops.exp(self.log_alpha) * log_prob - ops.minimum(first, second), log_prob

    def apply_critics(self, grads):
        """Takes one step of Adam and moves the target critics."""
        self.critic_optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)

    def apply_policy(self, grads, log_prob):
        """Takes one step of Adam for the policy, and one for the temperature."""
        self.policy_optimizer(grads)
        self.alpha_optimizer((-(log_prob + self.target_entropy),))

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        critic_loss, value, gap, policy_loss, log_prob = 0.0, 0.0, 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            obs, action, reward, terminated, next_obs = msrl.dataset_transitions(
                config.dataset, config.batch_size
            )
            noise = msrl.uniform(config.batch_size, 2 * self.policy.size)
            other_noise = msrl.uniform(config.batch_size, 5 * config.samples * self.policy.size)
            policy_noise = msrl.uniform(config.batch_size, 2 * self.policy.size)
            batch = Transition(
                obs=obs,
                action=self.scale.inverse(action),
                reward=reward,
                terminated=terminated,
                next_obs=next_obs,
            )
            grads, means = msrl.gradient(self.critic_loss, self.critics, batch, noise, other_noise)
            critic_loss, value, gap = means
            msrl.update(self.apply_critics, grads)
            policy_grads, policy_means = msrl.gradient(
                self.policy_loss, self.policy, obs, policy_noise
            )
            policy_loss, log_prob = policy_means
            msrl.update(self.apply_policy, policy_grads, log_prob)
        return {
            "critic_loss": critic_loss,
            "q_value": value,
            "conservative_gap": gap,
            "policy_loss": policy_loss,
            "entropy": -log_prob,
        }


class CQLTrainer(Trainer):
    """CQL on any environment with bounded continuous actions and a flat observation."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Box) or not space.bounded:
            raise ConfigError(f"CQL takes bounded continuous actions; {spec.name} has {space}")
        sizes = spec.obs_shape, space.size, config.hidden, config.seed
        policy, critics, target = Policy(config, spec), TwinCritics(*sizes), TwinCritics(*sizes)
        self.actor = CQLActor(policy, spec)
        self.learner = CQLLearner(policy, critics, target, config, spec)

    def train(self, msrl):
        """Plays `num_steps` with the current policy, then learns from the data."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                obs, _, _, _, _ = msrl.env_step(action)
            msrl.report(msrl.agent_learn())
