"""Deep Q-learning from a replay (Mnih et al. 2015, "Human-level control through deep RL").

Options: double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461), a duelling network (Wang et
al. 2016, arXiv 1511.06581), prioritised replay (Schaul et al. 2016, arXiv 1511.05952), n-step
returns, the distribution of returns over atoms (C51, Bellemare et al. 2017, arXiv 1707.06887) and
noisy layers (Fortunato et al. 2018, arXiv 1706.10295), which together are Rainbow (Hessel et al.
2018, arXiv 1710.02298); Munchausen's reward (Vieillard et al. 2020, arXiv 2007.14430); an epsilon
for each environment (Ape-X, Horgan et al. 2018, arXiv 1803.00933); hindsight experience replay
(HER, Andrychowicz et al. 2017, arXiv 1707.01495).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_masks import features, masked, random_action
from mindspore_rl.rl.distributional import categorical_loss, project
from mindspore_rl.rl.goals import Hindsight
from mindspore_rl.rl.losses import clip_by_global_norm, huber_loss
from mindspore_rl.rl.networks import MLP, flat_size
from mindspore_rl.rl.noisy import NoisyMLP
from mindspore_rl.rl.returns import last_step, munchausen_reward, n_step
from mindspore_rl.rl.updates import copy_every, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of DQN; the defaults solve CartPole-v1."""

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
    exploration: float = option(0.05, "fraction of the run in which it falls", ge=0, le=1)
    epsilon_alpha: float = option(0.0, "Ape-X's alpha: environment i has a power of it", ge=0)
    double_q: bool = option(True, "the online network chooses the next action")
    duelling: bool = option(False, "separate heads for value and advantages")
    atoms: int = option(0, "C51: returns whose probabilities are learnt; 0: values", ge=0)
    lowest: float = option(-100.0, "C51: the lowest of these returns")
    highest: float = option(100.0, "C51: the highest of these returns")
    noisy: bool = option(False, "learnt noise on all layers but the first explores")
    munchausen: float = option(0.0, "Munchausen's alpha; its policy replaces double_q", ge=0, le=1)
    temperature: float = option(0.03, "of Munchausen's policy, in units of the reward", gt=0)
    priority: float = option(0.0, "exponent alpha of prioritised replay; 0: uniform", ge=0)
    importance: float = option(0.4, "exponent beta of its importance weights", ge=0, le=1)
    her: int = option(0, "HER: how many steps later goals may be from; 0: no HER", ge=0)
    her_fraction: float = option(0.8, "HER: samples with such goals", ge=0, le=1)
    max_grad_norm: float = option(1.0, "bound of the global gradient norm", gt=0)
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (ReLU)", ge=1)

    def __post_init__(self):
        if self.n_step > self.num_steps:
            raise ValueError(
                f"n_step is {self.n_step}: an iteration of {self.num_steps} steps has no such "
                "window to draw; raise num_steps"
            )
        if self.atoms == 1 or self.lowest >= self.highest:
            raise ValueError(
                f"atoms is {self.atoms}, lowest {self.lowest} and highest {self.highest}, expected "
                "two atoms or more (0: none), and lowest below highest"
            )


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and windows of them `[n, n_step, ...]`."""

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class QNetwork(nn.Cell):
    """Values of all actions, or with atoms the distributions of their returns."""

    def __init__(self, config, spec):
        super().__init__()
        self.duelling, self.obs_size = config.duelling, flat_size(spec)
        self.mask_size = spec.mask_size
        self.atoms, self.noisy, self.noise_size = config.atoms, config.noisy, 0
        outputs = (spec.action_space.n + config.duelling) * max(config.atoms, 1)
        if config.noisy:
            self.body = NoisyMLP(self.obs_size, config.hidden, outputs, config.seed, 1)
            self.noise_size = self.body.noise_size
        else:
            self.body = MLP(
                self.obs_size, config.hidden, outputs, 1.0, config.seed, 1, activation="relu"
            )
        if config.atoms:
            self.returns = Tensor(np.linspace(config.lowest, config.highest, config.atoms), float32)

    def construct(self, obs, noise=None):
        """Returns: values `[n, actions]` of obs `[n, ...]`."""
        return masked(self.mean(self.outputs(obs, noise)), obs, self.mask_size)

    def outputs(self, obs, noise=None):
        """Returns: values `[n, actions]`, or with atoms logits `[n, actions, atoms]`."""
        rows = features(obs, self.mask_size).reshape((-1, self.obs_size))
        found = self.body(rows, noise) if self.noisy else self.body(rows)
        if self.atoms:
            found = found.reshape((rows.shape[0], -1, self.atoms))
        if not self.duelling:
            return found
        advantage = found[:, 1:]
        return found[:, :1] + advantage - advantage.mean(1, keep_dims=True)

    def mean(self, outputs):
        """Returns: values `[n, actions]` of outputs."""
        if not self.atoms:
            return outputs
        return (ops.softmax(outputs, -1) * self.returns).sum(-1)


class DQNActor(Actor):
    """Takes the best action, or with probability epsilon a random one."""

    def __init__(self, network, spec):
        super().__init__()
        self.network, self.num_actions = network, spec.action_space.n
        self.noise_size = 2 + network.noise_size

    def act(self, obs, epsilon, noise):
        """Returns: action `[B]`."""
        values = self.network(obs, noise[:, 2:]) if self.network.noisy else self.network(obs)
        best = values.argmax(-1).astype(int32)
        anything = random_action(noise[:, 1], obs, self.network.mask_size, self.num_actions)
        return ops.where(noise[:, 0] < epsilon, anything, best)

    def act_greedily(self, obs, epsilon):
        """Returns: the best action `[B]`, for evaluation, without noise."""
        return self.network(obs).argmax(-1).astype(int32)


class DQNLearner(Learner):
    """Updates on batches from the replay."""

    def __init__(self, network, target, config, spec):
        super().__init__()
        self.network, self.target, self.config = network, target, config
        self.hindsight = Hindsight(spec, config, config.n_step) if config.her else None
        self.online, self.copied = network.trainable_params(), target_parameters(target)
        self.updates = Parameter(Tensor(0, int32), name="updates", requires_grad=False)
        self.optimizer = nn.Adam(self.online, config.learning_rate)

    def loss(self, batch, weight, noise=None):
        """Per sample: the weighted error (equation 2 of the paper), the value, the error's size.

        The batch has windows `[n, n_step, ...]`; the action is that of their first step.
        """
        config = self.config
        own, other = None, None
        if config.noisy:
            half = self.network.noise_size
            own, other = noise[:, :half], noise[:, half:]
        outputs = self.network.outputs(batch.obs[:, 0], own)
        action = ops.one_hot(batch.action[:, 0], outputs.shape[1])
        ended = ops.logical_or(batch.terminated, batch.truncated)
        total, last, factor = n_step(batch.reward, ended, config.gamma)
        final_obs, going_on = last_step(last, batch.terminated, batch.final_obs)
        if config.munchausen:
            value = self.target(batch.obs[:, 0], other)
            options = config.munchausen, config.temperature
            total = total + munchausen_reward(value, batch.action[:, 0], *options)
        following = self.target.outputs(final_obs, other)
        value = masked(self.target.mean(following), final_obs, self.network.mask_size)
        policy, soft = self.policy(value, final_obs, own)
        if config.atoms:
            returns = self.network.returns + (soft - value).expand_dims(-1)
            place = total.reshape((-1, 1, 1)) + (factor * going_on).reshape((-1, 1, 1)) * returns
            probability = policy.expand_dims(-1) * ops.softmax(following, -1)
            shape = (total.shape[0], -1)
            target = project(probability.reshape(shape), place.reshape(shape), self.network.returns)
            logits = (outputs * action.expand_dims(-1)).sum(1)
            loss = categorical_loss(logits, ops.stop_gradient(target))
            return weight * loss, self.network.mean(logits), ops.abs(loss)
        value = (outputs * action).sum(-1)
        target = ops.stop_gradient(total + factor * going_on * (soft * policy).sum(-1))
        return weight * huber_loss(value, target), value, ops.abs(value - target)

    def policy(self, value, final_obs, noise):
        """Returns: probabilities of the next actions `[n, actions]`, and their values.

        Munchausen's values are less temperature times the action's log-probability.
        """
        config = self.config
        if config.munchausen:
            log_policy = ops.log_softmax(value / config.temperature, -1)
            return ops.exp(log_policy), value - config.temperature * log_policy
        chosen = self.network(final_obs, noise) if config.double_q else value
        return ops.one_hot(chosen.argmax(-1), value.shape[-1]), value

    def apply(self, grads):
        """Takes one step of Adam; every `target_every` updates copies the network to the target."""
        self.optimizer(grads)
        copy_every(self.copied, self.online, self.updates, self.config.target_every)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        loss, value, grad_norm, steps = 0.0, 0.0, 0.0, config.her or config.n_step
        for _ in msrl.epochs(config.updates):
            if config.priority:
                batch, ids, odds = msrl.replay_sample(config.batch_size, "priority", steps=steps)
                weight = ops.pow(odds, -config.importance)
                weight = weight / msrl.max(weight)
            else:
                batch = msrl.replay_sample(config.batch_size, steps=steps)
                weight = ops.ones_like(batch.reward[:, 0])
            if config.her:
                chance = msrl.uniform(config.batch_size, 2)
                obs, action, *rest = batch
                obs, *rest = self.hindsight(chance, obs, *rest)
                batch = Transition(obs, action, *rest)
            if config.noisy:
                noise = msrl.uniform(config.batch_size, 2 * self.network.noise_size)
            if msrl.env_steps() >= config.learning_starts:
                if config.noisy:
                    grads, means, rows = msrl.gradient(
                        self.loss, self.network, batch, weight, noise, rows=True
                    )
                else:
                    grads, means, rows = msrl.gradient(
                        self.loss, self.network, batch, weight, rows=True
                    )
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.apply, grads)
                loss, value, _ = means
                if config.priority:  # proportional, section 3.3 of Schaul et al.
                    _, _, error = rows
                    msrl.replay_update(ids, ops.pow(error + 1e-6, config.priority))
        return {"loss": loss, "q_value": value, "grad_norm": grad_norm}


class DQNTrainer(Trainer):
    """DQN on any environment with discrete actions and a flat observation."""

    Config = Config
    masks_actions = True
    max_lag, max_staleness = 1, 4  # its records are older (Ape-X, Horgan et al. 2018)

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(f"DQN takes discrete actions; those of {spec.name} are continuous")
        network, target = QNetwork(config, spec), QNetwork(config, spec)
        self.actor = DQNActor(network, spec)
        self.learner = DQNLearner(network, target, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it."""
        config = self.config
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            done = msrl.env_steps() / (config.exploration * config.total_steps)
            fall = config.epsilon_start - config.epsilon_end
            epsilon = config.epsilon_start - fall * ops.clamp(done, 0.0, 1.0)
            explore = epsilon
            if config.epsilon_alpha:  # section 4.1 of Horgan et al.
                place = msrl.env_index() / max(config.num_envs - 1, 1)
                explore = ops.pow(epsilon, 1.0 + config.epsilon_alpha * place)
            for _ in msrl.steps():
                action = msrl.agent_act(obs, explore)
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
