"""Distributions over actions, from a network's outputs and noise that the caller supplies.

The noise comes from ``random.uniform`` for all steps of a rollout at once. Sampling is stateless,
so the same (seed, environment, step) gives the same action wherever the step runs.
"""

import math

import numpy as np
from mindspore import Tensor, float32, nn, ops

from mindspore_rl.environments.spaces import Box

PAIRS = (
    "a normal number takes two uniform ones: noise [..., 2k] for k of them, so noise_size = 2 * k "
    "in an actor, and msrl.uniform(n, 2 * k)"
)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def inverse_cdf(probs: Tensor, noise: Tensor) -> Tensor:
    """Samples by the inverse distribution function: the first index with a sum above noise * total.

    Args:
        probs: [..., n] float32, probabilities or weights, not negative.
        noise: [..., 1] float32, uniform in [0, 1) with at most 24 bits.

    Returns: [...] int32; its weight is not zero, unless all are.
    """
    cdf = ops.cumsum(probs, -1)
    # The sum of float32 probabilities is not exactly 1, and a uniform number may exceed it. With
    # noise <= 1 - 2^-24, noise * total < total in float32 even after rounding, so no index is past
    # the end or has probability zero.
    threshold = noise * ops.narrow(cdf, cdf.ndim - 1, cdf.shape[-1] - 1, 1)
    found = ops.searchsorted(cdf, threshold, out_int32=True, right=True)
    # For NaN the search returns an index past the end. It is clamped, so that the error reported
    # is the environment's NaN and not an index out of range.
    return ops.minimum(ops.reshape(found, cdf.shape[:-1]), cdf.shape[-1] - 1)


def _pick(table: Tensor, action: Tensor) -> Tensor:
    """Returns table[..., action]; a gather is cheaper than a one-hot product and exact."""
    picked = ops.gather_elements(table, -1, ops.reshape(action, (*action.shape, 1)))
    return ops.reshape(picked, action.shape)


def _sample(logits: Tensor, noise: Tensor) -> tuple:
    # Softmax and its logarithm would be cheaper, but on the CPU their last bits differ between
    # processes.
    log_probs = ops.log_softmax(logits, -1)
    action = inverse_cdf(ops.exp(log_probs), noise)
    return action, _pick(log_probs, action)


def categorical_sample(logits: Tensor, noise: Tensor) -> Tensor:
    """Samples by the inverse distribution function, with one uniform number per action.

    Args:
        logits: [..., n] float32, unnormalised log-probabilities; a large negative number such as
            -1e9 forbids an action (an infinity would make the entropy NaN).
        noise: [..., 1] float32, uniform in [0, 1) with at most 24 bits, from ``random.uniform``.

    Returns:
        action: [...] int32, in 0..n-1.
    """
    return _sample(ops.cast(logits, float32), noise)[0]


def categorical_sample_with_log_prob(logits: Tensor, noise: Tensor) -> tuple:
    """Samples actions and returns their log-probabilities from the same normalisation.

    Args:
        logits: [..., n] float32, unnormalised log-probabilities.
        noise: [..., 1] float32, uniform in [0, 1) with at most 24 bits.

    Returns:
        (action, log_prob): [...] int32 and [...] float32.
    """
    return _sample(ops.cast(logits, float32), noise)


