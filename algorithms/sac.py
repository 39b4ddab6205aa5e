"""Soft actor-critic (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications").

arXiv 1812.05905: twin critics, a Gaussian policy squashed by tanh, and a temperature that keeps the
policy's entropy near a target. With `quantiles` it is TQC (Kuznetsov et al. 2020, arXiv
2005.04269): the critics learn quantiles of the return, and no target counts the highest ones. With
`her` it learns in hindsight (Andrychowicz et al. 2017, arXiv 1707.01495).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Box
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import ActionScale, squashed_normal_sample
from mindspore_rl.rl.distributional import lowest_quantiles, quantile_loss
from mindspore_rl.rl.goals import Hindsight
from mindspore_rl.rl.networks import MLP, TwinCritics, flat_size
from mindspore_rl.rl.updates import polyak_update, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of SAC, for Pendulum-v1 and MuJoCo."""

    env: str = option("Pendulum-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(4, "environments, on all workers together")
    num_steps: int = option(4, "environment steps of each environment in an iteration")
    total_steps: int = option(20_000, "environment steps of the whole run")
    replay_size: int = option(1_000_000, "transitions in the replay, in all", ge=1)
    learning_starts: int = option(500, "environment steps with random actions and no update", ge=0)
    updates: int = option(16, "updates in an iteration", ge=1)
    batch_size: int = option(256, "transitions of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    tau: float = option(0.005, "step of the target critics in an update", ge=0, le=1)
    quantiles: int = option(0, "TQC: quantiles of each critic; 0: SAC's values", ge=0)
    dropped: int = option(2, "TQC: the highest quantiles, for each critic, that are left out", ge=0)
    her: int = option(0, "HER: how many steps later goals may be from; 0: no HER", ge=0)
    her_fraction: float = option(0.8, "HER: samples with such goals", ge=0, le=1)
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers (ReLU)", ge=1)

    def __post_init__(self):
        if 0 < self.quantiles <= self.dropped:
            raise ValueError(
                f"dropped is {self.dropped} of {self.quantiles} quantiles, expected fewer: raise "
                "quantiles or lower dropped"
            )


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and records that are kept `[n, ...]`."""

    obs: Any
    action: Any  # the actor's action before scaling, in [-1, 1]
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class Policy(nn.Cell):
    """A squashed Gaussian over actions in (-1, 1)."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, self.size = flat_size(spec), spec.action_space.size
        out_size, seed = 2 * self.size, config.seed
        self.body = MLP(self.obs_size, config.hidden, out_size, 1.0, seed, 1, "relu", "uniform")

    def sample(self, obs, noise):
        """Returns: action `[n, k]` and its log-probability `[n]` of obs `[n, ...]`."""
        found = self.body(obs.reshape((-1, self.obs_size)))
        log_std = ops.clamp(found[:, self.size :], -20.0, 2.0)
        return squashed_normal_sample(found[:, : self.size], log_std, noise)

    def mean(self, obs):
        """Returns: the squashed mean of the distribution, `[n, k]`."""
        return ops.tanh(self.body(obs.reshape((-1, self.obs_size)))[:, : self.size])


class SACActor(Actor):
    """Samples from the current policy; before `learning_starts`, uniformly."""

    def __init__(self, policy, spec):
        super().__init__()
        self.policy, space = policy, spec.action_space
        self.size = space.size
        self.noise_size = 2 * self.size
        self.scale = ActionScale(space)

    def act(self, obs, exploring, noise):
        """Returns: action `[B, k]` for the environment, and as stored in the replay, in (-1, 1)."""
        sampled, _ = self.policy.sample(obs, noise)
        action = ops.where(exploring, 2.0 * noise[:, : self.size] - 1.0, sampled)
        return self.scale(action), action

    def act_greedily(self, obs, exploring):
        """Returns: the action for evaluation."""
        return self.scale(self.policy.mean(obs))


class SACLearner(Learner):
    """Updates on batches from the replay."""

    def __init__(self, policy, critics, target, config, spec):
        super().__init__()
        self.policy, self.critics, self.target, self.config = policy, critics, target, config
        self.hindsight = Hindsight(spec, config) if config.her else None
        self.target_entropy = -float(spec.action_space.size)
        self.log_alpha = Parameter(Tensor(np.zeros((), np.float32)), name="log_alpha")
        self.online, self.followers = critics.trainable_params(), target_parameters(target)
        self.policy_optimizer = nn.Adam(policy.trainable_params(), config.learning_rate)
        self.critic_optimizer = nn.Adam(self.online, config.learning_rate)
        self.alpha_optimizer = nn.Adam(ParameterTuple([self.log_alpha]), config.learning_rate)

    def critic_loss(self, batch, noise):
        """Per sample: both critics' errors (equation 5; TQC: of quantiles), the first value."""
        config = self.config
        following, log_prob = self.policy.sample(batch.final_obs, noise)
        first, second = self.target(batch.final_obs, following)
        going_on = config.gamma * (1.0 - batch.terminated.astype("float32"))
        if config.quantiles:
            lowest = lowest_quantiles((first, second), config.dropped)
            soft = lowest - (ops.exp(self.log_alpha) * log_prob).expand_dims(-1)
            goal = batch.reward.expand_dims(-1) + going_on.expand_dims(-1) * soft
            goal = ops.stop_gradient(goal)
            first, second = self.critics(batch.obs, batch.action)
            loss = quantile_loss(first, goal) + quantile_loss(second, goal)
            return loss / config.quantiles, first.mean(-1)
        soft = ops.minimum(first, second) - ops.exp(self.log_alpha) * log_prob
        goal = ops.stop_gradient(batch.reward + going_on * soft)
        first, second = self.critics(batch.obs, batch.action)
        return 0.5 * ops.square(first - goal) + 0.5 * ops.square(second - goal), first

    def policy_loss(self, obs, noise):
        """Per sample: the policy's loss (equation 7), then the log-probability of its action."""
        action, log_prob = self.policy.sample(obs, noise)
        first, second = self.critics(obs, action)
        if self.config.quantiles:
            value = 0.5 * (first.mean(-1) + second.mean(-1))
        else:
            value = ops.minimum(first, second)
        return ops.exp(self.log_alpha) * log_prob - value, log_prob

    def apply_critics(self, grads):
        """Takes one step of Adam and moves the target critics."""
        self.critic_optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)

    def apply_policy(self, grads, log_prob):
        """Takes one step of Adam for the policy, and one for the temperature (equation 18)."""
        self.policy_optimizer(grads)
        self.alpha_optimizer((-(log_prob + self.target_entropy),))

    def drawn(self, msrl):
        """Returns: a batch of the replay, with HER of windows in hindsight."""
        config = self.config
        if not config.her:
            return msrl.replay_sample(config.batch_size)
        obs, action, *rest = msrl.replay_sample(config.batch_size, steps=config.her)
        obs, *rest = self.hindsight(msrl.uniform(config.batch_size, 2), obs, *rest)
        return Transition(*[part[:, 0] for part in (obs, action, *rest)])

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        critic_loss, value, policy_loss, log_prob = 0.0, 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            batch = self.drawn(msrl)
            noise = msrl.uniform(config.batch_size, self.policy.size * 2)
            other_noise = msrl.uniform(config.batch_size, self.policy.size * 2)
            if msrl.env_steps() >= config.learning_starts:
                grads, means = msrl.gradient(self.critic_loss, self.critics, batch, noise)
                critic_loss, value = means
                msrl.update(self.apply_critics, grads)
                policy_grads, policy_means = msrl.gradient(
                    self.policy_loss, self.policy, batch.obs, other_noise
                )
                policy_loss, log_prob = policy_means
                msrl.update(self.apply_policy, policy_grads, log_prob)
        return {
            "critic_loss": critic_loss,
            "q_value": value,
            "policy_loss": policy_loss,
            "entropy": -log_prob,
        }


class SACTrainer(Trainer):
    """SAC on any environment with bounded continuous actions and a flat observation."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Box) or not space.bounded:
            raise ConfigError(f"SAC takes bounded continuous actions; {spec.name} has {space}")
        sizes = spec.obs_shape, space.size, config.hidden, config.seed, config.quantiles
        policy, critics, target = Policy(config, spec), TwinCritics(*sizes), TwinCritics(*sizes)
        self.actor = SACActor(policy, spec)
        self.learner = SACLearner(policy, critics, target, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it."""
        config = self.config
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            exploring = msrl.env_steps() < config.learning_starts
            for _ in msrl.steps():
                action, kept_action = msrl.agent_act(obs, exploring)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=kept_action,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                    ),
                    keep=config.replay_size,
                )
                obs = next_obs
            msrl.report(msrl.agent_learn())
