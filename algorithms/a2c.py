"""Advantage actor-critic, the synchronous form of A3C (Mnih et al. 2016, arXiv 1602.01783).

Each iteration makes one update with its whole batch. Returns are lambda-returns; lambda 1 is the
paper's n-step return.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import categorical_sample
from mindspore_rl.rl.losses import clip_by_global_norm
from mindspore_rl.rl.networks import RECURRENT
from mindspore_rl.rl.policies import ActorCritic
from mindspore_rl.rl.returns import lambda_returns
from mindspore_rl.rl.updates import Adam


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of A2C; the defaults solve CartPole-v1."""

    env: str = option("CartPole-v1", "environment, with discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(16, "environment steps of each environment in an iteration")
    total_steps: int = option(500_000, "environment steps of the whole run")
    learning_rate: float = option(2e-3, "Adam's step size at the start; falls linearly to 0", ge=0)
    adam_eps: float = option(1e-5, "Adam's epsilon", gt=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    return_lambda: float = option(
        0.95, "lambda of the returns; 1 is the paper's n-step return", ge=0, le=1
    )
    ent_coef: float = option(0.01, "weight of the entropy bonus", ge=0)
    vf_coef: float = option(0.5, "weight of the value loss", ge=0)
    max_grad_norm: float = option(0.5, "bound of the global gradient norm", gt=0)
    torso: str = option("mlp", "mlp; for images cnn (DQN's) or impala")
    share_torso: bool | None = option(
        None, "one torso for policy and value; none: for images", in_older_runs=False
    )
    hidden: tuple[int, ...] = option((64, 64), "widths of the dense hidden layers", ge=1)

    def __post_init__(self):
        if self.torso in RECURRENT:
            raise ValueError(
                f"torso={self.torso} has a state, expected mlp, cnn or impala: train ppo for a "
                "recurrent policy"
            )


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and a batch of them `[T, B, ...]`."""

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class A2CActor(Actor):
    """Samples from the current policy."""

    noise_size = 1

    def __init__(self, network):
        super().__init__()
        self.network = network

    def act(self, obs, noise):
        """Returns: action `[B]`."""
        return categorical_sample(self.network.head(obs), noise)

    def act_greedily(self, obs):
        """Returns: the most likely action `[B]`, for evaluation."""
        return self.network.likeliest(self.network.head(obs))


class A2CLearner(Learner):
    """One gradient step on the trajectories of an iteration."""

    def __init__(self, network, config):
        super().__init__()
        self.network, self.config = network, config
        self.optimizer = Adam(network.trainable_params(), config.learning_rate, eps=config.adam_eps)

    def loss(self, obs, action, returns, advantage):
        """Per sample: the policy gradient, the value error and the entropy of section 4."""
        log_prob, entropy, value = self.network.evaluate(obs, action.reshape(-1))
        policy_loss = -log_prob * advantage.reshape(-1)
        value_loss = 0.5 * ops.square(value - returns.reshape(-1))
        loss = policy_loss + self.config.vf_coef * value_loss - self.config.ent_coef * entropy
        return loss, policy_loss, value_loss, entropy

    def learn(self, msrl, batch):
        """Learns from trajectories `[T, B]` of one iteration. Returns: metrics."""
        config = self.config
        ends = batch.terminated, batch.truncated
        value = self.network.values(batch.obs)
        final_value = self.network.values(batch.final_obs)
        returns = lambda_returns(
            batch.reward, final_value, *ends, config.gamma, config.return_lambda
        )
        advantage = msrl.boundary("advantage", returns - value)
        grads, means = msrl.gradient(
            self.loss, self.network, batch.obs, batch.action, returns, advantage
        )
        grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
        learning_rate = config.learning_rate * (1.0 - msrl.env_steps() / config.total_steps)
        msrl.update(self.optimizer.apply, grads, learning_rate)
        loss, policy_loss, value_loss, entropy = means
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
        }


class A2CTrainer(Trainer):
    """A2C on any environment with discrete actions and one agent."""

    Config = Config
    masks_actions = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(f"a2c needs discrete actions; {config.env} has {spec.action_space}")
        network = ActorCritic(spec, config.torso, config.hidden, config.seed, config.share_torso)
        self.actor, self.learner = A2CActor(network), A2CLearner(network, config)

    def train(self, msrl):
        """Rolls out `num_steps`, then makes one update from them."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=action,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                    )
                )
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
