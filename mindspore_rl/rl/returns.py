"""Returns and advantages of a rollout [T, B] (time-major), without a loop over time in the graph.

Every quantity here is the solution of a linear recurrence ``y_t = b_t + a_t y_{t+1}``. A step is
the affine map ``y -> b_t + a_t y`` and composing maps is associative, so all T of them are solved
in ceil(log2 T) rounds of doubling (Hillis and Steele 1986; Blelloch 1990): five operators a round,
where a loop pays its operators T times.

``terminated`` and ``truncated`` never mean the same thing: a termination forbids the bootstrap, a
truncation keeps it, and either one stops the recurrence. The last row of a rollout bootstraps as a
truncated episode does.

All results are data for the losses; no gradient is meant to flow through them.
"""

import numpy as np
from mindspore import Tensor, ops
from mindspore.ops.primitive import constexpr


@constexpr
def _doublings(length: int) -> tuple:
    """Returns the distances 1, 2, 4, ... below ``length``."""
    return tuple(2**i for i in range((length - 1).bit_length()))


@constexpr
def _rows_at(length: int, distance: int) -> Tensor:
    """Returns [T] int32, the row ``distance`` after each row, at most the last row."""
    return Tensor(np.minimum(np.arange(length) + distance, length - 1).astype(np.int32))


@constexpr
def _backwards(length: int) -> Tensor:
    """Returns [T] int32, the rows from last to first."""
    return Tensor(np.arange(length)[::-1].astype(np.int32))


@constexpr
def _all_rows_but_last(shape: tuple) -> Tensor:
    """Returns [T, 1, ...] float32, 0 at the last row and 1 elsewhere."""
    mask = np.ones((shape[0],) + (1,) * (len(shape) - 1), np.float32)
    mask[-1] = 0.0
    return Tensor(mask)


def _linear_scan(b: Tensor, a: Tensor) -> Tensor:
    """Solves ``y_t = b_t + a_t y_{t + 1}`` for all t at once, with y = 0 beyond the end.

    Invariant: ``y_t = b_t + a_t y_{t + distance}`` before the round for that distance. A row whose
    map reaches past the end has a = 0 by then, so it may read any row: it reads the last one. The
    rows are read by a Gather with constant indices; Pad with a negative width would be one operator
    too, but is wrong on the CPU from its second launch on.

    Args:
        b: [T, ...] float32, the inhomogeneous term.
        a: [T, ...] float32, the factor, of b's shape; its last row has no effect.

    Returns:
        y: [T, ...] float32.
    """
    a = a * _all_rows_but_last(a.shape)
    for distance in _doublings(b.shape[0]):
        rows = _rows_at(b.shape[0], distance)
        b = b + a * ops.gather(b, rows, 0)
        a = a * ops.gather(a, rows, 0)
    return b


