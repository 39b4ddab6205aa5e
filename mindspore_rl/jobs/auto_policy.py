"""Chooses a policy for a job by simulating each candidate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindspore_rl import config
from mindspore_rl.compiler.pipeline import JobRequest, environment_for
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.job import Job
from mindspore_rl.performance import device_model
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.performance.predict import (
    Prediction,
    Say,
    link_between,
    machine_costs,
    predict,
)
from mindspore_rl.plan.traffic import predict as predict_traffic
from mindspore_rl.platform import resources
from mindspore_rl.platform.stdio import say
from mindspore_rl.policy import (
    SYNCHRONOUS,
    WORKERS,
    DistributionPolicy,
    Schedule,
)

CHUNKS = 2
"""Also tried, of policies that send in every step: one chunk is under way while another waits."""


@dataclass(frozen=True)
class Candidate:
    """A way to run a job.

    Attributes:
        file: of the policy.
        prediction: None of one that cannot serve; `why` then tells.
    """

    file: str
    policy: DistributionPolicy
    workers: int
    prediction: Prediction | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """The policy, with its chunks if it has some."""
        chunks = self.policy.schedule.chunks
        return self.policy.name + (f" (chunks={chunks})" if chunks > 1 else "")


def candidates(
    request: JobRequest,
    files: dict[str, str],
    cluster: Cluster,
    say: Say,
    device: str = "CPU",
    workers: int | None = None,
    schedule: Sequence[str] = (),
) -> list[Candidate]:
    """Every policy with every number of workers, simulated, the fastest first.

    Args:
        request: of the job, under any policy.
        files: of the policies, by name.
        cluster: where it would run.
        say: told what is being measured.
        device: by which ranks fill hosts.
        workers: no other number of them is tried.
        schedule: keys of every policy's schedule that are asked for, as `key=value`.
    """
    room = _room(request, device)
    found = []
    for file in files.values():
        policy = registry.load_policy(registry.find_policy(file))
        numbers = [workers] if workers else _workers(policy, room, request.config.num_envs)
        for number in numbers:
            for variant in _variants(policy, schedule):
                found.append(_tried(request, file, variant, number, cluster, say, device, room))
    return sorted(found, key=lambda c: -c.prediction.steps_per_s if c.prediction else 0.0)


def _variants(policy: DistributionPolicy, asked: Sequence[str]) -> Iterable[DistributionPolicy]:
    base = config.to_dict(policy.schedule)
    schedule = config.resolve(Schedule, None, {}, list(asked), base=base)
    yield replace(policy, schedule=schedule)
    chunked = any(text.partition("=")[0] == "chunks" for text in asked)
    if not chunked and schedule.order == SYNCHRONOUS and _steps_apart(policy):
        yield replace(policy, schedule=replace(schedule, chunks=CHUNKS))


def _steps_apart(policy: DistributionPolicy) -> bool:
    """Whether the environments are in another fragment than the actor."""
    return not any({"environment", "actor"} <= set(rule.components) for rule in policy.fragments)


def _room(request: JobRequest, device: str) -> int:
    """Ranks that the job's hosts take."""
    if not request.deployment.hosts:
        return resources.available_cores()
    return sum(host.capacity(device) for host in request.deployment.hosts)


def _workers(policy: DistributionPolicy, room: int, num_envs: int) -> list[int]:
    """Numbers of workers to try: powers of two, and the most."""
    if all(rule.replicas != WORKERS for rule in policy.fragments):
        return [1]
    most = min(room, num_envs)
    return sorted({*(1 << i for i in range(most.bit_length())), most})


def _tried(
    request: JobRequest,
    file: str,
    policy: DistributionPolicy,
    workers: int,
    cluster: Cluster,
    say: Say,
    device: str,
    room: int,
) -> Candidate:
    one = Candidate(file, policy, workers)
    try:
        name = environment_for(policy, request.config.env)
        config = request.config
        if name != config.env:
            config = replace(config, env=name)
        asked = replace(request, policy=policy, workers=workers, config=config)
        return replace(one, prediction=predict(asked, cluster, say, device, most_ranks=room))
    except MsrlError as error:
        return replace(one, why=str(error).splitlines()[0])


