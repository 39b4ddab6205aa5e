"""REINFORCE with a batch baseline (Williams 1992), as an example of an algorithm's file.

The baseline is the mean return of the batch. A rollout that ends within an episode counts as the
episode's end, without bootstrapping; this bias shrinks with `num_steps`.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.rl.action_distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_sample,
)
from mindspore_rl.rl.losses import clip_by_global_norm
from mindspore_rl.rl.networks import MLP
from mindspore_rl.rl.returns import lambda_returns
from mindspore_rl.rl.statistics import moments


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; every algorithm must have the first five fields."""

    env: str = "CartPole-v1"
    seed: int = 1
    num_envs: int = 8
    num_steps: int = 128
    total_steps: int = 100_000
    learning_rate: float = field(default=3e-3, metadata={"help": "Adam's step size"})
    gamma: float = field(default=0.98, metadata={"help": "discount per step"})
    ent_coef: float = field(default=0.01, metadata={"help": "weight of the entropy bonus"})
    max_grad_norm: float = field(default=0.5, metadata={"help": "bound of the gradient norm"})


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and a batch of them `[T, B, ...]`."""

    obs: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any


class ReinforceActor(Actor):
    """Samples an action from the network's logits; uses one random number per decision."""

    noise_size = 1

    def __init__(self, network):
        super().__init__()
        self.network = network

    def act(self, obs, noise):
        """Returns: the action `[B]` int32 of obs `[B, k]` and noise `[B, 1]`."""
        return categorical_sample(self.network(obs), noise)

    def act_greedily(self, obs):
        """Returns: the action for `msrl eval`; optional."""
        return self.network(obs).argmax(-1).astype("int32")


class ReinforceLearner(Learner):
    """Takes one step of Adam on the whole batch."""

    def __init__(self, network, config):
        super().__init__()
        self.network, self.config = network, config
        self.optimizer = nn.Adam(network.trainable_params(), config.learning_rate)

    def loss(self, obs, action, advantage):
        """Per sample of `[T, B, ...]`: the loss `[n]`, then the entropy for the metrics."""
        logits = self.network(obs.reshape((-1, obs.shape[-1])))
        log_prob = categorical_log_prob(logits, action.reshape(-1))
        entropy = categorical_entropy(logits)
        return -log_prob * advantage.reshape(-1) - self.config.ent_coef * entropy, entropy

    def apply(self, grads):
        """Takes one step of Adam."""
        self.optimizer(grads)

    def learn(self, msrl, batch):
        """Standardises returns to go over the whole batch, then takes one gradient step."""
        ends = batch.terminated, batch.truncated
        returns = lambda_returns(
            batch.reward, ops.zeros_like(batch.reward), *ends, self.config.gamma)
        mean, variance = moments(msrl, returns)
        advantage = (returns - mean) / (ops.sqrt(variance) + 1e-8)
        grads, means = msrl.gradient(
            self.loss, self.network, batch.obs, batch.action, advantage)
        grads, grad_norm = clip_by_global_norm(grads, self.config.max_grad_norm)
        msrl.update(self.apply, grads)
        loss, entropy = means
        return {"loss": loss, "entropy": entropy, "grad_norm": grad_norm, "returns": mean}


class ReinforceTrainer(Trainer):
    """REINFORCE on any environment with flat observations and discrete actions."""

    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        network = MLP(spec.obs_shape[0], (64,), spec.action_space.n, 0.01, config.seed, 1)
        self.actor = ReinforceActor(network)
        self.learner = ReinforceLearner(network, config)

    def train(self, msrl):
        """Rolls out `num_steps`, then learns from them."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, _, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(Transition(
                    obs=obs, action=action, reward=reward,
                    terminated=terminated, truncated=truncated))
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
