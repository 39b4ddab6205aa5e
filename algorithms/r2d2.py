"""R2D2: recurrent Q-learning from a replay of sequences.

Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning". A
record of the replay is a sequence of steps, which overlaps with the one before, and the recurrent
state before its first step. That state is of an older network: the first steps of a sequence lead
from it to one of today's network (burn-in), the others are learnt from.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import Parameter, Tensor, float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_masks import features, masked, random_action
from mindspore_rl.rl.losses import clip_by_global_norm, sequence_priority, value_loss
from mindspore_rl.rl.networks import MLP, RECURRENT, flat_size
from mindspore_rl.rl.recurrent import recurrent_core, restarted
from mindspore_rl.rl.returns import n_step_returns, rescaled, unscaled
from mindspore_rl.rl.updates import copy_every, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of R2D2; the defaults solve probe:memory."""

    env: str = option("probe:memory", "environment, with discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(
        10, "environment steps of an iteration; a sequence begins every so many"
    )
    total_steps: int = option(100_000, "environment steps of the whole run")
    learnt_steps: int = option(10, "steps of a sequence that are learnt from", ge=1)
    burn_in: int = option(5, "steps of a sequence before these", ge=0)
    replay_size: int = option(4_000, "sequences in the replay, in all", ge=1)
    learning_starts: int = option(2_000, "environment steps before the first update", ge=0)
    updates: int = option(2, "updates in an iteration", ge=1)
    batch_size: int = option(32, "sequences of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    adam_eps: float = option(1e-3, "Adam's epsilon", gt=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    n_step: int = option(5, "steps whose rewards count before the target network's value", ge=1)
    target_every: int = option(100, "updates between two copies to the target network", ge=1)
    epsilon: float = option(0.4, "probability of random actions of environment 0", ge=0, le=1)
    epsilon_alpha: float = option(7.0, "Ape-X's alpha: environment i has a power of it", ge=0)
    double_q: bool = option(True, "the online network chooses the next action")
    duelling: bool = option(True, "separate heads for value and advantages")
    rescale: float = option(0.0, "epsilon of the rescaling of values; 0: none", ge=0)
    priority: float = option(0.9, "exponent alpha of prioritised replay; 0: uniform", ge=0)
    eta: float = option(0.9, "weight of a sequence's largest error in its priority", ge=0, le=1)
    importance: float = option(0.6, "exponent beta of its importance weights", ge=0, le=1)
    max_grad_norm: float = option(40.0, "bound of the global gradient norm", gt=0)
    torso: str = option("gru", "recurrent layer: gru or lstm")
    state_size: int = option(32, "units of it", ge=1)
    hidden: tuple[int, ...] = option((32,), "widths of the dense layers behind it (ReLU)", ge=1)

    def __post_init__(self):
        if self.torso not in RECURRENT:
            raise ValueError(
                f"torso={self.torso} has no state, expected gru or lstm: train dqn for a network "
                "without memory"
            )
        if self.learnt_steps < self.num_steps:
            raise ValueError(
                f"learnt_steps={self.learnt_steps} is less than num_steps={self.num_steps}: no "
                "sequence would learn from the other steps; choose at least as many"
            )

    @property
    def length(self):
        """Steps of a sequence."""
        return self.burn_in + self.learnt_steps


class Sequence(NamedTuple):
    """Sequences of each environment `[B, steps, ...]`, and a batch of them `[n, steps, ...]`."""

    obs: Any
    action: Any  # -1 before the first step of the run
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    state: tuple  # the recurrent layer's before the first step, `[B, size]`


class RecurrentQNetwork(nn.Cell):
    """A recurrent layer, then values of all actions."""

    def __init__(self, config, spec):
        super().__init__()
        self.duelling, self.obs_size = config.duelling, flat_size(spec)
        self.burn_in, self.mask_size = config.burn_in, spec.mask_size
        self.core = recurrent_core(config.torso, spec, config.state_size, config.seed, 1)
        outputs = spec.action_space.n + config.duelling
        self.head = MLP(
            config.state_size, config.hidden, outputs, 1.0, config.seed, 2, activation="relu"
        )

    def value(self, outputs):
        """Returns: values `[n, actions]` of the recurrent layer's outputs `[n, size]`."""
        found = self.head(outputs)
        if not self.duelling:
            return found
        advantage = found[:, 1:]
        return found[:, :1] + advantage - advantage.mean(1, keep_dims=True)

    def rows(self, obs):
        """Returns: the features `[n, size]` of obs `[..., size]`."""
        return features(obs, self.mask_size).reshape((-1, self.obs_size))

    def step(self, obs, state):
        """Returns: values `[n, actions]` of obs `[n, ...]`, and the new state."""
        found, state = self.core(self.rows(obs), state)
        return masked(self.value(found), obs, self.mask_size), state

    def values(self, obs, ended, final_obs, state):
        """Values of sequences `[n, steps, ...]`, from the state `[n, size]` before them.

        Returns: values `[n, learnt_steps, actions]` of obs, and those of final_obs.
        """
        states = self.core.states(self.rows(obs), ended, state, self.burn_in)
        final_obs = final_obs[:, self.burn_in :]
        final_value, _ = self.step(final_obs, states)
        shape = (*final_obs.shape[:2], -1)
        value = self.value(states[0].reshape((-1, self.core.size)))
        return value.reshape(shape), final_value.reshape(shape)


class R2D2Actor(Actor):
    """Takes the best action, or with probability epsilon a random one."""

    noise_size = 2

    def __init__(self, network, spec):
        super().__init__()
        self.network, self.num_actions = network, spec.action_space.n

    def act(self, obs, epsilon, *, state, noise):
        """Returns: action `[B]`, then the new state."""
        values, state = self.network.step(obs, state)
        best = values.argmax(-1).astype(int32)
        anything = random_action(noise[:, 1], obs, self.network.mask_size, self.num_actions)
        return (ops.where(noise[:, 0] < epsilon, anything, best),) + state

    def act_greedily(self, obs, epsilon, *, state):
        """Returns: the best action `[B]`, for evaluation."""
        return self.network.step(obs, state)[0].argmax(-1).astype(int32)


class R2D2Learner(Learner):
    """Updates on batches of sequences from the replay."""

    def __init__(self, network, target, config):
        super().__init__()
        self.network, self.target, self.config = network, target, config
        self.online, self.copied = network.trainable_params(), target_parameters(target)
        self.updates = Parameter(Tensor(0, int32), name="updates", requires_grad=False)
        self.optimizer = nn.Adam(self.online, config.learning_rate, eps=config.adam_eps)

    def loss(self, batch, weight):
        """Per sequence: the weighted error (section 2.3), the value, the sequence's priority."""
        config = self.config
        ended = ops.logical_or(batch.terminated, batch.truncated)
        seen = batch.obs, ended, batch.final_obs, batch.state
        values, following = self.network.values(*seen)
        _, final_value = self.target.values(*seen)
        if config.double_q:
            best = ops.one_hot(following.argmax(-1), following.shape[-1])
            final_value = (final_value * best).sum(-1)
        else:
            final_value = ops.amax(final_value, -1)
        if config.rescale:
            final_value = unscaled(final_value, config.rescale)
        action, reward, *ends = [
            part[:, config.burn_in :]
            for part in (batch.action, batch.reward, batch.terminated, batch.truncated)
        ]
        rollout = [part.T for part in (reward, final_value, *ends)]
        target = n_step_returns(*rollout, config.gamma, config.n_step).T
        if config.rescale:
            target = rescaled(target, config.rescale)
        value = (values * ops.one_hot(action, values.shape[-1])).sum(-1)
        target = ops.stop_gradient(ops.where(action < 0, value, target))
        loss = weight * value_loss(value, target).mean(1)
        return loss, value.mean(1), sequence_priority(ops.abs(value - target), config.eta)

    def apply(self, grads):
        """Takes one step of Adam; every `target_every` updates copies the network to the target."""
        self.optimizer(grads)
        copy_every(self.copied, self.online, self.updates, self.config.target_every)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        loss, value, grad_norm = 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            if config.priority:
                batch, ids, odds = msrl.replay_sample(config.batch_size, "priority")
                weight = ops.pow(odds, -config.importance)
                weight = weight / msrl.max(weight)
            else:
                batch = msrl.replay_sample(config.batch_size)
                weight = ops.ones_like(batch.reward[:, 0])
            if msrl.env_steps() >= config.learning_starts:
                grads, means, rows = msrl.gradient(
                    self.loss, self.network, batch, weight, rows=True
                )
                grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.apply, grads)
                loss, value, _ = means
                if config.priority:
                    _, _, error = rows
                    msrl.replay_update(ids, ops.pow(error + 1e-6, config.priority))
        return {"loss": loss, "q_value": value, "grad_norm": grad_norm}


