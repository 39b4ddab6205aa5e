"""Policies by the outputs of a network: draws, likelihoods and divergences of their heads."""

import numpy as np
import pytest
from mindspore import Tensor, ops
from numpy.testing import assert_allclose

from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.rl.policies import StochasticPolicy


def test_a_head_with_its_deviation_is_drawn_by_as_without():
    policy = StochasticPolicy(Box((2,), (-1.0, -1.0), (1.0, 1.0)))
    assert (policy.size, policy.noise_size, policy.log_std.shape) == (2, 4, (2,))
    ops.assign(policy.log_std, Tensor(np.log([0.5, 2.0]).astype(np.float32)))
    head = Tensor(np.array([[0.3, -1.0], [0.0, 2.0]], np.float32))
    noise = Tensor(np.random.default_rng(0).random((2, 4)).astype(np.float32))
    action, log_prob = policy.draw(head, noise)
    both = policy.with_deviation(head)
    assert_allclose(both.asnumpy()[:, 2:], np.log([[0.5, 2.0]] * 2), rtol=1e-6)
    for one, other in zip((action, log_prob), policy.draw(both, noise), strict=True):
        assert (one.asnumpy() == other.asnumpy()).all()
    assert (policy.log_prob(both, action).asnumpy() == log_prob.asnumpy()).all()
    assert (policy.likeliest(both).asnumpy() == head.asnumpy()).all()
    deviation = (action.asnumpy() - head.asnumpy()) / [0.5, 2.0]
    by_hand = (-0.5 * deviation**2 - 0.5 * np.log(2.0 * np.pi)).sum(-1)  # log(0.5) + log(2) = 0
    assert_allclose(log_prob.asnumpy(), by_hand, rtol=1e-5)
    assert_allclose(policy.entropy(head).asnumpy(), [1.0 + np.log(2.0 * np.pi)] * 2, rtol=1e-6)
    moved = policy.with_deviation(head + 1.0)
    by_hand = 0.5 / 0.5**2 + 0.5 / 2.0**2  # equal deviations: the squared distance of the means
    assert_allclose(policy.divergence(both, moved).asnumpy(), [by_hand] * 2, rtol=1e-5)


def test_logits():
    policy = StochasticPolicy(Discrete(2))
    assert (policy.size, policy.noise_size, [*policy.get_parameters()]) == (2, 1, [])
    head = Tensor(np.log([[0.25, 0.75], [0.5, 0.5]]).astype(np.float32))
    action, log_prob = policy.draw(head, Tensor(np.array([[0.2], [0.7]], np.float32)))
    assert action.asnumpy().tolist() == [0, 1]
    assert_allclose(log_prob.asnumpy(), np.log([0.25, 0.5]), rtol=1e-5)
    assert policy.with_deviation(head) is head
    by_hand = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    found = policy.divergence(head[:1], head[1:]).asnumpy()
    assert found[0] == pytest.approx(by_hand, rel=1e-5)
    assert policy.likeliest(head[:1]).asnumpy().tolist() == [1]
