"""Several agents: a policy by agent, a baseline of the joint state whose loss has no agents."""

from dataclasses import dataclass

from mindspore import nn, ops

from mindspore_rl.api import Learner
from mindspore_rl.rl.action_distributions import categorical_log_prob, categorical_sample
from mindspore_rl.rl.networks import MLP
from mindspore_rl.rl.returns import lambda_returns
from tests.programs import small_agents
from tests.programs.small_agents import SmallTrainer


@dataclass(frozen=True)
class Config:
    env: str = "graph:simple_tag_v3"
    seed: int = 5
    num_envs: int = 6
    num_steps: int = 8
    total_steps: int = 1000
    gamma: float = 0.9


class Net(nn.Cell):
    def __init__(self, config, spec):
        super().__init__()
        agents, size = spec.obs_shape
        self.policy = MLP(size, (16,), spec.action_space.n, 0.5, config.seed, 1)
        self.baseline = MLP(agents * size, (16,), 1, 1.0, config.seed, 2)

    def logits(self, obs):
        return self.policy(obs)

    def value(self, state):
        return self.baseline(state).squeeze(-1)


class Act(small_agents.Act):
    def act(self, obs, noise):
        return categorical_sample(self.net.logits(obs), noise)


class Learn(Learner):
    def __init__(self, net, config):
        super().__init__()
        self.net, self.config = net, config
        self.policy_step = nn.Adam(net.policy.trainable_params(), 0.01)
        self.baseline_step = nn.Adam(net.baseline.trainable_params(), 0.01)

    def policy_loss(self, obs, action, advantage):
        return -categorical_log_prob(self.net.logits(obs), action) * advantage

    def baseline_loss(self, state, returns):
        return ops.square(self.net.value(state) - returns)

    def apply_policy(self, grads):
        self.policy_step(grads)

    def apply_baseline(self, grads):
        self.baseline_step(grads)

    def learn(self, msrl, batch):
        obs, state, action, reward, rewards, terminated, truncated = batch
        income = rewards.mean(-1)
        reward = reward * (1.0 + msrl.agent_index())
        returns = lambda_returns(income, 0.0 * income, terminated, truncated, self.config.gamma)
        advantage = reward + ops.expand_dims(returns - self.net.value(state), -1)
        advantage = msrl.boundary("advantage", advantage - msrl.mean(advantage))
        grads, means = msrl.gradient(self.policy_loss, self.net.policy, obs, action, advantage)
        msrl.update(self.apply_policy, grads)
        grads, errors = msrl.gradient(self.baseline_loss, self.net.baseline, state, returns)
        msrl.update(self.apply_baseline, grads)
        return {"loss": means[0], "error": errors[0]}


class Teams(SmallTrainer):
    Config, Net, Act, Learn = Config, Net, Act, Learn
    multi_agent = True

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                action = (action + msrl.agent_index()) % 2
                next_obs, _, reward, terminated, truncated = msrl.env_step(action)
                state, rewards = msrl.boundary("state", (msrl.joint(obs), msrl.joint(reward)))
                values = (obs, state, action, reward, rewards, terminated, truncated)
                msrl.replay_insert(*values)
                obs = next_obs
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
