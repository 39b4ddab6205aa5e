"""Behaviour cloning (Pomerleau 1989, "ALVINN: an autonomous land vehicle in a neural network").

Supervised learning of a data set's actions: the negative log-probability of discrete actions, the
squared error of continuous ones. It reads no rewards, and is what offline algorithms must surpass.
"""

from dataclasses import dataclass

from mindspore import int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import (
    ActionScale,
    categorical_log_prob,
    categorical_sample,
)
from mindspore_rl.rl.networks import MLP, flat_size


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of behaviour cloning, for CartPole-v1 and Pendulum-v1."""

    env: str = option("CartPole-v1", "environment to play in")
    dataset: str = option("", "file of trajectories, see `msrl dataset`")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(16, "environment steps of each environment in an iteration")
    total_steps: int = option(16_000, "environment steps of the whole run")
    updates: int = option(32, "updates in an iteration", ge=1)
    batch_size: int = option(128, "steps of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    hidden: tuple[int, ...] = option((128, 128), "widths of the hidden layers (ReLU)", ge=1)


class Policy(nn.Cell):
    """Logits of discrete actions, or continuous actions in (-1, 1)."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, space, seed = flat_size(spec), spec.action_space, config.seed
        self.discrete = isinstance(space, Discrete)
        size = space.n if self.discrete else space.size
        self.body = MLP(self.obs_size, config.hidden, size, 1.0, seed, 1, "relu", "uniform")
        if not self.discrete:
            self.scale = ActionScale(space)

    def construct(self, obs):
        """Returns: `[n, k]` of obs `[n, ...]`."""
        found = self.body(obs.reshape((-1, self.obs_size)))
        return found if self.discrete else ops.tanh(found)


class BCActor(Actor):
    """Samples discrete actions; continuous ones follow from the observation alone."""

    def __init__(self, policy):
        super().__init__()
        self.policy, self.noise_size = policy, 1

    def act(self, obs, noise):
        """Returns: action `[B]` or `[B, k]`."""
        found = self.policy(obs)
        if self.policy.discrete:
            return categorical_sample(found, noise)
        return self.policy.scale(found)

    def act_greedily(self, obs):
        """Returns: the most likely action, for evaluation."""
        found = self.policy(obs)
        if self.policy.discrete:
            return found.argmax(-1).astype(int32)
        return self.policy.scale(found)


class BCLearner(Learner):
    """Updates on single steps of a data set."""

    def __init__(self, policy, config):
        super().__init__()
        self.policy, self.config = policy, config
        self.optimizer = nn.Adam(policy.trainable_params(), config.learning_rate)

    def loss(self, obs, action):
        """Per sample: the action's negative log-probability, or its squared error."""
        found = self.policy(obs)
        if self.policy.discrete:
            return -categorical_log_prob(found, action)
        return ops.square(found - self.policy.scale.inverse(action)).mean(-1)

    def apply(self, grads):
        """Takes one step of Adam."""
        self.optimizer(grads)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config, loss = self.config, 0.0
        for _ in msrl.epochs(config.updates):
            obs, action, _, _, _, _ = msrl.dataset_windows(config.dataset, config.batch_size, 1)
            grads, means = msrl.gradient(self.loss, self.policy, obs[:, 0], action[:, 0])
            loss = means[0]
            msrl.update(self.apply, grads)
        return {"loss": loss}


class BCTrainer(Trainer):
    """Behaviour cloning on any environment with a flat observation; Box actions are bounded."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Discrete) and not space.bounded:
            raise ConfigError(f"behaviour cloning takes bounded actions; {spec.name} has {space}")
        policy = Policy(config, spec)
        self.actor, self.learner = BCActor(policy), BCLearner(policy, config)

    def train(self, msrl):
        """Plays `num_steps` with the current policy, then learns from the data."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                obs, _, _, _, _ = msrl.env_step(action)
            msrl.report(msrl.agent_learn())
