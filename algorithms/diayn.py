"""Diversity is all you need: skills without rewards (Eysenbach et al. 2019, arXiv 1802.06070).

Each episode has a skill, drawn uniformly. A discriminator learns to tell the skill from the states,
and soft actor-critic learns from what it tells, ``log q(skill | state) - log p(skill)``, with a
fixed temperature: skills go to states of their own, by actions as random as they may be. The
environment's rewards are not used. To look at a skill: `msrl eval RUN skill=3 --video FILE`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Box
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import (
    ActionScale,
    categorical_log_prob,
    squashed_normal_sample,
)
from mindspore_rl.rl.learnt_rewards import skill_reward
from mindspore_rl.rl.networks import MLP, TwinCritics, flat_size
from mindspore_rl.rl.updates import polyak_update, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of DIAYN, for Pendulum-v1 and MuJoCo."""

    env: str = option("Pendulum-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(4, "environments, on all workers together")
    num_steps: int = option(4, "environment steps of each environment in an iteration")
    total_steps: int = option(40_000, "environment steps of the whole run")
    skills: int = option(4, "number of skills", ge=2)
    skill: int | None = option(None, "this skill alone, to look at it; none: drawn", ge=0)
    replay_size: int = option(1_000_000, "transitions in the replay, in all", ge=1)
    learning_starts: int = option(500, "environment steps with random actions and no update", ge=0)
    updates: int = option(16, "updates in an iteration", ge=1)
    batch_size: int = option(128, "transitions of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size of policy and critics", ge=0)
    discriminator_rate: float = option(1e-3, "that of the discriminator", ge=0)
    temperature: float = option(0.1, "weight of the policy's entropy beside the reward", ge=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    tau: float = option(0.005, "step of the target critics in an update", ge=0, le=1)
    hidden: tuple[int, ...] = option((128, 128), "widths of the hidden layers (ReLU)", ge=1)

    def __post_init__(self):
        if self.skill is not None and self.skill >= self.skills:
            raise ValueError(
                f"skill is {self.skill}, expected 0 to {self.skills - 1}: there are {self.skills} "
                "skills"
            )


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and records that are kept `[n, ...]`."""

    obs: Any
    skill: Any
    action: Any  # the actor's action before scaling, in [-1, 1]
    terminated: Any
    final_obs: Any


class Policy(nn.Cell):
    """A squashed Gaussian over actions in (-1, 1), for each skill."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, self.size = flat_size(spec), spec.action_space.size
        self.skills, sizes = config.skills, (self.obs_size + config.skills, config.hidden)
        self.body = MLP(*sizes, 2 * self.size, 1.0, config.seed, 1, "relu", "uniform")

    def with_skill(self, obs, skill):
        """Returns: `[n, obs_size + skills]` of obs `[n, ...]` and skills `[n]`: the states."""
        which = ops.one_hot(skill, self.skills).astype(float32)
        return ops.concat((obs.reshape((-1, self.obs_size)), which), 1)

    def sample(self, state, noise):
        """Returns: action `[n, k]` and its log-probability `[n]` of states with a skill."""
        found = self.body(state)
        log_std = ops.clamp(found[:, self.size :], -20.0, 2.0)
        return squashed_normal_sample(found[:, : self.size], log_std, noise)

    def mean(self, state):
        """Returns: the squashed mean of the distribution, `[n, k]`."""
        return ops.tanh(self.body(state)[:, : self.size])


class Discriminator(nn.Cell):
    """Tells the skill from a state."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size = flat_size(spec)
        self.body = MLP(self.obs_size, config.hidden, config.skills, 0.01, config.seed, 4, "relu")

    def construct(self, obs):
        """Returns: logits of the skills `[n, skills]` of obs `[n, ...]`."""
        return self.body(obs.reshape((-1, self.obs_size)))


class DIAYNActor(Actor):
    """Draws a skill for each episode, then samples from its policy."""

    def __init__(self, policy, config, spec):
        super().__init__()
        self.policy, self.scale = policy, ActionScale(spec.action_space)
        self.skills, self.skill, self.size = config.skills, config.skill, policy.size
        self.noise_size = 2 * self.size + 1

    def act(self, obs, skill, exploring, noise):
        """Draws a skill where it is below 0.

        Returns: action `[B, k]` for the environment, as stored in the replay, and skill `[B]`.
        """
        drawn = (noise[:, 0] * self.skills).astype(int32)
        if self.skill is not None:
            drawn = drawn * 0 + self.skill
        skill = ops.where(skill < 0, drawn, skill)
        sampled, _ = self.policy.sample(self.policy.with_skill(obs, skill), noise[:, 1:])
        action = ops.where(exploring, 2.0 * noise[:, 1 : self.size + 1] - 1.0, sampled)
        return self.scale(action), action, skill

    def act_greedily(self, obs, skill, exploring):
        """Returns: the action for evaluation; an episode's first is that of skill 0."""
        chosen = ops.relu(skill) if self.skill is None else skill * 0 + self.skill
        return self.scale(self.policy.mean(self.policy.with_skill(obs, chosen)))


class DIAYNLearner(Learner):
    """Updates on batches from the replay."""

    def __init__(self, policy, critics, target, config, spec):
        super().__init__()
        self.policy, self.critics, self.target, self.config = policy, critics, target, config
        self.discriminator = Discriminator(config, spec)
        self.online, self.followers = critics.trainable_params(), target_parameters(target)
        self.policy_optimizer = nn.Adam(policy.trainable_params(), config.learning_rate)
        self.critic_optimizer = nn.Adam(self.online, config.learning_rate)
        self.discriminator_optimizer = nn.Adam(
            self.discriminator.trainable_params(), config.discriminator_rate
        )

    def critic_loss(self, batch, noise):
        """Per sample: both critics' errors, the first value, the reward (equation 3)."""
        config = self.config
        reward = skill_reward(self.discriminator(batch.final_obs), batch.skill)
        state = self.policy.with_skill(batch.final_obs, batch.skill)
        following, log_prob = self.policy.sample(state, noise)
        first, second = self.target(state, following)
        soft = ops.minimum(first, second) - config.temperature * log_prob
        going_on = config.gamma * (1.0 - batch.terminated.astype(float32))
        goal = ops.stop_gradient(reward + going_on * soft)
        state = self.policy.with_skill(batch.obs, batch.skill)
        first, second = self.critics(state, batch.action)
        loss = 0.5 * ops.square(first - goal) + 0.5 * ops.square(second - goal)
        return loss, first, reward

    def policy_loss(self, obs, skill, noise):
        """Per sample: the policy's loss, and the log-probability of its action."""
        state = self.policy.with_skill(obs, skill)
        action, log_prob = self.policy.sample(state, noise)
        value = ops.minimum(*self.critics(state, action))
        return self.config.temperature * log_prob - value, log_prob

    def discriminator_loss(self, obs, skill):
        """Per sample: the cross-entropy, and 1 where the skill is told right."""
        logits = self.discriminator(obs)
        right = (logits.argmax(-1).astype(int32) == skill).astype(float32)
        return -categorical_log_prob(logits, skill), right

    def apply_critics(self, grads):
        """Takes one step of Adam and moves the target critics."""
        self.critic_optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        critic_loss, value, reward, log_prob, error, accuracy = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            batch = msrl.replay_sample(config.batch_size)
            noise = msrl.uniform(config.batch_size, self.policy.size * 2)
            other_noise = msrl.uniform(config.batch_size, self.policy.size * 2)
            if msrl.env_steps() >= config.learning_starts:
                grads, means = msrl.gradient(self.critic_loss, self.critics, batch, noise)
                critic_loss, value, reward = means
                msrl.update(self.apply_critics, grads)
                policy_grads, policy_means = msrl.gradient(
                    self.policy_loss, self.policy, batch.obs, batch.skill, other_noise
                )
                _, log_prob = policy_means
                msrl.update(self.policy_optimizer, policy_grads)
                told, told_means = msrl.gradient(
                    self.discriminator_loss, self.discriminator, batch.final_obs, batch.skill
                )
                error, accuracy = told_means
                msrl.update(self.discriminator_optimizer, told)
        return {
            "critic_loss": critic_loss,
            "q_value": value,
            "skill_reward": reward,
            "entropy": -log_prob,
            "discriminator_loss": error,
            "discriminator_accuracy": accuracy,
        }


class DIAYNTrainer(Trainer):
    """DIAYN on any environment with bounded continuous actions and a flat observation."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Box) or not space.bounded:
            raise ConfigError(f"DIAYN takes bounded continuous actions; {spec.name} has {space}")
        policy = Policy(config, spec)
        sizes = (policy.obs_size + config.skills,), space.size, config.hidden, config.seed
        critics, target = TwinCritics(*sizes), TwinCritics(*sizes)
        self.actor = DIAYNActor(policy, config, spec)
        self.learner = DIAYNLearner(policy, critics, target, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it."""
        config = self.config
        obs = msrl.env_reset()
        skill = 0 * msrl.env_index() - 1  # none yet
        for _ in msrl.iterations():
            exploring = msrl.env_steps() < config.learning_starts
            for _ in msrl.steps():
                action, kept_action, skill = msrl.agent_act(obs, skill, exploring)
                next_obs, final_obs, _, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        skill=skill,
                        action=kept_action,
                        terminated=terminated,
                        final_obs=final_obs,
                    ),
                    keep=config.replay_size,
                )
                skill = ops.where(ops.logical_or(terminated, truncated), -1, skill)
                obs = next_obs
            msrl.report(msrl.agent_learn())
