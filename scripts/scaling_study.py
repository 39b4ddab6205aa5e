"""The jobs of `reproduce_scaling.py`: planned once, simulated often, run on available hosts."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from iteration_time import NotMeasured, iteration_ms
from scaling_tables import Row

CLUSTERS = {
    "v100_on_10gb_ethernet": "sixteen_hosts_of_four_gpus",
    "a100_on_100gb_infiniband": "four_hosts_of_eight_gpus",
}
POLICIES = {
    "SingleLearnerCoarse": ("SingleLearnerCoarse", {}),
    "SingleLearnerFine": ("SingleLearnerFine", {}),
    "SingleLearnerFine, 2 chunks": ("SingleLearnerFine", {"chunks": 2}),
    "MultipleLearners": ("MultipleLearners", {}),
    "GPUOnly": ("GPUOnly", {}),
    "Environments": ("Environments", {}),
    "Central": ("Central", {}),
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"env": "CartPole-v1", "num_envs": 256, "num_steps": 64, "update_epochs": 2},
    "a3c": {"env": "CartPole-v1", "num_envs": 256, "num_steps": 64},
    "mappo": {
        "env": "graph:simple_spread_v3",
        "num_envs": 256,
        "num_steps": 25,
        "update_epochs": 2,
    },
}
ARRIVAL = {"order": "arrival", "staleness": 64}
GPUS, QUICK_GPUS = (1, 2, 4, 8, 16, 32, 64), (1, 8, 64)
QUICK_POLICIES = ("SingleLearnerCoarse", "MultipleLearners", "GPUOnly")
FIXED_STEPS = 1_000_000
DESCRIBED = "predicted: cells by description, the rest measured here"
MEASURED = "predicted by costs that were measured, and measured"
THIS_MACHINE = "this machine"
SHARES = ("environment", "cells", "messages", "collectives", "python", "waiting")
"""The parts of a rank's time."""
KEYS = ("experiment", "cluster", "algorithm", "workload", "policy", "gpus")
"""The columns that identify a row."""


@dataclasses.dataclass(frozen=True)
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
    cluster: Any
    deployment: Any
    room: int
    device: str
    file: Path | None


