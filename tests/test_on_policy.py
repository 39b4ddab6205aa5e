"""RND, PPG and TRPO: their formulas, with numbers worked in NumPy."""

import sys
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import PolicyError
from mindspore_rl.jobs import registry
from mindspore_rl.rl.operators import flatten, gradient_function
from mindspore_rl.runtime.reference import Reference
from tests.compiler import inproc

ENV = "graph:CartPole-v1"
N = 6


def made(name: str, **options: Any) -> tuple[Any, Any]:
    """Returns an algorithm's trainer for CartPole, and its module."""
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
    error, loss = novelty.both(Tensor(obs), Tensor([0] * N), Tensor(obs))
    np.testing.assert_allclose(error.asnumpy(), wanted, rtol=1e-4)
    assert (error == loss).all()
    names = [parameter.name for parameter in novelty.trainable_params()]
    assert names and all("predictor" in name for name in names)


def test_curiosity_predicts_features_that_tell_actions():
    options = {"novelty_hidden": (5,), "features": 3, "forward_coef": 0.3}
    novelty = made("rnd", curiosity=True, **options)[0].learner.novelty
    obs, final_obs, action = seen(N, 4), seen(N, 4) + 0.5, np.array([0, 1, 1, 0, 1, 0], np.int32)
    error, loss = (one.asnumpy() for one in novelty.both(*map(Tensor, (obs, action, final_obs))))
    features, inverse, model = (
        lambda x, mlp=mlp: forward(mlp, x, lambda y: np.maximum(y, 0.0))
        for mlp in (novelty.curiosity.features, novelty.curiosity.inverse, novelty.curiosity.model)
    )
    before, after = features(obs), features(final_obs)
    predicted = model(np.concatenate([before, np.eye(2)[action]], 1))
    wanted = 0.5 * ((predicted - after) ** 2).sum(-1)
    np.testing.assert_allclose(error, wanted, rtol=1e-4)
    logits = inverse(np.concatenate([before, after], 1))
    chance = np.exp(logits)[np.arange(N), action] / np.exp(logits).sum(-1)
    np.testing.assert_allclose(loss, -0.7 * np.log(chance) + 0.3 * wanted, rtol=1e-4)


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
    novelty = learner.novelty.both(*map(Tensor, (obs, action, final_obs)))[1].asnumpy()
    np.testing.assert_allclose(
        loss, policy + 0.5 * error - 0.1 * entropy + novelty, rtol=1e-4, atol=1e-5
    )


