"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018).

"Addressing function approximation error in actor-critic methods", arXiv 1802.09477: the minimum of
two critics' values, noise on the target policy's actions, and less frequent policy updates.
Without these three it is DDPG (Lillicrap et al. 2015, arXiv 1509.02971), `configs/ddpg.yaml`.

Options: TD3+BC (Fujimoto and Gu 2021, arXiv 2106.06860), which learns from a data set and whose
policy also clones the data's actions; hindsight experience replay (HER, Andrychowicz et al. 2017,
arXiv 1707.01495).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Box
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import ActionScale, standard_normal
from mindspore_rl.rl.goals import Hindsight
from mindspore_rl.rl.losses import cloning_loss
from mindspore_rl.rl.networks import MLP, TwinCritics, flat_size
from mindspore_rl.rl.updates import polyak_update, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of TD3, for Pendulum-v1 and MuJoCo."""

    env: str = option("Pendulum-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(4, "environments, on all workers together")
    num_steps: int = option(4, "environment steps of each environment in an iteration")
    total_steps: int = option(20_000, "environment steps of the whole run")
    replay_size: int = option(1_000_000, "transitions in the replay, in all", ge=1)
    learning_starts: int = option(500, "environment steps with random actions and no update", ge=0)
    policy_updates: int = option(8, "updates of the policy in an iteration", ge=1)
    policy_delay: int = option(2, "updates of the critics per update of the policy", ge=1)
    batch_size: int = option(256, "transitions of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    tau: float = option(0.005, "how far the targets follow in an update of the policy", ge=0, le=1)
    exploration: float = option(0.1, "deviation of the noise on actions in (-1, 1)", ge=0)
    smoothing: float = option(0.2, "deviation of the noise on the target policy's actions", ge=0)
    most_smoothing: float = option(0.5, "bound of that noise", ge=0)
    twin: bool = option(True, "two critics, whose lower value counts; DDPG has one")
    dataset: str = option("", "TD3+BC learns from this file, see `msrl dataset`; empty: TD3")
    bc_alpha: float = option(2.5, "TD3+BC's alpha: weight of the value beside the cloning", ge=0)
    her: int = option(0, "HER: how many steps later goals may be from; 0: no HER", ge=0)
    her_fraction: float = option(0.8, "HER: samples with such goals", ge=0, le=1)
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers (ReLU)", ge=1)


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and records that are kept `[n, ...]`."""

    obs: Any
    action: Any  # the actor's action before scaling, in [-1, 1]
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class Policy(nn.Cell):
    """A deterministic policy with actions in (-1, 1)."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, size = flat_size(spec), spec.action_space.size
        seed = config.seed
        self.body = MLP(self.obs_size, config.hidden, size, 1.0, seed, 1, "relu", "uniform")

    def construct(self, obs):
        """Returns: `[n, k]` of obs `[n, ...]`."""
        return ops.tanh(self.body(obs.reshape((-1, self.obs_size))))


class TD3Actor(Actor):
    """Adds noise to the policy's action; before `learning_starts`, acts uniformly."""

    def __init__(self, policy, config, spec):
        super().__init__()
        self.policy, self.exploration, space = policy, config.exploration, spec.action_space
        self.size = space.size
        self.noise_size = 2 * self.size
        self.scale = ActionScale(space)

    def act(self, obs, exploring, noise):
        """Returns: action `[B, k]` for the environment, and as stored in the replay, in [-1, 1]."""
        chosen = self.policy(obs) + self.exploration * standard_normal(noise)
        anything = 2.0 * noise[:, : self.size] - 1.0
        action = ops.where(exploring, anything, ops.clamp(chosen, -1.0, 1.0))
        return self.scale(action), action

    def act_greedily(self, obs, exploring):
        """Returns: the action for evaluation."""
        return self.scale(self.policy(obs))


