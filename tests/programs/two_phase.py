"""An algorithm of another shape: two learn calls with different data, and glue between calls.

Policy gradient with a baseline; learning recomputes log-probabilities, so acting returns only two
values. Only the tests use it.
"""

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
    env: str = "CartPole-v1"
    seed: int = 3
    num_envs: int = 8
    num_steps: int = 16
    total_steps: int = 1000
    gamma: float = 0.98
    reward_scale: float = 0.5


class Net(nn.Cell):
    def __init__(self, config, spec):
        super().__init__()
        self.torso = MLP(spec.obs_shape[0], (16,), 16, 1.0, config.seed, 1)
        self.policy = nn.Dense(16, spec.action_space.n)
        self.baseline = MLP(16, (), 1, 1.0, config.seed, 2)
        self.policy.weight.set_data(ops.zeros_like(self.policy.weight))

    def both(self, obs):
        hidden = ops.tanh(self.torso(obs))
        return self.policy(hidden), self.baseline(hidden).reshape(-1)


class Act(small_agents.Act):
    def act(self, obs, noise):
        logits, value = self.net.both(obs)
        return categorical_sample(logits, noise), value


class Learn(Learner):
    def __init__(self, net, config):
        super().__init__()
        self.net = net
        self.optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)

    def loss(self, obs, action, target, weight):
        flat = obs.reshape((-1, obs.shape[-1]))
        logits, value = self.net.both(flat)
        target, weight = target.reshape(-1), weight.reshape(-1)
        advantage = ops.stop_gradient(target - value)
        log_prob = categorical_log_prob(logits, action.reshape(-1))
        return weight * (ops.square(target - value) - log_prob * advantage)

    def step(self, grads):
        self.optimizer(grads)

    def learn(self, msrl, obs, action, target, weight):
        biggest = msrl.max(ops.abs(target))
        target = target / (biggest + 1.0)
        grads, means = msrl.gradient(self.loss, self.net, obs, action, target, weight)
        msrl.update(self.step, grads)
        return {"loss": means[0], "biggest": biggest}


class TwoPhase(SmallTrainer):
    Config, Net, Act, Learn = Config, Net, Act, Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action, value = msrl.agent_act(obs)
                next_obs, final_obs, reward, terminated, truncated = msrl.env_step(action)
                reward = reward * self.config.reward_scale + 0.01 * value
                msrl.replay_insert(obs, action, value, reward, terminated, truncated, final_obs)
                obs = next_obs
            batch = msrl.replay_sample()
            seen, action, value, reward, terminated, truncated, last = batch
            target = lambda_returns(reward, 0.0 * value, terminated, truncated, self.config.gamma)
            ones = ops.ones_like(target)
            first = msrl.agent_learn(seen, action, target, ones)
            ended = ops.logical_or(terminated, truncated)
            weight = ops.where(ended, 2.0 * ones, 0.5 * ones)
            second = msrl.agent_learn(last, action, target - value, weight)
            total = 0.0
            for i in range(2):
                total = total + first["loss"] * i
            msrl.report({"first": first["loss"], "second": second["loss"], "total": total})
