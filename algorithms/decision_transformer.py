"""The decision transformer (Chen et al. 2021, "Reinforcement learning via sequence modeling").

A causal transformer reads returns to go, observations and actions of a data set and predicts the
next action. Given a return, it acts as the trajectories with that return do.
"""

import math
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter, Tensor, float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import (
    ActionScale,
    categorical_log_prob,
    categorical_sample,
)
from mindspore_rl.rl.losses import clip_by_global_norm
from mindspore_rl.rl.networks import MLP, flat_size
from mindspore_rl.rl.updates import Adam


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of the decision transformer, for CartPole-v1."""

    env: str = option("CartPole-v1", "environment to play in")
    dataset: str = option("", "file of trajectories, see `msrl dataset`")
    target_return: float = option(500.0, "undiscounted return to aim at")
    return_scale: float = option(500.0, "returns are divided by this", gt=0)
    condition: bool = option(True, "condition on returns to go; false: behaviour cloning")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(16, "environment steps of each environment in an iteration")
    total_steps: int = option(32_000, "environment steps of the whole run")
    updates: int = option(8, "updates in an iteration", ge=1)
    batch_size: int = option(64, "windows of an update; a multiple of num_envs", ge=1)
    context: int = option(10, "steps of a window", ge=1)
    width: int = option(64, "width of the transformer", ge=1)
    layers: int = option(2, "layers of the transformer", ge=1)
    heads: int = option(2, "attention heads; they divide the width", ge=1)
    longest: int = option(1000, "steps of an episode with embeddings of their own", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size at the start; it falls to 0", ge=0)
    max_grad_norm: float = option(1.0, "bound of the global gradient norm", gt=0)

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}, expected a multiple of heads={self.heads}")


class Attention(nn.Cell):
    """Causal self-attention."""

    def __init__(self, config, index):
        super().__init__()
        width, self.heads = config.width, config.heads
        self.size = width // config.heads
        self.project = MLP(width, (), 3 * width, 1.0, config.seed, (index, 0))
        self.out = MLP(width, (), width, 1.0, config.seed, (index, 1))
        self.scale = 1.0 / math.sqrt(self.size)

    def construct(self, tokens, hidden):
        """Returns: `[n, T, W]` of tokens `[n, T, W]`; hidden `[n, 1, T, T]` is added to scores."""
        rows, length, width = tokens.shape
        found = self.project(tokens.reshape((-1, width)))
        found = found.reshape((rows, length, 3 * self.heads, self.size)).transpose((0, 2, 1, 3))
        query, key = found[:, : self.heads], found[:, self.heads : 2 * self.heads]
        scores = ops.matmul(query, key.transpose((0, 1, 3, 2))) * self.scale + hidden
        seen = ops.matmul(ops.softmax(scores, -1), found[:, 2 * self.heads :])
        seen = seen.transpose((0, 2, 1, 3)).reshape((-1, width))
        return self.out(seen).reshape((rows, length, width))


class Block(nn.Cell):
    """A transformer layer that normalises its inputs first."""

    def __init__(self, config, index):
        super().__init__()
        width = config.width
        self.attention = Attention(config, index)
        self.first, self.second = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.body = MLP(width, (4 * width,), width, 1.0, config.seed, (index, 2), "relu")

    def construct(self, tokens, hidden):
        """Returns: `[n, T, W]` of tokens `[n, T, W]`; hidden `[n, 1, T, T]` as in `Attention`."""
        tokens = tokens + self.attention(self.first(tokens), hidden)
        flat = self.second(tokens).reshape((-1, tokens.shape[-1]))
        return tokens + self.body(flat).reshape(tokens.shape)


class DecisionTransformer(nn.Cell):
    """Reads windows of steps and predicts the action of each step."""

    def __init__(self, config, spec):
        super().__init__()
        self.config, self.obs_size = config, flat_size(spec)
        space, width = spec.action_space, config.width
        self.discrete = isinstance(space, Discrete)
        self.action_size = space.n if self.discrete else space.size
        if not self.discrete:
            self.scale = ActionScale(space)
        sizes = 1, self.obs_size, self.action_size
        self.embed = nn.CellList(
            [MLP(size, (), width, 1.0, config.seed, i) for i, size in enumerate(sizes)]
        )
        times = np.random.default_rng((config.seed, 99)).standard_normal((config.longest, width))
        self.times = Parameter(Tensor((0.02 * times).astype(np.float32)), name="times")
        self.norm = nn.LayerNorm((width,))
        self.blocks = nn.CellList([Block(config, 10 + i) for i in range(config.layers)])
        self.last = nn.LayerNorm((width,))
        self.head = MLP(width, (), self.action_size, 0.01, config.seed, 3)
        length = 3 * config.context
        self.later = Tensor(np.triu(np.full((1, 1, length, length), -1e9, np.float32), 1))

    def features(self, action):
        """Returns: `[..., k]`, the network's form of the environment's actions."""
        if self.discrete:
            return ops.one_hot(action.astype(int32), self.action_size).astype(float32)
        return self.scale.inverse(action)

    def construct(self, left, obs, action, step, there):
        """Predicts the action of each step.

        Args:
            left: `[n, K]`, returns to go.
            obs: `[n, K, o]`.
            action: `[n, K, k]`, from `features`; only later steps see a step's own action.
            step: `[n, K]` int32, the index in the episode.
            there: `[n, K]` bool, True for the steps that exist.

        Returns: `[n, K, k]`: logits, or actions in (-1, 1).
        """
        config = self.config
        rows, length, width = obs.shape[0], config.context, config.width
        left = left * (float(config.condition) / config.return_scale)
        when = ops.gather(self.times, ops.clamp(step, 0, config.longest - 1), 0)
        given, parts = (left, obs, action), []
        for i in range(3):
            flat = self.embed[i](given[i].reshape((rows * length, -1)))
            parts.append(flat.reshape((rows, length, width)) + when)
        tokens = self.norm(ops.stack(parts, 2).reshape((rows, 3 * length, width)))
        seen = ops.stack((there, there, there), 2).reshape((rows, 1, 1, 3 * length))
        hidden = self.later - 1e9 * (1.0 - seen.astype(float32))
        for block in self.blocks:
            tokens = block(tokens, hidden)
        read = self.last(tokens).reshape((rows * length, 3, width))[:, 1]
        found = self.head(read).reshape((rows, length, self.action_size))
        return found if self.discrete else ops.tanh(found)


class DTActor(Actor):
    """Acts for a target return, given the last steps of the episode."""

    noise_size = 1

    def __init__(self, network, config):
        super().__init__()
        self.network, self.context = network, config.context
        self.target_return = config.target_return
        self.ages = Tensor(np.arange(config.context, dtype=np.int32) - config.context + 1)

    def begin(self, obs):
        """Returns: the state before an episode: return to go `[B]`, step `[B]`, empty memory."""
        flat = obs.reshape((obs.shape[0], -1))
        left = ops.zeros_like(flat[:, 0]) + self.target_return
        row = ops.concat((flat[:, :1], flat, *[flat[:, :1]] * self.network.action_size), 1)
        memory = ops.stack([ops.zeros_like(row)] * self.context, 1)
        return left, ops.zeros_like(left).astype(int32), memory

    def remember(self, memory, obs, left, action):
        """Returns: memory `[B, K, 1 + o + k]` with one more step and without its oldest."""
        parts = left.reshape((-1, 1)), obs.reshape((obs.shape[0], -1)), action
        newest = ops.concat(parts, 1)
        return ops.concat((memory[:, 1:], newest.reshape((obs.shape[0], 1, -1))), 1)

    def known(self, obs, memory, left, step):
        """Returns: `[B, k]`, the network's prediction of the next action."""
        unknown = ops.zeros_like(memory[:, 0, -self.network.action_size :])
        memory = self.remember(memory, obs, left, unknown)
        steps = step.reshape((-1, 1)) + self.ages
        size = self.network.obs_size + 1
        given = memory[:, :, 0], memory[:, :, 1:size], memory[:, :, size:], steps, steps >= 0
        return self.network(*given)[:, -1]

    def act(self, obs, memory, left, step, noise):
        """Returns: action `[B]`, sampled, or `[B, k]`."""
        found = self.known(obs, memory, left, step)
        if self.network.discrete:
            return categorical_sample(found, noise)
        return self.network.scale(found)

    def act_greedily(self, obs, memory, left, step):
        """Returns: the most likely action, for evaluation."""
        found = self.known(obs, memory, left, step)
        if self.network.discrete:
            return found.argmax(-1).astype(int32)
        return self.network.scale(found)


