"""Tests of the table of operation kinds."""

from dataclasses import replace

import pytest
from mindspore import ops

from mindspore_rl.compiler.analysis import interpret
from mindspore_rl.compiler.ir.ir import Op, Where
from mindspore_rl.compiler.ir.operations import OPERATIONS, Kind
from mindspore_rl.compiler.lowering import emit_cell, emit_loop
from mindspore_rl.errors import PolicyError
from mindspore_rl.rl import operators
from tests.compiler import inproc
from tests.compiler.programs import analyse_with, program_with
from tests.tiers import quick

HERE = Where("program.py", 3, "x = y")
LARGEST = "target = reward - 0.5 * msrl.largest(reward)"


@pytest.fixture(autouse=True)
def largest(monkeypatch):
    row = Kind(call=True, arguments=1, cell="computes", tried=True, whole=True, arrays=True)
    row = replace(row, loop=False, function=True)
    monkeypatch.setitem(OPERATIONS, "largest", row)
    monkeypatch.setattr(operators, "largest", lambda x: ops.amax(ops.abs(x)), raising=False)


@pytest.mark.parametrize("policy", quick(["SingleLearnerCoarse", "GPUOnly"], 0))
def test_a_row_and_a_function_are_a_new_call_of_msrl(policy, tmp_path):
    file = program_with(tmp_path, learn=LARGEST)
    env = {"GPUOnly": "graph:CartPole-v1"}.get(policy, "CartPole-v1")
    job = inproc.request(file, policy, 1, num_steps=4, env=env)
    assert inproc.differences(job, tmp_path) == []
    learner = {"GPUOnly": "loop"}.get(policy, "learner")
    source = (tmp_path / "run" / "fragments" / f"{learner}.py").read_text()
    assert "operators.largest(" in source


HANDLERS = (interpret.evaluates, emit_loop.writes, emit_cell.writes, emit_cell.makes)


def test_every_kind_has_its_functions():
    for handlers in HANDLERS:
        handlers.check()


@pytest.mark.parametrize(
    ("handlers", "row"),
    [
        (interpret.evaluates, Kind(call=True)),
        (emit_loop.writes, Kind(probed=False)),
        (emit_cell.writes, Kind(probed=False, loop=False, cell="computes")),
        (emit_cell.makes, Kind(probed=False, loop=False, function=True, part="scale")),
    ],
    ids=lambda one: getattr(one, "does", ""),
)
def test_a_kind_without_a_writer_is_refused(handlers, row, monkeypatch):
    monkeypatch.setitem(OPERATIONS, "scaled", row)
    with pytest.raises(AssertionError, match=f"no function {handlers.does} scaled"):
        handlers.check()


@pytest.mark.parametrize("handlers", HANDLERS, ids=lambda one: one.does)
def test_a_writer_without_a_kind_is_refused(handlers, monkeypatch):
    kind = min(handlers.keys() & OPERATIONS.keys())
    with pytest.raises(AssertionError, match=f"a second function {handlers.does} {kind}"):
        handlers(kind)(print)
    monkeypatch.delitem(OPERATIONS, kind)
    with pytest.raises(AssertionError, match=f"a function {handlers.does} {kind}, which the pass"):
        handlers.check()


@pytest.mark.parametrize(
    ("attrs", "told"),
    [
        ({}, "noise without its attribute 'purpose'"),
        ({"purpose": "act", "owner": "env", "rows": "4"}, "rows of noise is '4'"),
        ({"purpose": "act", "owner": "env", "rows": 4, "site": "a"}, "noise has no attribute 's"),
    ],
)
def test_an_attribute_that_the_kind_does_not_declare_is_refused(attrs, told):
    with pytest.raises(AssertionError, match=f"noise#1: {told}"):
        Op("noise#1", "noise", ("x",), (), (), HERE, attrs=tuple(attrs.items()))


def test_replicas_of_its_own_samples_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="sums up rows of all environments"):
        analyse_with(tmp_path, learn=LARGEST, policy="MultipleLearners")
