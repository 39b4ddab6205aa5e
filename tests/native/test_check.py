"""What counts as a difference between native code and MindSpore."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from mindspore_rl.native.check import difference

WEIGHT = np.linspace(1.0, 2.0, 64, dtype=np.float32)


def parameters():
    weight = Parameter(Tensor(WEIGHT), name="weight")
    return {"weight": weight, "bias": Parameter(Tensor(np.zeros(1, np.float32)), name="bias")}


def step(state, order, shift=0.0):
    """A step as Adam's, of a gradient that nearly cancels, by a sum in some order."""
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

    off, where = difference(state, [], judge, native, (), int)
    assert (off <= 1.0) == agrees
    assert agrees or where == "bias"
    assert (state["bias"].asnumpy() == 0.0).all()
    np.testing.assert_array_equal(state["weight"].asnumpy(), WEIGHT)


@pytest.mark.parametrize(("least_of_others", "runs"), [(1, 1), (0, 2)])
def test_all_replicas_run_a_cell_as_often(least_of_others, runs):
    """Where one of them finds a difference that may be rounding: cells hold collectives."""
    state, judged = parameters(), []

    def judge():
        judged.append(step(state, list))
        return judged[-1]

    def native():
        return step(state, list)

    difference(state, [], judge, native, (), lambda own: min(own, least_of_others))
    assert len(judged) == runs