class DTLearner(Learner):
    """Updates on windows of a data set."""

    def __init__(self, network, config):
        super().__init__()
        self.network, self.config = network, config
        self.optimizer = Adam(network.trainable_params(), config.learning_rate)

    def loss(self, obs, action, left, step, there):
        """Per window: the mean over steps of the action's negative log-probability, or error."""
        rows, length = there.shape
        features = self.network.features(action)
        flat = obs.reshape((rows, length, -1))
        found = self.network(left, flat, features, step, there)
        if self.network.discrete:
            each = -categorical_log_prob(found, action)
        else:
            each = ops.square(found - features).mean(-1)
        there = there.astype(float32)
        return (each * there).sum(1) / there.sum(1)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        learning_rate = config.learning_rate * (1.0 - msrl.env_steps() / config.total_steps)
        loss, grad_norm = 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            obs, action, _, left, step, there = msrl.dataset_windows(
                config.dataset, config.batch_size, config.context
            )
            grads, means = msrl.gradient(self.loss, self.network, obs, action, left, step, there)
            loss = means[0]
            grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
            msrl.update(self.optimizer.apply, grads, learning_rate)
        return {"loss": loss, "grad_norm": grad_norm, "learning_rate": learning_rate}


class DTTrainer(Trainer):
    """The decision transformer on any environment with a flat observation and bounded actions."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Discrete) and not space.bounded:
            raise ConfigError(
                f"the decision transformer takes bounded actions; {spec.name} has {space}"
            )
        network = DecisionTransformer(config, spec)
        self.actor, self.learner = DTActor(network, config), DTLearner(network, config)

    def train(self, msrl):
        """Plays `num_steps` with the current policy, then learns from the data."""
        config = self.config
        obs = msrl.env_reset()
        left, step, memory = self.actor.begin(obs)
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs, memory=memory, left=left, step=step)
                next_obs, _, reward, terminated, truncated = msrl.env_step(action)
                features = self.actor.network.features(action)
                memory = self.actor.remember(memory, obs, left, features)
                over = ops.logical_or(terminated, truncated)
                left = ops.where(over, config.target_return, left - reward)
                step = ops.where(over, 0, step + 1)
                obs = next_obs
            msrl.report(msrl.agent_learn())
