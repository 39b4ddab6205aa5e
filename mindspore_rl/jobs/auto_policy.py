"""Chooses a policy for a job by simulating each candidate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mindspore_rl import config, programs
from mindspore_rl.compiler.pipeline import JobRequest, environment_for
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.job import Job
from mindspore_rl.performance import device_model
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.performance.predict import Prediction, Say, link_between, machine_costs, predict
from mindspore_rl.plan.traffic import predict as predict_traffic
from mindspore_rl.platform import resources
from mindspore_rl.platform.stdio import say
from mindspore_rl.policy import ASYNCHRONOUS, SYNCHRONOUS, WORKERS, DistributionPolicy, Schedule

REPEATABLE = 1.1
"""Factor by which an asynchronous candidate must be faster: the others compute the same values in
every run."""
CHUNKS = 2
"""Number of chunks also tried for policies that send in every step: one steps, one waits."""


@dataclass(frozen=True)
class Candidate:
    """One way to run a job.

    Attributes:
        file: the policy's file.
        prediction: the predicted time; None if the policy cannot run the job (see `why`).
    """

    file: str
    policy: DistributionPolicy
    workers: int
    prediction: Prediction | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """Returns the policy's name, and what its schedule has beside the default."""
        schedule = self.policy.schedule
        parts = [f"chunks={schedule.chunks}"] if schedule.chunks > 1 else []
        parts += [f"lag={schedule.lag}"] if schedule.lag else []
        if schedule.order == ASYNCHRONOUS:
            parts += [ASYNCHRONOUS, f"gather={schedule.gather}"]
        return self.policy.name + (f" ({', '.join(parts)})" if parts else "")


def candidates(
    request: JobRequest,
    files: dict[str, str],
    cluster: Cluster,
    say: Say,
    device: str = "CPU",
    workers: int | None = None,
    schedule: Sequence[str] = (),
) -> list[Candidate]:
    """Simulates every policy with every number of workers. Returns: the candidates, fastest first.

    Args:
        request: the job, under any policy.
        files: the policies' files, by name.
        cluster: the hosts that the job would run on.
        say: called with what is being measured.
        device: "CPU" or "GPU": the ranks that a host has room for.
        workers: the only number of workers to try; None: several.
        schedule: keys that every policy's schedule must have, as `key=value`.
    """
    room = _room(request, device)
    trainer: Any = programs.trainer_class(request.algorithm)
    found: list[Candidate] = []
    for file in files.values():
        policy = registry.load_policy(registry.find_policy(file))
        numbers = [workers] if workers else _workers(policy, room, request.config.num_envs)
        for number in numbers:
            for variant in _variants(policy, schedule, trainer, number):
                if variant.schedule.gather > 1 and _has_own_batches(found[-1]):
                    continue
                found.append(_tried(request, file, variant, number, cluster, say, device, room))
    return sorted(found, key=lambda c: -c.prediction.steps_per_s if c.prediction else 0.0)


