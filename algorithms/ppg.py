"""Phasic policy gradient (Cobbe et al. 2021, arXiv 2009.04416).

Policy and value function are separate networks, learnt by PPO. After every few iterations, an
auxiliary phase teaches the policy's network the value's targets of all of them by a head of its
own, while a divergence keeps the policy as it was (algorithm 1).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.rl.action_masks import features, masked
from mindspore_rl.rl.losses import approx_kl, clip_by_global_norm, clipped_surrogate, value_loss
from mindspore_rl.rl.networks import MLP, RECURRENT, network, torso_shape
from mindspore_rl.rl.policies import StochasticPolicy
from mindspore_rl.rl.returns import gae
from mindspore_rl.rl.statistics import moments
from mindspore_rl.rl.updates import Adam


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of PPG; the defaults solve CartPole-v1."""

    env: str = option("CartPole-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(128, "environment steps of each environment in an iteration")
    total_steps: int = option(500_000, "environment steps of the whole run")
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    aux_learning_rate: float = option(1e-3, "that of the auxiliary phase", ge=0)
    adam_eps: float = option(1e-5, "Adam's epsilon", gt=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "lambda of generalised advantage estimation", ge=0, le=1)
    update_epochs: int = option(4, "passes over the batch of an iteration; the paper's is 1", ge=1)
    num_minibatches: int = option(4, "minibatches of a pass", ge=1, divides="num_steps")
    phase_iterations: int = option(8, "iterations from one auxiliary phase to the next", ge=1)
    aux_epochs: int = option(6, "passes of an auxiliary phase over their batches", ge=1)
    aux_minibatches: int = option(32, "minibatches of such a pass", ge=1, divides="num_steps")
    clip_coef: float = option(0.2, "range of the probability ratio around 1", gt=0)
    clone_coef: float = option(1.0, "weight of the divergence from the policy before", ge=0)
    ent_coef: float = option(0.01, "weight of the entropy bonus", ge=0)
    max_grad_norm: float = option(0.5, "bound of the global gradient norm", gt=0)
    torso: str = option("mlp", "mlp; for images cnn (DQN's) or impala")
    hidden: tuple[int, ...] = option((64, 64), "widths of the dense hidden layers", ge=1)

    def __post_init__(self):
        if self.torso in RECURRENT:
            raise ValueError(
                f"torso={self.torso} has a state, expected mlp, cnn or impala: train ppo for a "
                "recurrent policy"
            )


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and a batch of them `[T, B, ...]`."""

    obs: Any
    action: Any
    log_prob: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class ActorCritic(StochasticPolicy):
    """A policy with an auxiliary value head, and a value function that shares nothing with it."""

    def __init__(self, config, spec):
        super().__init__(spec.action_space)
        torso, hidden, seed = config.torso, config.hidden, config.seed
        self.obs_shape, self.mask_size = torso_shape(torso, spec), spec.mask_size
        self.torso = network(torso, spec, hidden, None, 1.0, seed, 1)
        self.policy = MLP(self.torso.out_size, (), self.size, 0.01, seed, 2)
        self.auxiliary = MLP(self.torso.out_size, (), 1, 1.0, seed, 3)
        self.critic = network(torso, spec, hidden, 1, 1.0, seed, 4)

    def flat(self, obs):
        """Returns: obs `[..., *spec.obs_shape]` as `[n, ...]`, the networks' input."""
        return features(obs, self.mask_size).reshape((-1, *self.obs_shape))

    def value(self, obs):
        """Returns: values `[n]` of obs `[..., *spec.obs_shape]`."""
        return self.critic(self.flat(obs)).reshape(-1)

    def both(self, obs):
        """Returns: the policy's head with its deviation, and its auxiliary values `[n]`."""
        hidden = self.torso(self.flat(obs))
        head = self.with_deviation(masked(self.policy(hidden), obs, self.mask_size))
        return head, self.auxiliary(hidden).reshape(-1)

    def head(self, obs):
        """Returns: the policy's head."""
        return self.both(obs)[0]


class PPGActor(Actor):
    """Samples from the current policy."""

    def __init__(self, network):
        super().__init__()
        self.network, self.noise_size = network, network.noise_size

    def act(self, obs, noise):
        """Returns: action and log_prob `[B]`."""
        return self.network.draw(self.network.head(obs), noise)

    def act_greedily(self, obs):
        """Returns: the most likely action `[B]` or `[B, k]`, for evaluation."""
        return self.network.likeliest(self.network.head(obs))


class PPGLearner(Learner):
    """PPO's updates of both networks, and after some of them an auxiliary phase."""

    def __init__(self, network, config):
        super().__init__()
        self.network, self.config = network, config
        rates = config.learning_rate, config.aux_learning_rate
        self.optimizer, self.aux_optimizer = (
            Adam(network.trainable_params(), rate, eps=config.adam_eps) for rate in rates
        )

    def loss(self, obs, action, old_log_prob, advantage, returns):
        """Per sample: L^clip and L^value of section 2, then their terms for the metrics."""
        head = self.network.head(obs)
        log_prob, entropy = self.network.log_prob(head, action), self.network.entropy(head)
        surrogate = clipped_surrogate(log_prob, old_log_prob, advantage, self.config.clip_coef)
        error = value_loss(self.network.value(obs), returns)
        loss = surrogate + error - self.config.ent_coef * entropy
        return loss, surrogate, error, entropy, approx_kl(log_prob, old_log_prob)

    def auxiliary_loss(self, obs, returns, old_head):
        """Per sample: L^joint and L^value of section 2, then the terms of the first.

        A sample has a step of each iteration of the phase: obs `[n, phase_iterations, ...]`.
        """
        head, auxiliary = self.network.both(obs)
        auxiliary_error = value_loss(auxiliary.reshape(returns.shape), returns)
        kl = self.network.divergence(old_head, head.reshape(old_head.shape))
        error = value_loss(self.network.value(obs).reshape(returns.shape), returns)
        return auxiliary_error + self.config.clone_coef * kl + error, auxiliary_error, kl

    def learn(self, msrl, batch, phase, iteration):
        """Learns from trajectories `[T, B]`.

        The phase has observations and value targets `[T, B, phase_iterations]` of the last
        iterations. Returns: metrics of the last minibatches, those of the auxiliary phase 0 where
        there was none; and the phase with the new batch.
        """
        config, reward = self.config, batch.reward
        value = self.network.value(batch.obs).reshape(reward.shape)
        final_value = self.network.value(batch.final_obs).reshape(reward.shape)
        ends = batch.terminated, batch.truncated
        advantage, returns = gae(
            batch.reward, value, final_value, *ends, config.gamma, config.gae_lambda
        )
        mean, variance = moments(msrl, advantage)
        advantage = msrl.boundary("advantage", (advantage - mean) / (ops.sqrt(variance) + 1e-8))
        data = batch.obs, batch.action, batch.log_prob, advantage, returns
        for _ in msrl.epochs(config.update_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, data):
                grads, means = msrl.gradient(self.loss, self.network, *minibatch)
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.optimizer.apply, grads, config.learning_rate)
            loss, policy_loss, error, entropy, kl = means

        seen, targets = phase
        seen = ops.concat((seen[:, :, 1:], batch.obs.expand_dims(2)), 2)
        targets = ops.concat((targets[:, :, 1:], returns.expand_dims(2)), 2)
        auxiliary_error, moved = 0.0 * loss, 0.0 * loss
        if (iteration + 1) % config.phase_iterations == 0:
            old_head = self.network.head(seen).reshape((*targets.shape, -1))
            kept = seen, targets, old_head
            for _ in msrl.epochs(config.aux_epochs):
                for minibatch in msrl.minibatches(config.aux_minibatches, kept):
                    grads, means = msrl.gradient(self.auxiliary_loss, self.network, *minibatch)
                    grads, _ = clip_by_global_norm(grads, config.max_grad_norm)
                    msrl.update(self.aux_optimizer.apply, grads, config.aux_learning_rate)
                _, auxiliary_error, moved = means
        metrics = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": error,
            "entropy": entropy,
            "approx_kl": kl,
            "grad_norm": grad_norm,
            "auxiliary_value_loss": auxiliary_error,
            "auxiliary_kl": moved,
        }
        return metrics, (seen, targets)


class PPGTrainer(Trainer):
    """PPG on any environment with one agent."""

    Config = Config
    masks_actions = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        network = ActorCritic(config, spec)
        self.actor, self.learner = PPGActor(network), PPGLearner(network, config)

    def empty(self, index, shape, dtype):
        """Returns: zeros `[T, B, phase_iterations, *shape]`; index, `[B]`, has the axis B."""
        rows = (0 * index).reshape((1, -1, 1, *[1 for _ in shape])).astype(dtype)
        return ops.tile(rows, (self.config.num_steps, 1, self.config.phase_iterations, *shape))

    def train(self, msrl):
        """Rolls out `num_steps`, then learns from them."""
        obs, index = msrl.env_reset(), msrl.env_index()
        seen = self.empty(index, self.spec.obs_shape, self.spec.obs_dtype)
        phase = seen, self.empty(index, (), "float32")
        for iteration in msrl.iterations():
            for _ in msrl.steps():
                action, log_prob = msrl.agent_act(obs)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=action,
                        log_prob=log_prob,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                    )
                )
                obs = next_obs
            batch = msrl.replay_sample()
            metrics, phase = msrl.agent_learn(batch, phase, iteration)
            msrl.report(metrics)
