"""Proximal policy optimisation with a clipped surrogate (Schulman et al. 2017, arXiv 1707.06347).

Advantages come from generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438).
Truncated episodes are bootstrapped from their true last observation. With `popart`, values are
learnt at a scale of 1 (van Hasselt et al. 2016, arXiv 1602.07714).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.rl.action_masks import features
from mindspore_rl.rl.losses import (
    approx_kl,
    clip_by_global_norm,
    clip_fraction,
    clipped_surrogate,
    clipped_value_loss,
    value_loss,
)
from mindspore_rl.rl.networks import RECURRENT, RunningMeanStd
from mindspore_rl.rl.policies import ActorCritic
from mindspore_rl.rl.recurrent import restarted
from mindspore_rl.rl.returns import gae
from mindspore_rl.rl.statistics import moments
from mindspore_rl.rl.updates import Adam


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of PPO; the defaults solve CartPole-v1."""

    env: str = option("CartPole-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(128, "environment steps of each environment in an iteration")
    total_steps: int = option(500_000, "environment steps of the whole run")
    learning_rate: float = option(1e-3, "Adam's step size at the start", ge=0)
    anneal_learning_rate: bool = option(True, "let the step size fall linearly to 0")
    adam_eps: float = option(1e-5, "Adam's epsilon", gt=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "lambda of generalised advantage estimation", ge=0, le=1)
    update_epochs: int = option(4, "passes over the batch of an iteration", ge=1)
    num_minibatches: int = option(4, "minibatches of a pass", ge=1, divides="num_steps")
    target_kl: float | None = option(None, "ends the passes once approx_kl is above it", gt=0)
    clip_coef: float = option(0.2, "range of the probability ratio around 1", gt=0)
    clip_value_loss: bool = option(False, "clip the change of the value like the ratio")
    ent_coef: float = option(0.01, "weight of the entropy bonus", ge=0)
    vf_coef: float = option(0.5, "weight of the value loss", ge=0)
    max_grad_norm: float = option(0.5, "bound of the global gradient norm", gt=0)
    normalise_advantage: bool = option(True, "advantages of the batch to mean 0, deviation 1")
    normalise_obs: bool = option(False, "observations by their running mean and deviation")
    normalise_reward: bool = option(False, "rewards by the deviation of discounted returns")
    popart: float = option(
        0.0, "weight of a batch in the statistics that scale values; 0: none are", ge=0, le=1
    )
    torso: str = option("mlp", "mlp; for images cnn (DQN's) or impala; with memory gru or lstm")
    share_torso: bool | None = option(
        None, "one torso for policy and value; none: for images", in_older_runs=False
    )
    state_size: int = option(64, "units of torso=gru or lstm", ge=1)
    segment_steps: int = option(16, "steps that gradients of torso=gru or lstm go back", ge=1)
    hidden: tuple[int, ...] = option((64, 64), "widths of the dense hidden layers", ge=1)

    def __post_init__(self):
        steps = self.num_steps // self.num_minibatches
        if self.torso in RECURRENT and steps % self.segment_steps:
            raise ValueError(
                f"segment_steps={self.segment_steps} does not divide num_steps / num_minibatches="
                f"{steps}, what a minibatch has of an environment; choose one that does"
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
    income: tuple  # discounted rewards of the episode before the step; () if rewards are not scaled
    value: tuple  # with a shared torso the value of obs, reward units; () otherwise
    state: tuple  # the recurrent layer's state before the step; () without one


class PPOActor(Actor):
    """Samples from the current policy."""

    def __init__(self, network):
        super().__init__()
        self.network, self.noise_size = network, network.noise_size

    def act(self, obs, *, state, noise):
        """Returns: action and log_prob `[B]`, the value if it is cheap, then the new state."""
        return self.network.sample(obs, state, noise)

    def act_greedily(self, obs, *, state):
        """Returns: the action for evaluation."""
        return self.network.likeliest(self.network.head(obs, state))


class PPOLearner(Learner):
    """Makes several epochs of minibatch updates on one batch of trajectories."""

    def __init__(self, network, config, spec):
        super().__init__()
        self.network, self.config = network, config
        self.obs_rank, self.mask_size = len(spec.obs_shape), spec.mask_size
        self.reward_statistics = RunningMeanStd()
        self.value_head = tuple(network.critic.trainable_params()[-2:])  # weight, bias
        self.optimizer = Adam(network.trainable_params(), config.learning_rate, eps=config.adam_eps)

    def loss(self, obs, action, old_log_prob, old_value, advantage, returns, *memory):
        """Per sample: equation 9 of the paper (as a loss), then its terms for the metrics."""
        config = self.config
        log_prob, entropy, value = self.network.evaluate(obs, action, *memory)
        surrogate = clipped_surrogate(log_prob, old_log_prob, advantage, config.clip_coef)
        if config.clip_value_loss:
            error = clipped_value_loss(value, old_value, returns, config.clip_coef)
        else:
            error = value_loss(value, returns)
        loss = surrogate + config.vf_coef * error - config.ent_coef * entropy
        kl = approx_kl(log_prob, old_log_prob)
        clipped = clip_fraction(log_prob, old_log_prob, config.clip_coef)
        return loss, surrogate, error, entropy, kl, clipped

    def scale_reward(self, reward):
        """Rewards `[T, B]` divided by the deviation of discounted returns, at most 10."""
        return ops.clamp(reward * ops.rsqrt(self.reward_statistics.variance + 1e-8), -10.0, 10.0)

    def scale_values(self, mean, variance, samples):
        """Takes the moments of returns as the scale of values, and changes no value."""
        self.network.popart.update(self.value_head, mean, variance, samples)

    def learn(self, msrl, batch):
        """Learns from trajectories `[T, B]`. Returns: metrics of the last minibatch."""
        config = self.config
        ends, reward = (batch.terminated, batch.truncated), batch.reward
        if config.normalise_reward or config.normalise_obs or config.popart > 0:
            samples = msrl.sum(ops.ones_like(reward))  # of some environments, if asynchronous
        if config.normalise_reward:
            seen = moments(msrl, reward + config.gamma * batch.income[0])
            msrl.update(self.reward_statistics.merge, *seen, samples)
            reward = self.scale_reward(reward)

        # For all steps at once: an operator costs as much for one step as for a rollout.
        value = batch.value[0] if batch.value else self.network.values(batch.obs, *batch.state)
        rollout = batch.obs, batch.final_obs, *batch.state
        if msrl.sum(batch.truncated.astype("float32")) > 0:
            final_value = self.network.final_values(*rollout)
        else:  # the next step's values
            last = self.network.final_values(*(part[-1:] for part in rollout))
            final_value = ops.cat((value[1:], last))
        advantage, returns = gae(reward, value, final_value, *ends, config.gamma, config.gae_lambda)
        mean, variance = moments(msrl, ops.stack((advantage, returns), -1), keep=1)
        if config.normalise_advantage:
            advantage = (advantage - mean[0]) / (ops.sqrt(variance[0]) + 1e-8)
        advantage = msrl.boundary("advantage", advantage)
        if config.popart > 0:
            msrl.update(self.scale_values, mean[1], variance[1], samples)
            value = self.network.popart.normalised(value)
            returns = self.network.popart.normalised(returns)

        fall = 1.0 / config.total_steps if config.anneal_learning_rate else 0.0
        learning_rate = config.learning_rate * (1.0 - fall * msrl.env_steps())
        old = batch.obs, batch.action, batch.log_prob, value, advantage, returns
        if batch.state:  # learnt in order, from the actor's state
            old = (*old, ops.logical_or(*ends), *batch.state)
        steps = config.segment_steps if batch.state else 0
        for _ in msrl.epochs(config.update_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, old, steps=steps):
                grads, means = msrl.gradient(self.loss, self.network, *minibatch)
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.optimizer.apply, grads, learning_rate)
            loss, policy_loss, error, entropy, kl, clipped = means
            if config.target_kl is not None and kl > config.target_kl:
                break

        if config.normalise_obs:
            seen = moments(msrl, features(batch.obs, self.mask_size), keep=self.obs_rank)
            msrl.update(self.network.obs_statistics.merge, *seen, samples)
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": error,
            "entropy": entropy,
            "approx_kl": kl,
            "clip_fraction": clipped,
            "grad_norm": grad_norm,
            "explained_variance": 1.0 - variance[0] / (variance[1] + 1e-8),
            "learning_rate": learning_rate,
        }