def gae(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple:
    """Estimates the generalised advantage (Schulman et al. 2016, eq. 16).

    With agents the arrays are [T, B, A], and terminated and truncated [T, B, 1].

    ``delta_t = r_t + gamma (1 - terminated_t) V(final_obs_t) - V(obs_t)`` and
    ``A_t = delta_t + gamma gae_lambda (1 - terminated_t) (1 - truncated_t) A_{t+1}``, with ``A_T =
    0``.

    Args:
        reward: [T, B] float32, reward units.
        value: [T, B] float32, V(obs_t).
        final_value: [T, B] float32, the value of step t's true successor: at an episode's end the
            last observation of that episode, not the first one after the reset.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        gamma: discount of a step, in [0, 1].
        gae_lambda: trace decay, in [0, 1].

    Returns:
        (advantage, returns): each [T, B] float32, where returns = advantage + value is the value's
            target.
    """
    bootstrap = ops.where(terminated, 0.0, final_value)
    delta = reward + gamma * bootstrap - value
    trace = ops.where(ops.logical_or(terminated, truncated), 0.0, gamma * gae_lambda)
    advantage = _linear_scan(delta, trace)
    return advantage, advantage + value


def discounted_income(reward: Tensor, before: Tensor, gamma: float) -> Tensor:
    """Discounts the rewards up to each step, forwards in time.

    ``I_t = r_t + gamma I_{t-1}``, whose deviation scales rewards (Burda et al. 2018, section 2.4).

    Args:
        reward: [T, B] float32, reward units.
        before: [B] float32, the income before the first step.
        gamma: discount of a step, in [0, 1].

    Returns:
        income: [T, B] float32, reward units; its last row is ``before`` of the next rollout.
    """
    backwards = _backwards(reward.shape[0])
    late = ops.concat((gamma * before.expand_dims(0), ops.zeros_like(reward[1:])), 0)
    income = ops.gather(reward + late, backwards, 0)
    return ops.gather(_linear_scan(income, ops.full_like(income, gamma)), backwards, 0)


def lambda_returns(
    reward: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float = 1.0,
) -> Tensor:
    """Returns the lambda-returns; gae_lambda = 1 gives A2C's n-step returns (Mnih et al. 2016).

    ``R_t = r_t + gamma (1 - terminated_t) ((1 - gae_lambda) V(final_obs_t) + gae_lambda R_{t+1})``
    inside an episode, and ``R_t = r_t + gamma (1 - terminated_t) V(final_obs_t)`` where the episode
    or the rollout ends at t (Sutton and Barto 2018, eq. 12.18, with truncation).

    Args:
        reward: [T, B] float32, reward units.
        final_value: [T, B] float32, the value of step t's true successor (see ``gae``).
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        gamma: discount of a step, in [0, 1].
        gae_lambda: trace decay, in [0, 1].

    Returns:
        returns: [T, B] float32, reward units.
    """
    trace = ops.where(ops.logical_or(terminated, truncated), 0.0, gamma * gae_lambda)
    trace = trace * _all_rows_but_last(trace.shape)  # the rollout ends at the last row
    bootstrap = ops.where(terminated, 0.0, final_value)
    return _linear_scan(reward + gamma * bootstrap - trace * final_value, trace)


def imagined_returns(reward: Tensor, discount: Tensor, value: Tensor, gae_lambda: float) -> Tensor:
    """Returns the lambda-returns of imagined steps (Hafner et al. 2023, arXiv 2301.04104).

    ``R_t = r_t + d_t ((1 - gae_lambda) v_{t+1} + gae_lambda R_{t+1})`` and ``R_T = v_T``.

    Args:
        reward: [T, N] float32, reward units.
        discount: [T, N] float32, of what follows each step: gamma times the probability that the
            episode goes on.
        value: [T, N] float32, v_{t+1}, of the state after each step.
        gae_lambda: trace decay, in [0, 1].

    Returns:
        returns: [T, N] float32, reward units.
    """
    trace = gae_lambda * discount * _all_rows_but_last(discount.shape)
    return _linear_scan(reward + (discount - trace) * value, trace)


def vtrace(
    log_prob: Tensor,
    old_log_prob: Tensor,
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple:
    """Computes V-trace targets of data from an older policy (Espeholt et al. 2018, eq. 1).

    ``v_t = V(obs_t) + sum_k gamma^k (c_t ... c_{t+k-1}) rho_{t+k} delta_{t+k}`` over the rest of
    the episode or of the rollout, with ``delta_t = r_t + gamma (1 - terminated_t) V(final_obs_t) -
    V(obs_t)``, ``rho_t = min(rho_bar, ratio_t)``, ``c_t = gae_lambda min(c_bar, ratio_t)`` and
    ``ratio_t = exp(log_prob_t - old_log_prob_t)``. The advantage is that of section 4.2, ``rho_t
    (r_t + gamma q_t - V(obs_t))``, where q_t is ``gae_lambda v_{t+1} + (1 - gae_lambda)
    V(obs_{t+1})`` inside an episode, and ``(1 - terminated_t) V(final_obs_t)`` where the episode or
    the rollout ends at t. If all ratios are 1 and neither bound is below 1, both are those of
    ``gae``.

    Args:
        log_prob: [T, B] float32, of the actions under the policy that learns.
        old_log_prob: [T, B] float32, under the policy that acted.
        reward: [T, B] float32, reward units.
        value: [T, B] float32, V(obs_t).
        final_value: [T, B] float32, the value of step t's true successor (see ``gae``).
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        gamma: discount of a step, in [0, 1].
        gae_lambda: trace decay, in [0, 1]; 1 is the paper's equation, less is its remark 2.
        rho_bar: bound of rho, > 0; infinity learns the value of the policy that learns.
        c_bar: bound of c, > 0; smaller has less variance and learns more slowly.

    Returns:
        (returns, advantage): each [T, B] float32, reward units; returns is the value's target.
    """
    ratio = ops.exp(log_prob - old_log_prob)
    rho, c = ops.minimum(ratio, rho_bar), ops.minimum(ratio, c_bar)
    delta = reward + gamma * ops.where(terminated, 0.0, final_value) - value
    trace = ops.where(ops.logical_or(terminated, truncated), 0.0, gamma * gae_lambda)
    trace = trace * _all_rows_but_last(trace.shape)  # the rollout ends at the last row
    error = _linear_scan(rho * delta, c * trace)
    following = ops.gather(error, _rows_at(error.shape[0], 1), 0)
    return value + error, rho * (delta + trace * following)


def n_step(reward: Tensor, ended: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Discounts the rewards of windows until they end (Sutton and Barto 2018, eq. 7.1).

    The target of the first state's value is ``total + factor V(final_obs at last)``, without the
    second term where the last step terminated.

    Args:
        reward: [N, n] float32, of n steps one after the other, reward units.
        ended: [N, n] bool, terminated or truncated at that step.
        gamma: discount of a step, in [0, 1].

    Returns:
        (total, last, factor): ``sum gamma^j r_j`` up to the first step that ended, or to the
            window's last, [N] float32; 1 at that step and 0 elsewhere, [N, n] float32; gamma to
            the number of steps, [N] float32.
    """
    steps, going, total, factor = reward.shape[1], ops.ones_like(reward[:, 0]), 0.0, 0.0
    lasts = []
    for step in range(steps):
        total = total + gamma**step * going * reward[:, step]
        ends = ended[:, step].astype(reward.dtype) if step < steps - 1 else ops.ones_like(going)
        last = going * ends
        factor = factor + gamma ** (step + 1) * last
        going = going - last
        lasts.append(last)
    return total, ops.stack(lasts, 1), factor


def last_step(last: Tensor, terminated: Tensor, final_obs: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the observation that a window leads to, and whether the episode goes on there.

    Args:
        last: [N, n] float32, 1 at the window's last step, see ``n_step``.
        terminated: [N, n] bool.
        final_obs: [N, n, ...] float32, the true successor of each step.

    Returns:
        (final_obs, going_on): [N, size] float32, flat; [N] float32, 0 if the step terminated.
    """
    flat = final_obs.reshape((*last.shape, -1))
    flat = (last.expand_dims(-1) * flat).sum(1)
    return flat, 1.0 - (last * terminated.astype("float32")).sum(1)


def n_step_returns(
    reward: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    steps: int,
) -> Tensor:
    """Returns the n-step returns of every step of a sequence (Sutton and Barto 2018, eq. 7.1).

    ``G^1_t = r_t + gamma (1 - terminated_t) V(final_obs_t)``; ``G^n_t = r_t + gamma G^{n-1}_{t+1}``
    inside an episode, and ``G^1_t`` where the episode or the sequence ends at t.

    Args:
        reward: [T, B] float32, reward units.
        final_value: [T, B] float32, the value of step t's true successor (see ``gae``).
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        gamma: discount of a step, in [0, 1]; in [-1, 0] where two players move in turn, and a
            reward or value is that of the player who moves.
        steps: n, at least 1.

    Returns:
        returns: [T, B] float32, reward units.
    """
    nearest = reward + gamma * ops.where(terminated, 0.0, final_value)
    going_on = ops.where(ops.logical_or(terminated, truncated), 0.0, gamma)
    going_on = going_on * _all_rows_but_last(going_on.shape)
    ending = nearest - going_on * final_value  # the reward alone inside an episode
    returns = nearest
    for _ in range(steps - 1):
        returns = ending + going_on * ops.gather(returns, _rows_at(returns.shape[0], 1), 0)
    return returns


def rescaled(value: Tensor, epsilon: float) -> Tensor:
    """Rescales values for large rewards (Pohlen et al. 2018, arXiv 1805.11593, proposition A.2).

    ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x``.

    Args:
        value: float32, reward units.
        epsilon: > 0, the slope far away from 0.
    """
    size = ops.abs(value)
    return ops.sign(value) * size / (ops.sqrt(size + 1.0) + 1.0) + epsilon * value


def unscaled(value: Tensor, epsilon: float) -> Tensor:
    """Returns h^-1 of a value, see ``rescaled``.

    ``sign(x) (p^2 - 1)`` with ``p = (sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon)``,
    whose numerator loses no digits in the form used here.
    """
    size = ops.abs(value) + 1.0 + epsilon
    root = 2.0 * size / (ops.sqrt(1.0 + 4.0 * epsilon * size) + 1.0)
    return ops.sign(value) * (root * root - 1.0)


def munchausen_reward(
    value: Tensor, action: Tensor, scale: float, temperature: float, lowest: float = -1.0
) -> Tensor:
    """Returns what Munchausen Q-learning adds to a reward (Vieillard et al. 2020).

    arXiv 2007.14430: ``scale clip(temperature log pi(action), lowest, 0)`` with ``pi =
    softmax(value / temperature)``.

    Args:
        value: [N, actions] float32, of the state in which the action was taken.
        action: [N] int32.
        scale: the paper's alpha, in [0, 1].
        temperature: the paper's tau, > 0, reward units.
        lowest: bound of the logarithm, < 0, reward units.

    Returns:
        reward: [N] float32, reward units, at most 0.
    """
    log_policy = temperature * ops.log_softmax(value / temperature, -1)
    taken = (log_policy * ops.one_hot(action, value.shape[-1])).sum(-1)
    return scale * ops.clamp(taken, lowest, 0.0)
