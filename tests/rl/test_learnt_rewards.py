"""Rewards of classifiers, against the papers' formulas in double precision."""

import math

import numpy as np

from mindspore_rl.rl.learnt_rewards import discriminator_loss, imitation_reward, skill_reward


def both(own, expert):
    return discriminator_loss(own, expert), imitation_reward(100.0 * own)


def reward_and_skill(logits, skill):
    return skill_reward(logits, skill), skill


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


def test_a_skills_reward_is_what_the_state_tells_of_it(run):
    """Of four skills: q = (1/2, 1/4, 1/8, 1/8), beside p = 1/4; one that tells all or nothing."""
    logits = np.array([[4, 2, 1, 1], [4, 2, 1, 1], [9, 9, 9, 9]], np.float32)
    logits = np.vstack([np.log(logits), [[200.0, 0.0, 0.0, 0.0]] * 2]).astype(np.float32)
    reward, _ = run(reward_and_skill, logits, np.array([0, 3, 2, 0, 1], np.int32))
    expected = [math.log(2), -math.log(2), 0.0, math.log(4), math.log(4) - 200]
    np.testing.assert_allclose(reward.reshape(-1), expected, rtol=1e-5, atol=1e-5)
