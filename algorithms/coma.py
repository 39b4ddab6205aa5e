"""Counterfactual multi-agent policy gradients (Foerster et al. 2018, arXiv 1705.08926).

Each agent has its own policy, which sees its observation, and its own critic, which sees the joint
state and the other agents' actions and values each action of the agent: so the advantage of its
action is over the mean of its own actions, while the others keep theirs. The paper's agents share
one network and one reward; here each critic learns from its agent's reward. The policies have no
memory. After the last step of a rollout, or of a truncated episode, all agents' likeliest actions
stand for those that they would take.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_sample,
)
from mindspore_rl.rl.agents import AgentNetworks, of_agent, with_own
from mindspore_rl.rl.losses import clip_by_global_norm, counterfactual_advantage, value_loss
from mindspore_rl.rl.returns import gae
from mindspore_rl.rl.updates import Adam, copy_every, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of COMA; the defaults are for simple_spread."""

    env: str = option("graph:simple_spread_v3", "multi-agent environment, discrete actions")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(32, "environments, on all workers together")
    num_steps: int = option(25, "environment steps of each environment in an iteration")
    total_steps: int = option(600_000, "environment steps of the whole run")
    policy_rate: float = option(1e-3, "Adam's step size of the policies; falls linearly to 0", ge=0)
    critic_rate: float = option(1e-3, "Adam's step size of the critics", ge=0)
    gamma: float = option(0.95, "discount per step", ge=0, le=1)
    return_lambda: float = option(0.8, "lambda of the critics' returns, TD(lambda)", ge=0, le=1)
    critic_epochs: int = option(4, "passes of the critics over the batch of an iteration", ge=1)
    num_minibatches: int = option(5, "minibatches of a pass", ge=1, divides="num_steps")
    target_every: int = option(20, "updates between two copies to the target critics", ge=1)
    ent_coef: float = option(0.01, "weight of the entropy bonus; the paper has none", ge=0)
    max_grad_norm: float = option(10.0, "bound of the gradients' norm, of all networks", gt=0)
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (tanh)", ge=1)


class Transition(NamedTuple):
    """A step of each environment `[B, ...]`, and a batch of them `[T, B, ...]`."""

    obs: Any  # `[B, A, O]`
    state: Any  # the observations of all agents, `[B, n]`
    action: Any  # `[B, A]`
    actions: Any  # of all agents, `[B, agents]`
    reward: Any  # `[B, A]`
    terminated: Any
    truncated: Any
    final_state: Any


class Policies(nn.Cell):
    """A policy of each agent's own."""

    def __init__(self, config, spec):
        super().__init__()
        self.num_agents, size = spec.obs_shape
        self.everyone = Tensor(np.arange(self.num_agents, dtype=np.int32))
        out, indices = spec.action_space.n, range(1, 1 + self.num_agents)
        self.networks = AgentNetworks(size, config.hidden, out, 0.01, config.seed, indices)

    def construct(self, obs, agent):
        """Returns: logits `[..., A, actions]` of obs `[..., A, O]` of the agents."""
        return self.networks(obs, ops.one_hot(agent, self.num_agents))

    def best(self, state):
        """Returns: the likeliest actions of all agents `[..., agents]`, of joint states."""
        obs = state.reshape((*state.shape[:-1], self.num_agents, -1))
        return self.construct(obs, self.everyone).argmax(-1).astype(int32)


class Critics(nn.Cell):
    """A critic of each agent's own, central."""

    def __init__(self, config, spec):
        super().__init__()
        (self.num_agents, size), self.num_actions = spec.obs_shape, spec.action_space.n
        self.nothing = Tensor(np.zeros(self.num_actions, np.float32))
        size, indices = size + self.num_actions, range(1 + self.num_agents, 1 + 2 * self.num_agents)
        sizes = self.num_agents * size, config.hidden, self.num_actions, 1.0
        self.networks = AgentNetworks(*sizes, config.seed, indices)

    def construct(self, state, actions, agent):
        """Returns: values of each agent's actions `[..., A, actions]` beside those of the others.

        They are computed from joint states `[..., n]` and all agents' actions `[..., agents]`.
        """
        members = ops.one_hot(agent, self.num_agents)
        taken = ops.one_hot(actions.astype(int32), self.num_actions)
        shape = (*taken.shape[:-2], members.shape[0], self.num_actions)
        others = with_own(members, taken, self.nothing.broadcast_to(shape))
        return self.networks(others, members, state)

    def value(self, state, actions, agent):
        """Returns: `[..., A]`, the values of the agents' actions among those of all."""
        own = of_agent(
            ops.one_hot(agent, self.num_agents).astype(float32),
            ops.one_hot(actions.astype(int32), self.num_actions).astype(float32),
        )
        return (self.construct(state, actions, agent) * own).sum(-1)


