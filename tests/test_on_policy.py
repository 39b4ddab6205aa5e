"""RND: its formulas, with numbers worked in NumPy."""

import sys
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.environments.registry import spec
from mindspore_rl.jobs import registry

ENV = "graph:CartPole-v1"
N = 6


def made(name: str, **options: Any) -> tuple[Any, Any]:
    """Returns an algorithm's trainer for CartPole, and its module."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cls = programs.trainer_class(registry.find_algorithm(name))
    return cls(cls.Config(env=ENV, hidden=(8,), **options), spec(ENV)), sys.modules[cls.__module__]


def seen(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def forward(mlp: Any, x: np.ndarray, activation: Any) -> np.ndarray:
    """Runs an MLP by matrix products."""
    layers = [layer for layer in mlp.layers.cell_list if hasattr(layer, "weight")]
    for layer in layers:
        x = x @ layer.weight.asnumpy().T + layer.bias.asnumpy()
        x = activation(x) if layer is not layers[-1] else x
    return x


def test_rnd_predicts_the_fixed_network():
    """Its error is that of normalised observations, cut at 5; the fixed network is not trained."""
    novelty = made("rnd", novelty_hidden=(5,), features=3)[0].learner.novelty
    novelty.obs_statistics.merge(Tensor([1.0, 0.0, 0.0, 0.0]), Tensor([4.0, 1.0, 1e-4, 1.0]), 10.0)
    obs = seen(N, 4)
    rows = (obs - [1.0, 0.0, 0.0, 0.0]) / np.sqrt(np.array([4.0, 1.0, 1e-4, 1.0]) + 1e-8)
    rows = np.clip(rows, -5.0, 5.0)
    assert (np.abs(rows) == 5.0).any()
    predicted, fixed = (
        forward(net, rows, lambda x: np.maximum(x, 0.0))
        for net in (novelty.predictor, novelty.fixed)
    )
    wanted = np.square(predicted - fixed).mean(-1)
    np.testing.assert_allclose(novelty.error(Tensor(obs)).asnumpy(), wanted, rtol=1e-4)
    names = [parameter.name for parameter in novelty.trainable_params()]
    assert names and all("predictor" in name for name in names)


def test_rnds_loss_has_two_values_and_the_prediction():
    trainer, _ = made("rnd", vf_coef=0.5, ent_coef=0.1)
    learner, network = trainer.learner, trainer.actor.network
    obs, final_obs, action = seen(N, 4), seen(N, 4) + 0.5, np.array([0, 1, 1, 0, 1, 0], np.int32)
    old, advantage, returns, bonus_returns = seen(4, N)
    arrays = (obs, action, old, final_obs, advantage, returns, bonus_returns)
    loss = learner.loss(*map(Tensor, arrays))[0].asnumpy()
    logits = forward(network.policy, obs, np.tanh)
    log_policy = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ratio = np.exp(log_policy[np.arange(N), action] - old)
    policy = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    value = forward(network.critic, obs, np.tanh)
    error = 0.5 * ((value[:, 0] - returns) ** 2 + (value[:, 1] - bonus_returns) ** 2)
    entropy = -(np.exp(log_policy) * log_policy).sum(-1)
    novelty = learner.novelty.error(Tensor(final_obs)).asnumpy()
    np.testing.assert_allclose(
        loss, policy + 0.5 * error - 0.1 * entropy + novelty, rtol=1e-4, atol=1e-5
    )
