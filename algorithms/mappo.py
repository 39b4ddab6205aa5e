"""Multi-agent proximal policy optimisation (Yu et al. 2021, arXiv 2103.01955).

Each team has its own policy and its own central critic, shared by its agents. The policy's input is
an agent's observation; the critic's is also the joint state, the observations of all agents.
Without it (`central=false`) each agent learns by itself: IPPO (de Witt et al. 2020, arXiv
2011.09533). With `shared=false` each agent has its own policy and critic.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import Tensor, float32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_sample_with_log_prob,
)
from mindspore_rl.rl.action_masks import features, masked
from mindspore_rl.rl.agents import AgentNetworks
from mindspore_rl.rl.losses import (
    approx_kl,
    clip_by_global_norm,
    clip_fraction,
    clipped_surrogate,
    value_loss,
)
from mindspore_rl.rl.returns import gae
from mindspore_rl.rl.updates import Adam


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of MAPPO; the defaults are for simple_spread."""

    env: str = option("graph:simple_spread_v3", "multi-agent environment, discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(96, "environments, on all workers together")
    num_steps: int = option(25, "environment steps of each environment in an iteration")
    total_steps: int = option(600_000, "environment steps of the whole run")
    learning_rate: float = option(1e-3, "Adam's step size at the start; falls linearly to 0", ge=0)
    adam_eps: float = option(1e-5, "Adam's epsilon", gt=0)
    gamma: float = option(0.95, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "lambda of generalised advantage estimation", ge=0, le=1)
    update_epochs: int = option(10, "passes over the batch of an iteration", ge=1)
    num_minibatches: int = option(5, "minibatches of a pass", ge=1, divides="num_steps")
    clip_coef: float = option(0.2, "range of the probability ratio around 1", gt=0)
    ent_coef: float = option(0.01, "weight of the entropy bonus", ge=0)
    vf_coef: float = option(0.5, "weight of the value loss", ge=0)
    max_grad_norm: float = option(0.5, "bound of the gradient norm of each network", gt=0)
    central: bool = option(True, "the critic sees the joint state; false: IPPO")
    shared: bool = option(True, "one policy and critic for a team; false: for each agent")
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (tanh)", ge=1)


class Transition(NamedTuple):
    """A step of each environment `[B, A, ...]`, and a batch of them `[T, B, A, ...]`."""

    obs: Any
    state: Any  # the joint state, `[B, n]`
    action: Any
    log_prob: Any
    reward: Any
    terminated: Any
    truncated: Any
    final_obs: Any
    final_state: Any


class ActorsCritics(nn.Cell):
    """Policies of observations `[..., A, O]`; values of these and of joint states `[..., S]`."""

    def __init__(self, config, spec):
        super().__init__()
        if not spec.teams or not isinstance(spec.action_space, Discrete):
            raise ConfigError(
                f"mappo needs several agents with discrete actions; {config.env} has "
                f"{len(spec.teams)} teams and {spec.action_space}: choose another environment, or "
                "ppo for a single agent"
            )
        num_agents, size = spec.obs_shape
        central, self.mask_size, own = config.central, spec.mask_size, size - spec.mask_size
        self.central, self.own = central, not config.shared
        self.sizes = [team.num_agents for team in spec.teams] if config.shared else [1] * num_agents
        count = self.num_groups = len(self.sizes)
        hidden, seed, out_size = config.hidden, config.seed, spec.action_space.n
        self.policies = AgentNetworks(own, hidden, out_size, 0.01, seed, range(1, 1 + count))
        seen, indices = own + central * num_agents * size, range(1 + count, 1 + 2 * count)
        self.critics = AgentNetworks(seen, hidden, 1, 1.0, seed, indices)

    def groups(self, obs, agent):
        """Returns: one-hots `[..., A, groups]`: of the agents, or of teams, the features' end."""
        if self.own:
            return ops.one_hot(agent, self.num_groups)
        if self.num_groups == 1:
            return ops.ones_like(obs[..., :1])
        return features(obs, self.mask_size)[..., -self.num_groups :]

    def logits(self, obs, agent):
        """Returns: `[..., A, actions]`."""
        found = self.policies(features(obs, self.mask_size), self.groups(obs, agent))
        return masked(found, obs, self.mask_size)

    def value(self, obs, agent, state):
        """Returns: `[..., A]`; a joint state `[..., S]` has all agents' masks, too."""
        state = state if self.central else None
        groups = self.groups(obs, agent)
        return self.critics(features(obs, self.mask_size), groups, state).squeeze(-1)


class MAPPOActor(Actor):
    """Samples every agent's action from its policy."""

    noise_size = 1

    def __init__(self, network):
        super().__init__()
        self.network = network

    def act(self, obs, agent, noise):
        """Returns: action and log_prob `[B, A]`."""
        return categorical_sample_with_log_prob(self.network.logits(obs, agent), noise)

    def act_greedily(self, obs, agent):
        """Returns: the most likely actions `[B, A]`, for evaluation."""
        return self.network.logits(obs, agent).argmax(-1).astype("int32")


class MAPPOLearner(Learner):
    """Makes several epochs of minibatch updates on one batch of trajectories."""

    def __init__(self, network, config, spec):
        super().__init__()
        self.network, self.config = network, config
        # Turns a mean over all agents' rows, zero for other groups', into the mean over a group's.
        sizes = network.sizes
        self.weight = Tensor([sum(sizes) / size for size in sizes], float32)
        self.tensors = 2 * len(config.hidden) + 2
        self.optimizer = Adam(network.trainable_params(), config.learning_rate, eps=config.adam_eps)

    def by_group(self, value, groups):
        """Returns: values `[..., A]` in the column of their group `[..., A, groups]`."""
        return ops.expand_dims(value, -1) * groups

    def centred(self, advantage, groups, mean):
        """Advantages by group minus their group's mean, from the mean over all agents."""
        return self.by_group(advantage, groups) - groups * (mean * self.weight)

    def normalised(self, centred, groups, square):
        """Advantages with deviation 1 in each group, from the mean square over all agents."""
        deviation = ops.sqrt(square * self.weight) + 1e-8
        return centred.sum(-1) / (groups * deviation).sum(-1)

    def loss(self, agent, obs, state, action, old_log_prob, advantage, returns):
        """Per agent and sample `[n, A]`: PPO's loss, a mean over its group; then its terms."""
        config = self.config
        logits, value = self.network.logits(obs, agent), self.network.value(obs, agent, state)
        log_prob, entropy = categorical_log_prob(logits, action), categorical_entropy(logits)
        surrogate = clipped_surrogate(log_prob, old_log_prob, advantage, config.clip_coef)
        error = value_loss(value, returns)
        loss = surrogate + config.vf_coef * error - config.ent_coef * entropy
        loss = loss * (self.network.groups(obs, agent) * self.weight).sum(-1)
        kl = approx_kl(log_prob, old_log_prob)
        clipped = clip_fraction(log_prob, old_log_prob, config.clip_coef)
        return loss, surrogate, error, entropy, kl, clipped

    def clip(self, grads):
        """Bounds the norm of each network's gradient. Returns: gradients and their global norm."""
        clipped, squares = (), 0.0
        for first in range(0, len(grads), self.tensors):
            part, norm = clip_by_global_norm(
                grads[first : first + self.tensors], self.config.max_grad_norm
            )
            clipped, squares = clipped + part, squares + norm * norm
        return clipped, ops.sqrt(squares)

    def learn(self, msrl, batch):
        """Learns from trajectories `[T, B, A]`; an episode ends for all its agents at once."""
        config, agent = self.config, msrl.agent_index()
        advantage, returns = gae(
            batch.reward,
            self.network.value(batch.obs, agent, batch.state),
            self.network.value(batch.final_obs, agent, batch.final_state),
            ops.expand_dims(batch.terminated, -1),
            ops.expand_dims(batch.truncated, -1),
            config.gamma,
            config.gae_lambda,
        )
        groups = self.network.groups(batch.obs, agent)
        mean = msrl.mean(self.by_group(advantage, groups), keep=1)
        centred = self.centred(advantage, groups, mean)
        square = msrl.mean(ops.square(centred), keep=1)
        advantage = msrl.boundary("advantage", self.normalised(centred, groups, square))

        learning_rate = config.learning_rate * (1.0 - msrl.env_steps() / config.total_steps)
        old = batch.obs, batch.state, batch.action, batch.log_prob, advantage, returns
        for _ in msrl.epochs(config.update_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, old):
                grads, means = msrl.gradient(self.loss, self.network, agent, *minibatch)
                grads, grad_norm = self.clip(grads)
                msrl.update(self.optimizer.apply, grads, learning_rate)

        loss, policy_loss, error, entropy, kl, clipped = means
        return {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": error,
            "entropy": entropy,
            "approx_kl": kl,
            "clip_fraction": clipped,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
        }


class MAPPOTrainer(Trainer):
    """MAPPO on any environment with teams of agents, discrete actions and flat observations."""

    Config = Config
    masks_actions = True
    multi_agent = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        network = ActorsCritics(config, spec)
        self.actor = MAPPOActor(network)
        self.learner = MAPPOLearner(network, config, spec)

    def train(self, msrl):
        """Rolls out `num_steps`, then learns from them."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, log_prob = msrl.agent_act(obs, msrl.agent_index())
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                state, final_state = msrl.boundary(
                    "state", (msrl.joint(obs), msrl.joint(final_obs))
                )
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        state=state,
                        action=action,
                        log_prob=log_prob,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_obs=final_obs,
                        final_state=final_state,
                    )
                )
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
