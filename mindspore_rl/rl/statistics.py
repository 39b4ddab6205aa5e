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


def group_means(msrl: Any, value: Tensor, group: Tensor, groups: int) -> Tensor:
    """Returns the mean of a value over the environments of each group, the same on all workers.

    Such numbers may be sorted and compared: the fitness of each member of a population, say, whose
    environments are those with `msrl.env_index() % members == member`.

    Args:
        msrl: the calls of the training loop.
        value: `[B]` float32.
        group: `[B]` int32, the group of each environment, 0 to `groups - 1`.
        groups: the number of groups, which must not depend on the number of environments.

    Returns:
        `[groups]` float32; 0 for a group without environments.
    """
    own = ops.expand_dims(group, 1) == ops.arange(groups)
    values = ops.where(own, ops.expand_dims(value, 1), 0.0)
    total, count = msrl.sum(values, own.astype(value.dtype), keep=1)
    return total / ops.maximum(count, 1.0)