class Study:
    """Jobs that are planned and measured once, and simulated often."""

    def __init__(
        self, quick: bool, ranks: list[int] | None = None, algorithms: list[str] | None = None
    ) -> None:
        from mindspore_rl.jobs import registry  # noqa: PLC0415
        from mindspore_rl.performance import device_model as device  # noqa: PLC0415
        from mindspore_rl.performance import predict  # noqa: PLC0415
        from mindspore_rl.plan import deployment  # noqa: PLC0415

        self.quick, self.ranks = quick, ranks
        self.policies = QUICK_POLICIES if quick else tuple(POLICIES)
        self.gpus = QUICK_GPUS if quick else GPUS
        self.algorithms = algorithms or (("ppo",) if quick else tuple(ALGORITHMS))
        self.machine = predict.machine_costs(say)
        self.devices = {name: device.load(registry.find_device(name))[0] for name in CLUSTERS}
        self.deployments = {
            name: deployment.load(registry.find_deployment(file)) for name, file in CLUSTERS.items()
        }
        self._jobs: dict[str, Any] = {}

    def hosts(self, file: Path | None, hardware: str | None) -> Hosts:
        """Returns the hosts of a deployment; without one, this machine."""
        from mindspore_rl.jobs import registry  # noqa: PLC0415
        from mindspore_rl.performance import device_model as device  # noqa: PLC0415
        from mindspore_rl.performance import predict  # noqa: PLC0415
        from mindspore_rl.performance.cluster import Cluster  # noqa: PLC0415
        from mindspore_rl.plan import deployment  # noqa: PLC0415
        from mindspore_rl.platform import resources  # noqa: PLC0415

        if file is None:
            here = deployment.Deployment()
            room = resources.available_cores()
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
            described = device.load(registry.find_device(hardware))[0]
            cluster = Cluster.described(self.machine, found, described)
        room = sum(host.capacity(kind) for host in found.hosts)
        return Hosts(file.stem, cluster, found, room, kind, file)

    def job(self, algorithm: str, policy: str, gpus: int, **config: Any) -> Any:
        """Returns a planned job with one rank per GPU, or a text that says why there is none."""
        key = repr((algorithm, policy, gpus, sorted(config.items())))
        if key not in self._jobs:
            self._jobs[key] = self._planned(algorithm, policy, gpus, config)
        return self._jobs[key]

    def _planned(self, algorithm: str, policy: str, gpus: int, config: Row) -> Any:
        from mindspore_rl import programs  # noqa: PLC0415
        from mindspore_rl.compiler.pipeline import JobRequest, environment_for  # noqa: PLC0415
        from mindspore_rl.errors import MsrlError  # noqa: PLC0415
        from mindspore_rl.jobs import registry  # noqa: PLC0415
        from mindspore_rl.performance import predict  # noqa: PLC0415
        from mindspore_rl.policy import Schedule  # noqa: PLC0415

        name, schedule = POLICIES[policy]
        file = registry.find_algorithm(_file(algorithm))
        found = registry.load_policy(registry.find_policy(name))
        schedule = Schedule(**_schedule(algorithm, name, schedule))
        found = dataclasses.replace(found, schedule=schedule)
        given = {**ALGORITHMS[algorithm], **config}
        why = ""
        for workers in (gpus, gpus - 1, gpus // 2):
            try:
                given["env"] = environment_for(found, given["env"])
                settings = programs.trainer_class(file).Config(**given)
                request = JobRequest(file, found, settings, max(workers, 1))
                return predict.job_of(request, say, most_ranks=gpus)
            except MsrlError as error:
                why = str(error).splitlines()[0]
        return why

    def described(self, about: Row, config: Row | None = None, device: Any = None) -> Row:
        """Simulates a job on a described cluster. Returns: its row.

        Args:
            about: `KEYS` of the row.
            config: the differences from the algorithm's configuration in `ALGORITHMS`.
            device: replaces the cluster's device.
        """
        from mindspore_rl.performance.cluster import Cluster  # noqa: PLC0415

        job = self.job(about["algorithm"], about["policy"], about["gpus"], **(config or {}))
        if isinstance(job, str):
            return {"why_not": job}
        name = about["cluster"]
        deployment = self.deployments[name]
        where = Cluster.described(self.machine, deployment, device or self.devices[name])
        return self._row(job, where, deployment, "GPU")

    def _row(self, job: Any, cluster: Any, deployment: Any, device: str) -> Row:
        from mindspore_rl.jobs.auto_policy import bottleneck  # noqa: PLC0415
        from mindspore_rl.plan.traffic import predict  # noqa: PLC0415

        ranks = job.plan.num_ranks
        found = job.on(cluster, deployment.place(ranks, device) if ranks > 1 else ())
        sent = sum(traffic.message_bytes for traffic in predict(job.plan) if traffic.each)
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
        job = self.job(algorithm, policy, about["gpus"])
        if isinstance(job, str):
            return {"why_not": job}
        row = self._row(job, hosts.cluster, hosts.deployment, hosts.device)
        row["basis"] = MEASURED if hosts.device == "CPU" else DESCRIBED
        words, settings = _words(algorithm, policy, job.plan.workers)
        try:
            measured_ms = iteration_ms(words, settings, row["iteration_ms"] / 1e3, hosts.file)
        except NotMeasured as error:
            return row | {"why_not": str(error)}
        return row | {"measured_ms": round(measured_ms, 3)}


def _words(algorithm: str, policy: str, workers: int) -> tuple[list[str], Row]:
    """Returns the job's arguments for `msrl train`: words, and keys."""
    name, schedule = POLICIES[policy]
    schedule = _schedule(algorithm, name, schedule)
    words = [_file(algorithm), "--policy", name, "--workers", str(workers)]
    words += ["--schedule", ",".join(f"{k}={v}" for k, v in schedule.items())] if schedule else []
    return words, ALGORITHMS[algorithm]


def _file(algorithm: str) -> str:
    return "a2c" if algorithm == "a3c" else algorithm


def _schedule(algorithm: str, policy: str, schedule: Row) -> Row:
    """Returns the schedule: A3C is A2C whose server applies gradients as they arrive."""
    return {**schedule, **ARRIVAL} if (algorithm, policy) == ("a3c", "Central") else schedule


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
    print(f"reproduce_scaling: {text}", file=sys.stderr, flush=True)
