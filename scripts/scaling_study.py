"""Jobs of the scaling studies: planned once, simulated often, and run."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import study
from network_hosts import Network
from study import NotMeasured, Row

from mindspore_rl import programs
from mindspore_rl.compiler.pipeline import JobRequest, environment_for
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.auto_policy import bottleneck
from mindspore_rl.performance import device_model, predict
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.plan import deployment
from mindspore_rl.plan.traffic import predict as traffic_of
from mindspore_rl.platform import resources
from mindspore_rl.policy import Schedule

CLUSTERS = {
    "v100_on_10gb_ethernet": "sixteen_hosts_of_four_gpus",
    "a100_on_100gb_infiniband": "four_hosts_of_eight_gpus",
}
POLICIES: dict[str, tuple[str, Row]] = {
    "SingleLearnerCoarse": ("SingleLearnerCoarse", {}),
    "MultipleLearners": ("MultipleLearners", {}),
    "GPUOnly": ("GPUOnly", {}),
    "SingleLearnerFine": ("SingleLearnerFine", {}),
    "SingleLearnerFine, 2 chunks": ("SingleLearnerFine", {"chunks": 2}),
    "Environments": ("Environments", {}),
    "Central": ("Central", {}),
}
"""A policy and its schedule, by the name of the row."""
ALGORITHMS: dict[str, Row] = {
    "ppo": {"env": "CartPole-v1", "num_envs": 256, "num_steps": 64, "update_epochs": 2},
    "a3c": {"env": "CartPole-v1", "num_envs": 256, "num_steps": 64},
    "mappo": {
        "env": "graph:simple_spread_v3",
        "num_envs": 256,
        "num_steps": 25,
        "update_epochs": 2,
    },
}
ASYNCHRONOUS = {"order": "asynchronous", "staleness": 64}
GPUS, QUICK_GPUS = (1, 2, 4, 8, 16, 32, 64), (1, 8, 64)
QUICK_POLICIES = ("SingleLearnerCoarse", "MultipleLearners", "GPUOnly")
FIXED_STEPS = 1_000_000
DESCRIBED = "predicted: cells by description, the rest measured here"
MEASURED = "predicted by costs that were measured, and measured"
THIS_MACHINE = "this machine"
SHARES = ("environment", "cells", "messages", "collectives", "python", "waiting")
"""The parts of a rank's time."""
WARM_UP, SECONDS, MIN, MAX = 14, 3.0, 10, 600
"""Iterations that do not count; time of the others, and their smallest and largest number."""
T = TypeVar("T")


def request(algorithm: str, policy: str, keys: Row, workers: int, **more: Any) -> JobRequest:
    """Returns the request of a job.

    Args:
        algorithm: one of `ALGORITHMS`.
        policy: one of `POLICIES`.
        keys: keys of its configuration.
        workers: the number of workers.
        more: other arguments of `JobRequest`.
    """
    file = registry.find_algorithm(_file(algorithm))
    found = registry.load_policy(registry.find_policy(POLICIES[policy][0]))
    found = replace(found, schedule=Schedule(**_schedule(algorithm, policy)))
    keys = keys | {"env": environment_for(found, keys["env"])}
    return JobRequest(file, found, programs.trainer_class(file).Config(**keys), workers, **more)


