import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from mindspore_rl.environments.spaces import Box
from mindspore_rl.rl import action_distributions as dist
from mindspore_rl.rl import random

LAST = 1.0 - 2.0**-24  # the largest number of random.uniform


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sample_both(logits, noise):
    action, log_prob = dist.categorical_sample_with_log_prob(logits, noise)
    return dist.categorical_sample(logits, noise), action, log_prob


def test_categorical_sample_inverts_the_distribution_function(run):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((40, 3, 5)).astype(np.float32)
    noise = rng.random((40, 3, 1), dtype=np.float32)
    action, same_action, log_prob = run(sample_both, logits, noise)
    probs = softmax(logits)
    for index in np.ndindex(40, 3):
        total, expected = 0.0, 0
        while total + probs[index][expected] <= noise[index][0]:
            total += probs[index][expected]
            expected += 1
        assert action[index] == expected
        np.testing.assert_allclose(log_prob[index], math.log(probs[index][expected]), rtol=1e-5)
    np.testing.assert_array_equal(action, same_action)
    assert action.dtype == np.int32
    assert action.shape == log_prob.shape == (40, 3)


def test_a_value_that_is_not_a_number_stays_inside(run):
    logits = np.full((2, 3), np.nan, np.float32)
    actions = run(sample_both, logits, np.zeros((2, 1), np.float32))[:2]
    np.testing.assert_array_equal(actions, [[2, 2], [2, 2]])


