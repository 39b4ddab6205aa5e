"""Formulas of world models, against numbers worked by hand and plain loops."""

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from mindspore_rl.rl.distributional import two_hot
from mindspore_rl.rl.returns import imagined_returns
from mindspore_rl.rl.world_models import (
    StateSpaceModel,
    balanced_divergence,
    bootstrap_weights,
    gaussian_loss,
    latent_log_probs,
    latent_mode,
    latent_sample,
    soft_bounds,
    symexp,
    symlog,
    symlog_loss,
    symlog_mean,
)


def logs(x):
    return symlog(x), symexp(symlog(x))


def test_a_symlog_is_undone(run):
    x = np.array([-1e4, -math.e, -1e-3, 0.0, 0.5, math.e - 1, 300.0], np.float32)
    found, back = (part.reshape(-1) for part in run(logs, x))
    np.testing.assert_allclose(found[[3, 5]], [0.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(found, np.sign(x) * np.log1p(np.abs(x.astype(float))), 1e-4, 1e-5)
    np.testing.assert_allclose(back, x, 1e-4, 1e-5)


def hot(value, atoms):
    return two_hot(value, atoms), value


def test_a_value_is_two_hot(run):
    probability, _ = run(hot, np.float32([0.25, -9.0, 2.0]), np.float32([-1, 0, 1, 2]))
    expected = [[0, 0.75, 0.25, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(probability.reshape(3, 4), expected, atol=1e-6)


def judged(logits, value, atoms):
    return symlog_loss(logits, value, atoms), symlog_mean(logits, atoms)


def test_a_distribution_of_symlogs(run):
    """Atoms -1, 0, 1 with 1/2, 1/4, 1/4, so a mean of -1/4; 1 - e is the first."""
    logits = np.log(np.float32([[0.5, 0.25, 0.25]] * 2))
    value = np.float32([1 - math.e, 0.0])
    loss, mean = run(judged, logits, value, np.float32([-1, 0, 1]))
    np.testing.assert_allclose(loss.reshape(-1), [math.log(2), math.log(4)], 1e-4)
    np.testing.assert_allclose(mean.reshape(-1), [1 - math.exp(0.25)] * 2, 1e-4)


def of_an_ensemble(mean, log_variance, target, noise):
    bounds = soft_bounds(100.0 * noise - 50.0, -10.0, 4.0)
    return gaussian_loss(mean, log_variance, target), bootstrap_weights(noise), bounds


def test_a_gaussians_loss_its_bounds_and_the_weights_of_a_bootstrap(run):
    """Errors 1 and 2 with variances 1 and 4: 1/2 + 1/2 + log(4) / 2."""
    given = np.float32([[[0.0, 1.0]], [[0.0, math.log(4)]], [[1.0, 3.0]], [[0.0, 1 - 1 / math.e]]])
    loss, weight, bounds = run(of_an_ensemble, *given)
    np.testing.assert_allclose(loss.reshape(-1), [1 + math.log(2)], 1e-5)
    np.testing.assert_allclose(weight.reshape(-1), [0.0, 1.0], 1e-4, 1e-6)
    middle = 4 - math.log1p(math.exp(4 - (50 - 100 / math.e)))
    np.testing.assert_allclose(bounds.reshape(-1), [-10.0, middle], 1e-4, 1e-5)


def test_a_latent_is_drawn_by_the_sums_of_its_probabilities(run):
    """Of (0.2, 0.3, 0.5), mixed with 0.01 of the uniform ones, in two groups."""
    logits = np.log(np.float32([[[0.2, 0.3, 0.5]] * 2] * 2))
    noise = np.float32([[0.1, 0.4], [0.9, 0.3]])

    def drawn(logits, noise):
        log_probs = latent_log_probs(logits)
        return latent_sample(log_probs, noise), latent_mode(log_probs), ops.exp(log_probs)

    latent, mode, probs = run(drawn, logits, noise)
    expected = [[1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 1, 0]]
    np.testing.assert_allclose(latent.reshape(2, 6), expected, atol=1e-6)
    np.testing.assert_array_equal(mode.reshape(2, 6), [[0, 0, 1, 0, 0, 1]] * 2)
    mixed = 0.99 * np.array([0.2, 0.3, 0.5]) + 0.01 / 3
    np.testing.assert_allclose(probs.reshape(4, 3), [mixed] * 4, rtol=1e-5)


def test_a_drawn_latent_has_the_gradient_of_its_probabilities():
    log_probs, weight = np.log(np.float32([[[0.2, 0.8]]])), Tensor(np.float32([[2.0, 3.0]]))
    noise = Tensor(np.float32([[0.5]]))
    grad = ms.grad(lambda given: (latent_sample(given, noise) * weight).sum())(Tensor(log_probs))
    np.testing.assert_allclose(grad.asnumpy().reshape(-1), [0.4, 2.4], rtol=1e-5)


def test_divergences_are_balanced_and_free_at_first():
    """KL((3/4, 1/4) || (1/2, 1/2)) of two groups; q moves by 0.1 of its gradient, p by 0.5."""
    posterior = Tensor(np.log(np.float32([[[0.75, 0.25]] * 2])))
    prior = Tensor(np.log(np.float32([[[0.5, 0.5]] * 2])))
    divergence = 2 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    for free, kept in ((0.1, 1.0), (1.0, 0.0)):

        def loss(q, p, free=free):
            return balanced_divergence(q, p, 0.5, 0.1, free).sum()

        expected = 0.6 * (divergence if kept else 1.0)
        np.testing.assert_allclose(loss(posterior, prior).asnumpy(), expected, rtol=1e-5)
        of_q, of_p = (grad.asnumpy() for grad in ms.grad(loss, (0, 1))(posterior, prior))
        of_prior = kept * 0.5 * np.array([[-0.75, -0.25]] * 2)
        np.testing.assert_allclose(of_p.reshape(2, 2), of_prior, 1e-5, 1e-6)
        slope = np.array([0.75, 0.25]) * (np.log([1.5, 0.5]) + 1.0)
        np.testing.assert_allclose(
            of_q.reshape(2, 2), kept * 0.1 * np.stack([slope] * 2), 1e-5, 1e-6
        )


def imagined(reward, discount, value):
    return imagined_returns(reward, discount, value, 0.9), reward


def test_imagined_returns_are_those_of_a_loop(run):
    rng = np.random.default_rng(3)
    reward, discount, value = rng.uniform(size=(3, 7, 4)).astype(np.float32)
    expected, after = np.zeros((7, 4)), value[-1].astype(float)
    for t in reversed(range(7)):
        after = reward[t] + discount[t] * (0.1 * value[t] + 0.9 * after)
        expected[t] = after
    found, _ = run(imagined, reward, discount, value)
    np.testing.assert_allclose(found.reshape(7, 4), expected, rtol=1e-5)


def small_model():
    return StateSpaceModel(3, 2, 5, 2, 4, (6,), 1)


def test_a_window_begins_anew_where_an_episode_ends():
    """Steps after an end are those of a window that begins there, with the memory of an episode."""
    model, rng = small_model(), np.random.default_rng(5)
    obs = rng.standard_normal((2, 4, 3)).astype(np.float32)
    noise = rng.uniform(size=(2, 4, 2)).astype(np.float32)
    action, ended = np.int32([[0, 1, 1, 0]] * 2), np.array([[False, True, False, False]] * 2)
    memory = rng.standard_normal((2, 5)).astype(np.float32)

    def followed(memory, first, last):
        given = [part[:, first:last] for part in (obs, action, ended)]
        drawn = noise[:, first:last].reshape(2, -1)
        return [x.asnumpy() for x in model.follow(*map(Tensor, (memory, *given, drawn)))]

    states, memories = followed(memory, 0, 4)
    none = Tensor(np.zeros((2, 5), np.float32)), Tensor(np.zeros((2, 8), np.float32))
    begun = model.moved(*none, Tensor(np.int32([-1, -1]))).asnumpy()
    late_states, late_memories = followed(begun, 2, 4)
    np.testing.assert_allclose(states[:, 2:], late_states, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(memories[:, 2:], late_memories, rtol=1e-5, atol=1e-6)
    early_states, _ = followed(memory, 0, 2)
    np.testing.assert_allclose(states[:, :2], early_states, rtol=1e-5, atol=1e-6)
    assert np.abs(memories[:, 1] - begun).max() > 0.01  # the memory after the end is kept


def test_imagined_steps_follow_the_prior():
    model, rng = small_model(), np.random.default_rng(7)
    policy = ms.nn.Dense(13, 2)
    state = Tensor(rng.standard_normal((3, 13)).astype(np.float32))
    noise = rng.uniform(size=(4, 3, 3)).astype(np.float32)
    states, actions = model.imagine(policy, state, Tensor(noise))
    assert actions.shape == (4, 3)
    for step in range(4):
        memory = model.moved(states[step, :, :5], states[step, :, 5:], actions[step])
        latent = latent_sample(model.prior(memory), Tensor(noise[step, :, 1:]))
        found = np.concatenate([memory.asnumpy(), latent.asnumpy()], 1)
        np.testing.assert_allclose(states[step + 1].asnumpy(), found, rtol=1e-5, atol=1e-6)