def fitting(ranks: int, plan: Callable[[int], T]) -> T:
    """Plans a job with the largest number of workers whose ranks fit."""
    for workers in (ranks, ranks - 1):
        try:
            return plan(max(workers, 1))
        except MsrlError:
            pass
    return plan(max(ranks // 2, 1))


def _file(algorithm: str) -> str:
    return "a2c" if algorithm == "a3c" else algorithm


def _schedule(algorithm: str, policy: str) -> Row:
    """Returns the schedule: A3C is A2C whose server applies gradients as they arrive."""
    name, schedule = POLICIES[policy]
    return {**schedule, **ASYNCHRONOUS} if (algorithm, name) == ("a3c", "Central") else schedule


def iteration_ms(
    algorithm: str,
    policy: str,
    keys: Row,
    workers: int,
    guess_s: float,
    hosts: Path | None = None,
    network: Network | None = None,
) -> float:
    """Trains for a while. Returns: the mean time of an iteration.

    Args:
        algorithm: one of `ALGORITHMS`.
        policy: one of `POLICIES`.
        keys: keys of its configuration.
        workers: the number of workers.
        guess_s: about the time of an iteration.
        hosts: the deployment to train on.
        network: the network whose first host trains.

    Raises:
        NotMeasured: the job failed.
    """
    iterations = WARM_UP + min(max(round(SECONDS / guess_s), MIN), MAX)
    schedule = ",".join(f"{k}={v}" for k, v in _schedule(algorithm, policy).items()) or None
    flags = {"policy": POLICIES[policy][0], "workers": workers, "schedule": schedule}
    flags |= {"total_steps": iterations * keys["num_envs"] * keys["num_steps"]}
    flags |= {"stop_return": "nan", "deployment": hosts}
    with study.trained(_file(algorithm), keys=keys, network=network, **flags) as run:
        return round(1e3 * float(run.durations_s(WARM_UP).mean()), 3)


@dataclass(frozen=True)
class Hosts:
    """The available hosts.

    Attributes:
        name: the name in rows.
        cluster: as measured; with GPUs, as described.
        room: the number of ranks that fit.
        device: the kind of device that limits the ranks.
        file: None: this machine.
    """

    name: str
    cluster: Cluster
    deployment: deployment.Deployment
    room: int
    device: str
    file: Path | None


class Study:
    """Jobs that are planned and measured once, and simulated often."""

    def __init__(
        self, quick: bool, ranks: list[int] | None = None, algorithms: list[str] | None = None
    ) -> None:
        self.quick, self.ranks = quick, ranks
        self.policies = QUICK_POLICIES if quick else tuple(POLICIES)
        self.gpus = QUICK_GPUS if quick else GPUS
        self.algorithms = algorithms or (("ppo",) if quick else tuple(ALGORITHMS))
        self.machine = predict.machine_costs(say)
        self.devices = {name: device_model.load(registry.find_device(name))[0] for name in CLUSTERS}
        self.deployments = {
            name: deployment.load(registry.find_deployment(file)) for name, file in CLUSTERS.items()
        }
        self._jobs: dict[str, predict.Job | str] = {}

    def hosts(self, file: Path | None, hardware: str | None) -> Hosts:
        """Returns the hosts of a deployment; without one, this machine."""
        if file is None:
            here, room = deployment.Deployment(), resources.available_cores()
            return Hosts(THIS_MACHINE, Cluster(self.machine), here, room, "CPU", None)
        found = deployment.load(file)
        kind = "GPU" if any(host.gpus for host in found.hosts) else "CPU"
        if kind == "CPU":
            link = predict.link_between(found, say)
            cluster = Cluster.measured(self.machine, found, link)
        elif hardware is None:
            raise SystemExit(
                f"{file} has GPUs: say by --hardware which, one of {', '.join(CLUSTERS)}"
            )
        else:
            cluster = Cluster.described(self.machine, found, self.devices[hardware])
        room = sum(host.capacity(kind) for host in found.hosts)
        return Hosts(file.stem, cluster, found, room, kind, file)

    def job(self, algorithm: str, policy: str, gpus: int, config: Row) -> predict.Job | str:
        """Returns a planned job with one rank per GPU, or a text that says why there is none."""
        key, keys = repr((algorithm, policy, gpus, config)), ALGORITHMS[algorithm] | config

        def plan(workers: int) -> predict.Job:
            return predict.job_of(request(algorithm, policy, keys, workers), say, most_ranks=gpus)

        if key not in self._jobs:
            try:
                self._jobs[key] = fitting(gpus, plan)
            except MsrlError as error:
                self._jobs[key] = str(error).splitlines()[0]
        return self._jobs[key]

    def described(self, about: Row, config: Row, device: device_model.Device) -> Row:
        """Simulates a job on a described cluster. Returns: its row.

        Args:
            about: the columns that identify the row.
            config: the differences from the algorithm's configuration in `ALGORITHMS`.
            device: the cluster's device.
        """
        job = self.job(about["algorithm"], about["policy"], about["gpus"], config)
        if isinstance(job, str):
            return {"why_not": job}
        hosts = self.deployments[about["cluster"]]
        return self._row(job, Cluster.described(self.machine, hosts, device), hosts, "GPU")

    def _row(
        self, job: predict.Job, cluster: Cluster, hosts: deployment.Deployment, device: str
    ) -> Row:
        ranks = job.plan.num_ranks
        found = job.on(cluster, hosts.place(ranks, device) if ranks > 1 else ())
        sent = sum(traffic.message_bytes for traffic in traffic_of(job.plan) if traffic.each)
        return {
            "ranks": ranks,
            "iteration_ms": round(1e3 * found.simulation.iteration_s, 3),
            "steps_per_s": round(found.steps_per_s),
            "fixed_steps_s": round(FIXED_STEPS / found.steps_per_s, 2),
            "bytes": sent,
            "binds": bottleneck(found),
            **shares(found.simulation.spent),
            "basis": DESCRIBED,
        }

    def trained(self, about: Row, hosts: Hosts) -> Row:
        """Predicts a job on available hosts, and runs it."""
        algorithm, policy = about["algorithm"], about["policy"]
        job = self.job(algorithm, policy, about["gpus"], {})
        if isinstance(job, str):
            return {"why_not": job}
        row = self._row(job, hosts.cluster, hosts.deployment, hosts.device)
        row["basis"] = MEASURED if hosts.device == "CPU" else DESCRIBED
        keys, guess_s = ALGORITHMS[algorithm], row["iteration_ms"] / 1e3
        try:
            time_ms = iteration_ms(algorithm, policy, keys, job.plan.workers, guess_s, hosts.file)
        except NotMeasured as error:
            return row | {"why_not": str(error)}
        return row | {"measured_ms": time_ms}


def shares(spent: list[dict[str, float]]) -> dict[str, float]:
    """Returns ms of an iteration by `SHARES`, the mean of all ranks."""
    sums = dict.fromkeys(SHARES, 0.0)
    for rank in spent:
        for what, seconds in rank.items():
            sums[_share(what)] += 1e3 * seconds / len(spent)
    return {share: round(ms, 4) for share, ms in sums.items()}


def _share(what: str) -> str:
    first = what.split(maxsplit=1)[0]
    words = {"cell": "cells", "send": "messages", "receive": "messages"}
    found = words.get(first, first)
    return found if found in SHARES else "python"


def say(text: str) -> None:
    """Prints the current step."""
    print(f"{Path(sys.argv[0]).stem}: {text}", file=sys.stderr, flush=True)
