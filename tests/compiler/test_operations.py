"""Tests of the table of operation kinds."""

import pytest
from mindspore import ops

from mindspore_rl.compiler.ir.operations import OPERATIONS, Kind
from mindspore_rl.compiler.lowering.emit_cell import CellWriter
from mindspore_rl.compiler.lowering.emit_loop import VIEWS, LoopWriter
from mindspore_rl.compiler.lowering.target import Target
from mindspore_rl.compiler.pipeline import analyse, lower
from mindspore_rl.errors import PolicyError, ProgramError
from mindspore_rl.rl import operators
from tests.compiler import inproc
from tests.compiler.programs import analyse_with, program_with

LARGEST = "target = reward - 0.5 * msrl.largest(reward)"


@pytest.fixture(autouse=True)
def largest(monkeypatch):
    row = Kind(call=True, arguments=1, cell="computes", tried=True, whole=True, arrays=True)
    monkeypatch.setitem(OPERATIONS, "largest", row)
    monkeypatch.setattr(operators, "largest", lambda x: ops.amax(ops.abs(x)), raising=False)


@pytest.mark.parametrize("policy", ["SingleLearnerCoarse", "GPUOnly"])
def test_a_row_and_a_function_are_a_new_call_of_msrl(policy, tmp_path):
    file = program_with(tmp_path, learn=LARGEST)
    env = {"GPUOnly": "graph:CartPole-v1"}.get(policy, "CartPole-v1")
    job = inproc.request(file, policy, 1, num_steps=4, env=env)
    reference = inproc.run_reference(job, tmp_path / "reference")
    assert inproc.run_and_compare(job, reference, tmp_path / "run") == []
    learner = {"GPUOnly": "loop"}.get(policy, "learner")
    source = (tmp_path / "run" / "fragments" / f"{learner}.py").read_text()
    assert "operators.largest(" in source


NEVER_WRITTEN = {"agent_learn", "boundary"}
"""What others have taken the place of by then."""
ALWAYS_IN_A_CELL = {"computes", "fits"}


def test_every_kind_has_its_writers():
    for kind, row in OPERATIONS.items():
        if kind in NEVER_WRITTEN:
            continue
        loop = kind in VIEWS or hasattr(LoopWriter, f"_{kind}")
        assert loop or row.cell in ALWAYS_IN_A_CELL, kind
        cell = kind in VIEWS or row.reduces or hasattr(operators, kind)
        assert cell or hasattr(CellWriter, f"_{kind}") or not row.cell, kind


@pytest.mark.parametrize(
    ("row", "function", "missing"),
    [
        (Kind(call=True, arguments=1, arrays=True), "scaled", "LoopWriter has no method _scaled"),
        (Kind(call=True, arguments=1, arrays=True, cell="computes"), "", "CellWriter has no"),
    ],
)
def test_a_kind_without_a_writer_is_told(row, function, missing, monkeypatch, tmp_path):
    """It was `target = first argument` in the loop, and an attribute error inside the cell."""
    monkeypatch.setitem(OPERATIONS, "scaled", row)
    monkeypatch.setattr(operators, "scaled", lambda x: 2.0 * x, raising=False)
    file = program_with(tmp_path, learn="target = 0.5 * msrl.scaled(reward)")
    cut = analyse(inproc.request(file, "SingleLearnerCoarse", 1, num_steps=4))
    if not function:
        monkeypatch.delattr(operators, "scaled")
    with pytest.raises(ProgramError, match=rf"(?s)target = .*scaled#1 cannot be .*{missing}"):
        lower(cut, (), Target(8, 4, 32, False, True))


def test_replicas_of_its_own_samples_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="sums up rows of all environments"):
        analyse_with(tmp_path, learn=LARGEST, policy="MultipleLearners")
