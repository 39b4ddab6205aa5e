"""The main theorem on real ranks: from equal state, every synchronous policy gives the
reference's actions, advantages, gradients and parameters (design, section 5)."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import theorem

from mindspore_rl import programs, registry
from mindspore_rl.errors import MsrlError
from mindspore_rl.graph.distribution_policy import Schedule
from mindspore_rl.runtime.coordinator import JobOptions, run_job
from mindspore_rl.runtime.job import JobRequest, environment_for, prepare

PROGRAMS = Path(__file__).parent.parent / "programs"
ITERATIONS = 3
CARTPOLE = ("CartPole-v1", "graph:CartPole-v1")
PENDULUM = ("Pendulum-v1", "graph:Pendulum-v1")
PARTICLES = ("graph:simple_spread_v3", "graph:simple_tag_v3", "pettingzoo:mpe2.simple_spread_v3")
SMALL = {"num_envs": 8, "num_steps": 10, "num_minibatches": 2, "update_epochs": 2}
ALGORITHMS = {
    "ppo": ({"num_steps": 32, "update_epochs": 2}, (*CARTPOLE, *PENDULUM)),
    "a2c": ({}, CARTPOLE),
    "mappo": (SMALL, PARTICLES),
    str(PROGRAMS / "two_phase.py"): ({}, CARTPOLE),
}
"""Their configurations and environments."""
POLICIES = (
    "SingleLearnerCoarse",
    "MultipleLearners",
    "GPUOnly",
    "SingleLearnerFine",
    "Environments",
    "Central",
    str(PROGRAMS / "crossed.py"),
)
WORKERS = (1, 2, 3)
QUICK = {
    ("ppo", "SingleLearnerCoarse", "CartPole-v1", 3),
    ("ppo", "SingleLearnerCoarse", "graph:Pendulum-v1", 1),
    ("ppo", "MultipleLearners", "Pendulum-v1", 3),
    ("ppo", "MultipleLearners", "CartPole-v1", 2),
    ("ppo", "GPUOnly", "graph:CartPole-v1", 3),
    ("ppo", "GPUOnly", "graph:Pendulum-v1", 2),
    ("ppo", "GPUOnly", "graph:CartPole-v1", 1),
    ("ppo", "SingleLearnerFine", "CartPole-v1", 2),
    ("ppo", "Central", "CartPole-v1", 2),
    ("ppo", "Environments", "CartPole-v1", 2),
    ("mappo", "Environments", "graph:simple_tag_v3", 2),
    ("mappo", "GPUOnly", "graph:simple_spread_v3", 1),
    (str(PROGRAMS / "two_phase.py"), str(PROGRAMS / "crossed.py"), "CartPole-v1", 1),
    (str(PROGRAMS / "two_phase.py"), "SingleLearnerCoarse", "graph:CartPole-v1", 2),
    (str(PROGRAMS / "two_phase.py"), "GPUOnly", "graph:CartPole-v1", 2),
}
"""A cover of the policies, the algorithms and the numbers of workers."""


def _cases():
    for case in (
        (algorithm, policy, environment, workers)
        for algorithm, (_, environments) in ALGORITHMS.items()
        for policy, environment, workers in itertools.product(POLICIES, environments, WORKERS)
    ):
        algorithm, policy, environment, workers = case
        if policy == "GPUOnly" and not environment.startswith("graph:"):
            continue
        if policy.endswith("crossed.py") and workers > 1:
            continue
        name = f"{Path(algorithm).stem}-{Path(policy).stem}-{environment}-{workers}"
        marks = () if case in QUICK else (pytest.mark.slow,)
        yield pytest.param(*case, id=name, marks=(pytest.mark.multiprocess, *marks))


def request_for(algorithm: str, policy: str, environment: str, workers: int) -> JobRequest:
    file = registry.find_algorithm(algorithm)
    config = programs.trainer_class(file).Config(env=environment, **ALGORITHMS[algorithm][0])
    chosen = programs.load_policy(registry.find_policy(policy))
    assert environment_for(chosen, environment) == environment
    return JobRequest(
        file,
        chosen,
        config,
        workers,
        timeout_s=240.0,  # numbers are compared here, on machines that may be busy
        num_iterations=ITERATIONS,
        record=theorem.MARKS,
    )


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """Runs each reference once: it does not depend on policy and workers."""
    known: dict[tuple[str, str], theorem.ReferenceRun] = {}

    def get(request: JobRequest) -> theorem.ReferenceRun:
        key = (str(request.algorithm), request.config.env)
        if key not in known:
            folder = tmp_path_factory.mktemp("reference")
            carried = theorem.carried_names(request, folder / "plan")
            known[key] = theorem.run_reference(
                request.algorithm, request.config, folder, ITERATIONS, carried
            )
        return known[key]

    return get


@pytest.mark.parametrize(("algorithm", "policy", "environment", "workers"), list(_cases()))
def test_equals_reference(algorithm, policy, environment, workers, references, tmp_path):
    _check(request_for(algorithm, policy, environment, workers), references, tmp_path)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("policy", "environment", "workers", "chunks"),
    [
        ("SingleLearnerFine", "CartPole-v1", 2, 2),
        pytest.param("SingleLearnerFine", "Pendulum-v1", 3, 2, marks=pytest.mark.slow),
        pytest.param("Environments", "CartPole-v1", 2, 3, marks=pytest.mark.slow),
    ],
)
def test_chunks_equal_reference(policy, environment, workers, chunks, references, tmp_path):
    request = request_for("ppo", policy, environment, workers)
    schedule = Schedule(chunks=chunks)
    request = dataclasses.replace(
        request, policy=dataclasses.replace(request.policy, schedule=schedule)
    )
    _check(request, references, tmp_path)


def _check(request, references, tmp_path):
    reference = references(request)
    starts = tuple((i, str(reference.checkpoints[i])) for i in range(ITERATIONS))
    plan, _ = prepare(dataclasses.replace(request, load_at=starts), tmp_path)
    outcome = run_job(plan, tmp_path, JobOptions(progress=False, total_steps=0))
    assert outcome.iterations == ITERATIONS
    marks = [m for m in theorem.MARKS if any(f":{m}#" in site for _, site in reference.records)]
    assert {"action", "gradient"} <= set(marks)
    assert theorem.compare(tmp_path, reference, ITERATIONS, marks) == []
    assert theorem.compare_states(Path(outcome.checkpoint), reference.checkpoints[-1]) == []


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("policy", "environment"),
    [("MultipleLearners", "CartPole-v1"), ("GPUOnly", "graph:CartPole-v1")],
)
def test_runs_freely(policy, environment, references, tmp_path):
    """Without loading the reference's state in between, rounding may grow but not jump."""
    request = request_for("ppo", policy, environment, 2)
    reference = references(request)
    plan, _ = prepare(request, tmp_path)
    outcome = run_job(plan, tmp_path, JobOptions(progress=False, total_steps=0))
    assert theorem.compare(tmp_path, reference, 1) == []
    assert theorem.compare(tmp_path, reference, ITERATIONS, ("action",)) == []
    wrong = theorem.compare_states(
        Path(outcome.checkpoint),
        reference.checkpoints[-1],
        "parameters/actor",
        rtol=1e-3,
        atol=1e-4,
    )
    assert wrong == []


def test_more_replicas_than_environments(tmp_path):
    request = dataclasses.replace(
        request_for("ppo", "SingleLearnerCoarse", "CartPole-v1", 1), workers=9
    )
    with pytest.raises(MsrlError, match="9 replicas of actor for 8 environments"):
        prepare(request, tmp_path)
