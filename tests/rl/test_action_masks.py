"""Masked actions in the algorithms, as plain Python; on ranks: `multiprocess/test_theorem.py`."""

import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import programs
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import ConfigError, EnvironmentFailure
from mindspore_rl.jobs import registry
from mindspore_rl.rl import policies
from mindspore_rl.rl.action_distributions import categorical_entropy
from mindspore_rl.rl.action_masks import features, masked, random_action
from mindspore_rl.rl.networks import MLP
from mindspore_rl.runtime.reference import Reference

SMALL = {
    "ppo": {"num_minibatches": 1, "update_epochs": 1, "normalise_obs": True},
    "a2c": {},
    "impala": {},
    "dqn": {"n_step": 2, "learning_starts": 4, "updates": 1, "batch_size": 4},
    "qr_dqn": {"n_step": 2, "learning_starts": 4, "updates": 1, "batch_size": 4},
    "r2d2": {"learnt_steps": 8, "learning_starts": 4, "updates": 1, "batch_size": 4},
    "discrete_sac": {"learning_starts": 32, "updates": 1, "batch_size": 4},
}


def make(algorithm, env="probe:choice", **options):
    cls = programs.trainer_class(registry.find_algorithm(algorithm))
    given = {"num_envs": 4, "num_steps": 8, **SMALL.get(algorithm, {}), **options}
    return cls(cls.Config(env=env, **given), spec(env))


def play(trainer, iterations):
    reference = Reference(trainer, iterations)
    try:
        trainer.train(reference)
    finally:
        reference.environment.close()


@pytest.mark.parametrize("algorithm", SMALL)
def test_no_invalid_action_is_taken(algorithm, monkeypatch):
    """An invalid action ends the probe: without the mask on logits or values one is taken soon."""
    play(make(algorithm), 3)
    trainer = make(algorithm)
    module = sys.modules[type(trainer).__module__]
    module = module if hasattr(module, "masked") else policies
    monkeypatch.setattr(module, "masked", lambda values, obs, n: values)
    with pytest.raises(EnvironmentFailure, match="is invalid, the mask is"):
        play(trainer, 30)


@pytest.mark.parametrize("algorithm", ["dqn", "qr_dqn", "r2d2", "discrete_sac"])
def test_exploration_takes_valid_actions_only(algorithm, monkeypatch):
    trainer = make(algorithm)
    module = sys.modules[type(trainer).__module__]
    every = [(noise + 0.5) / 16 for noise in range(16)]
    of_all = lambda noise, obs, n, actions: random_action(noise, obs, 0, actions)  # noqa: E731
    monkeypatch.setattr(module, "random_action", of_all)
    with pytest.raises(EnvironmentFailure, match="is invalid, the mask is"):
        play(trainer, 30)
    masks = np.array([[0, 1, 0, 1]] * 16, np.float32)
    noise = Tensor(np.array(every, np.float32))
    drawn = random_action(noise, Tensor(masks), 4, 4).asnumpy()
    assert drawn.tolist() == [1] * 8 + [3] * 8
    assert random_action(noise, Tensor(masks), 0, 4).asnumpy().tolist() == sorted([0, 1, 2, 3] * 4)


def batch_of(trainer, valid):
    """Returns transitions in which all actions but the last are valid, or all."""
    rng, module = np.random.default_rng(0), sys.modules[type(trainer).__module__]
    shape = (6,) if "n_step" not in vars(trainer.config) else (6, 2)
    if hasattr(module, "Sequence"):
        shape = (6, trainer.config.length)
    sign = rng.choice([-1.0, 1.0], (*shape, 1))
    obs = np.concatenate([sign, np.broadcast_to([1, 1, 1, valid], (*shape, 4))], -1)
    obs = Tensor(obs.astype(np.float32))
    no = Tensor(np.zeros(shape, bool))
    found = {
        "obs": obs,
        "final_obs": obs,
        "action": Tensor(rng.integers(0, 3, shape).astype(np.int32)),
        "reward": Tensor(rng.standard_normal(shape).astype(np.float32)),
        "terminated": no,
        "truncated": no,
        "state": (Tensor(np.zeros((6, 32), np.float32)),),
    }
    record = getattr(module, "Sequence", None) or module.Transition
    return record(**{name: found[name] for name in record._fields})


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("dqn", {"double_q": False}),
        ("dqn", {"double_q": True}),
        ("dqn", {"munchausen": 0.9}),
        ("dqn", {"atoms": 5}),
        ("qr_dqn", {}),
        ("r2d2", {"duelling": False, "double_q": True}),
        ("r2d2", {"duelling": False, "double_q": False}),
        ("discrete_sac", {}),
    ],
)
def test_targets_are_of_valid_actions(algorithm, options):
    """The value of an action that is invalid in all states does not matter."""
    trainer = make(algorithm, **options)
    learner = trainer.learner
    weight = () if algorithm in ("qr_dqn", "discrete_sac") else (Tensor(np.ones(6, np.float32)),)
    loss = learner.critic_loss if algorithm == "discrete_sac" else learner.loss
    with_mask, without = (batch_of(trainer, valid) for valid in (0, 1))
    before = [loss(batch, *weight)[0].asnumpy() for batch in (with_mask, without)]
    for network in (learner.target, getattr(learner, "network", learner.target)):
        for _, cell in network.cells_and_names():
            if isinstance(cell, MLP):
                *_, bias = cell.get_parameters()  # of all actions' outputs
                changed, size = bias.asnumpy(), bias.size // 4
                changed[-size:] += 3.0 * np.arange(1, size + 1)
                bias.set_data(Tensor(changed))
    after = [loss(batch, *weight)[0].asnumpy() for batch in (with_mask, without)]
    np.testing.assert_allclose(after[0], before[0], rtol=1e-5, atol=1e-5)
    assert np.abs(after[1] - before[1]).max() > 0.1


def test_entropy_and_gradients_stay_finite():
    obs = Tensor(np.array([[5, 0, 1, 0], [5, 1, 1, 0]], np.float32))
    logits = Tensor(np.array([[9, 2, 3], [1, 1, 9]], np.float32))

    def entropy(given):
        return categorical_entropy(masked(given, obs, 3))

    np.testing.assert_allclose(entropy(logits).asnumpy(), [0.0, np.log(2.0)], atol=1e-6)
    gradient = ms.grad(lambda given: entropy(given).sum())(logits).asnumpy()
    np.testing.assert_allclose(gradient, np.zeros((2, 3)), atol=1e-6)
    assert features(obs, 3).asnumpy().tolist() == [[5.0], [5.0]]
    assert features(obs, 0) is obs
    assert masked(logits, obs, 0) is logits


@pytest.mark.parametrize("algorithm", ["bc", "decision_transformer"])
def test_others_refuse_a_mask_and_tell_the_way_out(algorithm):
    with pytest.raises(ConfigError, match=r"Taxi-v4 has an action mask, which \w+ does not take: "):
        make(algorithm, "Taxi-v4", dataset="none", num_steps=4)
    make(algorithm, "Taxi-v4,action_mask=false", dataset="none", num_steps=4)


def test_statistics_are_of_the_features():
    trainer = make("ppo", "Taxi-v4")
    assert trainer.actor.network.obs_statistics.mean.shape == (500,)