class PPOTrainer(Trainer):
    """PPO on any environment with one agent."""

    Config = Config
    masks_actions = True
    max_lag = 1  # its ratio corrects for older parameters (Cleanba, Huang et al. 2023)

    def __init__(self, config, spec):
        super().__init__(config, spec)
        network = ActorCritic(
            spec, config.torso, config.hidden, config.seed, config.share_torso,
            state_size=config.state_size, normalise_obs=config.normalise_obs, popart=config.popart,
        )  # fmt: skip
        self.actor = PPOActor(network)
        self.learner = PPOLearner(network, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps`, then learns from them."""
        obs = msrl.env_reset()
        sizes = self.actor.network.core.state_sizes
        state = tuple(ops.zeros((obs.shape[0], size)) for size in sizes)
        gamma = self.config.gamma
        # The discounted sum of each episode so far; its deviation scales rewards.
        income = (ops.zeros((obs.shape[0],)),) if self.config.normalise_reward else ()
        values = int(self.actor.network.shares_torso)
        others = (ops.zeros((obs.shape[0],)), *state) if values else state
        for _ in msrl.iterations():
            for _ in msrl.steps():
                before = state
                action, log_prob, *others = msrl.agent_act(obs, state=state)
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
                        income=income,
                        value=tuple(part for part in others[:values]),
                        state=before,
                    )
                )
                obs, ended = next_obs, ops.logical_or(terminated, truncated)
                state = tuple(restarted(part, ended) for part in others[values:])
                income = tuple(ops.where(ended, 0.0, reward + gamma * part) for part in income)
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
