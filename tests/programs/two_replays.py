"""Two kept replays, one with a name and priorities, beside the steps of the iteration.

The batch of the other is no multiple of the environments. The model is a learner of its own.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl import api
from mindspore_rl.api import Learner, Trainer
from mindspore_rl.rl.networks import MLP
from tests.programs import small_agents
from tests.programs.small_agents import Act, BaseLearner, Net


@dataclass(frozen=True)
class Config(small_agents.Config):
    by: str = "priority"
    own_batch: int = 20
    model_batch: int = 24


class Imagined(NamedTuple):
    """A record of the model's replay."""

    reward: Any
    obs: Any
    action: Any


class Model(Learner):
    def __init__(self, config, spec):
        super().__init__()
        self.net = MLP(spec.obs_shape[0], (8,), 1, 1.0, config.seed, 3)
        self.optimizer = nn.Adam(self.net.trainable_params(), config.learning_rate)

    def loss(self, batch):
        return ops.square(self.net(batch.obs)[:, 0] + batch.action - batch.reward)

    def apply(self, grads):
        self.optimizer(grads)

    def learn(self, msrl, batch):
        grads, means, rows = msrl.gradient(self.loss, self.net, batch, rows=True)
        msrl.update(self.apply, grads)
        return means[0], rows[0]


class Learn(BaseLearner):
    def __init__(self, net, config, spec):
        super().__init__(net, config)
        self.model = Model(config, spec)

    def learn(self, msrl, fresh, own, model):
        steps, taken, rewards = fresh
        fresh_grads, fresh_means = msrl.gradient(self.loss, self.net, steps, taken, rewards)
        msrl.update(self.apply, fresh_grads)
        seen, ended, chosen, after = own
        goal = after[:, 0] + 0.5 * ended + 0.1 * msrl.uniform(self.config.own_batch, 2).sum(-1)
        grads, means = msrl.gradient(self.loss, self.net, seen, chosen, goal)
        msrl.update(self.apply, grads)
        model_loss, error = self.model.learn(msrl, model)
        return fresh_means[0], means[0] + model_loss, error


class TwoReplays(Trainer):
    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        net = Net(config, spec)
        self.actor, self.learner = Act(net), Learn(net, config, spec)

    def train(self, msrl: api.Msrl):
        by, count = self.config.by, self.config.model_batch
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in range(4):
                for _ in range(2):
                    action = msrl.agent_act(obs)
                    next_obs, _, reward, terminated, _ = msrl.env_step(action)
                    weighed = reward + 0.1 * obs.sum(-1)
                    msrl.replay_insert(obs, action, weighed)
                    ended = terminated.astype("float32")
                    msrl.replay_insert(obs, ended, action, next_obs, keep=64)
                    obs = next_obs
                imagined = Imagined(weighed * 2.0, obs, action)
                msrl.replay_insert(imagined, keep=48, into="model")
            fresh = msrl.replay_sample()
            loss, last = 0.0, 0.0
            for _ in range(2):
                own = msrl.replay_sample(self.config.own_batch)
                if by == "priority":
                    model, ids, _ = msrl.replay_sample(count, by, of="model")
                    loss, last, error = msrl.agent_learn(fresh, own, model)
                    msrl.replay_update(ids, ops.abs(error) + 0.1, of="model")
                else:
                    model = msrl.replay_sample(count, by, of="model")
                    loss, last, error = msrl.agent_learn(fresh, own, model)
                    last = last + msrl.mean(error)
            msrl.report({"loss": loss, "last": last})
