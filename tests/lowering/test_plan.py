import dataclasses
import json

import pytest

from mindspore_rl.errors import MsrlError
from mindspore_rl.lowering.plan import load_plan
from mindspore_rl.runtime.job import prepare
from tests.lowering import inproc


@pytest.mark.parametrize("text", ["{}", "[1", json.dumps({"fragments": [{"extra": 1}]})])
def test_plan_of_another_version_is_told(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(MsrlError, match=r"plan.json was not written by this version"):
        load_plan(tmp_path)


@pytest.mark.parametrize(("program", "turns"), [("a2c", 16), ("sampled_in_a_loop", 64)])
def test_every_step_of_the_environments_counts(program, turns, tmp_path):
    job = inproc.request(inproc.PROGRAMS / f"{program}.py", "Central", 2, total_steps=2000)
    plan, _ = prepare(dataclasses.replace(job, num_iterations=None), tmp_path)
    assert plan.steps_per_iteration == turns * 8
    assert plan.num_iterations == -(-2000 // (turns * 8))
