"""Statistics over the samples of all workers, and running ones."""

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, float32, nn, ops


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


class RunningMeanStd(nn.Cell):
    """Mean and variance of all data seen, merged batch by batch (Chan et al. 1983); never trained.

    The statistics and the count are float32: batches of fewer than count / 2^24 samples no longer
    change them.

    Args:
        shape: shape of one sample; () for a scalar such as a return.
    """

    def __init__(self, shape: tuple = ()):
        super().__init__()
        self.mean = Parameter(Tensor(np.zeros(shape, np.float32)), name="mean", requires_grad=False)
        self.variance = Parameter(
            Tensor(np.ones(shape, np.float32)), name="variance", requires_grad=False
        )
        # Zero: with any weight on the initial values, a mean far from 0 would inflate the variance.
        self.count = Parameter(Tensor(0.0, float32), name="count", requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        """Returns ``normalise(x)``."""
        return self.normalise(x)

    def normalise(self, x: Tensor, clip: float = 10.0) -> Tensor:
        """Returns ``(x - mean) / sqrt(variance + 1e-8)``, clipped to [-clip, clip].

        Args:
            x: [..., *shape] float32.
            clip: largest magnitude, in standard deviations.

        Returns:
            normalised: [..., *shape] float32.
        """
        return ops.clamp((x - self.mean) / ops.sqrt(self.variance + 1e-8), -clip, clip)

    def merge(
        self, batch_mean: Tensor, batch_variance: Tensor, batch_count: Tensor | float
    ) -> None:
        """Merges a batch's moments into the statistics, as if all samples had been seen at once.

        Args:
            batch_mean: [*shape] float32.
            batch_variance: [*shape] float32, the biased one (divided by the count).
            batch_count: number of samples, 0-d float32 or a Python number.
        """
        total = self.count + batch_count
        share = batch_count / total
        delta = batch_mean - self.mean
        mean = self.mean + delta * share
        variance = self.variance + share * (
            batch_variance - self.variance + ops.square(delta) * (1.0 - share)
        )
        ops.assign(self.mean, mean)
        ops.assign(self.variance, variance)
        ops.assign(self.count, total)
