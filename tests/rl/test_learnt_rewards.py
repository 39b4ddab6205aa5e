"""Rewards of classifiers, against the papers' formulas in double precision."""

import math

import numpy as np

from mindspore_rl.rl.learnt_rewards import discriminator_loss, imitation_reward


def both(own, expert):
    return discriminator_loss(own, expert), imitation_reward(100.0 * own)


def test_a_discriminators_loss_and_reward_are_those_of_its_probabilities(run):
    rng = np.random.default_rng(1)
    own, expert = (4 * rng.standard_normal((2, 50))).astype(np.float32)
    loss, far = run(both, own, expert)
    for i, (a, b) in enumerate(zip(own.tolist(), expert.tolist(), strict=True)):
        of_policy, of_expert = 1 / (1 + math.exp(a)), 1 / (1 + math.exp(b))  # D of both pairs
        expected = -math.log(of_policy) - math.log(1 - of_expert)
        np.testing.assert_allclose(loss.reshape(-1)[i], expected, rtol=1e-4, atol=1e-5)
    expected = np.logaddexp(0.0, 100.0 * own.astype(float))  # as large as 800
    np.testing.assert_allclose(far.reshape(-1), expected, rtol=1e-4, atol=1e-5)
