"""Recurrent layers: GRU and LSTM with resets at the ends of episodes.

A long sequence is one loop of the compiled cell, forwards and backwards: it compiles as fast as a
short one. Its gradient is written out, because MindSpore differentiates no `while`.
"""

from collections.abc import Callable

import numpy as np
from mindspore import Tensor, float32, int32, nn, ops

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


_product, _joined = ops.MatMul(transpose_b=True), ops.Concat(1)
_one, _two, _three, _four = (ops.Split(1, parts) for parts in (1, 2, 3, 4))
# A `bprop` calls primitives without a loop, or a cell.


def put_row(rows: Tensor, step: Tensor, row: Tensor) -> Tensor:
    """Returns rows `[T, ...]` with another one `[...]` at a step, 0-d int32."""
    return ops.tensor_scatter_update(rows, step.reshape((1, 1)), row.expand_dims(0))


def _gru(given: Tensor, projected: Tensor, state: tuple) -> tuple:
    """Computes the state after a step.

    Args:
        given: `[n, gates * size]`, the input's projection.
        projected: likewise the output's before the step.
        state: arrays `[n, size]`.
    """
    reset, update, new = _three(given)
    by_reset, by_update, by_new = _three(projected)
    keep = ops.sigmoid(update + by_update)
    found = ops.tanh(new + ops.sigmoid(reset + by_reset) * by_new)
    return (found + keep * (state[0] - found),)


def _gru_backwards(given: Tensor, projected: Tensor, state: tuple, grads: tuple) -> tuple:
    """Computes the gradients of `_gru`'s arguments from those of its results."""
    reset, update, new = _three(given)
    by_reset, by_update, by_new = _three(projected)
    keep, reset = ops.sigmoid(update + by_update), ops.sigmoid(reset + by_reset)
    found = ops.tanh(new + reset * by_new)
    of_new = grads[0] * (1.0 - keep) * (1.0 - found * found)
    of_update = grads[0] * (state[0] - found) * keep * (1.0 - keep)
    of_reset = of_new * by_new * reset * (1.0 - reset)
    of_given = _joined((of_reset, of_update, of_new))
    return of_given, _joined((of_reset, of_update, of_new * reset)), (grads[0] * keep,)


def _lstm(given: Tensor, projected: Tensor, state: tuple) -> tuple:
    """Computes the state after a step, see `_gru`."""
    write, keep, new, show = _four(given + projected)
    cell = ops.sigmoid(keep + 1.0) * state[1] + ops.sigmoid(write) * ops.tanh(new)
    return ops.sigmoid(show) * ops.tanh(cell), cell


def _lstm_backwards(given: Tensor, projected: Tensor, state: tuple, grads: tuple) -> tuple:
    """Computes the gradients of `_lstm`'s arguments from those of its results."""
    write, keep, new, show = _four(given + projected)
    write, keep, show = ops.sigmoid(write), ops.sigmoid(keep + 1.0), ops.sigmoid(show)
    new = ops.tanh(new)
    shown = ops.tanh(keep * state[1] + write * new)
    of_show = grads[0] * shown * show * (1.0 - show)
    of_cell = grads[1] + grads[0] * show * (1.0 - shown * shown)
    of_write, of_new = of_cell * new * write * (1.0 - write), of_cell * write * (1.0 - new * new)
    of_keep = of_cell * state[1] * keep * (1.0 - keep)
    of_given = _joined((of_write, of_keep, of_new, of_show))
    return of_given, of_given, (ops.zeros_like(of_cell), of_cell * keep)


class _Forwards(nn.Cell):
    """The loop of a layer over the steps of sequences."""

    def __init__(self, parts: ops.Split, gates: Callable, backwards: Callable):
        super().__init__()
        self.parts, self.gates = parts, gates
        self.backwards = _Backwards(parts, backwards)

    def construct(self, given: Tensor, weight: Tensor, going_on: Tensor, state: Tensor) -> Tensor:
        """Computes the states.

        Args:
            given: `[T, n, gates * size]`, the projections of the inputs.
            weight: `[gates * size, size]`, projects the hidden state.
            going_on: `[T, n, 1]` float32, 0 where the state before a step is set to zero, else 1.
            state: `[n, width]`, its arrays side by side, before the first step.

        Returns: the states after each step, `[T, n, width]`.
        """
        steps = given.shape[0]
        found = ops.zeros((steps, *state.shape), state.dtype)
        step = Tensor(0, int32)
        while step < steps:
            now = self.parts(state * ops.gather(going_on, step, 0))
            now = self.gates(ops.gather(given, step, 0), _product(now[0], weight), now)
            state = _joined(now)
            found = put_row(found, step, state)
            step = step + 1
        return found

    def bprop(self, given, weight, going_on, state, found, grad):  # noqa: D102  (MindSpore's name)
        return self.backwards(given, weight, going_on, state, found, grad)


