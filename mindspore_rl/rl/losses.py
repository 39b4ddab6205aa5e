"""Loss terms of one sample each: [N] in, [N] out.

Nothing here reduces over samples. The mean is taken where the number of samples of the whole job is
known, so that a minibatch gives the same gradient on one rank as on many.
"""

import math

from mindspore import Tensor, float32, ops
from mindspore.ops import operations as P

from mindspore_rl.rl.operators import each

_half_square_sum, _multiply = P.L2Loss(), P.Mul()


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip_coef: float
) -> Tensor:
    """Returns PPO's clipped policy loss (Schulman et al. 2017, eq. 7, negated).

    ``-min(r A, clip(r, 1 - c, 1 + c) A) = max(-r A, -A - c |A|)`` with ``r = exp(log_prob -
    old_log_prob)``. The clipped branch of the right side does not contain r, which leaves less to
    differentiate.

    Args:
        log_prob: [N] float32, under the policy that learns; the gradient flows through it.
        old_log_prob: [N] float32, under the policy that acted.
        advantage: [N] float32, normalised or not.
        clip_coef: half width c of the interval, > 0.

    Returns:
        loss: [N] float32.
    """
    loss = -advantage
    bound = loss - clip_coef * ops.abs(advantage)
    return ops.maximum(ops.exp(log_prob - old_log_prob) * loss, bound)


def value_loss(value: Tensor, returns: Tensor) -> Tensor:
    """Returns half the squared error, ``(value - returns)^2 / 2``.

    Args:
        value: [N] float32; the gradient flows through it.
        returns: [N] float32, the target.

    Returns:
        loss: [N] float32, squared reward units.
    """
    return 0.5 * ops.square(value - returns)


def clipped_value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, clip_coef: float
) -> Tensor:
    """Returns the value loss with the value clipped around the old one (OpenAI baselines, ppo2).

    ``max((v - R)^2, (v_old + clip(v - v_old, -c, c) - R)^2) / 2``.

    Args:
        value: [N] float32; the gradient flows through it.
        old_value: [N] float32, the value when the sample was collected.
        returns: [N] float32, the target.
        clip_coef: half width c of the interval, > 0, in the value's units.

    Returns:
        loss: [N] float32, squared reward units.
    """
    clipped = old_value + ops.clamp(value - old_value, -clip_coef, clip_coef)
    return 0.5 * ops.maximum(ops.square(value - returns), ops.square(clipped - returns))


