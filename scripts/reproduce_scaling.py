#!/usr/bin/env python3
"""The paper's scaling experiments: run where there are hosts, predicted up to 64 GPUs.

    scripts/reproduce_scaling.py --out docs/scaling          # all of it, on this machine
    scripts/reproduce_scaling.py --quick --out /tmp/scaling  # PPO, three policies, 1, 8 and 64 GPUs
    scripts/reproduce_scaling.py --only real --ranks 4  # on more ranks than this machine has cores
    scripts/reproduce_scaling.py --only real --deployment HOSTS.yaml  # on those hosts

MSRL (Zhu et al. 2023, "MSRL: Distributed reinforcement learning with dataflow fragments") says of
itself: up to 2.4 x by choosing the policy, up to 3 x over Ray, on up to 64 GPUs. Everything that is
written here is ours. On described clusters fragments are measured on this machine's processor,
their cells are costed by the description of a GPU (`distribution/devices/`), and the plan of each
job is carried out in virtual time: nothing of that is measured on a GPU, and each row says so. The
experiment `real` trains, on as many ranks as this machine has cores or the hosts of `--deployment`
take, and predicts the same; RLlib beside it, where scripts/setup_peers.sh installed it.

Rows that DIR/scaling.csv has stay: a study that was cut off goes on where it was.
"""

import argparse
import csv
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import scaling_pictures
from iteration_time import NotMeasured, iteration_ms
from peers import table, turns

ROOT = Path(__file__).resolve().parents[1]
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
FIXED = "SingleLearnerCoarse"
"""What a library that has one strategy does: workers that act, and a learner."""
FIXED_STEPS = 1_000_000
WORKLOADS: dict[str, dict[str, Any]] = {
    "as above": {},
    "4 x the environments": {"num_envs": 1024},
    "a quarter of the environments": {"num_envs": 64},
    "a large network": {"hidden": (512, 512)},
    "a dear environment": {"env": "HalfCheetah-v4"},
}
WORKLOAD_GPUS = 8
AGENTS = (2, 4, 8, 16, 32, 64)
AGENTS_CONFIG = {"num_envs": 32, "update_epochs": 1}
PEER_S, PEER_WARM_UP_S = 8.0, 3.0
COLUMNS = (
    *("experiment", "cluster", "algorithm", "workload", "policy", "gpus", "ranks", "iteration_ms"),
    *("measured_ms", "steps_per_s", "fixed_steps_s", "bytes", "binds", *scaling_pictures.SHARES),
    *("basis", "why_not"),
)
DESCRIBED = "predicted: cells by description, the rest measured here"
MEASURED = "predicted by costs that were measured, and measured"
THIS_MACHINE = "this machine"
KEYS = ("experiment", "cluster", "algorithm", "workload", "policy", "gpus")
"""What tells rows apart."""
Row = dict[str, Any]
Rows = Iterator[tuple[Row, Callable[[], Row]]]
"""`KEYS` of rows, and functions that find out the rest."""


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Those that are there.

    Attributes:
        name: in rows.
        cluster: as it was measured; with GPUs, as it is described.
        room: ranks that it takes.
        device: by which ranks fill it.
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
        from mindspore_rl import registry  # noqa: PLC0415
        from mindspore_rl.plan import deployment  # noqa: PLC0415
        from mindspore_rl.scale import device, predict  # noqa: PLC0415

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
        """Of a deployment; of none: this machine."""
        from mindspore_rl import machine, registry  # noqa: PLC0415
        from mindspore_rl.plan import deployment  # noqa: PLC0415
        from mindspore_rl.scale import device, predict  # noqa: PLC0415
        from mindspore_rl.scale.cluster import Cluster  # noqa: PLC0415

        if file is None:
            here = deployment.Deployment()
            room = machine.available_cores()
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
        """A planned job of as many ranks as there are GPUs, or why there is none, as a text."""
        key = repr((algorithm, policy, gpus, sorted(config.items())))
        if key not in self._jobs:
            self._jobs[key] = self._planned(algorithm, policy, gpus, config)
        return self._jobs[key]

    def _planned(self, algorithm: str, policy: str, gpus: int, config: Row) -> Any:
        from mindspore_rl import programs, registry  # noqa: PLC0415
        from mindspore_rl.errors import MsrlError  # noqa: PLC0415
        from mindspore_rl.graph.distribution_policy import Schedule  # noqa: PLC0415
        from mindspore_rl.pipeline import JobRequest, environment_for  # noqa: PLC0415
        from mindspore_rl.scale import predict  # noqa: PLC0415

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
        """What a job would take on a described cluster.

        Args:
            about: `KEYS` of the row.
            config: what differs from the algorithm's configuration in `ALGORITHMS`.
            device: in place of the cluster's.
        """
        from mindspore_rl.scale.cluster import Cluster  # noqa: PLC0415

        job = self.job(about["algorithm"], about["policy"], about["gpus"], **(config or {}))
        if isinstance(job, str):
            return {"why_not": job}
        name = about["cluster"]
        deployment = self.deployments[name]
        where = Cluster.described(self.machine, deployment, device or self.devices[name])
        return self._row(job, where, deployment, "GPU")

    def _row(self, job: Any, cluster: Any, deployment: Any, device: str) -> Row:
        from mindspore_rl.plan.traffic import predict  # noqa: PLC0415
        from mindspore_rl.scale.choose import bottleneck  # noqa: PLC0415

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
            **scaling_pictures.shares(found.simulation.spent),
            "basis": DESCRIBED,
        }

    def trained(self, about: Row, hosts: Hosts) -> Row:
        """What a job would take on hosts that are there, and what it takes."""
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
    """A job as `msrl train` is told of it: words, and keys."""
    name, schedule = POLICIES[policy]
    schedule = _schedule(algorithm, name, schedule)
    words = [_file(algorithm), "--policy", name, "--workers", str(workers)]
    words += ["--schedule", ",".join(f"{k}={v}" for k, v in schedule.items())] if schedule else []
    return words, ALGORITHMS[algorithm]


