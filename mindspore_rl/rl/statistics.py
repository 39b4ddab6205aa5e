"""Statistics over the samples of all workers."""

from typing import Any

from mindspore import Tensor, ops


def moments(msrl: Any, value: Tensor, keep: int = 0) -> tuple[Tensor, Tensor]:
    """Mean and variance over all samples of all workers, in two passes (Chan et al. 1983).

    The variance is a mean of squared deviations: in float32, mean of squares less square of mean is
    off by 4 % where the mean is a thousand deviations, and by 30 times where it is ten thousand.
    The mean of the deviations, zero but for rounding, corrects both.

    Args:
        msrl: the calls of the training loop.
        value: any float32 array.
        keep: trailing axes that stay, such as features.

    Returns:
        (mean, variance): each `[...]` float32 of the axes that stay; the biased variance.
    """
    about = msrl.mean(value, keep=keep)
    apart = value - about
    rest, square = msrl.mean(apart, ops.square(apart), keep=keep)
    return about + rest, ops.relu(square - ops.square(rest))
