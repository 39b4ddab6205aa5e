"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv 1910.07207).

The policy gives the probability of each action and the critics the value of each, so expectations
over actions are sums instead of samples.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import categorical_sample
from mindspore_rl.rl.action_masks import features, masked, random_action
from mindspore_rl.rl.networks import MLP, flat_size
from mindspore_rl.rl.updates import polyak_update, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of discrete SAC; the defaults solve CartPole-v1."""

    env: str = option("CartPole-v1", "environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(10, "environment steps of each environment in an iteration")
    total_steps: int = option(100_000, "environment steps of the whole run")
    replay_size: int = option(50_000, "transitions in the replay, in all", ge=1)
    learning_starts: int = option(2_000, "environment steps with random actions, no update", ge=0)
    updates: int = option(20, "updates in an iteration", ge=1)
    batch_size: int = option(128, "transitions of an update; a multiple of num_envs", ge=1)
    learning_rate: float = option(1e-3, "Adam's step size", ge=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    tau: float = option(0.03, "step of the target critics in an update", ge=0, le=1)
    entropy: float = option(0.2, "target entropy, over that of random actions", ge=0, le=1)
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (ReLU)", ge=1)


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and records that are kept `[n, ...]`."""

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    final_obs: Any


class Outputs(nn.Cell):
    """A number for each action: the policy's logits, or a critic's values."""

    def __init__(self, config, spec, name_index):
        super().__init__()
        self.obs_size, actions = flat_size(spec), spec.action_space.n
        self.mask_size = spec.mask_size
        place = config.seed, name_index
        self.body = MLP(self.obs_size, config.hidden, actions, 1.0, *place, "relu", "uniform")

    def construct(self, obs):
        """Returns: `[n, actions]` of obs `[n, ...]`."""
        rows = features(obs, self.mask_size).reshape((-1, self.obs_size))
        return masked(self.body(rows), obs, self.mask_size)


class Critics(nn.Cell):
    """Two critics of all actions."""

    def __init__(self, config, spec):
        super().__init__()
        self.first, self.second = Outputs(config, spec, 2), Outputs(config, spec, 3)

    def construct(self, obs):
        """Returns: both critics' values `[n, actions]` of obs `[n, ...]`."""
        return self.first(obs), self.second(obs)


class DiscreteSACActor(Actor):
    """Samples from the current policy; before `learning_starts`, uniformly."""

    noise_size = 2

    def __init__(self, policy, spec):
        super().__init__()
        self.policy, self.num_actions = policy, spec.action_space.n

    def act(self, obs, exploring, noise):
        """Returns: action `[B]`."""
        sampled = categorical_sample(self.policy(obs), noise[:, :1])
        anything = random_action(noise[:, 1], obs, self.policy.mask_size, self.num_actions)
        return ops.where(exploring, anything, sampled)

    def act_greedily(self, obs, exploring):
        """Returns: the likeliest action `[B]`, for evaluation."""
        return self.policy(obs).argmax(-1).astype(int32)


class DiscreteSACLearner(Learner):
    """Updates on batches from the replay."""

    def __init__(self, policy, critics, target, config, spec):
        super().__init__()
        self.policy, self.critics, self.target, self.config = policy, critics, target, config
        self.num_actions = spec.action_space.n
        self.log_alpha = Parameter(Tensor(np.zeros((), np.float32)), name="log_alpha")
        self.online, self.followers = critics.trainable_params(), target_parameters(target)
        self.policy_optimizer = nn.Adam(policy.trainable_params(), config.learning_rate)
        self.critic_optimizer = nn.Adam(self.online, config.learning_rate)
        self.alpha_optimizer = nn.Adam(ParameterTuple([self.log_alpha]), config.learning_rate)

    def critic_loss(self, batch):
        """Per sample: both critics' errors (algorithm 1 of the paper), then the first value."""
        log_probs = ops.log_softmax(self.policy(batch.final_obs), -1)
        first, second = self.target(batch.final_obs)
        soft = ops.minimum(first, second) - ops.exp(self.log_alpha) * log_probs
        soft = (ops.exp(log_probs) * soft).sum(-1)
        going_on = self.config.gamma * (1.0 - batch.terminated.astype("float32"))
        goal = ops.stop_gradient(batch.reward + going_on * soft)
        first, second = self.critics(batch.obs)
        chosen = ops.one_hot(batch.action, first.shape[-1])
        first, second = (first * chosen).sum(-1), (second * chosen).sum(-1)
        return 0.5 * ops.square(first - goal) + 0.5 * ops.square(second - goal), first

    def policy_loss(self, obs):
        """Per sample: the policy's loss, its entropy, then that of random actions."""
        log_probs = ops.log_softmax(self.policy(obs), -1)
        probs = ops.exp(log_probs)
        first, second = self.critics(obs)
        value = ops.stop_gradient(ops.minimum(first, second))
        loss = (probs * (ops.exp(self.log_alpha) * log_probs - value)).sum(-1)
        entropy = -(probs * log_probs).sum(-1)
        return loss, entropy, self.most_entropy(obs, entropy)

    def most_entropy(self, obs, entropy):
        """Returns: the entropy `[n]` of random actions among the valid ones."""
        if not self.policy.mask_size:
            return ops.zeros_like(entropy) + float(np.log(self.num_actions))
        count = obs[..., -self.num_actions :].sum(-1).reshape(entropy.shape)
        return ops.log(ops.maximum(count, 1.0))

    def apply_critics(self, grads):
        """Takes one step of Adam and moves the target critics."""
        self.critic_optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)

    def apply_policy(self, grads, entropy, most):
        """Takes one step of Adam for the policy, and one for the temperature."""
        self.policy_optimizer(grads)
        self.alpha_optimizer((entropy - self.config.entropy * most,))

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config = self.config
        critic_loss, value, policy_loss, entropy = 0.0, 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            batch = msrl.replay_sample(config.batch_size)
            if msrl.env_steps() >= config.learning_starts:
                grads, means = msrl.gradient(self.critic_loss, self.critics, batch)
                critic_loss, value = means
                msrl.update(self.apply_critics, grads)
                policy_grads, policy_means = msrl.gradient(self.policy_loss, self.policy, batch.obs)
                policy_loss, entropy, most = policy_means
                msrl.update(self.apply_policy, policy_grads, entropy, most)
        return {
            "critic_loss": critic_loss,
            "q_value": value,
            "policy_loss": policy_loss,
            "entropy": entropy,
        }


class DiscreteSACTrainer(Trainer):
    """SAC on any environment with discrete actions and a flat observation."""

    Config = Config
    masks_actions = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(
                f"discrete SAC takes discrete actions; those of {spec.name} are continuous: "
                "train sac"
            )
        policy = Outputs(config, spec, 1)
        critics, target = Critics(config, spec), Critics(config, spec)
        self.actor = DiscreteSACActor(policy, spec)
        self.learner = DiscreteSACLearner(policy, critics, target, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it."""
        config = self.config
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            exploring = msrl.env_steps() < config.learning_starts
            for _ in msrl.steps():
                action = msrl.agent_act(obs, exploring)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=action,
                        reward=reward,
                        terminated=terminated,
                        final_obs=final_obs,
                    ),
                    keep=config.replay_size,
                )
                obs = next_obs
            msrl.report(msrl.agent_learn())