def _file(algorithm: str) -> str:
    return "a2c" if algorithm == "a3c" else algorithm


def _schedule(algorithm: str, policy: str, schedule: Row) -> Row:
    """A3C is A2C whose server takes gradients as they arrive."""
    return {**schedule, **ARRIVAL} if (algorithm, policy) == ("a3c", "Central") else schedule


def _about(
    experiment: str, cluster: str, algorithm: str, policy: str, gpus: int, workload: str = ""
) -> Row:
    return dict(zip(KEYS, (experiment, cluster, algorithm, workload, policy, gpus), strict=True))


def real(study: Study, hosts: Hosts) -> Rows:
    """What the hosts that are there can hold: predicted, and run."""
    for algorithm in study.algorithms:
        fitting = [1 << i for i in range(hosts.room.bit_length())]
        for ranks in study.ranks or (fitting[-1:] if study.quick else fitting):
            for policy in study.policies:
                about = _about("real", hosts.name, algorithm, policy, ranks)
                yield about, partial(study.trained, about, hosts)
    if hosts.file is None and turns.installed(_task().rllib()):
        yield _about("real", hosts.name, "ppo", "RLlib", 1), _rllib


def _rllib() -> Row:
    task = _task()
    steps = task.num_envs * task.num_steps
    rate = turns.speed(task.rllib(), steps, PEER_S, PEER_WARM_UP_S)
    return {"ranks": 1, "measured_ms": round(1e3 * steps / rate, 3), "basis": "measured"}


def _task() -> table.Task:
    keys = dict(ALGORITHMS["ppo"])
    shape = [keys.pop(key) for key in ("env", "num_envs", "num_steps")]
    return table.Task("ppo", *shape, keys)


def scaling(study: Study, _: Hosts) -> Rows:
    """Time of an iteration, and to a fixed number of steps, by GPUs."""
    for algorithm in study.algorithms:
        for cluster in CLUSTERS:
            most = sum(host.gpus for host in study.deployments[cluster].hosts)
            for gpus in (n for n in study.gpus if n <= most):
                for policy in study.policies:
                    about = _about("scaling", cluster, algorithm, policy, gpus)
                    yield about, partial(study.described, about)


