"""Recurrent layers: GRU and LSTM with resets at the ends of episodes."""

import numpy as np
from mindspore import Tensor, float32, nn, ops

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.rl.networks import flat_size, orthogonal


class NoMemory(nn.Cell):
    """An identity layer with the interface of a recurrent one, for networks without memory.

    Attributes:
        size: features of its output; 0: those of the input.
        state_sizes: features of each array of its state; empty.
    """

    size = 0
    state_sizes: tuple[int, ...] = ()

    def construct(self, x: Tensor, state: tuple) -> tuple:
        """Returns the input and the state unchanged, see `GRU.construct`."""
        return x, state

    def unrolled(self, x: Tensor) -> Tensor:
        """Returns the input unchanged, see `GRU.unrolled`."""
        return x


class GRU(nn.Cell):
    """Gated recurrent units (Cho et al. 2014): orthogonal weights of each gate, zero biases.

    Its state is a tuple of one array `[n, size]`, which is also its output.

    Args:
        in_size: features of the input.
        size: number of units.
        seed: the job's seed.
        name_index: number that is unique to this layer in the job; selects its initial weights.

    Attributes:
        size: features of its output.
        state_sizes: features of each array of its state.
    """

    gates = 3

    def __init__(self, in_size: int, size: int, seed: int, name_index: int):
        super().__init__()
        self.size = size
        self.state_sizes: tuple[int, ...] = (size,)
        rows = self.gates * size
        inputs, states = (
            np.concatenate(
                [
                    orthogonal((size, columns), 1.0, seed, (name_index, part, gate))
                    for gate in range(self.gates)
                ]
            )
            for part, columns in enumerate((in_size, size))
        )
        self.of_input = nn.Dense(in_size, rows, weight_init=Tensor(inputs), bias_init="zeros")
        self.of_state = nn.Dense(size, rows, weight_init=Tensor(states), has_bias=False)

    def step(self, given: Tensor, state: tuple) -> tuple:
        """Returns the state after one step, given the input's projection [n, gates * size]."""
        (hidden,) = state
        reset, update, new = ops.split(given, self.size, 1)
        by_reset, by_update, by_new = ops.split(self.of_state(hidden), self.size, 1)
        keep = ops.sigmoid(update + by_update)
        found = ops.tanh(new + ops.sigmoid(reset + by_reset) * by_new)
        return (found + keep * (hidden - found),)

    def construct(self, x: Tensor, state: tuple) -> tuple:
        """Computes one step.

        Args:
            x: `[n, in_size]` float32.
            state: arrays `[..., size]` with n rows in all.

        Returns: the output `[n, size]` and the new state, arrays `[n, size]`.
        """
        rows = [part.reshape((-1, self.size)) for part in state]
        state = self.step(self.of_input(x), tuple(rows))
        return state[0], state

    def unrolled(self, x: Tensor, ended: Tensor, *state: Tensor) -> Tensor:
        """Computes the outputs of segments step by step.

        Args:
            x: `[n * steps, in_size]`, steps innermost.
            ended: `[n, steps]` bool, whether an episode ended at that step; the state is then reset
                to zero before the next step.
            state: arrays `[n, steps, size]`, the states before each step; only the first step's is
                used.

        Returns: `[n * steps, size]`, steps innermost.
        """
        rows, steps = ended.shape
        given = self.of_input(x).reshape((rows, steps, -1))
        now = tuple([part[:, 0] for part in state])
        outputs = []
        for step in range(steps):
            if step:
                now = tuple([restarted(part, ended[:, step - 1]) for part in now])
            now = self.step(given[:, step], now)
            outputs.append(now[0])
        return ops.stack(outputs, 1).reshape((rows * steps, -1))


class LSTM(GRU):
    """Long short-term memory (Hochreiter and Schmidhuber 1997).

    The forget gate has a bias of 1 (Jozefowicz et al. 2015). The state has two arrays, output and
    cell; everything else is as in `GRU`.
    """

    gates = 4

    def __init__(self, in_size: int, size: int, seed: int, name_index: int):
        super().__init__(in_size, size, seed, name_index)
        self.state_sizes = (size, size)

    def step(self, given: Tensor, state: tuple) -> tuple:
        """Returns the state after one step, see `GRU.step`."""
        hidden, cell = state
        write, keep, new, show = ops.split(given + self.of_state(hidden), self.size, 1)
        cell = ops.sigmoid(keep + 1.0) * cell + ops.sigmoid(write) * ops.tanh(new)
        return ops.sigmoid(show) * ops.tanh(cell), cell


def restarted(state: Tensor, ended: Tensor) -> Tensor:
    """Returns a state `[n, size]` with zeros where an episode ended, `[n]` bool."""
    return state * (1.0 - ended.astype(float32)).expand_dims(-1)


LAYERS = {"gru": GRU, "lstm": LSTM}


def recurrent_core(
    torso: str, spec: EnvironmentSpec, size: int, seed: int, name_index: int
) -> GRU | NoMemory:
    """Makes the recurrent layer of a torso; an identity unless the torso is `gru` or `lstm`.

    Args:
        torso: see `network`.
        spec: the environment's spec.
        size: units of the layer.
        seed: the job's seed.
        name_index: number that is unique to this layer in the job; selects its initial weights.
    """
    if torso not in LAYERS:
        return NoMemory()
    return LAYERS[torso](flat_size(spec), size, seed, name_index)
