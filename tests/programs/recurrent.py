"""A recurrent policy: the loop carries (obs, hidden) as a tuple and clears it at episode ends."""

from mindspore import nn, ops

from mindspore_rl.rl.action_distributions import categorical_log_prob, categorical_sample
from mindspore_rl.rl.networks import MLP
from mindspore_rl.rl.returns import lambda_returns
from tests.programs import small_agents
from tests.programs.small_agents import BaseLearner, SmallTrainer

WIDTH = 6


class Net(nn.Cell):
    def __init__(self, config, spec):
        super().__init__()
        size = spec.obs_shape[0] + WIDTH
        self.cell = MLP(size, (), WIDTH, 1.0, config.seed, 1)
        self.policy = MLP(WIDTH, (), spec.action_space.n, 0.5, config.seed, 2)
        self.critic = MLP(WIDTH, (), 1, 1.0, config.seed, 3)

    def turn(self, obs, hidden):
        hidden = ops.tanh(self.cell(ops.concat((obs, hidden), -1)))
        return self.policy(hidden), self.critic(hidden).reshape(-1), hidden


class Act(small_agents.Act):
    def act(self, obs, hidden, noise):
        logits, _, hidden = self.net.turn(obs, hidden)
        return categorical_sample(logits, noise), hidden


class Learn(BaseLearner):
    def loss(self, obs, hidden, action, target):
        logits, value, _ = self.net.turn(obs, hidden)
        error = target - value
        log_prob = categorical_log_prob(logits, action)
        return ops.square(error) - log_prob * ops.stop_gradient(error)

    def learn(self, msrl, batch):
        obs, hidden, action, reward, terminated, truncated = batch
        target = lambda_returns(reward, reward * 0.0, terminated, truncated, self.config.gamma)
        total = 0.0
        for epoch in msrl.epochs(self.config.update_epochs):
            for minibatch in msrl.minibatches(2, (obs, hidden, action, target)):
                grads, means = msrl.gradient(self.loss, self.net, *minibatch)
                total += means[0] * (epoch + 1)
                msrl.update(self.apply, grads)
        return {"total": total}


class Recurrent(SmallTrainer):
    Net, Act, Learn = Net, Act, Learn

    def train(self, msrl):
        obs = msrl.env_reset()
        obs, twin = msrl.boundary("observation", (obs, obs))
        state = (obs, ops.zeros_like(ops.concat((obs, twin), -1))[:, :WIDTH])
        for _ in msrl.iterations():
            for _ in msrl.steps():
                obs, hidden = state
                action, new_hidden = msrl.agent_act(obs, hidden)
                next_obs, _, reward, terminated, truncated = msrl.env_step(action)
                msrl.replay_insert(obs, hidden, action, reward, terminated, truncated)
                over = ops.logical_or(terminated, truncated).astype("float32")
                state = (next_obs, new_hidden * (1.0 - over).reshape((-1, 1)))
            batch = msrl.replay_sample()
            msrl.report(msrl.agent_learn(batch))
