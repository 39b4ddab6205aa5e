"""Layers whose weights have learnt noise, by which a value-based algorithm explores."""

import math

import numpy as np
from mindspore import Tensor, float32, nn, ops

from mindspore_rl.rl.action_distributions import standard_normal
from mindspore_rl.rl.networks import MLP


class NoisyMLP(nn.Cell):
    """An MLP with ReLU whose layers, except a first hidden one, are noisy.

    Fortunato et al. 2018, arXiv 1706.10295, with factorised noise (section 3, b): a layer is ``W x
    + b + e_out * (S (e_in * x) + s)``, where W, b, S and s are learnt, ``e = sign(z) sqrt(|z|)``
    and z is standard normal. Each row has a noise of its own.

    Args:
        in_size: features of the input.
        hidden: width of each hidden layer.
        out_size: features of the output.
        seed: the job's seed.
        name_index: number that is unique to this network in the job; selects its initial weights.
        spread: the initial S and s of a layer of p inputs are ``spread / sqrt(p)``.

    Attributes:
        noise_size: uniform numbers that a row's noise is computed from.
    """

    def __init__(
        self,
        in_size: int,
        hidden: tuple,
        out_size: int,
        seed: int,
        name_index: int,
        spread: float = 0.5,
    ):
        super().__init__()
        self.first = MLP(in_size, hidden[:1], None, 1.0, seed, name_index, "relu")
        sizes = (self.first.out_size, *hidden[1:], out_size)
        means, spreads, self.starts, self.noise_size = [], [], [], 0
        for i, (columns, rows) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            means.append(MLP(columns, (), rows, 1.0, seed, (name_index, i), initial="uniform"))
            begin = spread / math.sqrt(columns)
            weight, bias = np.full((rows, columns), begin), np.full(rows, begin)
            spreads.append(nn.Dense(columns, rows, Tensor(weight, float32), Tensor(bias, float32)))
            self.starts.append(self.noise_size // 2)
            self.noise_size += 2 * (columns + rows)
        self.sizes = sizes
        self.means, self.spreads = nn.CellList(means), nn.CellList(spreads)

    def construct(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Maps [N, in_size] float32 to [N, out_size].

        Args:
            x: [N, in_size] float32.
            noise: [N, noise_size] float32, uniform in [0, 1); None: no noise.
        """
        x = self.first(x)
        normal = None if noise is None else standard_normal(noise)
        for i in range(len(self.sizes) - 1):
            if i > 0:
                x = ops.relu(x)
            found = self.means[i](x)
            if normal is not None:
                middle = self.starts[i] + self.sizes[i]
                before = normal[:, self.starts[i] : middle]
                behind = normal[:, middle : middle + self.sizes[i + 1]]
                found = found + _factor(behind) * self.spreads[i](_factor(before) * x)
            x = found
        return x


def _factor(normal: Tensor) -> Tensor:
    return ops.sign(normal) * ops.sqrt(ops.abs(normal))