class TD3Learner(Learner):
    """Updates on batches from the replay."""

    def __init__(self, policy, critics, targets, config, spec):
        super().__init__()
        self.policy, self.critics, self.config = policy, critics, config
        self.hindsight = Hindsight(spec, config) if config.her else None
        self.scale = ActionScale(spec.action_space)
        self.target_policy, self.target_critics = targets
        self.online = policy.trainable_params() + critics.trainable_params()
        self.followers = target_parameters(*targets)
        self.policy_optimizer = nn.Adam(policy.trainable_params(), config.learning_rate)
        self.critic_optimizer = nn.Adam(critics.trainable_params(), config.learning_rate)

    def critic_loss(self, batch, noise):
        """Per sample: both critics' errors (algorithm 1), the first value, and its size."""
        config = self.config
        shift = config.smoothing * standard_normal(noise)
        shift = ops.clamp(shift, -config.most_smoothing, config.most_smoothing)
        following = ops.clamp(self.target_policy(batch.final_obs) + shift, -1.0, 1.0)
        first, second = self.target_critics(batch.final_obs, following)
        going_on = config.gamma * (1.0 - batch.terminated.astype("float32"))
        goal = ops.stop_gradient(batch.reward + going_on * ops.minimum(first, second))
        first, second = self.critics(batch.obs, batch.action)
        size = ops.abs(first)
        if not config.twin:
            return ops.square(first - goal), first, size
        return ops.square(first - goal) + ops.square(second - goal), first, size

    def policy_loss(self, obs, action, size):
        """Per sample: the negated value of the policy's action by the first critic.

        TD3+BC (equations 3 and 5 of its paper): likewise in units of the values' mean size, and the
        squared distance from the data's action.
        """
        chosen = self.policy(obs)
        first, _ = self.critics(obs, chosen)
        if self.config.dataset:
            return cloning_loss(chosen, action, first, size, self.config.bc_alpha)
        return -first

    def apply_critics(self, grads):
        """Takes one step of Adam."""
        self.critic_optimizer(grads)

    def apply_policy(self, grads):
        """Takes one step of Adam and moves all targets."""
        self.policy_optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)

    def drawn(self, msrl):
        """Returns: a batch of the replay, with HER of windows in hindsight, or of the data set."""
        config = self.config
        if config.her and not config.dataset:
            obs, action, *rest = msrl.replay_sample(config.batch_size, steps=config.her)
            obs, *rest = self.hindsight(msrl.uniform(config.batch_size, 2), obs, *rest)
            return Transition(*[part[:, 0] for part in (obs, action, *rest)])
        if not config.dataset:
            return msrl.replay_sample(config.batch_size)
        obs, action, reward, terminated, next_obs = msrl.dataset_transitions(
            self.config.dataset, self.config.batch_size
        )
        return Transition(
            obs=obs,
            action=self.scale.inverse(action),
            reward=reward,
            terminated=terminated,
            truncated=ops.zeros_like(terminated),
            final_obs=next_obs,
        )

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        critic_loss, value, size, policy_loss = 0.0, 0.0, 1.0, 0.0
        for _ in msrl.epochs(config.policy_updates):
            for _ in range(config.policy_delay):
                batch = self.drawn(msrl)
                noise = msrl.uniform(config.batch_size, 2 * self.critics.action_size)
                if msrl.env_steps() >= config.learning_starts:
                    grads, means = msrl.gradient(self.critic_loss, self.critics, batch, noise)
                    critic_loss, value, size = means
                    msrl.update(self.apply_critics, grads)
            if msrl.env_steps() >= config.learning_starts:
                policy_grads, policy_means = msrl.gradient(
                    self.policy_loss, self.policy, batch.obs, batch.action, size
                )
                policy_loss = policy_means[0]
                msrl.update(self.apply_policy, policy_grads)
        return {"critic_loss": critic_loss, "q_value": value, "policy_loss": policy_loss}


class TD3Trainer(Trainer):
    """TD3 on any environment with bounded continuous actions and a flat observation."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Box) or not space.bounded:
            raise ConfigError(f"TD3 takes bounded continuous actions; {spec.name} has {space}")
        sizes = spec.obs_shape, space.size, config.hidden, config.seed
        policy, critics = Policy(config, spec), TwinCritics(*sizes, twin=config.twin)
        targets = Policy(config, spec), TwinCritics(*sizes, twin=config.twin)
        self.actor = TD3Actor(policy, config, spec)
        self.learner = TD3Learner(policy, critics, targets, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it or of the data."""
        config = self.config
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            exploring = msrl.env_steps() < config.learning_starts
            for _ in msrl.steps():
                action, kept_action = msrl.agent_act(obs, exploring)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                if not config.dataset:
                    msrl.replay_insert(
                        Transition(
                            obs=obs,
                            action=kept_action,
                            reward=reward,
                            terminated=terminated,
                            truncated=truncated,
                            final_obs=final_obs,
                        ),
                        keep=config.replay_size,
                    )
                obs = next_obs
            msrl.report(msrl.agent_learn())
