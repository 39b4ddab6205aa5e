"""Multi-agent deep deterministic policy gradient (Lowe et al. 2017, arXiv 1706.02275).

Each agent has its own policy, which sees its observation, and its own critic, which sees the
observations and actions of all agents. Actions are discrete, as one-hots; the gradient of a policy
flows through a Gumbel softmax (Jang et al. 2017, arXiv 1611.01144), as in the paper's experiments.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, float32, int32, nn, ops

from mindspore_rl.api import Actor, Learner, Trainer
from mindspore_rl.config import option
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.action_distributions import gumbel, straight_through
from mindspore_rl.rl.agents import AgentNetworks, of_agent, with_own
from mindspore_rl.rl.updates import polyak_update, target_parameters


@dataclass(frozen=True)
class Config:
    """Hyper-parameters of MADDPG; the defaults are for simple_spread."""

    env: str = option("graph:simple_spread_v3", "multi-agent environment")
    seed: int = option(1, "seed of every random number")
    num_envs: int = option(32, "environments, on all workers together")
    num_steps: int = option(10, "environment steps of each environment in an iteration")
    total_steps: int = option(300_000, "environment steps of the whole run")
    replay_size: int = option(100_000, "steps of all agents in the replay, in all", ge=1)
    learning_starts: int = option(5_000, "environment steps before the first update", ge=0)
    updates: int = option(10, "updates in an iteration", ge=1)
    batch_size: int = option(256, "steps of an update", ge=1)
    policy_rate: float = option(5e-4, "Adam's step size of the policies", ge=0)
    critic_rate: float = option(1e-3, "Adam's step size of the critics", ge=0)
    gamma: float = option(0.95, "discount per step", ge=0, le=1)
    tau: float = option(0.01, "how far the targets follow in an update", ge=0, le=1)
    temperature: float = option(1.0, "of the Gumbel softmax", gt=0)
    logit_coef: float = option(1e-3, "weight of the squared outputs of the policies", ge=0)
    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers (ReLU)", ge=1)


class Transition(NamedTuple):
    """A step of each environment, of all agents `[B, k]`, and a batch of them `[n, k]`."""

    state: Any  # the observations of all agents
    actions: Any
    rewards: Any
    final_state: Any
    terminated: Any  # `[B]`


class Policies(nn.Cell):
    """A policy of each agent's own: logits of its actions."""

    def __init__(self, config, spec):
        super().__init__()
        self.num_agents, self.obs_size = spec.obs_shape
        self.size = spec.action_space.n
        sizes, indices = (self.obs_size, config.hidden, self.size), range(1, 1 + self.num_agents)
        self.networks = AgentNetworks(*sizes, 0.1, config.seed, indices, "relu", "uniform")

    def members(self, agent):
        """Returns: one-hots `[A, agents]` of the agents' numbers."""
        return ops.one_hot(agent, self.num_agents)

    def construct(self, obs, members):
        """Returns: logits `[..., A, size]`, of obs `[..., A, O]` of the agents."""
        return self.networks(obs, members)

    def best(self, obs, members):
        """Returns: the likeliest actions as one-hots."""
        return self.one_hots(self.construct(obs, members).argmax(-1))

    def one_hots(self, actions):
        """Returns: `[..., size]` as the critics take them, of numbers `[...]`."""
        return ops.one_hot(actions, self.size)


class MADDPGActor(Actor):
    """Samples actions."""

    def __init__(self, policies):
        super().__init__()
        self.policies, self.noise_size = policies, policies.size

    def act(self, obs, agent, noise):
        """Returns: actions `[B, A]`."""
        logits = self.policies(obs, self.policies.members(agent))
        return (logits + gumbel(noise)).argmax(-1).astype(int32)

    def act_greedily(self, obs, agent):
        """Returns: the actions for evaluation."""
        return self.policies(obs, self.policies.members(agent)).argmax(-1).astype(int32)


