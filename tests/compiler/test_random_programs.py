"""Random algorithms compute under random policies and schedules what their plain loops compute.

MSRL_FUZZ=100 runs that many programs in place of a few, from the one numbered MSRL_FUZZ_FROM.
"""

import dataclasses
import os
import random

import numpy as np
import pytest

from mindspore_rl.checking.compared import STATE, compared
from mindspore_rl.checking.held import compare_states
from mindspore_rl.compiler.pipeline import prepare
from mindspore_rl.errors import PolicyError, ProgramError
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.arrivals_log import read_log
from tests.compiler import inproc, random_policies
from tests.compiler.random_programs import program
from tests.compiler.test_batches import ASYNCHRONOUS, LEARNERS, replayed, shuffled  # noqa: F401
from tests.compiler.test_programs import SCATTERED
from tests.multiprocess import test_theorem
from tests.tiers import quick

COARSE = "SingleLearnerCoarse"
POLICIES = ("Central", "MultipleLearners", COARSE, "SingleLearnerFine", SCATTERED)
WITH_BATCHES = ((COARSE, 2), (COARSE, 4), (LEARNERS, 2), (LEARNERS, 4))
"""Policies with workers whose learners take trajectories."""
COUNT = int(os.environ.get("MSRL_FUZZ", "4"))
FIRST = int(os.environ.get("MSRL_FUZZ_FROM", "1"))
ASKED = "MSRL_FUZZ" in os.environ
ALL = range(FIRST, FIRST + COUNT)
SEEDS = ALL if ASKED else quick(ALL, 0, 2)
SHIPPED_SEEDS = ALL if ASKED else quick((2, 260), 0)
FEWER = ALL if ASKED else quick((2, 3), 1)
"""Programs under schedules: one with a replay, one whose loop begins with an array of zeros."""
REFUSED = (
    "in an unrolled loop or comprehension",
    "put the minibatches outside",
    "msrl.minibatches after another in this line that a condition may leave out",
    *random_policies.REFUSED,
)
"""What programs may be refused for, see docs/add_an_algorithm.md, and schedules."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_equal_the_reference(seed, tmp_path):
    text, rng = program(seed), random.Random(seed)
    policy, workers = rng.choice(POLICIES), rng.randint(1, 3)
    job = request(tmp_path, text, policy, workers)
    assert wrong(lambda: inproc.differences(job, tmp_path / "job")) == [], told(text, job)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_under_random_policies_equal_the_reference(seed, tmp_path):
    chosen = random_policies.policy(seed)
    iterations = 2 + chosen.schedule.lag
    job = request(tmp_path, program(seed), chosen, 1 + seed % 3, iterations=iterations)
    assert wrong(lambda: inproc.differences(job, tmp_path / "job")) == [], told(program(seed), job)


@pytest.mark.parametrize("seed", SHIPPED_SEEDS)
def test_algorithms_under_random_policies_equal_the_reference(seed, tmp_path):
    rng, chosen = random.Random(seed), random_policies.policy(seed)
    environment = rng.choice(("CartPole-v1", "graph:CartPole-v1"))
    name = rng.choice(("ppo", "r2d2", "dqn", "a2c", "qr_dqn", "trpo", "impala", "ppg", "rnd"))
    options = rng.choice([*test_theorem._rows(test_theorem._options(name))])
    job = test_theorem.request_for(name, "SingleLearnerCoarse", environment, 1 + seed % 3, options)
    iterations = 2 + chosen.schedule.lag
    job = dataclasses.replace(job, policy=chosen, compiled=False, num_iterations=iterations)
    assert wrong(lambda: inproc.differences(job, tmp_path)) == [], told(f"{name} {options}", job)


@pytest.mark.parametrize("seed", FEWER)
def test_random_programs_with_a_lag_equal_the_reference(seed, tmp_path):
    text, rng = program(seed), random.Random(seed)
    policy, workers, lag = rng.choice((COARSE, *POLICIES)), rng.randint(1, 3), rng.choice((1, 1, 2))
    job = request(tmp_path, text, policy, workers, {"lag": lag}, 3)
    assert wrong(lambda: inproc.differences(job, tmp_path / "job")) == [], told(text, job)


@pytest.mark.parametrize("seed", FEWER)
def test_random_programs_are_the_plain_loops_of_their_logs(seed, tmp_path, shuffled):  # noqa: F811
    text, rng = program(seed, asynchronous=True), random.Random(seed)
    policy, workers = rng.choice(WITH_BATCHES)
    most = workers // 2 if policy == LEARNERS else workers
    gather = 1 if "keep=64" in text else rng.randint(1, most)
    schedule = {**ASYNCHRONOUS, "gather": gather, "staleness": rng.randint(1, 4)}
    job = dataclasses.replace(request(tmp_path, text, policy, workers, schedule, 4), record=())

    def differences():
        plan, _ = prepare(job, tmp_path / "job")
        reports = inproc._run(plan, tmp_path / "job")
        loop = replayed(plan, read_log(tmp_path / "job", plan).rows)
        *_, last = checkpoint.list_checkpoints(tmp_path / "job" / checkpoint.FOLDER)
        found = compare_states(checkpoint.load(last)[0], loop.end[0], STATE)
        for iteration, values in reports.items():
            steps = iteration * plan.steps_per_iteration
            wanted = next(values for after, values in loop.reported if after >= steps)
            found += [
                compared(iteration, name, *map(np.array, (values[name], number)))
                for name, number in wanted.items()
            ]
        return [str(one) for one in found if one.wrong]

    assert wrong(differences) == [], told(text, job)


def request(folder, text, policy, workers, schedule=None, iterations=2):
    file = folder / "random_program.py"
    file.write_text(text)
    job = inproc.request(file, policy, workers, schedule, num_envs=4, num_steps=4)
    return dataclasses.replace(job, num_iterations=iterations)


def wrong(differences):
    """Returns what differs, nothing if the program may be refused and is."""
    try:
        return differences()
    except (PolicyError, ProgramError) as refusal:
        if not any(form in str(refusal) for form in REFUSED):
            raise
        return []


def told(text, job):
    return f"{job.policy.name} with {job.workers} workers, {job.policy.schedule}:\n{text}"
