"""Model-based policy optimisation (Janner et al. 2019, arXiv 1906.08253).

An ensemble of networks learns the environment. It imagines short sequences of steps from states of
the replay, into a replay of their own, and soft actor-critic learns mostly from these. Each network
weighs the samples in its own way, as in a bootstrap, and each imagined step is that of a network
drawn for it. Left out: elites by a validation loss, sequences that grow in the run. The end of an
episode is learnt too; the paper's are known.
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
    softplus,
    squashed_normal_sample,
    standard_normal,
)
from mindspore_rl.rl.networks import MLP, TwinCritics, flat_size
from mindspore_rl.rl.updates import polyak_update, target_parameters
from mindspore_rl.rl.world_models import bootstrap_weights, gaussian_loss, soft_bounds


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of MBPO, for Pendulum-v1."""

    env: str = option("Pendulum-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(4, "environments, on all workers together")
    num_steps: int = option(4, "environment steps of each environment in an iteration")
    total_steps: int = option(8_000, "environment steps of the whole run")
    replay_size: int = option(100_000, "transitions in the replay, in all", ge=1)
    learning_starts: int = option(500, "environment steps with random actions and no update", ge=0)
    model_updates: int = option(16, "updates of the model in an iteration", ge=1)
    networks: int = option(4, "networks of the ensemble", ge=1)
    rollouts: int = option(32, "imagined sequences of each environment in an iteration", ge=1)
    horizon: int = option(1, "steps of an imagined sequence", ge=1)
    imagined_size: int = option(10_000, "imagined transitions in their replay, in all", ge=1)
    real_fraction: float = option(0.05, "real transitions in the policy's batches", ge=0, le=1)
    updates: int = option(32, "updates of the policy in an iteration", ge=1)
    batch_size: int = option(128, "transitions of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    temperature: float = option(0.1, "weight of the policy's entropy", ge=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    tau: float = option(0.005, "step of the target critics in an update", ge=0, le=1)
    hidden: tuple[int, ...] = option((128, 128), "widths of the hidden layers (ReLU)", ge=1)


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and records that are kept `[n, ...]`."""

    obs: Any
    action: Any  # before scaling, in [-1, 1]
    reward: Any
    terminated: Any
    final_obs: Any


class Policy(nn.Cell):
    """A squashed Gaussian over actions in (-1, 1)."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, self.size = flat_size(spec), spec.action_space.size
        sizes = self.obs_size, config.hidden, 2 * self.size
        self.body = MLP(*sizes, 1.0, config.seed, 1, "relu", "uniform")

    def sample(self, obs, noise):
        """Returns: action `[n, k]` and its log-probability `[n]` of obs `[n, ...]`."""
        found = self.body(obs.reshape((-1, self.obs_size)))
        log_std = ops.clamp(found[:, self.size :], -20.0, 2.0)
        return squashed_normal_sample(found[:, : self.size], log_std, noise)

    def mean(self, obs):
        """Returns: the squashed mean of the distribution, `[n, k]`."""
        return ops.tanh(self.body(obs.reshape((-1, self.obs_size)))[:, : self.size])


class Ensemble(nn.Cell):
    """Networks that each give a Gaussian of the change of obs and the reward, and the end."""

    def __init__(self, config, spec):
        super().__init__()
        self.obs_size, self.shape = flat_size(spec), spec.obs_shape
        self.count, self.size = config.networks, self.obs_size + 1
        columns = self.obs_size + spec.action_space.size
        self.members = nn.CellList(
            [
                MLP(columns, config.hidden, 2 * self.size + 1, 1.0, config.seed, index, "relu")
                for index in range(10, 10 + config.networks)
            ]
        )

    def given(self, obs, action):
        """Returns: the networks' input `[n, columns]`."""
        return ops.concat((obs.reshape((-1, self.obs_size)), action), 1)

    def loss(self, batch, noise):
        """Per sample: the loss, and the squared error of the first network's mean."""
        obs, after = (part.reshape((-1, self.obs_size)) for part in (batch.obs, batch.final_obs))
        target = ops.concat((after - obs, batch.reward.expand_dims(1)), 1)
        ends, weight = batch.terminated.astype(float32), bootstrap_weights(noise)
        given, size, loss = self.given(batch.obs, batch.action), self.size, 0.0
        for i in range(self.count):
            found = self.members[i](given)
            log_variance = soft_bounds(found[:, size : 2 * size], -10.0, 4.0)
            error = gaussian_loss(found[:, :size], log_variance, target)
            logit = found[:, 2 * size]
            loss = loss + weight[:, i] * (error + softplus(logit) - ends * logit)
        first = self.members[0](given)[:, :size]
        return loss, ops.square(first - target).mean(-1)

    def step(self, obs, action, noise):
        """Returns: obs, reward and terminated after imagined steps, of a network each."""
        given, size = self.given(obs, action), self.size
        chosen, found = (noise[:, 0] * self.count).astype(int32), 0.0
        for i in range(self.count):
            here = (chosen == i).astype(float32).expand_dims(1)
            found = found + here * self.members[i](given)
        deviation = ops.exp(0.5 * soft_bounds(found[:, size : 2 * size], -10.0, 4.0))
        change = found[:, :size] + deviation * standard_normal(noise[:, 2:])
        after = obs.reshape((-1, self.obs_size)) + change[:, : size - 1]
        ended = noise[:, 1] < ops.sigmoid(found[:, 2 * size])
        return after.reshape((-1, *self.shape)), change[:, size - 1], ended


class MBPOActor(Actor):
    """Samples from the current policy; before `learning_starts`, uniformly."""

    def __init__(self, policy, spec):
        super().__init__()
        self.policy, self.scale, self.size = policy, ActionScale(spec.action_space), policy.size
        self.noise_size = 2 * self.size

    def act(self, obs, exploring, noise):
        """Returns: action `[B, k]` for the environment, and as stored in the replay, in (-1, 1)."""
        sampled, _ = self.policy.sample(obs, noise)
        action = ops.where(exploring, 2.0 * noise[:, : self.size] - 1.0, sampled)
        return self.scale(action), action

    def act_greedily(self, obs, exploring):
        """Returns: the action for evaluation."""
        return self.scale(self.policy.mean(obs))


class MBPOLearner(Learner):
    """Updates the model from the replay, and the policy from what the model imagines."""

    def __init__(self, policy, critics, target, config, spec):
        super().__init__()
        self.policy, self.critics, self.target, self.config = policy, critics, target, config
        self.model = Ensemble(config, spec)
        self.online, self.followers = critics.trainable_params(), target_parameters(target)
        rate = config.learning_rate
        self.model_optimizer = nn.Adam(self.model.trainable_params(), rate)
        self.policy_optimizer = nn.Adam(policy.trainable_params(), rate)
        self.critic_optimizer = nn.Adam(self.online, rate)

    def critic_loss(self, obs, action, reward, terminated, final_obs, noise):
        """Per sample: both critics' errors, and the first value."""
        config = self.config
        following, log_prob = self.policy.sample(final_obs, noise)
        first, second = self.target(final_obs, following)
        soft = ops.minimum(first, second) - config.temperature * log_prob
        going_on = config.gamma * (1.0 - terminated.astype(float32))
        goal = ops.stop_gradient(reward + going_on * soft)
        first, second = self.critics(obs, action)
        return 0.5 * ops.square(first - goal) + 0.5 * ops.square(second - goal), first

    def policy_loss(self, obs, noise):
        """Per sample: the policy's loss, and the log-probability of its action."""
        action, log_prob = self.policy.sample(obs, noise)
        first, second = self.critics(obs, action)
        return self.config.temperature * log_prob - ops.minimum(first, second), log_prob

    def apply_critics(self, grads):
        """Takes one step of Adam and moves the target critics."""
        self.critic_optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)

    def imagine(self, msrl):
        """Puts imagined steps into their replay, of one sequence for each environment."""
        config, size, model_size = self.config, self.policy.size, 2 * self.model.size + 2
        start = msrl.replay_sample(config.num_envs)
        obs = start.obs
        for _ in range(config.horizon):
            action, _ = self.policy.sample(obs, msrl.uniform(config.num_envs, 2 * size))
            noise = msrl.uniform(config.num_envs, model_size)
            final_obs, reward, terminated = self.model.step(obs, action, noise)
            msrl.replay_insert(
                Transition(
                    obs=obs,
                    action=action,
                    reward=reward,
                    terminated=terminated,
                    final_obs=final_obs,
                ),
                keep=config.imagined_size,
                into="model",
            )
            obs = chosen(terminated, start.obs, final_obs)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last ones."""
        config, size = self.config, 2 * self.policy.size
        model_loss, model_error, critic_loss, value, log_prob = 0.0, 0.0, 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.model_updates):
            batch = msrl.replay_sample(config.batch_size)
            noise = msrl.uniform(config.batch_size, config.networks)
            grads, means = msrl.gradient(self.model.loss, self.model, batch, noise)
            model_loss, model_error = means
            msrl.update(self.model_optimizer, grads)
        for _ in msrl.epochs(config.rollouts):
            self.imagine(msrl)
        for _ in msrl.epochs(config.updates):
            own = msrl.replay_sample(config.batch_size)
            imagined = msrl.replay_sample(config.batch_size, of="model")
            noise = msrl.uniform(config.batch_size, 2 * size + 1)
            if msrl.env_steps() >= config.learning_starts:
                real = noise[:, 0] < config.real_fraction
                obs = chosen(real, own.obs, imagined.obs)
                action = chosen(real, own.action, imagined.action)
                reward = ops.where(real, own.reward, imagined.reward)
                terminated = ops.where(real, own.terminated, imagined.terminated)
                final_obs = chosen(real, own.final_obs, imagined.final_obs)
                step = obs, action, reward, terminated, final_obs
                critic_grads, critic_means = msrl.gradient(
                    self.critic_loss, self.critics, *step, noise[:, 1 : size + 1]
                )
                critic_loss, value = critic_means
                msrl.update(self.apply_critics, critic_grads)
                policy_grads, policy_means = msrl.gradient(
                    self.policy_loss, self.policy, obs, noise[:, size + 1 :]
                )
                _, log_prob = policy_means
                msrl.update(self.policy_optimizer, policy_grads)
        return {
            "model_loss": model_loss,
            "model_error": model_error,
            "critic_loss": critic_loss,
            "q_value": value,
            "entropy": -log_prob,
        }


def chosen(which, value, other):
    """Returns: rows `[n, ...]` of value where `which` `[n]` is true, else of other."""
    which = which.reshape((-1, *(1 for _ in value.shape[1:])))
    return ops.where(which, value, other)


class MBPOTrainer(Trainer):
    """MBPO on any environment with bounded continuous actions and a flat observation."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        space = spec.action_space
        if not isinstance(space, Box) or not space.bounded:
            raise ConfigError(f"MBPO takes bounded continuous actions; {spec.name} has {space}")
        sizes = spec.obs_shape, space.size, config.hidden, config.seed
        policy, critics, target = Policy(config, spec), TwinCritics(*sizes), TwinCritics(*sizes)
        self.actor = MBPOActor(policy, spec)
        self.learner = MBPOLearner(policy, critics, target, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it."""
        config = self.config
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            exploring = msrl.env_steps() < config.learning_starts
            for _ in msrl.steps():
                action, kept_action = msrl.agent_act(obs, exploring)
                next_obs, final_obs, reward, terminated, _ = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=kept_action,
                        reward=reward,
                        terminated=terminated,
                        final_obs=final_obs,
                    ),
                    keep=config.replay_size,
                )
                obs = next_obs
            msrl.report(msrl.agent_learn())
