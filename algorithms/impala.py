"""IMPALA: an actor-critic for data of older policies (Espeholt et al. 2018, arXiv 1802.01561).

V-trace corrects the value targets and the policy gradient for the difference between the policy
that acted and the one that learns. With `--schedule lag=1` actors act while the learner learns;
without a lag the ratios of both policies are 1 and an iteration is one of A2C.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.losses import approx_kl, clip_by_global_norm, value_loss
from mindspore_rl.rl.networks import RECURRENT
from mindspore_rl.rl.policies import ActorCritic
from mindspore_rl.rl.returns import vtrace
from mindspore_rl.rl.updates import Adam


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of IMPALA; the defaults solve CartPole-v1."""

    env: str = option("CartPole-v1", "environment, with discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(8, "environments, on all workers together")
    num_steps: int = option(16, "environment steps of each environment in an iteration")
    total_steps: int = option(500_000, "environment steps of the whole run")
    learning_rate: float = option(1e-3, "Adam's step size at the start; falls linearly to 0", ge=0)
    adam_eps: float = option(1e-5, "Adam's epsilon", gt=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    return_lambda: float = option(
        0.95, "lambda of the V-trace targets; 1 is the paper's", ge=0, le=1
    )
    rho_bar: float = option(1.0, "bound of the probability ratio in a step's error", gt=0)
    c_bar: float = option(1.0, "bound of the ratio by which later errors count", gt=0)
    ent_coef: float = option(0.01, "weight of the entropy bonus", ge=0)
    vf_coef: float = option(0.5, "weight of the value loss", ge=0)
    max_grad_norm: float = option(0.5, "bound of the global gradient norm", gt=0)
    torso: str = option("mlp", "mlp; for images cnn (DQN's) or impala (the paper's)")
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
    log_prob: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any


class ImpalaActor(Actor):
    """Samples from its policy, which may be older than the learner's."""

    noise_size = 1

    def __init__(self, network):
        super().__init__()
        self.network = network

    def act(self, obs, noise):
        """Returns: action and log_prob `[B]`."""
        return self.network.draw(self.network.head(obs), noise)

    def act_greedily(self, obs):
        """Returns: the most likely action `[B]`, for evaluation."""
        return self.network.likeliest(self.network.head(obs))


class ImpalaLearner(Learner):
    """One gradient step on whole trajectories of any environments."""

    def __init__(self, network, config):
        super().__init__()
        self.network, self.config = network, config
        self.optimizer = Adam(network.trainable_params(), config.learning_rate, eps=config.adam_eps)

    def loss(self, obs, action, old_log_prob, returns, advantage):
        """Per sample: the loss of section 4.2, then its terms for the metrics."""
        log_prob, entropy, value = self.network.evaluate(obs, action.reshape(-1))
        policy_loss = -log_prob * advantage.reshape(-1)
        error = value_loss(value, returns.reshape(-1))
        loss = policy_loss + self.config.vf_coef * error - self.config.ent_coef * entropy
        return loss, policy_loss, error, entropy, approx_kl(log_prob, old_log_prob.reshape(-1))

    def learn(self, msrl, batch):
        """Learns from trajectories `[T, B]`. Returns: metrics."""
        config = self.config
        log_prob, _, value = self.network.evaluate(batch.obs, batch.action.reshape(-1))
        returns, advantage = vtrace(
            log_prob.reshape(batch.reward.shape),
            batch.log_prob,
            batch.reward,
            value.reshape(batch.reward.shape),
            self.network.values(batch.final_obs),
            batch.terminated,
            batch.truncated,
            config.gamma,
            config.return_lambda,
            config.rho_bar,
            config.c_bar,
        )
        advantage = msrl.boundary("advantage", advantage)
        old = batch.obs, batch.action, batch.log_prob, returns, advantage
        grads, means = msrl.gradient(self.loss, self.network, *old)
        grads, grad_norm = clip_by_global_norm(grads, config.max_grad_norm)
        learning_rate = config.learning_rate * (1.0 - msrl.env_steps() / config.total_steps)
        msrl.update(self.optimizer.apply, grads, learning_rate)
        loss, policy_loss, error, entropy, kl = means
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": error,
            "entropy": entropy,
            "approx_kl": kl,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
        }


class ImpalaTrainer(Trainer):
    """IMPALA on any environment with discrete actions and one agent."""

    Config = Config
    masks_actions = True
    max_lag, max_staleness = 1, 4  # V-trace corrects for older parameters

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(
                f"impala needs discrete actions; {config.env} has {spec.action_space}"
            )
        network = ActorCritic(spec, config.torso, config.hidden, config.seed, config.share_torso)
        self.actor, self.learner = ImpalaActor(network), ImpalaLearner(network, config)

    def train(self, msrl):
        """Rolls out `num_steps`, then makes one update from them."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, log_prob = msrl.agent_act(obs)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        action=action,
                        log_prob=log_prob,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                    )
                )
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