class MADDPGLearner(Learner):
    """Updates on batches from the replay."""

    def __init__(self, networks, targets, config):
        super().__init__()
        (self.policies, self.critics), (self.target_policies, self.target_critics) = (
            networks,
            targets,
        )
        self.config, self.agents = config, self.policies.num_agents
        self.everyone = Tensor(np.eye(self.agents, dtype=np.float32))
        policies, critics = (network.trainable_params() for network in networks)
        self.online, self.followers = policies + critics, target_parameters(*targets)
        self.policy_optimizer = nn.Adam(policies, config.policy_rate)
        self.critic_optimizer = nn.Adam(critics, config.critic_rate)

    def every(self, state):
        """Returns: the observations `[n, agents, O]` of all agents, of joint states."""
        return state.reshape((-1, self.agents, self.policies.obs_size))

    def critic_loss(self, agent, batch):
        """Per agent and sample: the error of the agent's critic (equation 6), and its value."""
        members = self.policies.members(agent)
        following = self.target_policies.best(self.every(batch.final_state), self.everyone)
        following = with_own(members, following, of_agent(members, following))
        value = self.target_critics(following, members, batch.final_state).squeeze(-1)
        going_on = ops.expand_dims(1.0 - batch.terminated.astype(float32), -1)
        reward = of_agent(members, batch.rewards.expand_dims(-1)).squeeze(-1)
        goal = ops.stop_gradient(reward + self.config.gamma * going_on * value)
        actions = self.policies.one_hots(batch.actions)
        actions = with_own(members, actions, of_agent(members, actions))
        value = self.critics(actions, members, batch.state).squeeze(-1)
        return ops.square(value - goal), value

    def policy_loss(self, agent, batch, noise):
        """Per agent and sample: the negated value of the agent's own action (equation 5).

        The others' actions are those of the batch. Noise: `[n, agents * size]`.
        """
        policies, members = self.policies, self.policies.members(agent)
        own = policies(of_agent(members, self.every(batch.state)), members)
        size = self.config.logit_coef * ops.square(own).mean(-1)
        noise = gumbel(of_agent(members, noise.reshape((-1, self.agents, policies.size))))
        own = straight_through((own + noise) / self.config.temperature)
        actions = with_own(members, policies.one_hots(batch.actions), own)
        return size - self.critics(actions, members, batch.state).squeeze(-1)

    def apply_critics(self, grads):
        """Takes one step of Adam."""
        self.critic_optimizer(grads)

    def apply_policies(self, grads):
        """Takes one step of Adam and moves all targets."""
        self.policy_optimizer(grads)
        polyak_update(self.followers, self.online, self.config.tau)

    def learn(self, msrl):
        """Makes the updates of an iteration. Returns: metrics of the last one."""
        config, agent = self.config, msrl.agent_index()
        critic_loss, value, policy_loss = 0.0, 0.0, 0.0
        for _ in msrl.epochs(config.updates):
            batch = msrl.replay_sample(config.batch_size)
            noise = msrl.uniform(config.batch_size, self.agents * self.policies.size)
            if msrl.env_steps() >= config.learning_starts:
                grads, means = msrl.gradient(self.critic_loss, self.critics, agent, batch)
                critic_loss, value = means
                msrl.update(self.apply_critics, grads)
                policy_grads, policy_means = msrl.gradient(
                    self.policy_loss, self.policies, agent, batch, noise
                )
                policy_loss = policy_means[0]
                msrl.update(self.apply_policies, policy_grads)
        return {"critic_loss": critic_loss, "q_value": value, "policy_loss": policy_loss}


class MADDPGTrainer(Trainer):
    """MADDPG on any environment of several agents with discrete actions, in one team or several."""

    Config = Config
    multi_agent = True

    def __init__(self, config, spec):
        super().__init__(config, spec)
        if not isinstance(spec.action_space, Discrete):
            raise ConfigError(
                f"MADDPG is for discrete actions; {spec.name} has {spec.action_space}: choose "
                "another environment"
            )

        def made():
            policies, (agents, size) = Policies(config, spec), spec.obs_shape
            sizes = agents * (size + policies.size), config.hidden, 1, 1.0, config.seed
            indices = range(1 + agents, 1 + 2 * agents)
            return policies, AgentNetworks(*sizes, indices, "relu", "uniform")

        networks, targets = made(), made()
        self.actor = MADDPGActor(networks[0])
        self.learner = MADDPGLearner(networks, targets, config)

    def train(self, msrl):
        """Rolls out `num_steps` into the replay, then learns from samples of it."""
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.boundary("action", msrl.agent_act(obs, msrl.agent_index()))
                next_obs, final_obs, reward, terminated, _ = msrl.env_step(action)
                joint = msrl.joint(obs), msrl.joint(action), msrl.joint(reward)
                state, actions, rewards, final_state = msrl.boundary(
                    "state", (*joint, msrl.joint(final_obs))
                )
                msrl.replay_insert(
                    Transition(
                        state=state,
                        actions=actions,
                        rewards=rewards,
                        final_state=final_state,
                        terminated=terminated,
                    ),
                    keep=self.config.replay_size,
                )
                obs = next_obs
            msrl.report(msrl.agent_learn())
