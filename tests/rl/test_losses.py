import math

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_rl.rl import losses

CLIP = 0.2


def samples(count=200):
    rng = np.random.default_rng(1)
    old_log_prob, advantage, value, old_value, returns = rng.standard_normal((5, count))
    log_prob = old_log_prob + 0.3 * rng.standard_normal(count)
    data = (log_prob, old_log_prob, advantage, value, old_value, returns)
    return [array.astype(np.float32) for array in data]


def everything(log_prob, old_log_prob, advantage, value, old_value, returns):
    return (
        losses.clipped_surrogate(log_prob, old_log_prob, advantage, CLIP),
        losses.value_loss(value, returns),
        losses.clipped_value_loss(value, old_value, returns, CLIP),
        losses.approx_kl(log_prob, old_log_prob),
        losses.clip_fraction(log_prob, old_log_prob, CLIP),
    )


def test_losses_equal_the_papers_formulas_sample_by_sample(run):
    data = samples()
    results = run(everything, *data)
    for i, sample in enumerate(zip(*data, strict=True)):
        log_prob, old_log_prob, advantage, value, old_value, target = map(float, sample)
        ratio = math.exp(log_prob - old_log_prob)
        clipped = min(max(ratio, 1 - CLIP), 1 + CLIP)
        near = old_value + min(max(value - old_value, -CLIP), CLIP)
        expected = (
            -min(ratio * advantage, clipped * advantage),
            (value - target) ** 2 / 2,
            max((value - target) ** 2, (near - target) ** 2) / 2,
            ratio - 1 - math.log(ratio),
            float(ratio != clipped),
        )
        got = [result[i] for result in results]
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def of_offline_algorithms(error, advantage, sampled, log_density, value):
    return (
        losses.expectile_loss(error, 0.7),
        losses.advantage_weight(advantage, 3.0, 100.0),
        losses.conservative_gap(sampled, log_density, value),
        losses.cloning_loss(sampled, log_density, value, error[0], 2.5),
    )


def test_losses_of_offline_algorithms_by_hand(run):
    """The last: log((e^0 / (1/4) + e^log 2 / (1/2)) / 2) - 1; large values stay finite."""
    sampled = np.array([[0.0, math.log(2.0)], [500.0, 500.0]], np.float32)
    log_density = np.array([[math.log(0.25), math.log(0.5)], [0.0, 0.0]], np.float32)
    error, advantage = np.array([[2.0, -2.0], [0.5, 90.0]], np.float32)
    value = np.array([1.0, 1.0], np.float32)
    expectile, weight, gap, cloning = run(
        of_offline_algorithms, error, advantage, sampled, log_density, value
    )
    np.testing.assert_allclose(expectile, [0.7 * 4, 0.3 * 4], rtol=1e-6)
    np.testing.assert_allclose(weight, [math.exp(1.5), 100.0], rtol=1e-5)
    np.testing.assert_allclose(gap, [math.log(4.0) - 1.0, 499.0], rtol=1e-5)
    squares = (math.log(4.0) ** 2 + math.log(4.0) ** 2) / 2, 500.0**2
    np.testing.assert_allclose(cloning, np.array(squares) - 2.5 / 2.0, rtol=1e-5)


def surrogate_loss(log_prob, advantage):
    return losses.clipped_surrogate(log_prob, 0.0 * log_prob, advantage, CLIP).sum()


def surrogate_gradient(log_prob, advantage):
    return ms.grad(surrogate_loss)(log_prob, advantage), surrogate_loss(log_prob, advantage)


def test_surrogate_gradient_stops_only_where_the_clip_binds(run):
    """The gradient is -A r, and zero where r left the interval on the side that A rewards."""
    ratio = np.array([1.0, 1.1, 1.5, 0.5, 1.5, 0.5], np.float32)
    advantage = np.array([2.0, -1.0, 1.0, 1.0, -1.0, -1.0], np.float32)
    gradient, _ = run(surrogate_gradient, np.log(ratio), advantage)
    expected = [-2.0, 1.1, 0.0, -0.5, 1.5, 0.0]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def clip_twice(first, second):
    large, norm = losses.clip_by_global_norm((first, second), 1.0)
    small, same_norm = losses.clip_by_global_norm([first, second], 50.0)  # a list serves too
    return large[0], large[1], norm, small[0], small[1], same_norm


def test_clip_by_global_norm(run):
    """3, 4 and 12 have norm 13."""
    first, second = np.array([[3.0, 0.0], [0.0, 4.0]], np.float32), np.array([12.0], np.float32)
    large0, large1, norm, small0, small1, same_norm = run(clip_twice, first, second)
    assert norm == same_norm == 13.0
    np.testing.assert_allclose(large0, first / 13, rtol=1e-6)
    np.testing.assert_allclose(large1, second / 13, rtol=1e-6)
    np.testing.assert_array_equal(small0, first)
    np.testing.assert_array_equal(small1, second)


def test_zero_gradients_stay_zero():
    (zero,), norm = losses.clip_by_global_norm((Tensor(np.zeros(3, np.float32)),), 0.5)
    assert norm == 0.0
    assert not zero.asnumpy().any()


def priorities(error):
    return losses.sequence_priority(error, 0.75), error


def test_priorities_of_sequences(run):
    """0.75 of the largest and 0.25 of the mean."""
    found, _ = run(priorities, np.float32([[0.0, 4.0], [2.0, 2.0]]))
    np.testing.assert_array_equal(found, [3.5, 2.0])
