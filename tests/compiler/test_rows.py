"""Why a trial's evidence needs confirmation, and in which data."""

import itertools

import numpy as np
import pytest
from mindspore import Tensor, ops

from mindspore_rl.compiler.analysis import row_trials
from mindspore_rl.compiler.analysis.row_dataflow import has_loop
from mindspore_rl.compiler.analysis.row_lattice import Sharding
from mindspore_rl.compiler.ir.ir import Op
from mindspore_rl.mindir.graph import Function
from mindspore_rl.mindir.graph import Value as Node
from mindspore_rl.plan.value import Value
from mindspore_rl.platform import mindspore_device
from mindspore_rl.purity.calls import RANDOM


class Read:
    """A graph in which each row of `y` depends on the same row of `x`, a long one or not."""

    def __init__(self, long):
        self.long = long

    def sharding(self, *_):
        return Sharding("sharded")

    def is_long(self, _):
        return self.long


def tried(data, reading=None, drawn=()):
    """Returns the inputs of all evaluations of `sign` in trials that begin with some numbers."""
    mindspore_device.use()
    op = Op("glue#1", "glue", ("y",), ("ops.sign(x)",), ("x",), where=None)
    given = []

    def evaluate(op, inputs):
        given.append(inputs["x"].asnumpy())
        return (ops.sign(inputs["x"]),)

    trials = row_trials.RowTrials(
        evaluate, row_trials.environment_rows(4), np.random.default_rng(0), reading, drawn
    )
    values = {"x": Value((4,), "float32", axis=0), "y": Value((4,), "float32", axis=0)}
    assert trials.evidence(op, {"x": Tensor(data)}, values) == ""
    return given


def test_trials_have_no_subnormal_numbers():
    data = np.array([1e-41, -1e-42, 0.0, 1.0], np.float32)
    assert tried(data)[0].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_random_numbers_of_trials_are_in_their_range():
    """Beyond it, log(u) near a bound of `clamp` differs between rows by rounding alone."""
    given = tried(np.array([0.1, 0.2, 0.3, 0.4], np.float32), drawn=("x",))
    assert all(((x >= 0.0) & (x < 1.0)).all() for x in given)
    assert len({x.tobytes() for x in given if len(x) == 4}) > 2


def test_trials_evaluate_what_they_begin_with_twice():
    """The second evaluation finds what is random; a tree search takes a second each."""
    data = np.array([1.0, -2.0, 3.0, 4.0], np.float32)
    assert sum(np.array_equal(x, data) for x in tried(data)) == 2


@pytest.mark.parametrize(
    ("long", "rows"), [(True, [4, 2, 160]), (False, [4, 4, 2, 4, 2, 4, 2, 160])]
)
def test_a_long_operation_is_tried_once_on_few_and_on_many_rows(long, rows):
    """Others are tried on new data, too."""
    assert [len(x) for x in tried(np.array([1.0, -2.0, 3.0, 4.0], np.float32), Read(long))] == rows


def test_what_is_random_in_a_long_operation_is_found_by_its_share():
    mindspore_device.use()
    op = Op("glue#1", "glue", ("y",), ("ops.sign(x)",), ("x",), where=None)
    calls = itertools.count()
    trials = row_trials.RowTrials(
        lambda _, inputs: (inputs["x"] + 10.0 * next(calls),),
        row_trials.environment_rows(4),
        np.random.default_rng(0),
        Read(True),
    )
    values = {name: Value((4,), "float32", axis=0) for name in "xy"}
    data = Tensor(np.array([1.0, -2.0, 3.0, 4.0], np.float32))
    assert trials.evidence(op, {"x": data}, values) == RANDOM


@pytest.mark.parametrize("reading", [Read(False), None], ids=["decided", "undecided"])
def test_rounding_that_an_operation_amplifies_is_no_evidence(reading):
    """The elites of a planner's samples, of observations of 100,000, differ by rounding alone.

    Where the graph does not decide, some data must agree, too.
    """
    mindspore_device.use()
    op = Op("glue#1", "glue", ("y",), ("x",), ("x",), where=None)
    trials = row_trials.RowTrials(
        lambda _, given: (ops.sin(1e9 * given["x"] * (1.0 + 1e-6 * len(given["x"]))),),
        row_trials.environment_rows(4),
        np.random.default_rng(0),
        reading,
    )
    values = {name: Value((4,), "float32", axis=0) for name in "xy"}
    found = trials.evidence(op, {"x": Tensor(np.zeros(4, np.float32))}, values)
    assert found == "" if reading else "in all data a millionth of the inputs moves it" in found


def test_a_loop_is_a_function_that_calls_itself():
    x, turn, once = Node("argument", "x"), Function("turn"), Function("once")
    turn.result = Node("call", "again", [turn, x])
    once.result = Node("Abs", "abs", [x])
    assert has_loop(Node("Neg", "y", [Node("call", "first", [turn, x])]))
    assert not has_loop(
        Node("Add", "y", [Node("call", "z", [once, x]), Node("call", "w", [once, x])])
    )