def _variants(
    policy: DistributionPolicy, asked: Sequence[str], trainer: Any, workers: int
) -> Iterable[DistributionPolicy]:
    base = config.to_dict(policy.schedule)
    schedule = config.resolve(Schedule, None, {}, list(asked), base=base)
    yield replace(policy, schedule=schedule)
    keys = {text.partition("=")[0] for text in asked}
    if schedule.order != SYNCHRONOUS:
        return
    if "chunks" not in keys and _steps_apart(policy):
        yield replace(policy, schedule=replace(schedule, chunks=CHUNKS))
    if "lag" not in keys and _may_run_ahead(policy):
        for lag in range(schedule.lag + 1, trainer.max_lag + 1):
            yield replace(policy, schedule=replace(schedule, lag=lag))
    if not keys and trainer.max_staleness and workers > 1 and _may_run_ahead(policy):
        for gather in sorted({1, workers // 2}):
            chosen = Schedule(ASYNCHRONOUS, trainer.max_staleness, gather=gather)
            yield replace(policy, schedule=chosen)


def _undeclared(request: JobRequest) -> str:
    """Says which schedules are not tried, since the algorithm does not say that it bears them."""
    trainer: Any = programs.trainer_class(request.algorithm)
    schedules = {"max_lag": "lag=1", "max_staleness": f"order={ASYNCHRONOUS}"}
    missing = [key for key in schedules if not getattr(trainer, key)]
    if not missing:
        return ""
    return (
        f"{request.algorithm.stem} declares no {' and no '.join(missing)} (how much older its "
        f"actors' parameters may be): {' and '.join(schedules[key] for key in missing)} "
        f"{'are' if len(missing) > 1 else 'is'} tried only if --schedule says so"
    )


def _has_own_batches(candidate: Candidate) -> bool:
    """Returns whether the loop says how many messages an update takes: it has a kept replay."""
    found = candidate.prediction.plan.arrivals if candidate.prediction else None
    return found is not None and found.gather != candidate.policy.schedule.gather


def _steps_apart(policy: DistributionPolicy) -> bool:
    """Returns whether the environments and the actor are in different fragments."""
    return not any({"environment", "actor"} <= set(rule.components) for rule in policy.fragments)


def _may_run_ahead(policy: DistributionPolicy) -> bool:
    """Returns whether actors only act, on devices of their own: elsewhere a lag saves no time."""
    home = next(rule for rule in policy.fragments if "actor" in rule.components)
    learns = {"gradient", "update"} & set(home.components)
    return not learns and not any(home.name in group for group in policy.colocate)


def _room(request: JobRequest, device: str) -> int:
    """Returns how many ranks fit on the job's hosts."""
    if not request.deployment.hosts:
        return resources.available_cores()
    return sum(host.capacity(device) for host in request.deployment.hosts)


def _workers(policy: DistributionPolicy, room: int, num_envs: int) -> list[int]:
    """Lists the numbers of workers to try: powers of two, and the largest possible."""
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
    """Formats a candidate: time, rate, bytes and bottleneck."""
    found = candidate.prediction
    if found is None:
        return (candidate.name, str(candidate.workers), "", "", "", candidate.why)
    sent = sum(one.total(Fraction(1))[1] for one in predict_traffic(found.plan) if one.each)
    return (
        candidate.name,
        str(candidate.workers),
        f"{found.simulation.iteration_s * 1e3:.2f}",
        f"{found.steps_per_s:,.0f}",
        f"{sent:,}",
        bottleneck(found),
    )


def bottleneck(found: Prediction) -> str:
    """Names the activity that takes most of the busiest rank's time."""

    def work(spent: dict[str, float]) -> dict[str, float]:
        return {k: v for k, v in spent.items() if not k.startswith("waiting")}

    spent = found.simulation.spent
    rank = max(range(len(spent)), key=lambda r: sum(work(spent[r]).values()))
    what, seconds = max(work(spent[rank]).items(), key=lambda pair: pair[1], default=("", 0.0))
    fragment = found.plan.fragment_of(rank)[0].name
    return f"{fragment}: {what}, {seconds / found.simulation.iteration_s:.0%}"


def reason(chosen: Candidate, others: list[Candidate]) -> str:
    """Explains the choice in one line."""
    assert chosen.prediction is not None
    slower = [c for c in others if c.prediction and c.policy.name != chosen.policy.name]
    text = f"{chosen.name} with {chosen.workers} worker{'s' * (chosen.workers != 1)}"
    rate = chosen.prediction.steps_per_s
    if not slower or slower[0].prediction is None:
        return f"{text}: {rate:,.0f} steps/s"
    factor = rate / slower[0].prediction.steps_per_s
    return f"{text}: {rate:,.0f} steps/s, {factor:.2f} x the next policy ({slower[0].name})"


def best(found: list[Candidate]) -> Candidate:
    """Returns the fastest candidate, or a synchronous one that is hardly slower.

    Raises:
        MsrlError: no policy can run the job.
    """
    if not found or found[0].prediction is None:
        reasons = "\n  ".join(dict.fromkeys(f"{c.name}: {c.why}" for c in found))
        raise MsrlError(f"no policy can serve this job; name one by --policy\n  {reasons}")
    least = found[0].prediction.steps_per_s / REPEATABLE
    fast = (c for c in found if c.prediction and c.prediction.steps_per_s >= least)
    return next((c for c in fast if c.policy.schedule.order == SYNCHRONOUS), found[0])


def of_project(named: Any = None) -> dict[str, str]:
    """Returns the project's policies, and the policy of a file if one is named."""
    files = {name: str(file) for name, file in registry.policies().items()}
    return files | ({str(named): str(named)} if named else {})


def settled(job: Job, values: Mapping[str, object] | None = None) -> Job:
    """Replaces the policy `auto` by the fastest policy, with its schedule and number of workers.

    Args:
        job: the job as the user gave it.
        values: keys of the algorithm's configuration.
    """
    job = jobs.with_file(job)
    found = simulated(job, None, values)
    chosen = best(found)
    say(f"policy {reason(chosen, found)}")
    keys = config.to_dict(chosen.policy.schedule).items()
    schedule = ",".join(f"{key}={value}" for key, value in keys if value is not None)
    return replace(job, policy=chosen.file, workers=chosen.workers, schedule=schedule)


def simulated(
    job: Job, hardware: str | None, values: Mapping[str, object] | None = None
) -> list[Candidate]:
    """Simulates a job under its policy, or under every policy of the project.

    Args:
        job: the job as the user gave it.
        hardware: name or YAML file of a description of GPUs; None: this machine.
        values: keys of the algorithm's configuration.

    Returns: the candidates, the fastest first.
    """
    named = None if job.policy in (None, jobs.AUTO) else str(job.policy)  # not a file's policy
    job = jobs.with_file(job)
    schedule = jobs.schedule_words(job.schedule)  # applies to every candidate
    any_policy = replace(job, policy=named or next(iter(registry.policies())), schedule=None)
    request = jobs.request(any_policy, values)
    spec(request.config.env)  # an unknown environment is one error, not one error per policy
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
    if not schedule and (untried := _undeclared(request)):
        say(untried)
    return candidates(request, files, cluster, say, kind, job.workers, schedule)
