"""Asynchronous runs against plain Python: a worker's first iteration has its environments alone."""

import dataclasses

import numpy as np
import pytest

from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.jobs import registry
from mindspore_rl.policy import Schedule
from mindspore_rl.runtime import checkpoint
from tests.compiler import inproc
from tests.compiler.programs import program_with
from tests.multiprocess import theorem
from tests.tiers import quick

SMALL = {
    "a2c": {"num_steps": 4, "hidden": (8,)},
    "ppo": {"num_steps": 4, "num_minibatches": 2, "update_epochs": 2, "hidden": (8,)},
}


def request(algorithm, workers, num_envs, **schedule):
    file = registry.find_algorithm(algorithm)
    return asynchronous(file, workers, num_envs, schedule, **SMALL[algorithm])


def asynchronous(file, workers, num_envs, schedule, **config):
    job = inproc.request(file, "Central", workers, num_envs=num_envs, **config)
    policy = dataclasses.replace(job.policy, schedule=Schedule("asynchronous", **schedule))
    return dataclasses.replace(job, policy=policy, num_iterations=1)


@pytest.mark.parametrize("algorithm", quick(["a2c", "kept", "ppo"], 0))
def test_one_worker_equals_the_reference(algorithm, tmp_path):
    if algorithm == "kept":  # records of its own
        job = asynchronous(inproc.PROGRAMS / "kept.py", 1, 4, {}, env="CartPole-v1")
    else:
        job = request(algorithm, workers=1, num_envs=3)
    reference = inproc.run_reference(job, tmp_path)
    plan, _ = prepare(job, tmp_path / "run")
    inproc._run(plan, tmp_path / "run")
    assert theorem.compare(tmp_path / "run", reference, 1) == []
    last = sorted((tmp_path / "run" / "checkpoints").glob("*"))[-1]
    assert theorem.compare_states(last, reference.checkpoints[-1]) == []


def test_a_mean_of_each_environment_is_over_its_steps(tmp_path):
    program = program_with(tmp_path, learn="target = reward * msrl.mean(reward, keep=1)")
    job = asynchronous(program, 1, 3, {}, num_steps=4)
    reference = inproc.run_reference(job, tmp_path)
    plan, _ = prepare(job, tmp_path / "run")
    inproc._run(plan, tmp_path / "run")
    assert theorem.compare(tmp_path / "run", reference, 1) == []


def test_a_worker_of_two_learns_from_its_own_samples(tmp_path):
    alone = request("a2c", workers=1, num_envs=3)
    reference = inproc.run_reference(alone, tmp_path)
    job = request("a2c", workers=2, num_envs=5, staleness=0)
    plan, _ = prepare(job, tmp_path / "run")
    inproc._run(plan, tmp_path / "run")
    assert theorem.compare(tmp_path / "run", reference, 1, ("gradient",)) == []
    arrays, meta = checkpoint.load(sorted((tmp_path / "run" / "checkpoints").glob("*"))[-1])
    assert (meta["iteration"], meta["env_steps"]) == (1, 20)
    assert np.array_equal(arrays["counters/iterations"], [1, 1, 1, 1, 1])


def test_a_run_repeats_itself(tmp_path):
    ends = []
    for name in ("one", "other"):
        job = dataclasses.replace(request("a2c", 2, 3, staleness=1), num_iterations=2)
        plan, _ = prepare(job, tmp_path / name)
        inproc._run(plan, tmp_path / name)
        arrays, _ = checkpoint.load(sorted((tmp_path / name / "checkpoints").glob("*"))[-1])
        ends.append(arrays)
    for name in ends[0]:
        assert np.array_equal(ends[0][name], ends[1][name]), name