class COMAActor(Actor):
    """Samples every agent's action from its policy."""

    noise_size = 1

    def __init__(self, policies):
        super().__init__()
        self.policies = policies

    def act(self, obs, agent, noise):
        """Returns: actions `[B, A]`."""
        return categorical_sample(self.policies(obs, agent), noise)

    def act_greedily(self, obs, agent):
        """Returns: the most likely actions `[B, A]`, for evaluation."""
        return self.policies(obs, agent).argmax(-1).astype(int32)


class COMALearner(Learner):
    """Teaches the critics, then makes one step of the policies."""

    def __init__(self, policies, critics, target, config):
        super().__init__()
        self.policies, self.critics, self.target, self.config = policies, critics, target, config
        self.online, self.copied = critics.trainable_params(), target_parameters(target)
        self.updates = Parameter(Tensor(0, int32), name="updates", requires_grad=False)
        self.policy_optimizer = Adam(policies.trainable_params(), config.policy_rate)
        self.critic_optimizer = nn.Adam(self.online, config.critic_rate)

    def critic_loss(self, agent, state, actions, returns):
        """Per agent and sample: the error of equation 5, and the value."""
        value = self.critics.value(state, actions, agent)
        return value_loss(value, returns), value

    def policy_loss(self, agent, obs, action, advantage):
        """Per agent and sample: the policy gradient of equation 7, and the entropy."""
        logits = self.policies(obs, agent)
        entropy = categorical_entropy(logits)
        policy_loss = -categorical_log_prob(logits, action) * advantage
        return policy_loss - self.config.ent_coef * entropy, entropy

    def apply_critics(self, grads):
        """Takes one step of Adam; every `target_every` updates copies the critics to the target."""
        self.critic_optimizer(grads)
        copy_every(self.copied, self.online, self.updates, self.config.target_every)

    def learn(self, msrl, batch):
        """Learns from trajectories `[T, B, A]`; an episode ends for all its agents at once."""
        config, agent = self.config, msrl.agent_index()
        terminated = ops.expand_dims(batch.terminated, -1)
        truncated = ops.expand_dims(batch.truncated, -1)
        value = self.target.value(batch.state, batch.actions, agent)
        best = self.policies.best(batch.final_state)
        last = self.target.value(batch.final_state, best, agent)
        final_value = ops.where(truncated, last, ops.cat((value[1:], last[-1:])))
        _, returns = gae(
            batch.reward,
            value,
            final_value,
            terminated,
            truncated,
            config.gamma,
            config.return_lambda,
        )
        data = batch.state, batch.actions, returns
        for _ in msrl.epochs(config.critic_epochs):
            for minibatch in msrl.minibatches(config.num_minibatches, data):
                grads, means = msrl.gradient(self.critic_loss, self.critics, agent, *minibatch)
                grads, critic_norm = clip_by_global_norm(grads, config.max_grad_norm)
                msrl.update(self.apply_critics, grads)
        critic_loss, value = means

        values = self.critics(batch.state, batch.actions, agent)
        logits = self.policies(batch.obs, agent)
        advantage = counterfactual_advantage(values, logits, batch.action)
        advantage = msrl.boundary("advantage", advantage)
        learning_rate = config.policy_rate * (1.0 - msrl.env_steps() / config.total_steps)
        policy_grads, policy_means = msrl.gradient(
            self.policy_loss, self.policies, agent, batch.obs, batch.action, advantage
        )
        policy_grads, policy_norm = clip_by_global_norm(policy_grads, config.max_grad_norm)
        msrl.update(self.policy_optimizer.apply, policy_grads, learning_rate)
        policy_loss, entropy = policy_means
        return {
            "critic_loss": critic_loss,
            "q_value": value,
            "policy_loss": policy_loss,
            "entropy": entropy,
            "critic_grad_norm": critic_norm,
            "policy_grad_norm": policy_norm,
            "learning_rate": learning_rate,
        }


class COMATrainer(Trainer):
    """COMA on any environment of several agents with discrete actions, flat observations."""

    Config = Config
    multi_agent = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not spec.teams or not isinstance(spec.action_space, Discrete):
            raise ConfigError(
                f"COMA needs several agents with discrete actions; {config.env} has "
                f"{len(spec.teams)} teams and {spec.action_space}: choose another environment"
            )
        policies, critics, target = (cls(config, spec) for cls in (Policies, Critics, Critics))
        self.actor = COMAActor(policies)
        self.learner = COMALearner(policies, critics, target, config)

    def train(self, msrl):
        """Rolls out `num_steps`, then learns from them."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.boundary("action", msrl.agent_act(obs, msrl.agent_index()))
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                joint = msrl.joint(obs), msrl.joint(action), msrl.joint(final_obs)
                state, actions, final_state = msrl.boundary("state", joint)
                msrl.replay_insert(
                    Transition(
                        obs=obs,
                        state=state,
                        action=action,
                        actions=actions,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        final_state=final_state,
                    )
                )
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
