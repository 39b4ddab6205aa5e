"""A kind of operation is a row of a table."""

import pytest
from mindspore import ops

from mindspore_rl import operators
from mindspore_rl.errors import PolicyError
from mindspore_rl.graph.operations import OPERATIONS, Kind
from tests.graph.programs import analyse_with, program_with
from tests.lowering import inproc

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


def test_replicas_of_its_own_samples_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="sums up rows of all environments"):
        analyse_with(tmp_path, learn=LARGEST, policy="MultipleLearners")
