"""Asynchronous runs against plain Python: a worker's first iteration has its environments alone."""

import dataclasses

import numpy as np
import pytest

from mindspore_rl.jobs import registry
from mindspore_rl.runtime import checkpoint
from tests.compiler import inproc
from tests.compiler.programs import program_with
from tests.multiprocess import theorem
from tests.tiers import quick

KEPT = str(inproc.PROGRAMS / "kept.py")
"""A program with records of its own."""
SMALL = {
    "a2c": {"num_steps": 4, "hidden": (8,)},
    "ppo": {"num_steps": 4, "num_minibatches": 2, "update_epochs": 2, "hidden": (8,)},
}
SMALL["mappo"] = SMALL["ppo"] | {"env": "pettingzoo:mpe2.simple_spread_v3"}


def asynchronous(name, workers, num_envs, schedule=None, iterations=1, **config):
    file, schedule = registry.find_algorithm(name), {"order": "asynchronous", **(schedule or {})}
    config = SMALL.get(name, {}) | {"num_envs": num_envs} | config
    job = inproc.request(file, "Central", workers, schedule, **config)
    return dataclasses.replace(job, num_iterations=iterations)


@pytest.mark.parametrize("name", quick(["a2c", KEPT, "ppo"], 0))
def test_one_worker_equals_the_reference(name, tmp_path):
    job = asynchronous(name, 1, 4)
    reference = inproc.run_reference(job, tmp_path)
    _, last = inproc.run(job, tmp_path / "run")
    assert theorem.compare(tmp_path / "run", reference, 1) == []
    assert theorem.compare_states(last, reference.checkpoints[-1]) == []


def test_a_mean_of_each_environment_is_over_its_steps(tmp_path):
    program = program_with(tmp_path, learn="target = reward * msrl.mean(reward, keep=1)")
    job = asynchronous(str(program), 1, 3, num_steps=4)
    reference = inproc.run_reference(job, tmp_path)
    inproc.run(job, tmp_path / "run")
    assert theorem.compare(tmp_path / "run", reference, 1) == []


def test_a_worker_of_two_learns_from_its_own_samples(tmp_path):
    reference = inproc.run_reference(asynchronous("a2c", 1, 3), tmp_path)
    _, last = inproc.run(asynchronous("a2c", 2, 5, {"staleness": 0}), tmp_path / "run")
    assert theorem.compare(tmp_path / "run", reference, 1, ("gradient",)) == []
    arrays, meta = checkpoint.load(last)
    assert (meta["iteration"], meta["env_steps"]) == (1, 20)
    assert np.array_equal(arrays["counters/iterations"], [1, 1, 1, 1, 1])
