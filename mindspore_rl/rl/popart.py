"""Values that are learnt at the scale of 1, whatever that of the returns."""

from mindspore import Tensor, nn, ops

from mindspore_rl.rl.statistics import RunningMeanStd


class PopArt(nn.Cell):
    """Mean and deviation of returns, which scale the outputs of a value function.

    "Preserving outputs precisely, while adaptively rescaling targets": van Hasselt et al. 2016
    (arXiv 1602.07714), section 2; Hessel et al. 2019 (arXiv 1809.04474).

    Args:
        rate: weight of a batch in the statistics, in (0, 1], once 1 / rate batches were seen;
            before that all batches count equally.
    """

    def __init__(self, rate: float):
        super().__init__()
        self.statistics, self.most = RunningMeanStd(), 1.0 / rate - 1.0

    def deviation(self) -> Tensor:
        """Returns the deviation of the returns, 0-d float32, at least 1e-4."""
        return ops.sqrt(ops.maximum(self.statistics.variance, 1e-8))

    def scaled(self, output: Tensor) -> Tensor:
        """Returns values in reward units for outputs [...] of the value function."""
        return self.deviation() * output + self.statistics.mean

    def normalised(self, value: Tensor) -> Tensor:
        """Returns what the value function should put out for values [...] in reward units."""
        return (value - self.statistics.mean) / self.deviation()

    def update(self, head: tuple, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Merges a batch's moments, and changes the last layer so that no value changes.

        ``W' = s W / s'`` and ``b' = (s b + m - m') / s'`` (proposition 1 of van Hasselt et al.).

        Args:
            head: weight [1, k] and bias [1] of the last layer.
            mean: 0-d float32, of the batch's returns.
            variance: 0-d float32, likewise.
            count: 0-d float32, the number of returns.
        """
        weight, bias = head[0] * self.deviation(), self.scaled(head[1])
        self.statistics.merge(mean, variance, count)
        known = self.statistics.count
        ops.assign(known, ops.minimum(known, self.most * count))
        ops.assign(head[0], weight / self.deviation())
        ops.assign(head[1], self.normalised(bias))