def categorical_log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Returns the log-probability of an action.

    Args:
        logits: [..., n] float32, unnormalised log-probabilities; the gradient flows through them.
        action: [...] int32, in 0..n-1.

    Returns:
        log_prob: [...] float32, nats.
    """
    return _pick(ops.log_softmax(logits, -1), action)


def categorical_entropy(logits: Tensor) -> Tensor:
    """Returns the entropy ``-sum_i p_i log p_i``.

    Args:
        logits: [..., n] float32, unnormalised log-probabilities; the gradient flows through them.

    Returns:
        entropy: [...] float32, nats.
    """
    log_probs = ops.log_softmax(logits, -1)
    return -ops.sum(ops.exp(log_probs) * log_probs, -1)


def categorical_kl(logits: Tensor, other: Tensor) -> Tensor:
    """Returns the divergence ``KL(p || q) = sum_i p_i (log p_i - log q_i)``.

    Args:
        logits: [..., n] float32, of p; the gradient flows through them.
        other: [..., n] float32, of q; the gradient flows through them.

    Returns:
        kl: [...] float32, nats.
    """
    log_probs = ops.log_softmax(logits, -1)
    return ops.sum(ops.exp(log_probs) * (log_probs - ops.log_softmax(other, -1)), -1)


def minus_log(value: Tensor) -> Tensor:
    """Returns ``-log(x)``, with a small relative error near 1 as well.

    MindSpore's logarithm on the CPU has an absolute error of 6e-8 there, and in the tail of an
    array another one than in its blocks of eight numbers. Near 1 this is ``-2 artanh(s)`` with
    ``s = (x - 1) / (x + 1)``, by its series.

    Args:
        value: [...] float32, x, positive.

    Returns:
        log: [...] float32, with a relative error below 1e-6.
    """
    s = (value - 1.0) / (value + 1.0)
    square = ops.square(s)
    series = 1.0 + square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0)))
    near = ops.logical_and(value > 0.7, value < 1.4)
    return ops.where(near, -2.0 * s * series, -ops.log(value))


def gumbel(noise: Tensor) -> Tensor:
    """Turns uniform numbers into standard Gumbel numbers, ``-log(-log(u))``.

    ``argmax(logits + gumbel)`` is a sample of the categorical distribution (Gumbel 1954).

    Args:
        noise: [...] float32, u, uniform in [0, 1); limited to 1e-7 and 1 - 1e-7.

    Returns:
        gumbel: [...] float32, from -2.8 to 16.
    """
    return minus_log(minus_log(ops.clamp(noise, 1e-7, 1.0 - 1e-7)))


def straight_through(logits: Tensor) -> Tensor:
    """Returns the one-hot of the largest entry, with the gradient of the softmax.

    With `logits` + Gumbel numbers, over a temperature, it is the straight-through Gumbel softmax
    (Jang et al. 2017, arXiv 1611.01144, section 2.2).

    Args:
        logits: [..., n] float32.

    Returns:
        action: [..., n] float32, 1 at the largest entry and 0 elsewhere.
    """
    return one_hot_of_probs(logits.argmax(-1), ops.softmax(logits, -1))


def one_hot_of_probs(index: Tensor, probs: Tensor) -> Tensor:
    """Returns one-hots with the gradient of the probabilities, "straight through".

    Args:
        index: [...] int32, of the class that each has.
        probs: [..., n] float32, through which the gradient flows.

    Returns:
        hot: [..., n] float32, 1 at the index and 0 elsewhere.
    """
    hard = ops.one_hot(index, probs.shape[-1]).astype(probs.dtype)
    return ops.stop_gradient(hard - probs) + probs


def standard_normal(noise: Tensor) -> Tensor:
    """Turns pairs of uniform numbers into standard normal numbers (Box and Muller 1958).

    ``sqrt(-2 log(1 - u)) cos(2 pi w)``; 1 - u is never zero, because u < 1. The result depends on
    no network, so a rollout can compute it once for all its steps.

    Args:
        noise: [..., 2k] float32, uniform in [0, 1); the first k are u, the others w.

    Returns:
        normal: [..., k] float32, at most 5.8 standard deviations from zero (24-bit uniforms).
    """
    axis, size = noise.ndim - 1, noise.shape[-1] // 2
    if noise.shape[-1] % 2 == 1:
        raise ValueError(PAIRS)
    radius = ops.sqrt(-2.0 * ops.log(1.0 - ops.narrow(noise, axis, 0, size)))
    return radius * ops.cos((2.0 * math.pi) * ops.narrow(noise, axis, size, size))


def normal_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Samples a diagonal Gaussian.

    Args:
        mean: [..., k] float32, action units.
        log_std: [k] float32, the same in every state.
        noise: [..., 2k] float32, uniform in [0, 1).

    Returns:
        action: [..., k] float32, unbounded.
    """
    if noise.shape[-1] != 2 * mean.shape[-1]:
        raise ValueError(PAIRS)
    return mean + ops.exp(log_std) * standard_normal(noise)


