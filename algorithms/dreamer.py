"""DreamerV3: a policy that learns in the imagination of a learnt model.

Hafner et al. 2023, "Mastering diverse domains through world models", arXiv 2301.04104. The model is
recurrent with discrete latent states, and learns from windows of the replay. Policy and values
learn from steps that it imagines from all states of these windows. Left out: images, layer norm,
continuous actions. The range of returns is that of a normal distribution from its 5th to its 95th
percentile, by their deviation: a sum over samples, which percentiles are not.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_sample,
    softplus,
)
from mindspore_rl.rl.losses import clip_by_global_norm, value_loss
from mindspore_rl.rl.networks import MLP, flat_size
from mindspore_rl.rl.recurrent import restarted
from mindspore_rl.rl.returns import imagined_returns
from mindspore_rl.rl.statistics import moments
from mindspore_rl.rl.updates import polyak_update, target_parameters
from mindspore_rl.rl.world_models import (
    StateSpaceModel,
    balanced_divergence,
    latent_mode,
    latent_sample,
    symlog,
    symlog_loss,
    symlog_mean,
)


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of DreamerV3, with small networks, for CartPole-v1."""

    env: str = option("CartPole-v1", "environment, with discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(8, "environment steps of an iteration; at least window")
    total_steps: int = option(60_000, "environment steps of the whole run")
    replay_size: int = option(100_000, "steps in the replay, in all", ge=1)
    learning_starts: int = option(1_000, "environment steps before the first update", ge=0)
    updates: int = option(4, "updates in an iteration", ge=1)
    batch_size: int = option(16, "windows of an update", ge=1)
    window: int = option(8, "steps of a window", ge=2)
    horizon: int = option(15, "imagined steps", ge=2)
    model_rate: float = option(1e-3, "Adam's step size of the model", ge=0)
    learning_rate: float = option(3e-4, "that of policy and values", ge=0)
    max_grad_norm: float = option(100.0, "bound of the global gradient norm", gt=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "lambda of the imagined returns", ge=0, le=1)
    ent_coef: float = option(3e-4, "weight of the policy's entropy", ge=0)
    dynamics: float = option(0.5, "weight of the divergence that moves the prior", ge=0)
    representation: float = option(0.1, "weight of that which moves the posterior", ge=0)
    free_nats: float = option(1.0, "divergence without a gradient", ge=0)
    tau: float = option(0.02, "step of the values' slow copy in an update", ge=0, le=1)
    state_size: int = option(64, "units of the recurrent layer", ge=1)
    groups: int = option(8, "categorical variables of a latent state", ge=1)
    classes: int = option(8, "values of each", ge=2)
    hidden: tuple[int, ...] = option((64,), "widths of the hidden layers (ReLU)", ge=1)
    atoms: int = option(127, "values of the distributions of returns and rewards", ge=2)
    bound: float = option(10.0, "the largest of them, as a symlog", gt=0)


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and windows that are kept `[n, steps, ...]`."""

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    memory: Any  # the recurrent layer's state at obs


class Model(nn.Cell):
    """States, and what is predicted of a state: observation, reward, and whether it goes on."""

    def __init__(self, config, spec):
        super().__init__()
        self.config, obs_size = config, flat_size(spec)
        sizes = config.state_size, config.groups, config.classes, config.hidden
        self.states = StateSpaceModel(obs_size, spec.action_space.n, *sizes, config.seed)
        self.support = Tensor(np.linspace(-config.bound, config.bound, config.atoms), float32)
        self.obs, self.reward, self.going_on = (
            MLP(self.states.state_size, config.hidden, rows, gain, config.seed, index, "relu")
            for rows, gain, index in ((obs_size, 1.0, 4), (config.atoms, 0.0, 5), (1, 1.0, 6))
        )

    def loss(self, batch, ended, noise, own_noise):
        """Per window: the model's loss, then its parts.

        The model learns from what was seen after each step, also where the episode ended.
        """
        config, (rows, steps) = self.config, batch.reward.shape
        first = batch.memory[:, 0]
        _, memory = self.states.follow(first, batch.obs, batch.action, ended, noise)
        memory = memory.reshape((rows * steps, -1))
        after = batch.final_obs.reshape((rows * steps, -1))
        posterior, prior = self.states.posterior(memory, after), self.states.prior(memory)
        latent = latent_sample(posterior, own_noise.reshape((rows * steps, -1)))
        state = ops.concat((memory, latent), 1)
        logit, ends = self.going_on(state)[:, 0], batch.terminated.reshape(-1).astype(float32)
        weights = config.dynamics, config.representation, config.free_nats
        parts = [
            value_loss(self.obs(state), symlog(after)).sum(-1),
            symlog_loss(self.reward(state), batch.reward.reshape(-1), self.support),
            softplus(logit) - (1.0 - ends) * logit,
            balanced_divergence(posterior, prior, *weights),
        ]
        parts = [part.reshape((rows, steps)).mean(1) for part in parts]
        return parts[0] + parts[1] + parts[2] + parts[3], *parts


class Behaviour(nn.Cell):
    """Policy and values of the model's states, and what both do in its imagination."""

    def __init__(self, model, config):
        super().__init__()
        self.model, self.config = model, config
        num_actions = model.states.num_actions
        self.policy, self.value, self.slow_value = (
            MLP(model.states.state_size, config.hidden, rows, gain, config.seed, index, "relu")
            for rows, gain, index in ((num_actions, 0.01, 7), *[(config.atoms, 0.0, 8)] * 2)
        )

    def imagine(self, states, noise):
        """Imagines from states `[n, steps, state_size]` of windows.

        Returns: states, actions, values, slow values, returns, weights, `[n, horizon, steps, ...]`.
        """
        model, config = self.model, self.config
        windows, steps, size = states.shape
        noise = noise.reshape((windows * steps, config.horizon, -1)).transpose((1, 0, 2))
        states = states.reshape((windows * steps, size))
        states, action = model.states.imagine(self.policy, states, noise)
        rows = states.reshape((-1, size))
        reward, value, slow_value = (
            symlog_mean(network(rows), model.support).reshape(states.shape[:2])
            for network in (model.reward, self.value, self.slow_value)
        )
        going_on = ops.sigmoid(model.going_on(rows)).reshape(states.shape[:2])
        discount = config.gamma * going_on[1:]
        returns = imagined_returns(reward[1:], discount, value[1:], config.gae_lambda)
        logs = ops.log(ops.maximum(discount, 1e-8))
        weight = ops.exp(ops.cumsum(logs, 0) - logs)  # the product of all discounts before
        shape = config.horizon, windows, steps
        states = states[:-1].reshape((*shape, size)).transpose((1, 0, 2, 3))
        parts = action, value[:-1], slow_value[:-1], returns, weight
        return (states, *[part.reshape(shape).transpose((1, 0, 2)) for part in parts])


class DreamerActor(Actor):
    """Follows the state of each environment, and samples from the policy there."""

    def __init__(self, behaviour):
        super().__init__()
        self.behaviour, self.model = behaviour, behaviour.model.states
        self.noise_size = self.model.groups + 1

    def act(self, obs, before, *, state, noise):
        """Returns: action `[B]`, then the state: memory and latent `[B, size]`."""
        memory = self.model.moved(*state, before)
        latent = latent_sample(self.model.posterior(memory, obs), noise[:, 1:])
        logits = self.behaviour.policy(ops.concat((memory, latent), 1))
        return categorical_sample(logits, noise[:, :1]), memory, latent

    def act_greedily(self, obs, before, *, state):
        """Returns: the most likely action `[B]` in the most likely latent, for evaluation."""
        memory = self.model.moved(*state, before)
        latent = latent_mode(self.model.posterior(memory, obs))
        return self.behaviour.policy(ops.concat((memory, latent), 1)).argmax(-1).astype(int32)


class DreamerLearner(Learner):
    """Updates the model on windows from the replay, then the behaviour on what it imagines."""

    def __init__(self, behaviour, config):
        super().__init__()
        self.model, self.behaviour, self.config = behaviour.model, behaviour, config
        self.spread = Parameter(Tensor(0.0, float32), name="spread", requires_grad=False)
        self.online = behaviour.value.trainable_params()
        self.followers = target_parameters(behaviour.slow_value)
        learnt = behaviour.policy.trainable_params() + self.online
        self.optimizer = nn.Adam(learnt, config.learning_rate, eps=1e-5)
        self.model_optimizer = nn.Adam(self.model.trainable_params(), config.model_rate)

    def loss(self, states, action, value, slow_value, returns, weight):
        """Per window: the losses of policy and values, both, and the policy's entropy."""
        config, support, shape = self.config, self.model.support, action.shape
        rows = states.reshape((-1, states.shape[-1]))
        logits = self.behaviour.policy(rows)
        log_prob = categorical_log_prob(logits, action.reshape(-1)).reshape(shape)
        entropy = categorical_entropy(logits).reshape(shape)
        advantage = (returns - value) / ops.maximum(self.spread, 1.0)
        policy_loss = -weight * (advantage * log_prob + config.ent_coef * entropy)
        logits, error = self.behaviour.value(rows), 0.0
        for goal in (returns, slow_value):  # the second keeps the values near their slow copy
            error = error + symlog_loss(logits, goal.reshape(-1), support).reshape(shape)
        parts = policy_loss, weight * error, entropy
        parts = [part.reshape((shape[0], -1)).mean(1) for part in parts]
        return parts[0] + parts[1], *parts

    def apply(self, grads, deviation):
        """Takes one step of Adam; moves the slow values and the spread of returns."""
        self.optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)
        ops.assign_add(self.spread, 0.01 * (3.29 * deviation - self.spread))

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config, groups = self.config, self.config.groups
        obs_loss, reward_loss, ending_loss, divergence = 0.0, 0.0, 0.0, 0.0
        policy_loss, error, entropy = 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            batch = msrl.replay_sample(config.batch_size, steps=config.window)
            ended = ops.logical_or(batch.terminated, batch.truncated)
            noise = msrl.uniform(config.batch_size, config.window * groups)
            own_noise = msrl.uniform(config.batch_size, config.window * groups)
            imagined = config.window * config.horizon * (groups + 1)
            imagination = msrl.uniform(config.batch_size, imagined)
            if msrl.env_steps() >= config.learning_starts:
                given = batch, ended, noise, own_noise
                grads, means = msrl.gradient(self.model.loss, self.model, *given)
                _, obs_loss, reward_loss, ending_loss, divergence = means
                grads, _ = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.model_optimizer, grads)
                seen = batch.memory[:, 0], batch.obs, batch.action, ended, noise
                states, _ = self.model.states.follow(*seen)
                dream = self.behaviour.imagine(states, imagination)
                states, action, value, slow_value, returns, weight = dream
                _, variance = moments(msrl, returns)
                given = states, action, value, slow_value, returns, weight
                learnt = self.behaviour.policy, self.behaviour.value
                own_grads, own_means = msrl.gradient(self.loss, learnt, *given)
                _, policy_loss, error, entropy = own_means
                own_grads, _ = clip_by_global_norm(own_grads, config.max_grad_norm)
                msrl.update(self.apply, own_grads, ops.sqrt(variance))
        return {
            "obs_loss": obs_loss,
            "reward_loss": reward_loss,
            "ending_loss": ending_loss,
            "divergence": divergence,
            "policy_loss": policy_loss,
            "value_loss": error,
            "entropy": entropy,
        }


class DreamerTrainer(Trainer):
    """DreamerV3 on any environment with discrete actions and a flat observation."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(f"dreamer takes discrete actions; {spec.name} has continuous ones")
        behaviour = Behaviour(Model(config, spec), config)
        self.actor, self.learner = DreamerActor(behaviour), DreamerLearner(behaviour, config)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from windows of it."""
        config, sizes = self.config, (self.actor.model.size, self.actor.model.latent_size)
        obs = msrl.env_reset()
        state = tuple(ops.zeros((obs.shape[0], size)) for size in sizes)
        action = 0 * msrl.env_index() - 1
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, *state = msrl.agent_act(obs, action, state=state)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=action,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                        memory=state[0],
                    ),
                    keep=config.replay_size,
                )
                obs, ended = next_obs, ops.logical_or(terminated, truncated)
                state = tuple(restarted(part, ended) for part in state)
                action = ops.where(ended, -1, action)
            msrl.report(msrl.agent_learn())
