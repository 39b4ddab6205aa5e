"""The loop as people write it: networks in lists, losses inside `learn`, lists that grow."""

import copy
from functools import partial
from typing import Any, NamedTuple

from mindspore import nn, ops

from mindspore_rl.api import Trainer
from mindspore_rl.rl.networks import MLP
from tests.programs.small_agents import Act, BaseLearner, Config, Net


class Transition(NamedTuple):
    obs: Any
    action: Any
    reward: Any


class Learn(BaseLearner):
    def __init__(self, net, config, size):
        super().__init__(net, config)
        self.critics = []
        for i in range(2):
            self.critics.append(MLP(size, (8 + i,), 1, 1.0, config.seed, 3 + i))
        self.more = {"model": MLP(size, (8,), size, 1.0, config.seed, 7)}
        nets = (*self.critics, self.more["model"])
        self.optimizers = tuple(nn.Adam(n.trainable_params(), 0.01) for n in nets)
        self.target = copy.deepcopy(net)
        self.step = nn.SGD([p for n in nets for p in n.trainable_params()], 0.01)

    def squared(self, network, power, obs, target):
        value = network(obs).reshape(-1)
        weights = sum(ops.square(p).sum() for p in network.trainable_params())
        return ops.pow(ops.abs(value - target.reshape(-1)), power) + 0.01 * weights, value

    def follow(self, tau):
        for new, old in zip(self.net.get_parameters(), self.target.get_parameters()):  # noqa: B905
            ops.assign(old, (1.0 - tau) * old + tau * new)

    def learn(self, msrl, batch):
        config, metrics = self.config, {}
        model = self.more["model"]
        obs = batch.obs.reshape((-1, batch.obs.shape[-1]))
        before = tuple(p.copy() for p in self.critics[0].get_parameters())
        if (mean := msrl.mean(batch.reward)) is not None:
            target = batch.reward - mean
        scale = 0.5

        def fit(network, rows, goal, power=2.0):
            error = network(rows) - goal
            return scale * ops.pow(ops.abs(error), power).mean(-1)

        def policy_loss():
            loss, log_prob = self.loss(batch.obs, batch.action, weight(target))
            return loss - config.gamma * log_prob, log_prob

        weight = lambda x: 0.5 * x  # noqa: E731
        losses = []
        for i, (critic, optimizer) in enumerate(zip(self.critics, self.optimizers, strict=False)):
            grads, (loss, value) = msrl.gradient(
                lambda rows, to: self.squared(critic, 2.0 + i, rows, to),  # noqa: B023
                critic,
                obs,
                target,
            )
            msrl.update(optimizer, grads)
            losses.append(loss)
            metrics[f"value_{i}"] = value
        for i in range(2):
            grads, means = msrl.gradient(
                partial(self.squared, self.critics[i], 2.0), self.critics[i], obs, target
            )
            metrics[f"value_{i}"] += means[1]
            msrl.update(self.optimizers[i], grads)
        scale = 0.25 * scale  # a function sees its variables as they are when it is called
        grads, means = msrl.gradient(fit, model, model, obs, obs + 1.0)
        msrl.update(self.optimizers[-1], grads)
        metrics |= {"model": means[0], "weight": msrl.mean(weight(target))}
        both = [*self.critics, model]
        grads, (joint,) = msrl.gradient(
            lambda: sum((net(obs).mean(-1) for net in self.critics), model(obs).mean(-1)), both
        )
        msrl.update(self.step, grads)
        metrics["joint"] = joint
        grads, means = msrl.gradient(policy_loss, self.net)
        msrl.update(self.apply, grads)
        msrl.update(self.follow, 0.1)
        metrics.update(dict(zip(("loss", "log_prob"), means, strict=True)))
        change = sum(
            ((p - b) ** 2).sum()
            for p, b in zip(self.critics[0].trainable_params(), before, strict=True)
        )
        for p in self.target.get_parameters():
            change += ops.abs(p).sum()
        return {**metrics, "first": losses[0], "mean": sum(losses) / len(losses), "change": change}


class Ensemble(Trainer):
    Config = Config

    def __init__(self, config, spec):
        super().__init__(config, spec)
        net = Net(config, spec)
        self.actor, self.learner = Act(net), Learn(net, config, spec.obs_shape[0])

    def train(self, msrl):
        obs = msrl.env_reset()
        for _ in msrl.iterations():
            for _ in msrl.steps():
                action = msrl.agent_act(obs)
                next_obs, _, reward, _, _ = msrl.env_step(action)
                msrl.replay_insert(Transition(obs, action, reward))
                obs = next_obs
            msrl.report(msrl.agent_learn(msrl.replay_sample()))