def test_ppgs_auxiliary_phase_teaches_values_and_keeps_the_policy():
    """Its loss, for samples with a step of each of two iterations."""
    learner = made("ppg", clone_coef=0.7)[0].learner
    network, obs = learner.network, seen(N, 2, 4)
    returns, old_head = seen(N, 2) + 1.0, seen(N, 2, 2)
    loss, auxiliary_error, kl = learner.auxiliary_loss(*map(Tensor, (obs, returns, old_head)))
    hidden = np.tanh(forward(network.torso, obs.reshape(-1, 4), np.tanh))
    head, auxiliary = (forward(net, hidden, np.tanh) for net in (network.policy, network.auxiliary))
    log_old, log_new = (
        x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (old_head, head.reshape(N, 2, 2))
    )
    wanted_kl = (np.exp(log_old) * (log_old - log_new)).sum(-1)
    value = forward(network.critic, obs.reshape(-1, 4), np.tanh).reshape(N, 2)
    wanted = 0.5 * (auxiliary.reshape(N, 2) - returns) ** 2
    np.testing.assert_allclose(kl.asnumpy(), wanted_kl, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(auxiliary_error.asnumpy(), wanted, rtol=1e-4, atol=1e-6)
    wanted = wanted + 0.7 * wanted_kl + 0.5 * (value - returns) ** 2
    np.testing.assert_allclose(loss.asnumpy(), wanted, rtol=1e-4, atol=1e-6)


def test_ppgs_phase_has_the_batches_of_the_last_iterations():
    options = {"num_envs": 2, "num_steps": 4, "num_minibatches": 2, "aux_minibatches": 2}
    trainer = made("ppg", phase_iterations=2, update_epochs=1, aux_epochs=1, **options)[0]
    phases, batches, learn = [], [], trainer.learner.learn

    def recorded(msrl, batch, phase, iteration):
        metrics, phase = learn(msrl, batch, phase, iteration)
        batches.append(batch.obs.asnumpy())
        phases.append(phase[0].asnumpy())
        return metrics, phase

    trainer.learner.learn = recorded
    reference = Reference(trainer, num_iterations=3)
    reference.run()
    learnt = [metrics["auxiliary_value_loss"] for metrics in reference.reports]
    assert learnt[0] == learnt[2] == 0.0 < learnt[1]
    np.testing.assert_array_equal(phases[2], np.stack(batches[1:], 2))


def test_trpos_products_are_those_with_the_fisher_matrix():
    """F v = J^T M J v, with F summed up from the scores of both actions."""
    trainer = made("trpo")[0]
    policy, obs = trainer.actor.policy, seen(N, 4)
    params = policy.trainable_params()
    direction = tuple(Tensor(seen(*p.shape)) for p in params)
    metric = policy.metric(Tensor(obs), flatten(direction))
    pulled = gradient_function(trainer.learner.pulled_back, policy, None)
    product, _, _ = pulled(Tensor(obs), metric)
    score = gradient_function(trainer.learner.surrogate, policy, None)
    logits = policy.head(Tensor(obs)).asnumpy()
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    wanted = [np.zeros(p.shape) for p in params]
    for i, action in np.ndindex(N, 2):
        # At the policy that acted, minus the surrogate's gradient is the score.
        log_prob = np.log(probs[i : i + 1, action])
        row = obs[i : i + 1], np.array([action], np.int32), log_prob, np.ones(1, np.float32)
        grads = [grad.asnumpy().astype(float) for grad in score(*map(Tensor, row))[0]]
        along = sum((g * v.asnumpy()).sum() for g, v in zip(grads, direction, strict=True))
        weight = probs[i, action] * along / N
        wanted = [total + weight * grad for total, grad in zip(wanted, grads, strict=True)]
    for got, total in zip(product, wanted, strict=True):
        np.testing.assert_allclose(got.asnumpy(), total, rtol=1e-3, atol=1e-5)


def test_trpos_step_ends_within_the_trust_region():
    """It gets better, and the divergence is near its bound: the quadratic one is at it."""
    options = {"num_envs": 4, "num_steps": 16, "value_epochs": 1, "max_kl": 0.002, "damping": 1e-3}
    reference = Reference(made("trpo", **options)[0], num_iterations=2)
    reference.run()
    for metrics in reference.reports:
        assert metrics["improvement"] > 0.0
        assert 0.0005 < metrics["kl"] <= 0.002


def test_trpo_stays_where_no_step_is_good_enough():
    """After a step of the full size alone, and a bound that it exceeds."""
    options = {"num_envs": 2, "num_steps": 4, "value_epochs": 1, "line_search_steps": 1}
    trainer = made("trpo", max_kl=5.0, **options)[0]
    before = [p.asnumpy().copy() for p in trainer.actor.policy.trainable_params()]
    trainer.learner.policy.divergence = lambda old, head: 6.0 + 0.0 * old[:, 0]
    reference = Reference(trainer, num_iterations=1)
    reference.run()
    assert reference.reports[0]["step_size"] == reference.reports[0]["improvement"] == 0.0
    for parameter, value in zip(trainer.actor.policy.trainable_params(), before, strict=True):
        np.testing.assert_array_equal(parameter.asnumpy(), value)


ON_RANKS = {
    "ppg": (
        "MultipleLearners",
        {"phase_iterations": 2, "num_minibatches": 2, "aux_minibatches": 2, "aux_epochs": 1},
    ),
    "trpo": ("SingleLearnerFine", {"cg_iterations": 3, "value_epochs": 1}),
}


@pytest.mark.parametrize("name", ON_RANKS)
def test_two_ranks_in_one_process_equal_the_plain_loop(name, tmp_path):
    """With compiled cells, see `multiprocess/test_theorem.py`."""
    policy, options = ON_RANKS[name]
    small = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 4, "hidden": (8,)}
    job = inproc.request(registry.find_algorithm(name), policy, 2, **small, **options)
    assert inproc.differences(job, tmp_path) == []


def test_a_tuple_of_every_turn_is_refused_where_it_crosses_a_cut(tmp_path):
    """Under Central the products of a loop would go to the server."""
    file = registry.find_algorithm("trpo")
    options = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 4, "hidden": (8,)}
    job = inproc.request(file, "Central", 2, cg_iterations=3, value_epochs=1, **options)
    with pytest.raises(PolicyError, match="`product` is a tuple, made anew in every turn"):
        prepare(job, tmp_path / "run")
