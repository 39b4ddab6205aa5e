"""QR-DQN: deep Q-learning of the return's distribution, as quantiles of each action.

Dabney et al. 2017, "Distributional reinforcement learning with quantile regression", arXiv
1710.10044; with n-step returns (Hessel et al. 2018, arXiv 1710.02298). With `implicit=true` it is
IQN, whose network is a function of the quantiles' levels, drawn anew in each update and decision:
Dabney et al. 2018, "Implicit quantile networks", arXiv 1806.06923.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_masks import features, masked, random_action
from mindspore_rl.rl.distributional import cosines, quantile_loss
from mindspore_rl.rl.losses import clip_by_global_norm
from mindspore_rl.rl.networks import MLP, flat_size
from mindspore_rl.rl.returns import last_step, n_step
from mindspore_rl.rl.updates import copy_every, target_parameters

SQRT2 = 2.0**0.5  # orthogonal weights before ReLU


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of QR-DQN; the defaults solve CartPole-v1."""

    env: str = option("CartPole-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(10, "environment steps of each environment in an iteration")
    total_steps: int = option(200_000, "environment steps of the whole run")
    replay_size: int = option(50_000, "transitions in the replay, in all", ge=1)
    learning_starts: int = option(2_000, "environment steps before the first update", ge=0)
    updates: int = option(10, "updates in an iteration", ge=1)
    batch_size: int = option(128, "transitions of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    n_step: int = option(10, "steps whose rewards count before the target network's value", ge=1)
    target_every: int = option(200, "updates between two copies to the target network", ge=1)
    epsilon_start: float = option(1.0, "probability of random actions at first", ge=0, le=1)
    epsilon_end: float = option(0.02, "probability of random actions at the end", ge=0, le=1)
    exploration: float = option(0.05, "fraction of the run in which it falls", gt=0, le=1)
    quantiles: int = option(25, "quantiles of the return of an action", ge=1)
    implicit: bool = option(False, "quantiles of levels drawn at random: IQN")
    acting_quantiles: int = option(32, "implicit: levels of a decision", ge=1)
    cosines: int = option(64, "implicit: cosines of a level", ge=1)
    max_grad_norm: float = option(10.0, "bound of the global gradient norm", gt=0)
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (ReLU)", ge=1)

    def __post_init__(self):
        if self.n_step > self.num_steps:
            raise ValueError(
                f"n_step is {self.n_step}: an iteration of {self.num_steps} steps has no such "
                "window to draw; raise num_steps"
            )


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and windows of them `[n, n_step, ...]`."""

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class QuantileNetwork(nn.Cell):
    """Quantiles of the return of all actions; if they are implicit, of given levels."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, self.actions, self.cosines = flat_size(spec), spec.action_space.n, 0
        self.mask_size, hidden, seed = spec.mask_size, config.hidden, config.seed
        if config.implicit:
            self.cosines, width = config.cosines, hidden[-1]
            self.torso = MLP(self.obs_size, hidden[:-1], width, SQRT2, seed, 1, activation="relu")
            self.embedding = MLP(config.cosines, (), width, SQRT2, seed, 2)
            self.head = MLP(width, (), self.actions, 1.0, seed, 3)
        else:
            outputs = self.actions * config.quantiles
            self.body = MLP(self.obs_size, hidden, outputs, 1.0, seed, 1, activation="relu")

    def construct(self, obs, *levels):
        """Returns: `[n, actions, k]` of obs `[n, ...]` and, if implicit, levels `[n, k]`."""
        rows = features(obs, self.mask_size).reshape((-1, self.obs_size))
        if not levels:
            return self.body(rows).reshape((rows.shape[0], self.actions, -1))
        inputs = ops.relu(self.torso(rows)).expand_dims(1)
        embedded = ops.relu(self.embedding(cosines(levels[0], self.cosines)))
        return self.head(inputs * embedded).swapaxes(1, 2)

    def best(self, quantiles, obs):
        """Returns: the valid action of the best mean `[n]`."""
        return masked(quantiles.mean(-1), obs, self.mask_size).argmax(-1)


class QRDQNActor(Actor):
    """Takes the action of the best mean, or with probability epsilon a random one."""

    def __init__(self, network, config, spec):
        super().__init__()
        self.network, self.num_actions = network, spec.action_space.n
        self.noise_size = 2 + (config.acting_quantiles if config.implicit else 0)
        middles = (np.arange(config.acting_quantiles) + 0.5) / config.acting_quantiles
        self.middles = middles.astype(np.float32)

    def act(self, obs, epsilon, noise):
        """Returns: action `[B]`."""
        levels = (noise[:, 2:],) if self.network.cosines else ()
        best = self.network.best(self.network(obs, *levels), obs).astype(int32)
        anything = random_action(noise[:, 1], obs, self.network.mask_size, self.num_actions)
        return ops.where(noise[:, 0] < epsilon, anything, best)

    def act_greedily(self, obs, epsilon):
        """Returns: the best action `[B]`, for evaluation; its levels are evenly spaced."""
        levels = ()
        if self.network.cosines:
            levels = (ops.tile(Tensor(self.middles), (obs.shape[0], 1)),)
        return self.network.best(self.network(obs, *levels), obs).astype(int32)


class QRDQNLearner(Learner):
    """Updates on batches from the replay."""

    def __init__(self, network, target, config):
        super().__init__()
        self.network, self.target, self.config = network, target, config
        self.online, self.copied = network.trainable_params(), target_parameters(target)
        self.updates = Parameter(Tensor(0, int32), name="updates", requires_grad=False)
        self.optimizer = nn.Adam(self.online, config.learning_rate)

    def loss(self, batch, *levels):
        """Per sample: the loss of the first action's quantiles (algorithm 1), and their mean.

        Implicit quantiles take three kinds of levels: of the value, of its target, and of the
        choice of the next action.
        """
        own, their, choice = levels[:1], levels[1:2], levels[2:]
        values = self.network(batch.obs[:, 0], *own)
        actions = values.shape[1]
        value = (values * ops.one_hot(batch.action[:, 0], actions).expand_dims(-1)).sum(1)
        ended = ops.logical_or(batch.terminated, batch.truncated)
        total, last, factor = n_step(batch.reward, ended, self.config.gamma)
        final_obs, going_on = last_step(last, batch.terminated, batch.final_obs)
        following = self.target(final_obs, *their)
        chosen = self.target(final_obs, *choice) if levels else following
        best = ops.one_hot(self.target.best(chosen, final_obs), actions).expand_dims(-1)
        following = (following * best).sum(1)
        target = total.expand_dims(-1) + (factor * going_on).expand_dims(-1) * following
        return quantile_loss(value, ops.stop_gradient(target), *levels[:1]), value.mean(-1)

    def apply(self, grads):
        """Takes one step of Adam; every `target_every` updates copies the network to the target."""
        self.optimizer(grads)
        copy_every(self.copied, self.online, self.updates, self.config.target_every)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        loss, value, grad_norm = 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            batch = msrl.replay_sample(config.batch_size, steps=config.n_step)
            levels = ()
            if config.implicit:
                number = config.quantiles
                drawn = msrl.uniform(config.batch_size, 2 * number + config.acting_quantiles)
                levels = drawn[:, :number], drawn[:, number : 2 * number], drawn[:, 2 * number :]
            if msrl.env_steps() >= config.learning_starts:
                grads, means = msrl.gradient(self.loss, self.network, batch, *levels)
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.apply, grads)
                loss, value = means
        return {"loss": loss, "q_value": value, "grad_norm": grad_norm}


class QRDQNTrainer(Trainer):
    """QR-DQN on any environment with discrete actions and a flat observation."""

    Config = Config
    masks_actions = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(f"QR-DQN takes discrete actions; those of {spec.name} are continuous")
        network, target = QuantileNetwork(config, spec), QuantileNetwork(config, spec)
        self.actor = QRDQNActor(network, config, spec)
        self.learner = QRDQNLearner(network, target, config)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it."""
        config = self.config
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            done = msrl.env_steps() / (config.exploration * config.total_steps)
            fall = config.epsilon_start - config.epsilon_end
            epsilon = config.epsilon_start - fall * ops.clamp(done, 0.0, 1.0)
            for _ in msrl.steps():
                action = msrl.agent_act(obs, epsilon)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=action,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                    ),
                    keep=config.replay_size,
                )
                obs = next_obs
            msrl.report({**msrl.agent_learn(), "epsilon": epsilon})
