"""Runs a job with all ranks as threads of this process and compares it with the reference."""

import dataclasses
import socket
from pathlib import Path
from typing import Any

import mindspore as ms

from mindspore_rl import programs
from mindspore_rl.checking import held, plain
from mindspore_rl.communication.link import Link
from mindspore_rl.compiler.partition.partition import Partition
from mindspore_rl.compiler.pipeline import JobRequest, prepare
from mindspore_rl.jobs import registry
from mindspore_rl.plan.plan import FragmentPlan, Plan
from mindspore_rl.policy import Schedule
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.heartbeat import Stamps
from mindspore_rl.runtime.rank.worker import run_inproc, run_worker
from tests.compiler.reading_back import read_back
from tests.multiprocess import theorem

PROGRAMS = Path(__file__).parents[1] / "programs"


def request(
    algorithm: Path, policy: str | Any, workers: int, schedule: dict | None = None, **config: Any
) -> JobRequest:
    """A request for a job of a few iterations that records the values at marks."""
    cls = programs.trainer_class(algorithm)
    if isinstance(policy, str):
        policy = registry.load_policy(registry.find_policy(policy))
    if schedule is not None:
        policy = dataclasses.replace(policy, schedule=Schedule(**schedule))
    return JobRequest(
        algorithm,
        policy,
        cls.Config(**config),
        workers,
        record=theorem.MARKS,
        num_iterations=2,
        compiled=False,
    )


def run_reference(job: JobRequest, folder: Path, once: bool = False) -> theorem.ReferenceRun:
    """Runs the job's algorithm as plain Python; see `differences` for `once`."""
    plan, cut = prepare(job, folder / "names")
    return _reference(job, folder, plan, cut, once)


def _reference(
    job: JobRequest, folder: Path, plan: Plan, cut: Partition, once: bool = False
) -> theorem.ReferenceRun:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    names = held.names_in_source(plan, cut)
    return theorem.run_reference(
        job.algorithm, job.config, folder / "reference", job.num_iterations, names,
        job.policy.schedule.lag, once=once,
    )  # fmt: skip


def differences(job: JobRequest, folder: Path, change=None) -> list[str]:
    """Runs the plain loop and, in `folder/run`, the job, whose iterations start from its states.

    A job that records values at marks runs once more as it trains, without: its loops are other
    cells then. A plain loop that the job agrees with has run once. Else two runs of it must agree,
    and if it was wrong, the job runs again.

    Args:
        change: see `run_and_compare`.
    """
    plan, cut = prepare(job, folder / "run", read_back)
    reference = _reference(job, folder, plan, cut, once=True)
    wrong = _settled(job, plan, reference, folder / "run", change)
    if wrong or not job.record or change is not None:
        return wrong
    as_trained, folder = dataclasses.replace(job, record=()), folder / "as-trained"
    plan, _ = prepare(as_trained, folder, read_back, cut)
    return _settled(as_trained, plan, reference, folder, None)


def run_and_compare(
    job: JobRequest, reference: theorem.ReferenceRun, folder: Path, change=None
) -> list[str]:
    """Returns the differences when every iteration starts from the reference's state.

    Args:
        change: called with the run's folder before the start, to modify the generated source.
    """
    plan, _ = prepare(job, folder, read_back)
    return _settled(job, plan, reference, folder, change)


def _settled(
    job: JobRequest, plan: Plan, reference: theorem.ReferenceRun, folder: Path, change
) -> list[str]:
    if change is not None:
        change(folder)
        return _compare(plan, reference, folder)
    wrong = _compare(plan, reference, folder)
    if wrong and not plain.same(reference, agreed := run_reference(job, folder / "agreed")):
        plan, _ = prepare(job, folder / "again", read_back)
        return _compare(plan, agreed, folder / "again")
    return wrong


def _compare(plan: Plan, reference: theorem.ReferenceRun, folder: Path) -> list[str]:
    iterations = plan.num_iterations
    starts = {str(i): str(reference.checkpoints[i]) for i in range(iterations)}
    reports = _run(dataclasses.replace(plan, load_at=starts), folder)
    used = {site.split(":")[1].split("#")[0] for _, site in reference.records}
    marks = tuple(mark for mark in plan.record if mark in used)
    wrong = theorem.compare(folder, reference, iterations, marks)
    for i in range(iterations):
        found = held.compare_reports(reports.get(i + 1, {}), reference, i)
        wrong += [str(one) for one in found if one.wrong]
    last = checkpoint.list_checkpoints(folder / checkpoint.FOLDER)[-1]
    return wrong + theorem.compare_states(last, reference.checkpoints[-1])


def run(job: JobRequest, folder: Path) -> tuple[Plan, Path]:
    """Runs a job. Returns: its plan, and its last checkpoint."""
    plan, _ = prepare(job, folder)
    _run(plan, folder)
    return plan, checkpoint.list_checkpoints(folder / checkpoint.FOLDER)[-1]


def run_compiled(algorithm: Path, folder: Path, num_iterations: int, **config: Any) -> FragmentPlan:
    """Runs a job of one rank with compiled cells."""
    job = request(algorithm, "MultipleLearners", 1, **config)
    job = dataclasses.replace(job, record=(), num_iterations=num_iterations, compiled=True)
    return run(job, folder)[0].fragments[0]


def _run(plan: Plan, folder: Path) -> dict[int, dict[str, float]]:
    """Runs a job. Returns: the metrics of each iteration that a rank reported, by its number."""
    Stamps(folder, plan.num_ranks, create=True)
    pairs = [socket.socketpair() for _ in range(plan.num_ranks)]
    links = [Link(ours) for ours, _ in pairs]
    pairs[0][1].sendall(b'{"kind": "logged"}\n' * 1000)  # nobody writes metrics
    reports: dict[int, dict[str, float]] = {}
    try:
        if plan.compiled:
            run_worker(plan, folder, 0, links[0])
        else:
            run_inproc(plan, folder, links)
        for ours, theirs in pairs:
            ours.close()
            link = Link(theirs)
            while not link.closed:
                message = link.poll() or {}
                if metrics := message.get("metrics"):
                    reports.setdefault(message["iteration"], {}).update(metrics)
        return reports
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
        ms.set_context(mode=ms.PYNATIVE_MODE)