def test_the_edges_of_the_noise_choose_possible_actions(run):
    """At 0 and at the largest uniform number, forbidden actions at the ends must not be drawn."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4000, 1, 7)).astype(np.float32)
    logits[:, :, :2] = logits[:, :, 5:] = -1e9
    noise = np.where(np.arange(4000) % 2, LAST, 0.0).astype(np.float32).reshape(-1, 1, 1)
    for action in run(sample_both, logits, noise)[:2]:
        assert set(action[0::2].ravel()) == {2}
        assert set(action[1::2].ravel()) == {4}


def test_categorical_frequencies():
    logits = np.log(np.array([0.5, 0.0625, 0.25, 0.1875], np.float32))
    noise = random.uniform(0, random.stream("test"), np.arange(40000), np.arange(1), 1)[:, 0]
    logits = np.broadcast_to(logits, (40000, 4))
    action = dist.categorical_sample(ms.Tensor(logits), ms.Tensor(noise)).asnumpy()
    expected = 40000 * np.exp(logits[0])
    chi_square = ((np.bincount(action, minlength=4) - expected) ** 2 / expected).sum()
    assert chi_square < 16.3  # the 0.999 quantile for 3 degrees of freedom


# No closures: MindSpore sometimes differentiates one by its captured variables.
def log_prob_sum(logits, action, weight):
    return (dist.categorical_log_prob(logits, action) * weight).sum()


def entropy_sum(logits, weight):
    return (dist.categorical_entropy(logits) * weight).sum()


def categorical_terms(logits, action, weight):
    return (
        dist.categorical_log_prob(logits, action),
        dist.categorical_entropy(logits),
        ms.grad(log_prob_sum)(logits, action, weight),
        ms.grad(entropy_sum)(logits, weight),
    )


def numeric_gradient(function, x, step=1e-6):
    """Central differences of a scalar function in float64."""
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        above, below = x.astype(np.float64), x.astype(np.float64)
        above[index] += step
        below[index] -= step
        gradient[index] = (function(above) - function(below)) / (2 * step)
    return gradient


def test_categorical_log_prob_and_entropy_with_gradients(run):
    rng = np.random.default_rng(2)
    logits = (2 * rng.standard_normal((6, 4))).astype(np.float32)
    action = rng.integers(0, 4, 6).astype(np.int32)
    weight = rng.standard_normal(6).astype(np.float32)

    def log_prob(logits):
        return np.array([math.log(softmax(logits)[i, a]) for i, a in enumerate(action)])

    def entropy(logits):
        return np.array([-sum(p * math.log(p) for p in row) for row in softmax(logits)])

    expected = (
        log_prob(logits),
        entropy(logits),
        numeric_gradient(lambda x: (log_prob(x) * weight).sum(), logits),
        numeric_gradient(lambda x: (entropy(x) * weight).sum(), logits),
    )
    for got, want in zip(run(categorical_terms, logits, action, weight), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_entropy_with_forbidden_actions_is_finite():
    logits = np.array([[0.0, 0.0, -1e9]], np.float32)
    entropy = dist.categorical_entropy(ms.Tensor(logits)).asnumpy()
    np.testing.assert_allclose(entropy, math.log(2), rtol=1e-6)


def normal_log_prob_sum(mean, log_std, action, weight):
    return (dist.normal_log_prob(mean, log_std, action) * weight).sum()


def normal_terms(mean, log_std, action, weight):
    gradients = ms.grad(normal_log_prob_sum, (0, 1))(mean, log_std, action, weight)
    entropy_gradient = ms.grad(dist.normal_entropy)(log_std)
    return (
        dist.normal_log_prob(mean, log_std, action),
        dist.normal_entropy(log_std),
        gradients[0],
        gradients[1],
        entropy_gradient,
    )


def test_normal_log_prob_and_entropy_with_gradients(run):
    rng = np.random.default_rng(3)
    mean, action = rng.standard_normal((2, 5, 3)).astype(np.float32)
    log_std = np.array([-0.5, 0.0, 0.7], np.float32)
    weight = rng.standard_normal(5).astype(np.float32)

    def log_prob(mean, log_std):
        density = np.exp(-((action - mean) ** 2) / (2 * np.exp(2 * log_std)))
        density /= np.sqrt(2 * np.pi) * np.exp(log_std)
        return np.log(density.prod(-1))

    expected = (
        log_prob(mean, log_std),
        sum(0.5 * math.log(2 * math.pi * math.e * math.exp(s) ** 2) for s in log_std),
        numeric_gradient(lambda x: (log_prob(x, log_std) * weight).sum(), mean),
        numeric_gradient(lambda x: (log_prob(mean, x) * weight).sum(), log_std),
        np.ones(3),
    )
    results = run(normal_terms, mean, log_std, action, weight)
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def draw_normal(mean, log_std, noise):
    return dist.normal_sample(mean, log_std, noise), dist.standard_normal(noise)


def test_normal_sample_is_box_muller(run):
    noise = random.uniform(0, random.stream("test"), np.arange(5000), np.arange(2), 4)
    noise[0, 0] = [0.0, LAST, 0.0, LAST]
    mean = np.broadcast_to(np.array([1.0, -2.0], np.float32), (5000, 2, 2)).copy()
    log_std = np.log(np.array([0.5, 3.0], np.float32))
    action, normal = run(draw_normal, mean, log_std, noise)
    radius = np.sqrt(-2 * np.log(1 - noise[..., :2].astype(np.float64)))
    expected = mean + np.exp(log_std) * radius * np.cos(2 * np.pi * noise[..., 2:])
    np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.isfinite(normal), True)
    # 10,000 draws: four standard errors of the mean and of the standard deviation.
    z = (action.reshape(-1, 2) - [1.0, -2.0]) / [0.5, 3.0]
    assert np.abs(z.mean(0)).max() < 0.04
    assert np.abs(z.std(0) - 1).max() < 0.03
    assert abs((z[:, 0] * z[:, 1]).mean()) < 0.04


def test_too_few_uniform_numbers_for_normal_ones_are_told():
    mean = ms.Tensor(np.zeros((3, 2), np.float32))
    for sample in (dist.normal_sample, dist.squashed_normal_sample):
        with pytest.raises(ValueError, match=r"noise_size = 2 \* k"):
            sample(mean, mean, mean)
    with pytest.raises(ValueError, match=r"two uniform ones"):
        dist.standard_normal(mean[:, :1])


class Scaled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.scale = dist.ActionScale(Box((3,), (-2.0, 0.0, 1.0), (2.0, 1.0, 9.0)))

    def construct(self, action):
        scaled = self.scale(action)
        return scaled, self.scale.inverse(scaled)


def test_actions_are_scaled_to_the_bounds_and_back(run):
    action = np.array([[-1, -1, -1], [1, 1, 1], [0.5, 0, -0.5]], np.float32)
    scaled, back = run(Scaled(), action)
    np.testing.assert_array_equal(scaled, [[-2, 0, 1], [2, 1, 9], [1, 0.5, 3]])
    np.testing.assert_array_equal(back, action)
    space = Box((2,), (-2.0, 0.0), (2.0, 1.0))
    assert (space.high.max(), (space.high - space.low).min(), space.low.shape) == (2.0, 1.0, (2,))


def divergences(logits, other_logits, mean, log_std, other_mean, other_log_std):
    return (
        dist.categorical_kl(logits, other_logits),
        dist.normal_kl(mean, log_std, other_mean, other_log_std),
    )


def test_divergences_are_the_sums_of_their_definitions(run):
    rng = np.random.default_rng(2)
    logits, other_logits = rng.standard_normal((2, 30, 4)).astype(np.float32)
    mean, log_std, other_mean, other_log_std = rng.standard_normal((4, 30, 3)).astype(np.float32)
    data = logits, other_logits, mean, 0.5 * log_std, other_mean, 0.5 * other_log_std
    of_categories, of_normals = run(divergences, *data)
    p, q = softmax(logits), softmax(other_logits)
    expected = (p * np.log(p / q)).sum(-1)
    np.testing.assert_allclose(of_categories.reshape(-1), expected, rtol=1e-4, atol=2e-5)
    s, other_s = np.exp(0.5 * log_std.astype(float)), np.exp(0.5 * other_log_std.astype(float))
    z = (s**2 + (mean - other_mean) ** 2) / (2 * other_s**2)
    expected = (np.log(other_s / s) + z - 0.5).sum(-1)
    np.testing.assert_allclose(of_normals.reshape(-1), expected, rtol=1e-4, atol=1e-5)


def test_logarithms_are_exact_near_one_in_blocks_and_in_the_tail(run):
    """MindSpore's has a relative error of 0.06 at 0.999999 in blocks of 8 numbers on the CPU."""
    near = [1.0 - 10.0**-k for k in range(1, 8)] + [1.0 + 10.0**-k for k in range(1, 8)]
    value = np.float32([*near, 0.7, 1.4, 1e-7, 1e-3, 0.5, 2.0, 30.0])
    for count in (1, 11):  # numbers in one row: the tail alone, and a block with a tail
        rows = np.repeat(value[:, None], count, 1)
        wanted = -np.log(rows.astype(np.float64))
        for i, row in enumerate(rows):
            np.testing.assert_allclose(run(dist.minus_log, row), wanted[i], rtol=1e-6)


def test_gumbel_numbers_are_minus_the_logarithm_of_minus_the_logarithm(run):
    noise = np.float32([0.0, 1e-7, 1e-3, 0.3, 1 / math.e, 0.5, 0.9, 0.9999, 0.999999, LAST, 0.7])
    limited = np.clip(noise, np.float32(1e-7), np.float32(1.0 - 1e-7)).astype(np.float64)
    wanted = -np.log(-np.log(limited))
    np.testing.assert_allclose(run(dist.gumbel, noise), wanted, rtol=1e-6, atol=1e-6)
    assert run(dist.gumbel, np.float32([LAST]))[0] < 16.7
