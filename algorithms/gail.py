"""Generative adversarial imitation learning (Ho and Ermon 2016, arXiv 1606.03476).

A discriminator learns to tell the policy's pairs of state and action from those of a data set, and
the policy gets what it cannot tell as a reward, learnt from by PPO (the paper's is TRPO). The
environment's rewards are not used. This reward is above 0, so it favours long episodes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import float32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import ActionScale
from mindspore_rl.rl.learnt_rewards import discriminator_loss, imitation_reward
from mindspore_rl.rl.losses import clip_by_global_norm, clipped_surrogate, value_loss
from mindspore_rl.rl.networks import MLP, flat_size
from mindspore_rl.rl.policies import StochasticPolicy
from mindspore_rl.rl.returns import gae
from mindspore_rl.rl.statistics import moments
from mindspore_rl.rl.updates import Adam


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of GAIL, for CartPole-v1 and Pendulum-v1."""

    env: str = option("CartPole-v1", "environment")
    dataset: str = option("", "file of the expert's trajectories, see `msrl dataset`")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(128, "environment steps of each environment in an iteration")
    total_steps: int = option(200_000, "environment steps of the whole run")
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "lambda of generalised advantage estimation", ge=0, le=1)
    update_epochs: int = option(4, "passes of the policy over the batch of an iteration", ge=1)
    num_minibatches: int = option(4, "minibatches of a pass", ge=1, divides="num_steps")
    clip_coef: float = option(0.2, "range of the probability ratio around 1", gt=0)
    ent_coef: float = option(0.01, "weight of the entropy bonus", ge=0)
    vf_coef: float = option(0.5, "weight of the value loss", ge=0)
    max_grad_norm: float = option(0.5, "bound of the global gradient norm", gt=0)
    discriminator_rate: float = option(3e-4, "Adam's step size of the discriminator", ge=0)
    discriminator_epochs: int = option(1, "its passes over the batch of an iteration", ge=1)
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (tanh)", ge=1)

    @property
    def batch_size(self):
        """Steps of a minibatch."""
        return self.num_steps * self.num_envs // self.num_minibatches


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and a batch of them `[T, B, ...]`."""

    obs: Any
    action: Any
    log_prob: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class ActorCritic(StochasticPolicy):
    """A policy, and a value function that shares nothing with it."""

    def __init__(self, config, spec):
        super().__init__(spec.action_space)
        self.obs_size = flat_size(spec)
        self.policy = MLP(self.obs_size, config.hidden, self.size, 0.01, config.seed, 1)
        self.critic = MLP(self.obs_size, config.hidden, 1, 1.0, config.seed, 2)

    def head(self, obs):
        """Returns: `[n, k]` of obs `[..., size]`."""
        return self.policy(obs.reshape((-1, self.obs_size)))

    def value(self, obs):
        """Returns: `[n]` of obs `[..., size]`."""
        return self.critic(obs.reshape((-1, self.obs_size))).reshape(-1)


class Discriminator(nn.Cell):
    """A logit of each pair of state and action, large where it seems the expert's."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, space = flat_size(spec), spec.action_space
        self.discrete = isinstance(space, Discrete)
        self.size = space.n if self.discrete else space.size
        self.body = MLP(self.obs_size + self.size, config.hidden, 1, 1.0, config.seed, 3)
        if not self.discrete:
            self.scale = ActionScale(space)

    def construct(self, obs, action):
        """Returns: `[n]` of obs `[..., size]` and the environment's actions `[...]`, `[..., k]`."""
        if self.discrete:
            action = ops.one_hot(action.reshape(-1), self.size).astype(float32)
        else:  # the environment takes them within the bounds
            action = ops.clamp(self.scale.inverse(action), -1.0, 1.0).reshape((-1, self.size))
        pairs = ops.concat((obs.reshape((-1, self.obs_size)), action), 1)
        return self.body(pairs).reshape(-1)


class GAILActor(Actor):
    """Samples from the current policy."""

    def __init__(self, network):
        super().__init__()
        self.network, self.noise_size = network, network.noise_size

    def act(self, obs, noise):
        """Returns: action `[B]` or `[B, k]`, and its log-probability `[B]`."""
        return self.network.draw(self.network.head(obs), noise)

    def act_greedily(self, obs):
        """Returns: the most likely action, for evaluation."""
        return self.network.likeliest(self.network.head(obs))


