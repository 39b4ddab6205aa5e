"""Tests of the comparison of native code with MindSpore: which differences count."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from mindspore_rl.codegen.differential_check import difference

WEIGHT = np.linspace(1.0, 2.0, 64, dtype=np.float32)


def parameters():
    weight = Parameter(Tensor(WEIGHT), name="weight")
    return {"weight": weight, "bias": Parameter(Tensor(np.zeros(1, np.float32)), name="bias")}


def step(state, order, shift=0.0):
    """Takes a step like Adam's with a gradient that nearly cancels, summed in some order."""
    weight, bias = (state[name].asnumpy() for name in ("weight", "bias"))
    total = np.float32(0.0)
    for number in order(weight):
        total += number
    gradient = total - WEIGHT.sum(dtype=np.float64) + shift
    bias[...] -= 1e-3 * gradient / (abs(gradient) + 1e-4)
    return Tensor(np.float32(1.0))


@pytest.mark.parametrize(("shift", "agrees"), [(0.0, True), (1.0, False)])
def test_a_step_that_is_made_of_rounding_alone_may_differ(shift, agrees):
    state = parameters()

    def judge():
        return step(state, list, shift)

    def native():
        return step(state, reversed, -shift)

    off, where = difference(state, [], judge, native, ())
    assert (off <= 1.0) == agrees
    assert agrees or where == "bias"
    assert (state["bias"].asnumpy() == 0.0).all()
    np.testing.assert_array_equal(state["weight"].asnumpy(), WEIGHT)


@pytest.mark.parametrize(
    ("change", "agrees"), [({}, True), ({"rate": 2e-3}, False), ({"shift": 1e-3}, False)]
)
def test_steps_are_as_sure_as_the_averages_that_they_are_made_of(change, agrees):
    """The gradient is rounding only; MindSpore's is zero for all parameters."""
    names = {"net.bias": 0.0, "opt.moment1.net.bias": 0.0, "opt.moment2.net.bias": 0.0}
    values = {n: Parameter(Tensor(np.full(2, v, np.float32)), name=n) for n, v in names.items()}

    def adam(gradient, rate=1e-3, shift=0.0):
        bias, first, second = (value.asnumpy() for value in values.values())
        gradient = np.array(gradient, np.float32) + np.float32(shift)
        first[...] = 0.1 * gradient
        second[...] = 0.001 * gradient**2
        bias[...] -= rate * gradient / (np.abs(gradient) + 1e-12)
        return Tensor(np.float32(1.0))

    def judge():
        return adam([0.5, 0.0])

    def native():
        return adam([0.5, 3e-9], **change)

    off, where = difference(values, [], judge, native, ())
    assert (off <= 1.0) == agrees
    assert agrees or where in names


@pytest.mark.parametrize(("epsilon", "scale", "agrees"), [(0.1, 1.0, True), (0.1, 3.0, False)])
def test_both_forms_of_rmsprop_are_right(epsilon, scale, agrees):
    names = ("net.bias", "opt.mean_square.net.bias", "opt.moment.net.bias")
    values = {n: Parameter(Tensor(np.ones(9, np.float32)), name=n) for n in names}

    def rmsprop(divisor, scale=1.0):
        bias, squares, moment = (value.asnumpy() for value in values.values())
        squares[...] = 0.1 * squares + 0.9 * 0.2**2
        moment[...] = scale * 1e-2 / divisor(squares)
        bias[...] -= moment
        return Tensor(np.float32(1.0))

    def judge():
        return rmsprop(lambda s: np.sqrt(s) + epsilon)

    def native():
        return rmsprop(lambda s: np.sqrt(s + epsilon), scale)

    off, _ = difference(values, [], judge, native, ())
    assert (off <= 1.0) == agrees


def test_a_sum_of_inputs_that_cancels_is_judged_by_what_rounding_does():
    bias = Parameter(Tensor(np.zeros(1, np.float32)), name="bias")
    rows = Tensor(np.stack([WEIGHT, -WEIGHT], 1).reshape(-1))

    def cell(order):
        def run(rows):
            total = np.float32(0.0)
            for number in order(rows.asnumpy() if isinstance(rows, Tensor) else rows):
                total += number * np.float32(1.1)
            bias.asnumpy()[...] -= 1e-3 * total / (abs(total) + 1e-9)
            return Tensor(np.float32(1.0))

        return run

    off, _ = difference({"bias": bias}, [], cell(list), cell(sorted), (rows,))
    assert off <= 1.0


@pytest.mark.parametrize(
    ("share", "scale", "agrees"), [(0.98598, 1.0, True), (0.98598, 0.0, False), (0.984, 1.0, False)]
)
def test_what_a_subtraction_from_a_constant_leaves_is_as_exact_as_the_constant(
    share, scale, agrees
):
    """PPO's explained variance, one minus a quotient of sums."""
    judge, native = (lambda s=s: Tensor(np.float32(1.0 - s)) for s in (0.98596, share))
    off, where = difference({}, [], judge, native, (), (scale,))
    assert (off <= 1.0) == agrees
    assert agrees or where == "result 0"