def row(candidate: Candidate) -> tuple[str, ...]:
    """What is said of a candidate: time, rate, bytes and what binds."""
    found = candidate.prediction
    if found is None:
        return (candidate.name, str(candidate.workers), "", "", "", candidate.why)
    sent = sum(traffic.message_bytes for traffic in predict_traffic(found.plan) if traffic.each)
    return (
        candidate.name,
        str(candidate.workers),
        f"{found.simulation.iteration_s * 1e3:.2f}",
        f"{found.steps_per_s:,.0f}",
        f"{sent:,}",
        bottleneck(found),
    )


def bottleneck(found: Prediction) -> str:
    """What the busiest rank spends most of its time on."""

    def work(spent: dict[str, float]) -> dict[str, float]:
        return {k: v for k, v in spent.items() if not k.startswith("waiting")}

    spent = found.simulation.spent
    rank = max(range(len(spent)), key=lambda r: sum(work(spent[r]).values()))
    what, seconds = max(work(spent[rank]).items(), key=lambda pair: pair[1], default=("", 0.0))
    fragment = found.plan.fragment_of(rank)[0].name
    return f"{fragment}: {what}, {seconds / found.simulation.iteration_s:.0%}"


def reason(chosen: Candidate, others: list[Candidate]) -> str:
    """The choice in one line."""
    assert chosen.prediction is not None
    slower = [c for c in others if c.prediction and c.policy.name != chosen.policy.name]
    text = f"{chosen.name} with {chosen.workers} worker{'s' * (chosen.workers != 1)}"
    rate = chosen.prediction.steps_per_s
    if not slower or slower[0].prediction is None:
        return f"{text}: {rate:,.0f} steps/s"
    factor = rate / slower[0].prediction.steps_per_s
    return f"{text}: {rate:,.0f} steps/s, {factor:.2f} x the next policy ({slower[0].name})"


def best(found: list[Candidate]) -> Candidate:
    """The fastest. Raises: MsrlError: none can serve."""
    if not found or found[0].prediction is None:
        reasons = "; ".join(f"{c.name}: {c.why}" for c in found)
        raise MsrlError(f"no policy can serve this job ({reasons}); name one by --policy")
    return found[0]


def of_project(named: Any = None) -> dict[str, str]:
    """The policies in reach: the project's, and a file that is named."""
    files = {name: str(file) for name, file in registry.policies().items()}
    return files | ({str(named): str(named)} if named else {})


def settled(job: Job, values: Mapping[str, object] | None = None) -> Job:
    """Replaces the policy `auto` by the fastest policy, with its chunks and number of workers.

    Args:
        job: what is asked for.
        values: keys of the algorithm's configuration.
    """
    job = jobs.with_file(job)
    found = simulated(job, None, values)
    chosen = best(found)
    say(f"policy {reason(chosen, found)}")
    chunks = f"chunks={chosen.policy.schedule.chunks}"
    schedule = ",".join((*jobs.schedule_words(job.schedule), chunks))
    return replace(job, policy=chosen.file, workers=chosen.workers, schedule=schedule)


def simulated(
    job: Job, hardware: str | None, values: Mapping[str, object] | None = None
) -> list[Candidate]:
    """Simulates a job under its policy, or under every policy of the project.

    Args:
        job: what is asked for.
        hardware: name or YAML file of a description of GPUs; None: this machine.
        values: keys of the algorithm's configuration.

    Returns: the candidates, the fastest first.
    """
    named = None if job.policy in (None, jobs.AUTO) else str(job.policy)  # a file's is one of many
    job = jobs.with_file(job)
    schedule = jobs.schedule_words(job.schedule)  # every candidate's
    any_policy = replace(job, policy=named or next(iter(registry.policies())), schedule=None)
    request = jobs.request(any_policy, values)
    spec(request.config.env)  # else every policy would be told not to serve
    machine = machine_costs(say)
    kind, cluster = "CPU", Cluster(machine)
    if hardware:
        described, sources = device_model.load(registry.find_device(hardware))
        say(f"{hardware} is a description: " + "; ".join(f"{k}: {v}" for k, v in sources.items()))
        kind, cluster = "GPU", Cluster.described(machine, request.deployment, described)
    elif request.deployment.spans_hosts:
        far = link_between(request.deployment, say)
        cluster = Cluster.measured(machine, request.deployment, far)
    files = of_project(named)
    return candidates(request, files, cluster, say, kind, job.workers, schedule)
