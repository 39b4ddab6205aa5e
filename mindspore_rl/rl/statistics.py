"""Statistics over the samples of all workers."""

from typing import Any

from mindspore import Tensor, ops


def moments(msrl: Any, value: Tensor, keep: int = 0) -> tuple[Tensor, Tensor]:
    """Returns mean and variance over all samples of all workers, in two passes (Chan et al. 1983).

    The variance is a mean of squared deviations. In float32, E[x^2] - E[x]^2 is off by 4 % if the
    mean is 1,000 standard deviations, and by a factor of 30 if it is 10,000. The mean of the
    deviations, zero up to rounding, corrects both results.

    Args:
        msrl: the calls of the training loop.
        value: any float32 array.
        keep: number of trailing axes that are not reduced, such as features.

    Returns:
        (mean, variance): each `[...]` float32 over the kept axes; the variance is the biased one.
    """
    about = msrl.mean(value, keep=keep)
    apart = value - about
    rest, square = msrl.mean(apart, ops.square(apart), keep=keep)
    return about + rest, ops.relu(square - ops.square(rest))
