"""Torsos and heads, with weights that are a pure function of (seed, index)."""

import functools
import math

import numpy as np
from mindspore import Tensor, float32, nn, ops

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.statistics import RunningMeanStd  # noqa: F401  (programs import it from here)

_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


def orthogonal(shape: tuple, gain: float, seed: int, index: int | tuple) -> np.ndarray:
    """Returns a matrix with orthonormal rows or columns, whichever are fewer, times gain.

    Args:
        shape: (rows, columns).
        gain: factor on the orthonormal matrix.
        seed: the job's seed, >= 0.
        index: number >= 0, or tuple of such, that is unique to this matrix in the job.

    Returns:
        weight: [rows, columns] float32; the same on every rank.
    """
    q = _orthonormal(*shape, *((seed, *index) if isinstance(index, tuple) else (seed, index)))
    return np.ascontiguousarray(gain * q, dtype=np.float32)


@functools.lru_cache(maxsize=32)
def _orthonormal(rows: int, columns: int, *seed: int) -> np.ndarray:
    """Draws the matrix. A trainer is made several times while its program is analysed."""
    rng = np.random.default_rng(seed)
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))  # uniform over orthogonal matrices, whatever LAPACK's signs
    return q if rows >= columns else q.T


def _orthogonal_layer(shape: tuple, gain: float, seed: int, index: tuple) -> tuple:
    return orthogonal(shape, gain, seed, index), np.zeros(shape[0], np.float32)


def _uniform_layer(shape: tuple, gain: float, seed: int, index: tuple) -> tuple:
    rng, bound = np.random.default_rng((seed, *index)), gain / math.sqrt(shape[1])
    weight, bias = rng.uniform(-bound, bound, shape), rng.uniform(-bound, bound, shape[0])
    return weight.astype(np.float32), bias.astype(np.float32)


_INITIAL = {"orthogonal": (_orthogonal_layer, math.sqrt(2.0)), "uniform": (_uniform_layer, 1.0)}
"""Initialisers of a layer's weights and biases, each with the gain of hidden layers."""