def before_first(obs):
    """Returns: action, reward, terminated, truncated `[B]` of a step before the first."""
    nothing = ops.zeros((obs.shape[0],), float32)
    return (nothing - 1.0).astype(int32), nothing, nothing == 0.0, nothing > 0.0


def repeated(step, length):
    """Returns: a window `[B, length, ...]` with the same step `[B, ...]` at each place."""
    return ops.stack([step for _ in range(length)], 1)


def appended(window, step):
    """Returns: a window `[B, steps, ...]` without its first step, and with `[B, ...]` behind it."""
    return ops.concat((window[:, 1:], step.expand_dims(1)), 1)


class R2D2Trainer(Trainer):
    """R2D2 on any environment with discrete actions and a flat observation."""

    Config = Config
    masks_actions = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(f"R2D2 takes discrete actions; those of {spec.name} are continuous")
        network, target = RecurrentQNetwork(config, spec), RecurrentQNetwork(config, spec)
        self.actor = R2D2Actor(network, spec)
        self.learner = R2D2Learner(network, target, config)

    def train(self, msrl):
        """Rolls out `num_steps`, inserts the sequences that they end, then learns."""
        config = self.config
        obs = msrl.env_reset()
        sizes = self.actor.network.core.state_sizes
        state = tuple(ops.zeros((obs.shape[0], size)) for size in sizes)
        action, reward, terminated, truncated = before_first(obs)
        step = (obs, action, reward, terminated, truncated, obs, *state)
        window = tuple(repeated(part, config.length) for part in step)
        for _ in msrl.iterations():
            # Section 4.1 of Horgan et al. 2018.
            place = msrl.env_index() / max(config.num_envs - 1, 1)
            epsilon = ops.pow(config.epsilon, 1.0 + config.epsilon_alpha * place)
            for _ in msrl.steps():
                before = state
                action, *state = msrl.agent_act(obs, epsilon, state=state)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                step = (obs, action, reward, terminated, truncated, final_obs, *before)
                window = tuple(appended(past, now) for past, now in zip(window, step, strict=True))
                obs, ended = next_obs, ops.logical_or(terminated, truncated)
                state = tuple(restarted(part, ended) for part in state)
            first = tuple(part[:, 0] for part in window[6:])
            msrl.replay_insert(Sequence(*window[:6], first), keep=config.replay_size)
            msrl.report(msrl.agent_learn())