class _Backwards(nn.Cell):
    """The same loop from the last step to the first: the gradients of the arguments."""

    def __init__(self, parts: ops.Split, gates: Callable):
        super().__init__()
        self.parts, self.gates = parts, gates

    def construct(
        self,
        given: Tensor,
        weight: Tensor,
        going_on: Tensor,
        state: Tensor,
        found: Tensor,
        grad: Tensor,
    ) -> tuple:
        """Returns the gradients, from that of the states found `[T, n, width]`."""
        (steps, rows, gates), size = given.shape, weight.shape[1]
        before = ops.concat((state.expand_dims(0), found), 0)[:steps] * going_on
        hidden = before[:, :, :size].reshape((steps * rows, size))
        projected = _product(hidden, weight).reshape(given.shape)
        of_given, of_projected = ops.zeros_like(given), ops.zeros_like(given)
        of_state = ops.zeros_like(state)
        if size < state.shape[1]:  # only the output is projected
            weight = ops.concat((weight, ops.zeros_like(weight)), 1)
        step = Tensor(0, int32)
        while step < steps:
            at = steps - 1 - step
            of_state = of_state + ops.gather(grad, at, 0)
            one, other, now = self.gates(
                ops.gather(given, at, 0),
                ops.gather(projected, at, 0),
                self.parts(ops.gather(before, at, 0)),
                self.parts(of_state),
            )
            of_given, of_projected = put_row(of_given, at, one), put_row(of_projected, at, other)
            of_state = (_joined(now) + ops.matmul(other, weight)) * ops.gather(going_on, at, 0)
            step = step + 1
        of_weight = ops.matmul(of_projected.reshape((steps * rows, gates)).T, hidden)
        return of_given, of_weight, ops.zeros_like(going_on), of_state


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
    formulas = (_one, _gru, _gru_backwards)

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
        _, self.turn, _ = self.formulas
        self.over_time = _Forwards(*self.formulas)

    def construct(self, x: Tensor, state: tuple) -> tuple:
        """Computes one step.

        Args:
            x: `[n, in_size]` float32.
            state: arrays `[..., size]` with n rows in all.

        Returns: the output `[n, size]` and the new state, arrays `[n, size]`.
        """
        rows = [part.reshape((-1, self.size)) for part in state]
        state = self.turn(self.of_input(x), self.of_state(rows[0]), tuple(rows))
        return state[0], state

    def unrolled(self, x: Tensor, ended: Tensor, *state: Tensor) -> Tensor:
        """Computes the outputs of short segments, by as many copies of a step.

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
            now = self.turn(given[:, step], self.of_state(now[0]), now)
            outputs.append(now[0])
        return ops.stack(outputs, 1).reshape((rows * steps, -1))

    def states(self, x: Tensor, ended: Tensor, state: tuple, burn_in: int = 0) -> tuple:
        """Computes the states of long segments, by a loop.

        16 steps of 64 units take 1.3 times as long as in `unrolled`, and a third of the time to
        compile, which does not grow with the steps.

        Args:
            x: `[n * steps, in_size]`, steps innermost.
            ended: `[n, steps]` bool, see `unrolled`.
            state: arrays `[n, size]`, before the first step.
            burn_in: steps that only lead to a state, through which no gradient goes.

        Returns: the states after each of the other steps, arrays `[n, steps - burn_in, size]`.
        """
        rows, steps = ended.shape
        given = self.of_input(x).reshape((rows, steps, -1)).transpose((1, 0, 2))
        restarts = ended.astype(float32).T.expand_dims(-1)
        going_on = 1.0 - ops.concat((ops.zeros_like(restarts[:1]), restarts), 0)[:steps]
        weight, first = self.of_state.weight, ops.concat(state, 1)
        if burn_in:
            past = self.over_time(given[:burn_in], weight, going_on[:burn_in], first)
            first = ops.stop_gradient(past[-1])
        found = self.over_time(given[burn_in:], weight, going_on[burn_in:], first)
        return ops.split(found.transpose((1, 0, 2)), self.size, 2)


class LSTM(GRU):
    """Long short-term memory (Hochreiter and Schmidhuber 1997).

    The forget gate has a bias of 1 (Jozefowicz et al. 2015). The state has two arrays, output and
    cell; everything else is as in `GRU`.
    """

    gates = 4
    formulas = (_two, _lstm, _lstm_backwards)

    def __init__(self, in_size: int, size: int, seed: int, name_index: int):
        super().__init__(in_size, size, seed, name_index)
        self.state_sizes = (size, size)


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