class GAILLearner(Learner):
    """Updates the discriminator, then the policy by its rewards."""

    def __init__(self, network, config, spec):
        super().__init__()
        self.network, self.config = network, config
        self.discriminator = Discriminator(config, spec)
        self.optimizer = Adam(network.trainable_params(), config.learning_rate, eps=1e-5)
        self.discriminator_optimizer = nn.Adam(
            self.discriminator.trainable_params(), config.discriminator_rate
        )

    def classification_loss(self, obs, action, expert_obs, expert_action):
        """Per pair of samples: the loss, and how often each is told right."""
        own = self.discriminator(obs, action)
        expert = self.discriminator(expert_obs, expert_action)
        right = 0.5 * ((own < 0.0).astype(float32) + (expert > 0.0).astype(float32))
        return discriminator_loss(own, expert), right

    def loss(self, obs, action, old_log_prob, advantage, returns):
        """Per sample: PPO's loss, then its terms for the metrics."""
        config = self.config
        head = self.network.head(obs)
        log_prob, entropy = self.network.log_prob(head, action), self.network.entropy(head)
        surrogate = clipped_surrogate(log_prob, old_log_prob, advantage, config.clip_coef)
        error = value_loss(self.network.value(obs), returns)
        loss = surrogate + config.vf_coef * error - config.ent_coef * entropy
        return loss, surrogate, error, entropy

    def apply_discriminator(self, grads):
        """Takes one step of Adam."""
        self.discriminator_optimizer(grads)

    def learn(self, msrl, batch):
        """Learns from trajectories `[T, B]`. Returns: metrics of the last minibatches."""
        config = self.config
        pairs = batch.obs, batch.action
        for _ in msrl.epochs(config.discriminator_epochs):
            for obs, action in msrl.minibatches(config.num_minibatches, pairs):
                expert_obs, expert_action, _, _, _, _ = msrl.dataset_windows(
                    config.dataset, config.batch_size, 1
                )
                grads, means = msrl.gradient(
                    self.classification_loss,
                    self.discriminator,
                    obs,
                    action,
                    expert_obs[:, 0],
                    expert_action[:, 0],
                )
                msrl.update(self.apply_discriminator, grads)
            discriminator_error, accuracy = means

        logit = self.discriminator(batch.obs, batch.action)
        reward = imitation_reward(logit).reshape(batch.log_prob.shape)
        value = self.network.value(batch.obs).reshape(batch.log_prob.shape)
        final_value = self.network.value(batch.final_obs).reshape(batch.log_prob.shape)
        ends = batch.terminated, batch.truncated
        advantage, returns = gae(reward, value, final_value, *ends, config.gamma, config.gae_lambda)
        mean, variance = moments(msrl, advantage)
        advantage = msrl.boundary("advantage", (advantage - mean) / (ops.sqrt(variance) + 1e-8))
        old = batch.obs, batch.action, batch.log_prob, advantage, returns
        for _ in msrl.epochs(config.update_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, old):
                grads, means = msrl.gradient(self.loss, self.network, *minibatch)
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.optimizer.apply, grads, config.learning_rate)
            loss, policy_loss, error, entropy = means
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": error,
            "entropy": entropy,
            "grad_norm": grad_norm,
            "discriminator_loss": discriminator_error,
            "discriminator_accuracy": accuracy,
            "imitation_reward": msrl.mean(reward),
        }


class GAILTrainer(Trainer):
    """GAIL on any environment with a flat observation; Box actions are bounded."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Discrete) and not space.bounded:
            raise ConfigError(f"GAIL takes bounded actions; {spec.name} has {space}")
        network = ActorCritic(config, spec)
        self.actor = GAILActor(network)
        self.learner = GAILLearner(network, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps`, then learns from them and from the data."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, log_prob = msrl.agent_act(obs)
                next_obs, final_obs, _, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=action,
                        log_prob=log_prob,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                    )
                )
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
