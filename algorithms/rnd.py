"""Random network distillation: PPO with a bonus for observations it has not seen before.

Burda et al. 2018, "Exploration by random network distillation", arXiv 1810.12894. The bonus is the
error of a network that learns to predict the outputs of a fixed, random one. It has a value and a
discount of its own, and does not end with the episode (section 2.3). The statistics of observations
start with the first rollout; the paper's start with one of random actions. With `curiosity`, the
bonus is the error of a model that predicts features of the next observation: ICM (Pathak et al.
2017, arXiv 1705.05363), here with RND's value and discount of the bonus.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_sample_with_log_prob,
)
from mindspore_rl.rl.curiosity import Curiosity
from mindspore_rl.rl.losses import approx_kl, clip_by_global_norm, clipped_surrogate, value_loss
from mindspore_rl.rl.networks import MLP, RunningMeanStd, flat_size
from mindspore_rl.rl.returns import discounted_income, gae
from mindspore_rl.rl.statistics import moments
from mindspore_rl.rl.updates import Adam, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of RND; the defaults are for MountainCar-v0."""

    env: str = option("MountainCar-v0", "environment, with discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(256, "environment steps of each environment in an iteration")
    total_steps: int = option(500_000, "environment steps of the whole run")
    learning_rate: float = option(1e-3, "Adam's step size at the start; falls linearly to 0", ge=0)
    adam_eps: float = option(1e-5, "Adam's epsilon", gt=0)
    gamma: float = option(0.99, "discount of the reward per step", ge=0, le=1)
    bonus_gamma: float = option(0.99, "discount of the bonus per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "lambda of generalised advantage estimation", ge=0, le=1)
    reward_coef: float = option(2.0, "weight of the reward's advantage", ge=0)
    bonus_coef: float = option(1.0, "weight of the bonus's advantage; 0 is PPO", ge=0)
    update_epochs: int = option(4, "passes over the batch of an iteration", ge=1)
    num_minibatches: int = option(4, "minibatches of a pass", ge=1, divides="num_steps")
    clip_coef: float = option(0.2, "range of the probability ratio around 1", gt=0)
    ent_coef: float = option(0.01, "weight of the entropy bonus", ge=0)
    vf_coef: float = option(0.5, "weight of the value losses", ge=0)
    max_grad_norm: float = option(0.5, "bound of the global gradient norm", gt=0)
    curiosity: bool = option(False, "ICM's bonus in place of RND's")
    forward_coef: float = option(0.2, "weight of the model's loss in ICM's", ge=0, le=1)
    normalise_obs: bool = option(True, "the policy's observations, too, by their statistics")
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers", ge=1)
    novelty_hidden: tuple[int, ...] = option((64,), "those of the bonus's networks (ReLU)", ge=1)
    features: int = option(32, "outputs of the fixed network, or features of ICM", ge=1)


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and a batch of them `[T, B, ...]`."""

    obs: Any
    action: Any
    log_prob: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    next_obs: Any  # after a reset: the bonus goes on there


class ActorCritic(nn.Cell):
    """Logits, and values of the reward and of the bonus."""

    def __init__(self, config, spec):
        super().__init__()
        size, seed = flat_size(spec), config.seed
        self.obs_size, self.normalises = size, config.normalise_obs
        self.policy = MLP(size, config.hidden, spec.action_space.n, 0.01, seed, 1)
        self.critic = MLP(size, config.hidden, 2, 1.0, seed, 2)
        self.obs_statistics = RunningMeanStd((size,))

    def rows(self, obs):
        """Returns: obs `[..., *spec.obs_shape]` as `[n, size]`, the networks' input."""
        rows = obs.reshape((-1, self.obs_size))
        return self.obs_statistics.normalise(rows) if self.normalises else rows

    def logits(self, obs):
        """Returns: `[n, actions]` of obs `[..., *spec.obs_shape]`."""
        return self.policy(self.rows(obs))

    def values(self, obs):
        """Returns: values of the reward and of the bonus, each `[T, B]`, of obs `[T, B, ...]`."""
        both = self.critic(self.rows(obs)).reshape((*obs.shape[:2], 2))
        return both[..., 0], both[..., 1]

    def evaluate(self, obs, action):
        """Returns: log-probability, entropy and both values, each `[n]`, of obs `[n, ...]`."""
        rows = self.rows(obs)
        logits, both = self.policy(rows), self.critic(rows)
        log_prob, entropy = categorical_log_prob(logits, action), categorical_entropy(logits)
        return log_prob, entropy, both[:, 0], both[:, 1]


class Novelty(nn.Cell):
    """The bonus; its networks see observations normalised to [-5, 5].

    A fixed network and its predictor, or with `curiosity` ICM's three.
    """

    def __init__(self, config, spec):
        super().__init__()
        size, widths, seed = flat_size(spec), config.novelty_hidden, config.seed
        self.obs_size, self.curious = size, config.curiosity
        self.obs_statistics, self.income_statistics = RunningMeanStd((size,)), RunningMeanStd()
        if self.curious:
            sizes = size, widths, config.features, spec.action_space.n
            self.curiosity = Curiosity(*sizes, seed, (3, 4, 5), config.forward_coef)
            return
        self.fixed = MLP(size, widths, config.features, 1.0, seed, 3, activation="relu")
        more = (*widths, widths[-1])  # the paper's predictor has more layers
        self.predictor = MLP(size, more, config.features, 1.0, seed, 4, activation="relu")
        target_parameters(self.fixed)

    def rows(self, obs):
        """Returns: obs `[..., *obs_shape]` as `[n, size]`, the networks' input."""
        return self.obs_statistics.normalise(obs.reshape((-1, self.obs_size)), 5.0)

    def both(self, obs, action, final_obs):
        """Returns: the error of the prediction, and the loss, each `[n]`, of steps `[..., ...]`."""
        after = self.rows(final_obs)
        if self.curious:
            return self.curiosity.both(self.rows(obs), action.reshape(-1), after)
        error = ops.square(self.predictor(after) - self.fixed(after)).mean(-1)
        return error, error


class RNDActor(Actor):
    """Samples from the current policy."""

    noise_size = 1

    def __init__(self, network):
        super().__init__()
        self.network = network

    def act(self, obs, noise):
        """Returns: action and log_prob `[B]`."""
        return categorical_sample_with_log_prob(self.network.logits(obs), noise)

    def act_greedily(self, obs):
        """Returns: the most likely action `[B]`, for evaluation."""
        return self.network.logits(obs).argmax(-1).astype("int32")


class RNDLearner(Learner):
    """Makes several epochs of minibatch updates on one batch of trajectories."""

    def __init__(self, network, config, spec):
        super().__init__()
        self.network, self.novelty, self.config = network, Novelty(config, spec), config
        learnt = network.trainable_params() + self.novelty.trainable_params()
        self.optimizer = Adam(learnt, config.learning_rate, eps=config.adam_eps)

    def loss(self, obs, action, old_log_prob, final_obs, advantage, returns, bonus_returns):
        """Per sample: PPO's loss with two values, plus the bonus's (algorithm 1; eq. 7 of ICM)."""
        config = self.config
        log_prob, entropy, value, bonus_value = self.network.evaluate(obs, action)
        surrogate = clipped_surrogate(log_prob, old_log_prob, advantage, config.clip_coef)
        error = value_loss(value, returns) + value_loss(bonus_value, bonus_returns)
        prediction, novelty_loss = self.novelty.both(obs, action, final_obs)
        loss = surrogate + config.vf_coef * error - config.ent_coef * entropy + novelty_loss
        kl = approx_kl(log_prob, old_log_prob)
        return loss, surrogate, error, entropy, kl, prediction

    def learn(self, msrl, batch, income):
        """Learns from trajectories `[T, B]`.

        The discounted sum of the bonuses so far, `income` `[B]`, goes on from call to call.
        Returns: metrics of the last minibatch, and the income after the batch.
        """
        config, reward = self.config, batch.reward
        samples = msrl.sum(ops.ones_like(reward))
        rows = batch.obs.reshape((*reward.shape, -1))
        seen = moments(msrl, rows, keep=1)
        msrl.update(self.novelty.obs_statistics.merge, *seen, samples)
        bonus, _ = self.novelty.both(batch.obs, batch.action, batch.final_obs)
        bonus = bonus.reshape(reward.shape)
        incomes = discounted_income(bonus, income, config.bonus_gamma)
        msrl.update(self.novelty.income_statistics.merge, *moments(msrl, incomes), samples)
        bonus = bonus * ops.rsqrt(self.novelty.income_statistics.variance + 1e-8)

        value, bonus_value = self.network.values(batch.obs)
        final_value, _ = self.network.values(batch.final_obs)
        _, next_value = self.network.values(batch.next_obs)
        ends, never = (batch.terminated, batch.truncated), ops.zeros_like(batch.terminated)
        first, returns = gae(reward, value, final_value, *ends, config.gamma, config.gae_lambda)
        second, bonus_returns = gae(
            bonus, bonus_value, next_value, never, never, config.bonus_gamma, config.gae_lambda
        )
        advantage = config.reward_coef * first + config.bonus_coef * second
        mean, variance = moments(msrl, advantage)
        advantage = (advantage - mean) / (ops.sqrt(variance) + 1e-8)
        advantage = msrl.boundary("advantage", advantage)

        learning_rate = config.learning_rate * (1.0 - msrl.env_steps() / config.total_steps)
        data = batch.obs, batch.action, batch.log_prob, batch.final_obs
        data = (*data, advantage, returns, bonus_returns)
        for _ in msrl.epochs(config.update_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, data):
                grads, means = msrl.gradient(self.loss, (self.network, self.novelty), *minibatch)
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.optimizer.apply, grads, learning_rate)
        if config.normalise_obs:
            msrl.update(self.network.obs_statistics.merge, *seen, samples)
        loss, policy_loss, error, entropy, kl, prediction = means
        metrics = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": error,
            "entropy": entropy,
            "approx_kl": kl,
            "prediction_error": prediction,
            "bonus": msrl.mean(bonus),
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
        }
        return metrics, incomes[-1]


class RNDTrainer(Trainer):
    """RND on any environment with discrete actions, a flat observation and one agent."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(f"rnd needs discrete actions; {config.env} has {spec.action_space}")
        network = ActorCritic(config, spec)
        self.actor, self.learner = RNDActor(network), RNDLearner(network, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps`, then learns from them."""
        obs = msrl.env_reset()
        income = 0.0 * msrl.env_index()  # `[B]`; the learner, who carries it, has no obs yet
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
                        next_obs=next_obs,
                    )
                )
                obs = next_obs
            batch = msrl.replay_sample()
            metrics, income = msrl.agent_learn(batch, income)
            msrl.report(metrics)
