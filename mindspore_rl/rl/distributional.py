"""Losses of distributions of returns: quantiles, or probabilities of fixed returns ("atoms")."""

import numpy as np
from mindspore import Tensor, ops
from mindspore.ops.primitive import constexpr

from mindspore_rl.rl.losses import huber_loss


@constexpr
def _levels(count: int) -> Tensor:
    """Returns the middles of `count` equal parts of [0, 1], [count, 1] float32."""
    return Tensor(((np.arange(count) + 0.5) / count).astype(np.float32).reshape(-1, 1))


def quantile_loss(value: Tensor, target: Tensor, levels: Tensor | None = None) -> Tensor:
    """Returns the quantile regression loss (Dabney et al. 2017, arXiv 1710.10044, eq. 10).

    ``sum_i mean_j |tau_i - 1[target_j < value_i]| huber(target_j - value_i)`` with the levels
    ``tau_i = (i + 1/2) / k``, or with given ones (IQN, Dabney et al. 2018, arXiv 1806.06923,
    eq. 3).

    Args:
        value: [N, k] float32, the quantiles of k levels; the gradient flows through them.
        target: [N, m] float32, samples of the return, equally probable.
        levels: [N, k] float32 in [0, 1); None: the middles of k equal parts of [0, 1].

    Returns:
        loss: [N] float32.
    """
    value, target = value.expand_dims(2), target.expand_dims(1)
    below = (target < value).astype(value.dtype)
    known = _levels(value.shape[1]) if levels is None else levels.expand_dims(2)
    weight = ops.abs(known - below)
    return (weight * huber_loss(value, target)).mean(2).sum(1)


@constexpr
def _frequencies(count: int) -> Tensor:
    return Tensor((np.pi * np.arange(count)).astype(np.float32))


def cosines(levels: Tensor, count: int) -> Tensor:
    """Returns ``cos(pi i tau)``, i = 0 to count - 1 (Dabney et al. 2018, arXiv 1806.06923, eq. 4).

    Args:
        levels: [N, k] float32, tau in [0, 1].
        count: number of cosines.

    Returns:
        features: [N, k, count] float32.
    """
    return ops.cos(levels.expand_dims(2) * _frequencies(count))


def lowest_quantiles(critics: tuple, dropped: int) -> Tensor:
    """Returns all critics' quantiles without the highest (TQC, Kuznetsov et al. 2020).

    Args:
        critics: tuple of [N, k] float32, quantiles by each critic.
        dropped: number of quantiles that are left out, for each critic, less than k.

    Returns:
        quantiles: [N, len(critics) * (k - dropped)] float32, ascending.
    """
    ordered, _ = ops.sort(ops.concat(critics, 1), 1)
    return ordered[:, : ordered.shape[1] - dropped * len(critics)]


def project(probability: Tensor, place: Tensor, atoms: Tensor) -> Tensor:
    """Moves probabilities to the nearest atoms (Bellemare et al. 2017, arXiv 1707.06887, eq. 7).

    ``m_j = sum_i p_i [1 - |clip(x_i) - z_j| / (z_1 - z_0)]``, [.] not below 0 and clip(.) between
    the first and the last atom.

    Args:
        probability: [N, m] float32, which sum to 1.
        place: [N, m] float32, the return of each.
        atoms: [k] float32, evenly spaced returns z, k > 1.

    Returns:
        probability: [N, k] float32, of the atoms.
    """
    count = atoms.shape[0]
    step = (atoms[count - 1] - atoms[0]) / (count - 1)
    place = ops.minimum(ops.maximum(place, atoms[0]), atoms[count - 1])
    share = ops.relu(1.0 - ops.abs(place.expand_dims(2) - atoms) / step)
    return (probability.expand_dims(2) * share).sum(1)


def two_hot(value: Tensor, atoms: Tensor) -> Tensor:
    """Returns probabilities of the two nearest atoms, whose expectation is the value.

    Bellemare et al. 2017, eq. 7, of one return (Hafner et al. 2023, arXiv 2301.04104).

    Args:
        value: [N] float32; beyond the atoms: the nearest of them.
        atoms: [k] float32, evenly spaced, k > 1.

    Returns:
        probability: [N, k] float32.
    """
    place = value.expand_dims(1)
    return project(ops.ones_like(place), place, atoms)


def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Returns the divergence KL(target || softmax(logits)), of which C51 learns.

    Args:
        logits: [N, k] float32; the gradient flows through them.
        target: [N, k] float32, probabilities.

    Returns:
        loss: [N] float32, nats; never negative, up to rounding.
    """
    own = ops.log(ops.maximum(target, 1e-8))
    return (target * (own - ops.log_softmax(logits, -1))).sum(-1)