def normal_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """Returns the log-density of a diagonal Gaussian, summed over the action's components.

    ``sum_k -z_k^2 / 2 - log_std_k - log(2 pi) / 2`` with ``z = (action - mean) exp(-log_std)``.

    Args:
        mean: [..., k] float32; the gradient flows through it.
        log_std: [k] float32, the same in every state; the gradient flows through it.
        action: [..., k] float32.

    Returns:
        log_prob: [...] float32, nats.
    """
    z = (action - mean) * ops.exp(-log_std)
    return -ops.sum(0.5 * ops.square(z) + (log_std + _HALF_LOG_2PI), -1)


def normal_entropy(log_std: Tensor) -> Tensor:
    """Returns the entropy ``sum_k log_std_k + log(2 pi e) / 2``, the same in every state.

    Args:
        log_std: [k] float32; the gradient flows through it.

    Returns:
        entropy: 0-d float32, nats.
    """
    return ops.sum(log_std + (_HALF_LOG_2PI + 0.5))


def normal_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """Returns the divergence KL(p || q) of diagonal Gaussians, summed over the components.

    ``sum_k log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2``, with ``s^2 / s^2`` and
    the logarithm taken together, so that it is 0 for equal arguments.

    Args:
        mean: [..., k] float32, of p; the gradient flows through it, as through the others.
        log_std: [..., k] or [k] float32, of p.
        other_mean: [..., k] float32, of q.
        other_log_std: [..., k] or [k] float32, of q.

    Returns:
        kl: [...] float32, nats.
    """
    wider = log_std - other_log_std
    z = (mean - other_mean) * ops.exp(-other_log_std)
    return ops.sum(0.5 * (ops.exp(2.0 * wider) - 1.0 + ops.square(z)) - wider, -1)


def squashed_normal_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple:
    """Samples a tanh-squashed diagonal Gaussian (Haarnoja et al. 2018, arXiv 1812.05905, app. C).

    ``log pi(a) = log N(u) - sum_k log(1 - tanh(u_k)^2)``, and ``log(1 - tanh(u)^2) = 2 (log 2 - u -
    softplus(-2 u))``, which is finite for every u.

    Args:
        mean: [..., k] float32; the gradient flows through it.
        log_std: [..., k] float32; the gradient flows through it.
        noise: [..., 2k] float32, uniform in [0, 1).

    Returns:
        action: [..., k] float32 in (-1, 1).
        log_prob: [...] float32, nats, the log-density of the squashed action.
    """
    if noise.shape[-1] != 2 * mean.shape[-1]:
        raise ValueError(PAIRS)
    normal = standard_normal(noise)
    wide = mean + ops.exp(log_std) * normal
    spread = 0.5 * ops.square(normal) + (log_std + _HALF_LOG_2PI)
    slope = 2.0 * (math.log(2.0) - wide - softplus(-2.0 * wide))
    return ops.tanh(wide), -ops.sum(spread + slope, -1)


class ActionScale(nn.Cell):
    """Scales actions in [-1, 1] to a bounded space.

    Args:
        space: of the environment's actions.
    """

    def __init__(self, space: Box):
        super().__init__()
        low, high = np.array(space.low, np.float32), np.array(space.high, np.float32)
        self.middle, self.half = Tensor((high + low) / 2), Tensor((high - low) / 2)

    def construct(self, action: Tensor) -> Tensor:
        """Returns ``middle + half * action``, [..., k] float32 from low to high."""
        return self.middle + self.half * action

    def inverse(self, action: Tensor) -> Tensor:
        """Returns actions of the space `[..., k]` scaled to [-1, 1]."""
        return (action - self.middle) / self.half


def softplus(x: Tensor) -> Tensor:
    """Returns ``log(1 + exp(x))``, without overflow."""
    return ops.relu(x) + ops.log(1.0 + ops.exp(-ops.abs(x)))
