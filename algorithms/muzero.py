"""MuZero: planning with a learnt model, by Gumbel search.

Schrittwieser et al. 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model",
with the search of Danihelka et al. 2022, "Policy improvement by planning with Gumbel". Each
decision is a search over imagined steps, of all environments at once, inside the compiled `act`.
The network learns from windows of the replay: the improved policies of these searches, the rewards,
and n-step returns. Where two players move in turn, it plays against itself, and a value counts with
the other sign in the state before.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import gumbel
from mindspore_rl.rl.action_masks import features, masked, random_action
from mindspore_rl.rl.distributional import categorical_loss, two_hot
from mindspore_rl.rl.losses import clip_by_global_norm
from mindspore_rl.rl.networks import MLP, flat_size
from mindspore_rl.rl.returns import n_step_returns, rescaled, unscaled
from mindspore_rl.rl.tree_search import GumbelSearch
from mindspore_rl.rl.updates import copy_every, target_parameters

RESCALE = 1e-3
"""Epsilon of the rescaling of values and rewards (Schrittwieser et al. 2020, appendix F)."""


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of MuZero; the defaults solve CartPole-v1."""

    env: str = option("CartPole-v1", "environment, with discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(16, "environment steps of each environment in an iteration")
    total_steps: int = option(100_000, "environment steps of the whole run")
    simulations: int = option(16, "imagined steps of a decision", ge=1)
    considered: int = option(16, "actions that a search considers at first", ge=1)
    max_depth: int = option(5, "longest imagined sequence of steps", ge=1)
    value_scale: float = option(0.1, "c_scale, the weight of values in a search", gt=0)
    epsilon: float = option(0.0, "probability of a random action in training", ge=0, le=1)
    replay_size: int = option(50_000, "transitions in the replay, in all", ge=1)
    learning_starts: int = option(2_000, "environment steps before the first update", ge=0)
    updates: int = option(16, "updates in an iteration", ge=1)
    batch_size: int = option(128, "windows of an update", ge=1)
    unroll: int = option(5, "steps of the model in an update", ge=1)
    n_step: int = option(10, "steps whose rewards count before the target network's value", ge=1)
    target_every: int = option(100, "updates between two copies to the target network", ge=1)
    learning_rate: float = option(2e-3, "Adam's step size", ge=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    value_coef: float = option(0.5, "weight of the values' loss", ge=0)
    max_grad_norm: float = option(5.0, "bound of the global gradient norm", gt=0)
    latent_size: int = option(64, "numbers of a latent state", ge=1)
    hidden: tuple[int, ...] = option((64,), "widths of the hidden layers (ReLU)", ge=1)
    atoms: int = option(41, "values of the distributions of values and rewards", ge=2)
    bound: float = option(20.0, "the largest of them, rescaled (about the root of it)", gt=0)


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and windows that are kept `[n, steps, ...]`."""

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    policy: Any  # of the search, `[B, actions]`


class Model(nn.Cell):
    """The latent state of an observation, that after an action, and what follows from it."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, self.num_actions = flat_size(spec), spec.action_space.n
        self.mask_size = spec.mask_size
        # A state's value is that of the player who moves there.
        self.discount = -config.gamma if spec.two_players else config.gamma
        size, self.atoms = config.latent_size, config.atoms
        self.support = Tensor(np.linspace(-config.bound, config.bound, config.atoms), float32)

        def head(columns, rows, gain, index):
            return MLP(columns, config.hidden, rows, gain, config.seed, index, "relu")

        self.of_obs = head(self.obs_size, size, 1.0, 1)
        self.of_step = head(size + self.num_actions, size, 1.0, 2)
        self.reward = head(size + self.num_actions, config.atoms, 0.01, 3)
        self.policy = head(size, self.num_actions, 0.01, 4)
        self.value = head(size, config.atoms, 0.01, 5)

    def scaled(self, latent):
        """Scales each latent state to [0, 1] (appendix G)."""
        lowest = ops.amin(latent, -1, True)
        spread = ops.maximum(ops.amax(latent, -1, True) - lowest, 1e-5)
        return (latent - lowest) / spread

    def represent(self, obs):
        """Returns: latent states `[n, size]` of obs `[n, ...]`."""
        rows = features(obs, self.mask_size).reshape((-1, self.obs_size))
        return self.scaled(self.of_obs(rows))

    def step(self, latent, action):
        """Returns: the latent state after an action `[n]`, and the reward's logits `[n, atoms]`."""
        chosen = ops.one_hot(action, self.num_actions).astype(float32)
        given = ops.concat((latent, chosen), 1)
        return self.scaled(latent + self.of_step(given)), self.reward(given)

    def mean(self, logits):
        """Returns: the expectation `[n]` of logits `[n, atoms]`, in reward units."""
        return unscaled((ops.softmax(logits, -1) * self.support).sum(-1), RESCALE)

    def distribution(self, value):
        """Returns: probabilities of the two nearest atoms `[n, atoms]` of values `[n]`."""
        return two_hot(rescaled(value, RESCALE), self.support)

    def judge(self, latent):
        """Returns: the policy's logits `[n, actions]` and the value `[n]` of latent states."""
        return self.policy(latent), self.mean(self.value(latent))

    def imagine(self, latent, action):
        """Returns: the next latent state, the reward, the policy's logits and the value there."""
        latent, reward = self.step(latent, action)
        logits, value = self.judge(latent)
        return latent, self.mean(reward), logits, value


class MuZeroActor(Actor):
    """Searches, then takes the action that the search found."""

    def __init__(self, model, config):
        super().__init__()
        self.model, self.noise_size = model, model.num_actions + 2
        self.epsilon = config.epsilon
        self.search = GumbelSearch(
            model,
            model.num_actions,
            config.simulations,
            config.considered,
            config.max_depth,
            model.discount,
            config.value_scale,
        )

    def searched(self, obs, chance):
        """Returns: action `[B]` and the improved policy `[B, actions]`."""
        latent = self.model.represent(obs)
        logits, value = self.model.judge(latent)
        logits = masked(logits, obs, self.model.mask_size)
        return self.search(latent, logits, value, chance)

    def act(self, obs, noise):
        """Returns: action `[B]` and the improved policy `[B, actions]`."""
        model = self.model
        action, policy = self.searched(obs, gumbel(noise[:, 2:]))
        anything = random_action(noise[:, 0], obs, model.mask_size, model.num_actions)
        return ops.where(noise[:, 1] < self.epsilon, anything, action), policy

    def act_greedily(self, obs):
        """Returns: the best action `[B]`, for evaluation."""
        none = ops.zeros((obs.shape[0], self.model.num_actions), float32)
        return self.searched(obs, none)[0]


class MuZeroLearner(Learner):
    """Updates on windows from the replay."""

    def __init__(self, model, target, config):
        super().__init__()
        self.model, self.target, self.config = model, target, config
        self.online, self.copied = model.trainable_params(), target_parameters(target)
        self.updates = Parameter(Tensor(0, int32), name="updates", requires_grad=False)
        self.optimizer = nn.Adam(self.online, config.learning_rate)

    def returns(self, batch):
        """Returns: n-step returns `[n, steps]`, from the target network's values."""
        config, shape = self.config, batch.reward.shape
        obs = batch.final_obs.reshape((shape[0] * shape[1], -1))
        _, value = self.target.judge(self.target.represent(obs))
        rollout = batch.reward, value.reshape(shape), batch.terminated, batch.truncated
        turned = [part.T for part in rollout]
        return n_step_returns(*turned, self.model.discount, config.n_step).T

    def loss(self, batch):
        """Per window: the loss (Schrittwieser et al. 2020, eq. 1), then its three parts.

        After a termination the value and the rewards are 0. After a truncation nothing is learnt.
        """
        config, model = self.config, self.model
        returns = ops.stop_gradient(self.returns(batch))
        latent = model.represent(batch.obs[:, 0])
        inside = ops.ones_like(batch.reward[:, 0])  # 1 until the episode ends
        known = inside  # 1 until it is truncated
        policy_loss, value_loss, reward_loss = 0.0, 0.0, 0.0
        for k in range(config.unroll):
            weight = 1.0 if k == 0 else 1.0 / config.unroll
            log_probs = ops.log_softmax(model.policy(latent), -1)
            entropy = -(batch.policy[:, k] * log_probs).sum(-1)
            policy_loss = policy_loss + weight * inside * entropy
            goal = model.distribution(inside * returns[:, k])
            value_loss = value_loss + weight * known * categorical_loss(model.value(latent), goal)
            latent = 0.5 * latent + 0.5 * ops.stop_gradient(latent)
            latent, reward = model.step(latent, batch.action[:, k])
            goal = model.distribution(inside * batch.reward[:, k])
            reward_loss = reward_loss + known * categorical_loss(reward, goal) / config.unroll
            known = known * (1.0 - inside * batch.truncated[:, k].astype(float32))
            ended = ops.logical_or(batch.terminated[:, k], batch.truncated[:, k])
            inside = inside * (1.0 - ended.astype(float32))
        loss = policy_loss + config.value_coef * value_loss + reward_loss
        return loss, policy_loss, value_loss, reward_loss

    def apply(self, grads):
        """Takes one step of Adam; every `target_every` updates copies the network to the target."""
        self.optimizer(grads)
        copy_every(self.copied, self.online, self.updates, self.config.target_every)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        loss, policy_loss, value_loss, reward_loss, grad_norm = 0.0, 0.0, 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            batch = msrl.replay_sample(config.batch_size, steps=config.unroll + config.n_step)
            if msrl.env_steps() >= config.learning_starts:
                grads, means = msrl.gradient(self.loss, self.model, batch)
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.apply, grads)
                loss, policy_loss, value_loss, reward_loss = means
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "reward_loss": reward_loss,
            "grad_norm": grad_norm,
        }


class MuZeroTrainer(Trainer):
    """MuZero on any environment with discrete actions and a flat observation."""

    Config = Config
    masks_actions = True
    two_players = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(f"MuZero takes discrete actions; those of {spec.name} are continuous")
        model, target = Model(config, spec), Model(config, spec)
        self.actor = MuZeroActor(model, config)
        self.learner = MuZeroLearner(model, target, config)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from windows of it."""
        config = self.config
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, policy = msrl.agent_act(obs)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=action,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                        policy=policy,
                    ),
                    keep=config.replay_size,
                )
                obs = next_obs
            msrl.report(msrl.agent_learn())