class MLP(nn.Cell):
    """Fully connected layers with an activation between them.

    A layer is MatMul then BiasAdd (``nn.Dense`` on a matrix): 13 us at 64x64x64 on the CPU, as fast
    as ``addmm``.

    Args:
        in_size: features of the input.
        hidden: width of each hidden layer; () gives a linear map.
        out_size: features of the output; None: there is no layer after the hidden ones.
        out_gain: factor on the last layer's weights: with orthogonal ones 0.01 for a policy, 1 for
            a value (Andrychowicz et al. 2021).
        seed: the job's seed.
        name_index: number, or tuple of such, that is unique to this network in the job; selects its
            initial weights.
        activation: "tanh" or "relu", after each hidden layer.
        initial: "orthogonal": weights of gain sqrt(2), zero biases; or "uniform": both within
            ``1 / sqrt(columns)``, smaller values, with which SAC and TD3 learn much faster.

    Attributes:
        out_size: features of the output.

    Raises:
        ValueError: the activation or the initialiser is unknown.
    """

    def __init__(
        self,
        in_size: int,
        hidden: tuple,
        out_size: int | None,
        out_gain: float,
        seed: int,
        name_index: int | tuple,
        activation: str = "tanh",
        initial: str = "orthogonal",
    ):
        super().__init__()
        for name, value, known in (
            ("activation", activation, _ACTIVATIONS),
            ("initial", initial, _INITIAL),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, but must be one of {sorted(known)}.")
        begin, gain = _INITIAL[initial]
        sizes = (in_size, *hidden, *(() if out_size is None else (out_size,)))
        self.out_size = sizes[-1]
        layers = []
        for i, (columns, rows) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            last = i == len(hidden)
            weight, bias = begin((rows, columns), out_gain if last else gain, seed, (name_index, i))
            layers.append(nn.Dense(columns, rows, Tensor(weight), Tensor(bias)))
            if not last:
                layers.append(_ACTIVATIONS[activation]())
        self.layers = nn.SequentialCell(layers)

    def construct(self, x: Tensor, shared: Tensor | None = None) -> Tensor:
        """Maps rows to rows.

        Args:
            x: [N, in_size] float32; with `shared` [n * A, in_size - k], A consecutive rows of each
                group.
            shared: [n, k] float32, the last k features, common to all rows of a group; the first
                layer is applied to them once per group.

        Returns:
            [N, out_size] float32.
        """
        if shared is None:
            return self.layers(x)
        first, size = self.layers.cell_list[0], x.shape[-1]
        # Not `weight[:, :size]`: MindSpore's compiled graph reads that once, even if an optimiser
        # changes the weight before the second time.
        rest = first.weight.shape[1] - size
        own = first.matmul(x, ops.narrow(first.weight, 1, 0, size)) + first.bias
        both = first.matmul(shared, ops.narrow(first.weight, 1, size, rest))
        out = own.reshape((shared.shape[0], -1, own.shape[-1])) + ops.expand_dims(both, 1)
        out = out.reshape(own.shape)
        for layer in self.layers.cell_list[1:]:
            out = layer(out)
        return out


def flat_size(spec: EnvironmentSpec) -> int:
    """Returns the number of features of an observation, for networks without convolutions.

    The entries of an action mask do not count, see `action_masks`.

    Raises:
        ConfigError: observations are images.
    """
    if spec.images:
        raise ConfigError(
            f"{spec.name} gives images, uint8 [C, H, W] = {list(spec.obs_shape)}, and layers "
            "without convolutions know no neighbours: train ppo, a2c or impala with torso=cnn or "
            "torso=impala, or give an environment whose observations are numbers"
        )
    return math.prod(spec.obs_shape) - spec.mask_size


class Residual(nn.Cell):
    """Two convolutions with a residual connection (Espeholt et al. 2018).

    Args:
        channels: channels of the image.
        seed: the job's seed.
        name_index: numbers that are unique to these weights in the job.
    """

    def __init__(self, channels: int, seed: int, name_index: tuple):
        super().__init__()
        self.first = _convolution(channels, channels, 3, 1, "same", seed, (*name_index, 0))
        self.second = _convolution(channels, channels, 3, 1, "same", seed, (*name_index, 1))

    def construct(self, x: Tensor) -> Tensor:
        """Maps [N, C, H, W] float32 to the same."""
        return x + self.second(ops.relu(self.first(ops.relu(x))))


class ConvolutionalTorso(nn.Cell):
    """Convolutions followed by dense layers; image bytes are scaled to [0, 1].

    Args:
        convolutions: a cell from images to images.
        mlp: the dense layers, applied to the flattened result.

    Attributes:
        out_size: features of the output.
    """

    def __init__(self, convolutions: nn.Cell, mlp: MLP):
        super().__init__()
        self.convolutions, self.mlp, self.out_size = convolutions, mlp, mlp.out_size

    def construct(self, obs: Tensor) -> Tensor:
        """Maps [N, C, H, W] uint8 to [N, out_size] float32."""
        features = ops.relu(self.convolutions(obs.astype(float32) / 255.0))
        return self.mlp(features.reshape((obs.shape[0], -1)))


def _nature(shape: tuple, seed: int, name_index: int) -> tuple[list, tuple]:
    """Makes the convolutions of Mnih et al. 2015. Returns: cells, and the shape of the result."""
    channels, height, width = shape
    layers: list = []
    for i, (out, size, stride) in enumerate(((32, 8, 4), (64, 4, 2), (64, 3, 1))):
        layers += [nn.ReLU()] * bool(layers)
        layers.append(_convolution(channels, out, size, stride, "valid", seed, (name_index, 1, i)))
        height, width = ((extent - size) // stride + 1 for extent in (height, width))
        channels = out
    if min(height, width) < 1:
        raise ConfigError(
            f"images of {shape[1]} x {shape[2]} are too small for torso=cnn, expected at least "
            "36 x 36: use torso=impala, or enlarge them in the environment"
        )
    return layers, (channels, height, width)


def _impala(shape: tuple, seed: int, name_index: int) -> tuple[list, tuple]:
    """Makes the residual network of Espeholt et al. 2018; returns the same as `_nature`."""
    channels, height, width = shape
    layers: list = []
    for i, out in enumerate((16, 32, 32)):
        layers += [
            _convolution(channels, out, 3, 1, "same", seed, (name_index, 2, i)),
            nn.MaxPool2d(3, 2, pad_mode="same"),
            Residual(out, seed, (name_index, 3, i)),
            Residual(out, seed, (name_index, 4, i)),
        ]
        height, width, channels = -(-height // 2), -(-width // 2), out
    return layers, (channels, height, width)


def _convolution(
    channels: int, out: int, size: int, stride: int, pad: str, seed: int, index: tuple
) -> nn.Cell:
    weight = orthogonal((out, channels * size * size), math.sqrt(2.0), seed, index)
    return nn.Conv2d(
        channels,
        out,
        size,
        stride,
        pad_mode=pad,
        has_bias=True,
        weight_init=Tensor(weight.reshape(out, channels, size, size)),
        bias_init="zeros",
    )


_CONVOLUTIONS = {"cnn": _nature, "impala": _impala}
RECURRENT = ("gru", "lstm")
"""Torsos with a recurrent layer, which `recurrent.recurrent_core` makes."""


def torso_shape(torso: str, spec: EnvironmentSpec, normalise_obs: bool = False) -> tuple[int, ...]:
    """Returns the shape of one observation as an input of `network`.

    Args:
        torso: see `network`.
        spec: the environment's spec.
        normalise_obs: whether observations are normalised first.

    Raises:
        ConfigError: the torso is unknown, or does not fit the observations.
    """
    if torso == "mlp" or torso in RECURRENT:
        return (flat_size(spec),)
    if torso not in _CONVOLUTIONS:
        known = ", ".join(("mlp", *_CONVOLUTIONS, *RECURRENT))
        raise ConfigError(f"torso={torso} is none of {known}")
    if not spec.images:
        raise ConfigError(
            f"torso={torso} takes images, uint8 [C, H, W], and {spec.name} gives "
            f"{list(spec.obs_shape)} {spec.obs_dtype}: leave torso=mlp"
        )
    if normalise_obs:
        raise ConfigError(
            f"normalise_obs=true with torso={torso}, which divides an image's bytes by 255 itself: "
            "leave normalise_obs out"
        )
    return spec.obs_shape


def network(
    torso: str,
    spec: EnvironmentSpec,
    hidden: tuple,
    out_size: int | None,
    out_gain: float,
    seed: int,
    name_index: int,
    in_size: int = 0,
) -> MLP | ConvolutionalTorso:
    """Makes a network for an environment's observations, [N, *torso_shape].

    Args:
        torso: "mlp"; "cnn", the convolutions of Mnih et al. 2015 (with hidden=512 their network);
            "impala", those of Espeholt et al. 2018 (with hidden=256 theirs); "gru" or "lstm", an
            MLP on the output of a recurrent layer.
        spec: the environment's spec.
        hidden: width of each dense hidden layer, with tanh between them, or relu after
            convolutions.
        out_size: features of the output, see `MLP`.
        out_gain: gain of the last layer's weights, see `MLP`.
        seed: the job's seed.
        name_index: number that is unique to this network in the job; selects its initial weights.
        in_size: features of the recurrent layer's output, the input; 0: no recurrent layer.

    Raises:
        ConfigError: the torso is unknown, or does not fit the observations.
    """
    if in_size:
        return MLP(in_size, hidden, out_size, out_gain, seed, name_index)
    shape = torso_shape(torso, spec)
    if torso == "mlp":
        return MLP(shape[0], hidden, out_size, out_gain, seed, name_index)
    layers, shape = _CONVOLUTIONS[torso](shape, seed, name_index)
    size = math.prod(shape)
    mlp = MLP(size, hidden, out_size, out_gain, seed, name_index, activation="relu")
    return ConvolutionalTorso(nn.SequentialCell(layers), mlp)


def actor_critic(
    torso: str,
    spec: EnvironmentSpec,
    hidden: tuple,
    outputs: int,
    seed: int,
    share: bool | None = None,
    in_size: int = 0,
) -> tuple[nn.Cell, nn.Cell, nn.Cell]:
    """Makes a policy and a value function, whose `name_index` are 1 and 2, of a shared torso 4.

    Args:
        torso: see `network`.
        spec: the environment's spec.
        hidden: see `network`.
        outputs: features of the policy's output.
        seed: the job's seed.
        share: whether both have one torso: all layers except the last; None: if it is one of
            convolutions.
        in_size: see `network`.

    Returns:
        torso: the shared torso, or an identity.
        policy: applied to the torso's output.
        critic: likewise; it has one output.
    """
    if share is None:
        share = torso in _CONVOLUTIONS
    if not share:
        policy = network(torso, spec, hidden, outputs, 0.01, seed, 1, in_size)
        return nn.Identity(), policy, network(torso, spec, hidden, 1, 1.0, seed, 2, in_size)
    shared = network(torso, spec, hidden, None, 1.0, seed, 4, in_size)
    policy = MLP(shared.out_size, (), outputs, 0.01, seed, 1)
    return shared, policy, MLP(shared.out_size, (), 1, 1.0, seed, 2)


class TwinCritics(nn.Cell):
    """Two critics of a continuous action (Fujimoto et al. 2018), with ReLU between layers.

    Args:
        obs_shape: shape of one observation.
        action_size: components of an action.
        hidden: widths of the hidden layers.
        seed: the job's seed; the critics have the name indices 2 and 3.
        quantiles: quantiles of the return that each critic gives (Kuznetsov et al. 2020); 0: its
            mean alone.
        twin: whether there are two; a single critic's values are returned twice.
    """

    def __init__(
        self,
        obs_shape: tuple,
        action_size: int,
        hidden: tuple,
        seed: int,
        quantiles: int = 0,
        twin: bool = True,
    ):
        super().__init__()
        self.obs_size, self.action_size = int(np.prod(obs_shape)), action_size
        size, outputs = self.obs_size + action_size, max(quantiles, 1)
        self.shape = (-1, quantiles) if quantiles else (-1,)
        self.first = MLP(size, hidden, outputs, 1.0, seed, 2, "relu", "uniform")
        self.twin = twin
        if twin:
            self.second = MLP(size, hidden, outputs, 1.0, seed, 3, "relu", "uniform")

    def construct(self, obs: Tensor, action: Tensor) -> tuple:
        """Returns both values [N] float32 of obs [N, ...] and actions [N, action_size] float32.

        With quantiles, both are [N, quantiles].
        """
        features = ops.concat((obs.reshape((-1, self.obs_size)), action), 1)
        first = self.first(features).reshape(self.shape)
        return first, self.second(features).reshape(self.shape) if self.twin else first
