import dataclasses

import pytest

from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.platform import gpu
from tests.compiler import inproc
from tests.tiers import quick


@pytest.mark.parametrize(("program", "turns"), quick([("a2c", 16), ("sampled_in_a_loop", 64)], 1))
def test_every_step_of_the_environments_counts(program, turns, tmp_path):
    job = inproc.request(inproc.PROGRAMS / f"{program}.py", "Central", 2, total_steps=2000)
    plan, _ = prepare(dataclasses.replace(job, num_iterations=None), tmp_path)
    assert plan.steps_per_iteration == turns * 8
    assert plan.num_iterations == -(-2000 // (turns * 8))
    assert load_plan(tmp_path) == plan


@pytest.mark.parametrize(
    ("policy", "workers", "gpus", "replicas", "places"),
    [
        ("MultipleLearners", 4, 2, {"actor+learner": 2}, [(0, 2), (1, 2)]),
        ("SingleLearnerCoarse", 2, 1, {"actor": 2, "learner": 1}, [(0, 0), (1, 0), (2, 0)]),
        ("SingleLearnerFine", 2, 1, {"environment": 2, "learner": 1}, [None, None, (0, 0)]),
        ("Central", 2, 2, {"worker": 2, "server": 1}, [(0, 2), (1, 2), (2, 2)]),
    ],
)
def test_replicas_that_would_share_a_gpu_are_fused(
    policy, workers, gpus, replicas, places, monkeypatch, tmp_path
):
    monkeypatch.setattr(gpu, "driver", lambda: gpu.Driver("12.4", ("H",) * gpus))
    job = inproc.request(inproc.PROGRAMS / "a2c.py", policy, workers)
    plan, _ = prepare(dataclasses.replace(job, device="GPU"), tmp_path)
    assert {f.name: len(f.shares) for f in plan.fragments} == replicas
    assert [plan.gpu_of(rank) for rank in range(plan.num_ranks)] == places
