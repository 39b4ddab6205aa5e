"""Trust region policy optimisation (Schulman et al. 2015, arXiv 1502.05477).

A step of the policy goes along the natural gradient, found by conjugate gradients on Fisher
products, and is made smaller until it improves the surrogate and the policies diverge by at most
`max_kl` (appendix C). Advantages come from generalised advantage estimation (Schulman et al. 2016),
whose value function Adam learns.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.rl.action_masks import features, masked
from mindspore_rl.rl.losses import value_loss
from mindspore_rl.rl.natural_gradient import (
    categorical_metric,
    conjugate_gradient_start,
    conjugate_gradient_step,
    normal_metric,
    tangent,
    trust_region_scale,
)
from mindspore_rl.rl.networks import MLP, flat_size
from mindspore_rl.rl.operators import flatten, shaped
from mindspore_rl.rl.policies import StochasticPolicy
from mindspore_rl.rl.returns import gae
from mindspore_rl.rl.statistics import moments


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of TRPO; the defaults solve CartPole-v1."""

    env: str = option("CartPole-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(128, "environment steps of each environment in an iteration")
    total_steps: int = option(500_000, "environment steps of the whole run")
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "lambda of generalised advantage estimation", ge=0, le=1)
    max_kl: float = option(0.01, "largest divergence of a step, nats", gt=0)
    damping: float = option(0.1, "added to the Fisher matrix's diagonal", ge=0)
    cg_iterations: int = option(10, "conjugate gradient's steps", ge=1)
    line_search_steps: int = option(10, "sizes of a step that are tried", ge=1)
    line_search_shrink: float = option(0.8, "from one size to the next", gt=0, le=1)
    value_learning_rate: float = option(1e-3, "Adam's step size of the value function", ge=0)
    value_epochs: int = option(8, "its passes over the batch of an iteration", ge=1)
    num_minibatches: int = option(4, "minibatches of such a pass", ge=1, divides="num_steps")
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (tanh)", ge=1)


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and a batch of them `[T, B, ...]`."""

    obs: Any
    action: Any
    log_prob: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class Policy(StochasticPolicy):
    """A distribution of actions, whose head has its deviation."""

    def __init__(self, config, spec):
        super().__init__(spec.action_space)
        self.obs_size, self.mask_size = flat_size(spec), spec.mask_size
        self.body = MLP(self.obs_size, config.hidden, self.size, 0.01, config.seed, 1)
        self.shapes = tuple(tuple(parameter.shape) for parameter in self.trainable_params())

    def rows(self, obs):
        """Returns: obs `[..., size]` as `[n, size]`."""
        return features(obs, self.mask_size).reshape((-1, self.obs_size))

    def head(self, obs):
        """Returns: the outputs `[n, ...]` for obs `[..., size]`."""
        return self.with_deviation(masked(self.body(self.rows(obs)), obs, self.mask_size))

    def metric(self, obs, direction):
        """Returns: M J v for a direction v `[P]` of the parameters, `[n, ...]` as the head is."""
        rows, direction = self.rows(obs), shaped(direction, self.shapes)
        if self.discrete:
            return categorical_metric(self.head(obs), tangent(self.body, rows, direction))
        along = tangent(self.body, rows, direction[1:])
        both = normal_metric(self.log_std + 0.0 * along, along, direction[0] + 0.0 * along)
        return ops.concat(both, 1)


class TRPOActor(Actor):
    """Samples from the current policy."""

    def __init__(self, policy):
        super().__init__()
        self.policy, self.noise_size = policy, policy.noise_size

    def act(self, obs, noise):
        """Returns: action and log_prob `[B]`."""
        return self.policy.draw(self.policy.head(obs), noise)

    def act_greedily(self, obs):
        """Returns: the most likely action `[B]` or `[B, k]`, for evaluation."""
        return self.policy.likeliest(self.policy.head(obs))


class TRPOLearner(Learner):
    """One step of the policy within the trust region, and several of the value function."""

    def __init__(self, policy, config, spec):
        super().__init__()
        self.policy, self.config = policy, config
        self.critic = MLP(policy.obs_size, config.hidden, 1, 1.0, config.seed, 2)
        self.optimizer = nn.Adam(self.critic.trainable_params(), config.value_learning_rate)
        self.parameters = tuple(policy.trainable_params())

    def value(self, obs):
        """Returns: `[n]` of obs `[..., size]`."""
        return self.critic(self.policy.rows(obs)).reshape(-1)

    def surrogate(self, obs, action, old_log_prob, advantage):
        """Per sample: equation 14, negated; and the entropy."""
        head = self.policy.head(obs)
        rows = action.reshape((-1, *action.shape[old_log_prob.ndim :]))
        ratio = ops.exp(self.policy.log_prob(head, rows) - old_log_prob.reshape(-1))
        return -ratio * advantage.reshape(-1), self.policy.entropy(head)

    def pulled_back(self, obs, metric):
        """Per sample: a loss whose gradient is J^T (M J v)."""
        return ops.sum(self.policy.head(obs) * metric, -1)

    def value_error(self, obs, returns):
        """Per sample: the value's loss."""
        return value_loss(self.value(obs), returns)

    def place(self, before, scale, step):
        """Puts the policy at `before + scale * step`."""
        found = shaped(before + scale * step, self.policy.shapes)
        for i in range(len(self.parameters)):
            ops.assign(self.parameters[i], found[i])

    def fit(self, grads):
        """Takes one step of Adam."""
        self.optimizer(grads)

    def learn(self, msrl, batch):
        """Learns from trajectories `[T, B]`. Returns: metrics, of the value's last minibatch."""
        config, reward = self.config, batch.reward
        value = self.value(batch.obs).reshape(reward.shape)
        final_value = self.value(batch.final_obs).reshape(reward.shape)
        ends = batch.terminated, batch.truncated
        advantage, returns = gae(reward, value, final_value, *ends, config.gamma, config.gae_lambda)
        mean, variance = moments(msrl, advantage)
        advantage = msrl.boundary("advantage", (advantage - mean) / (ops.sqrt(variance) + 1e-8))

        data = batch.obs, batch.action, batch.log_prob, advantage
        grads, means = msrl.gradient(self.surrogate, self.policy, *data)
        loss, entropy = means
        ascent = -flatten(grads)
        x, residual, direction, basis = conjugate_gradient_start(ascent, config.cg_iterations)
        for _ in range(config.cg_iterations):
            metric = self.policy.metric(batch.obs, direction)
            product, _ = msrl.gradient(self.pulled_back, self.policy, batch.obs, metric)
            product = flatten(product) + config.damping * direction
            x, residual, direction, basis = conjugate_gradient_step(
                x, residual, direction, basis, product
            )
        curvature = ops.sum(x * (ascent - residual))
        scale = trust_region_scale(curvature, config.max_kl)

        before = flatten(tuple(p.copy() for p in self.policy.trainable_params()))
        old_head = self.policy.head(batch.obs)
        for _ in range(config.line_search_steps):
            msrl.update(self.place, before, scale, x)
            new_loss, _ = self.surrogate(*data)
            divergence = self.policy.divergence(old_head, self.policy.head(batch.obs))
            new_loss, kl = msrl.mean(new_loss, divergence)
            if kl <= config.max_kl and new_loss < loss:
                break
            scale = scale * config.line_search_shrink
        else:
            scale, new_loss, kl = 0.0 * scale, loss, 0.0 * kl
            msrl.update(self.place, before, scale, x)

        for _ in msrl.epochs(config.value_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, (batch.obs, returns)):
                value_grads, errors = msrl.gradient(self.value_error, self.critic, *minibatch)
                msrl.update(self.fit, value_grads)
        return {
            "loss": loss,
            "improvement": loss - new_loss,
            "entropy": entropy,
            "kl": kl,
            "step_size": scale,
            "residual": ops.sqrt(ops.sum(residual * residual)),
            "value_loss": errors[0],
        }


class TRPOTrainer(Trainer):
    """TRPO on any environment with a flat observation and one agent."""

    Config = Config
    masks_actions = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        policy = Policy(config, spec)
        self.actor, self.learner = TRPOActor(policy), TRPOLearner(policy, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps`, then learns from them."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
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
            msrl.report(msrl.agent_learn(batch))