def approx_kl(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Returns the k3 estimate of KL(old || new), unbiased and never negative (Schulman 2020).

    ``(r - 1) - log r`` with ``log r = log_prob - old_log_prob``.

    Args:
        log_prob: [N] float32, under the policy that learns.
        old_log_prob: [N] float32, under the policy that acted.

    Returns:
        kl: [N] float32, nats.
    """
    log_ratio = log_prob - old_log_prob
    return ops.expm1(log_ratio) - log_ratio


def clip_fraction(log_prob: Tensor, old_log_prob: Tensor, clip_coef: float) -> Tensor:
    """Returns 1 where the probability ratio lies outside [1 - clip_coef, 1 + clip_coef], else 0.

    Args:
        log_prob: [N] float32, under the policy that learns.
        old_log_prob: [N] float32, under the policy that acted.
        clip_coef: half width of the interval, > 0.

    Returns:
        clipped: [N] float32, 0 or 1; its mean is the fraction.
    """
    return ops.cast(ops.abs(ops.expm1(log_prob - old_log_prob)) > clip_coef, float32)


def clip_by_global_norm(grads: tuple, max_norm: float) -> tuple:
    """Scales gradients by one factor to a global norm of at most max_norm (Pascanu et al. 2013).

    Args:
        grads: tuple or list of float32 Tensors of any shapes.
        max_norm: largest norm allowed, > 0.

    Returns:
        (clipped, norm): the scaled tuple, and the 0-d float32 norm before scaling.
    """
    grads = tuple(grads)  # perhaps a list
    norm = ops.sqrt(ops.addn(each(_half_square_sum, grads)) * 2.0)
    scale = ops.reciprocal(ops.maximum(norm * (1.0 / max_norm), 1.0))  # exactly 1 below max_norm
    return each(_multiply, grads, (scale,) * len(grads)), norm


def huber_loss(value: Tensor, target: Tensor) -> Tensor:
    """Returns half the squared error, continued linearly beyond an error of 1 (Huber 1964).

    Args:
        value: [N] float32; the gradient flows through it.
        target: [N] float32.

    Returns:
        loss: [N] float32.
    """
    error = ops.abs(value - target)
    quadratic = ops.minimum(error, 1.0)
    return 0.5 * ops.square(quadratic) + (error - quadratic)


def sequence_priority(error: Tensor, eta: float) -> Tensor:
    """Mixes the largest and the mean error of sequences (Kapturowski et al. 2019, section 2.3).

    ``eta max_t error_t + (1 - eta) mean_t error_t``.

    Args:
        error: [N, T] float32, the size of each step's error.
        eta: weight of the maximum, in [0, 1].

    Returns:
        priority: [N] float32.
    """
    return eta * ops.amax(error, 1) + (1.0 - eta) * error.mean(1)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Returns the asymmetric squared error (Kostrikov et al. 2021, arXiv 2110.06169, eq. 5).

    ``|tau - 1(u < 0)| u^2`` with ``u = error``: the value that minimises its mean is the expectile
    tau of the targets, their mean for 0.5 and near their maximum for 1.

    Args:
        error: [N] float32, target minus value; the gradient flows through it.
        expectile: tau, in (0, 1).

    Returns:
        loss: [N] float32.
    """
    return ops.where(error < 0, 1.0 - expectile, expectile) * ops.square(error)


def advantage_weight(advantage: Tensor, beta: float, most: float) -> Tensor:
    """Returns weights of cloned actions (Peng et al. 2019, arXiv 1910.00177, eq. 8).

    ``min(exp(beta A), most)``; the exponent is bounded first, so that it does not overflow.

    Args:
        advantage: [N] float32.
        beta: inverse temperature, at least 0.
        most: bound of a weight, > 0.

    Returns:
        weight: [N] float32, above 0.
    """
    return ops.exp(ops.clamp(beta * advantage, max=math.log(most)))


def conservative_gap(sampled: Tensor, log_density: Tensor, value: Tensor) -> Tensor:
    """Returns CQL's regulariser (Kumar et al. 2020, arXiv 2006.04779, eq. 4 and appendix F).

    ``log(1/m sum_j exp(Q_j - log mu_j)) - Q(s, a)``: the first term estimates ``log integral exp
    Q(s, .)`` from actions j with the density mu_j.

    Args:
        sampled: [N, m] float32, values Q_j of the sampled actions; the gradient flows through them.
        log_density: [N, m] float32, log mu_j of each.
        value: [N] float32, values of the data's actions; the gradient flows through them.

    Returns:
        gap: [N] float32, reward units.
    """
    given = sampled - log_density
    most = ops.stop_gradient(ops.amax(given, 1))
    total = ops.exp(given - most.expand_dims(1)).mean(1)
    return most + ops.log(total) - value


def cloning_loss(
    chosen: Tensor, action: Tensor, value: Tensor, size: Tensor, alpha: float
) -> Tensor:
    """Returns TD3+BC's loss of the policy (Fujimoto and Gu 2021, arXiv 2106.06860, eq. 3 and 5).

    ``-lambda Q(s, pi(s)) + (pi(s) - a)^2`` with ``lambda = alpha / mean |Q|``; the square is the
    mean over the action's components.

    Args:
        chosen: [N, k] float32, the policy's action; the gradient flows through it.
        action: [N, k] float32, the data's.
        value: [N] float32, of the policy's action; the gradient flows through it.
        size: 0-d float32, the mean of |Q| over the batch, > 0.
        alpha: weight of the value.

    Returns:
        loss: [N] float32.
    """
    return ops.square(chosen - action).mean(-1) - (alpha / size) * value


def counterfactual_advantage(value: Tensor, logits: Tensor, action: Tensor) -> Tensor:
    """Returns the advantage of an agent's action while the other agents keep theirs.

    ``A(s, u) = Q(s, u) - sum_a pi(a) Q(s, (u_others, a))``: its baseline is the mean over the
    agent's own actions (Foerster et al. 2018, arXiv 1705.08926, eq. 4).

    Args:
        value: [..., actions] float32, Q of each action of the agent, reward units.
        logits: [..., actions] float32, of the agent's policy pi.
        action: [...] int32, which the agent took.

    Returns:
        advantage: [...] float32, reward units; its mean over the policy's actions is 0.
    """
    weight = ops.one_hot(action, value.shape[-1]) - ops.softmax(logits, -1)
    return (weight * value).sum(-1)