def switching(study: Study, _: Hosts) -> Rows:
    """What choosing the policy gains as the workload changes, and as the network is slower."""
    cluster = next(iter(CLUSTERS))
    for workload, config in WORKLOADS.items():
        if study.quick and config:
            continue
        for policy in study.policies:
            about = _about("workload", cluster, "ppo", policy, WORKLOAD_GPUS, workload)
            yield about, partial(study.described, about, config)
    for latency_s in (25e-6, 1e-3, 5e-3):
        device = dataclasses.replace(study.devices[cluster], far_latency_s=latency_s)
        workload = f"{latency_s * 1e3:g} ms between hosts"
        for policy in study.policies:
            about = _about("latency", cluster, "ppo", policy, WORKLOAD_GPUS, workload)
            yield about, partial(study.described, about, device=device)


def agents(study: Study, _: Hosts) -> Rows:
    """MAPPO with more and more agents."""
    cluster = next(iter(CLUSTERS))
    for number in () if study.quick else AGENTS:
        config = {**AGENTS_CONFIG, "env": f"graph:simple_spread_v3,N={number}"}
        for policy in study.policies:
            about = _about("agents", cluster, "mappo", policy, WORKLOAD_GPUS, f"{number} agents")
            yield about, partial(study.described, about, config)


def sensitivity(study: Study, _: Hosts) -> Rows:
    """How answers move if a described figure is off by a factor of two."""
    cluster, gpus = next(iter(CLUSTERS)), study.gpus[-1]
    described = study.devices[cluster]
    for policy in ("GPUOnly", "MultipleLearners", "SingleLearnerCoarse"):
        for figure in dataclasses.fields(described):
            for factor in (0.5, 2.0):
                value = getattr(described, figure.name) * factor
                device = dataclasses.replace(described, **{figure.name: value})
                workload = f"{figure.name} x {factor:g}"
                about = _about("sensitivity", cluster, "ppo", policy, gpus, workload)
                yield about, partial(study.described, about, device=device)


EXPERIMENTS = {
    "real": real,
    "scaling": scaling,
    "switching": switching,
    "agents": agents,
    "sensitivity": sensitivity,
}


def say(text: str) -> None:
    """Tells what is being done."""
    print(f"reproduce_scaling: {text}", file=sys.stderr, flush=True)


def _key(row: Row) -> tuple:
    return tuple(row.get(key, "") for key in KEYS)


def _told(row: Row) -> str:
    words = {"iteration_ms": "{} ms predicted", "measured_ms": "{} ms measured", "binds": "{}"}
    return ", ".join(text.format(row[key]) for key, text in words.items() if row.get(key))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("scaling"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="PPO, 3 policies; 1, 8 and 64 GPUs")
    parser.add_argument("--only", choices=EXPERIMENTS, nargs="+", help="(default: all)")
    parser.add_argument(
        "--algorithms",
        choices=ALGORITHMS,
        nargs="+",
        help="of the experiments `real` and `scaling` (default: all)",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="+",
        metavar="N",
        help="of the experiment `real`, also more than there are cores (default: 1, 2, 4 ... of "
        "those that there is room for)",
    )
    parser.add_argument("--deployment", type=Path, metavar="FILE", help="(default: this machine)")
    parser.add_argument("--hardware", choices=CLUSTERS, help="the GPUs of --deployment")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from mindspore_rl.runtime.rank.settings import prepare_mindspore  # noqa: PLC0415

    prepare_mindspore()
    args.out.mkdir(parents=True, exist_ok=True)
    begun, file = time.monotonic(), args.out / "scaling.csv"
    rows = scaling_pictures.read(file) if file.exists() else []
    if rows:
        say(f"{file} has {len(rows)} rows, which stay; remove it to have them found out anew")
    done = {_key(row) for row in rows}
    study = Study(args.quick, args.ranks, args.algorithms)
    hosts = study.hosts(args.deployment, args.hardware)
    with file.open("a" if rows else "w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if not rows:
            writer.writeheader()
        for name in args.only or EXPERIMENTS:
            for about, find_out in EXPERIMENTS[name](study, hosts):
                if _key(about) in done:
                    continue
                row = about | find_out()
                rows.append(row)
                writer.writerow(row)
                stream.flush()
                told = row.get("why_not") or _told(row)
                words = (str(row[k]) for k in ("algorithm", "policy", "workload", "gpus"))
                print(f"{', '.join(filter(None, words))} on {row['cluster']}: {told}", flush=True)
    scaling_pictures.draw(rows, args.out)
    print(scaling_pictures.gains(rows, FIXED))
    print(f"{len(rows)} rows in {file}, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
