#!/usr/bin/env python3
"""The paper's scaling experiments: predicted on described clusters, up to 64 GPUs.

    scripts/reproduce_scaling.py --out docs/scaling          # all of it
    scripts/reproduce_scaling.py --quick --out /tmp/scaling  # PPO on 1, 8 and 64 GPUs

MSRL (Zhu et al. 2023, "MSRL: Distributed reinforcement learning with dataflow fragments") says of
itself: up to 2.4 x by choosing the policy, up to 3 x over Ray, on up to 64 GPUs. Everything that is
written here is ours: fragments are measured on this machine's processor, their cells are costed by
the description of a GPU (`distribution/devices/`), and the plan of each job is carried out in
virtual time. Nothing of it is measured on a GPU, and each row says so.
"""

import argparse
import csv
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
FIXED_STEPS = 1_000_000
WORKLOADS: dict[str, dict[str, Any]] = {
    "as above": {},
    "4 x the environments": {"num_envs": 1024},
    "a quarter of the environments": {"num_envs": 64},
    "a large network": {"hidden": (512, 512)},
    "a dear environment": {"env": "HalfCheetah-v4"},
}
WORKLOAD_GPUS = 8
COLUMNS = (
    *("experiment", "cluster", "algorithm", "workload", "policy", "gpus", "ranks", "iteration_ms"),
    *("steps_per_s", "fixed_steps_s", "bytes", "binds", "basis", "why_not"),
)
BASIS = "predicted: cells by description, the rest measured here"
Row = dict[str, Any]


class Study:
    """Jobs that are planned and measured once, and simulated often."""

    def __init__(self) -> None:
        from mindspore_rl import registry  # noqa: PLC0415
        from mindspore_rl.plan import deployment  # noqa: PLC0415
        from mindspore_rl.scale import device, predict  # noqa: PLC0415

        self.machine = predict.machine_costs(say)
        self.devices = {name: device.load(registry.find_device(name))[0] for name in CLUSTERS}
        self.deployments = {
            name: deployment.load(registry.find_deployment(file)) for name, file in CLUSTERS.items()
        }
        self._jobs: dict[str, Any] = {}

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
        file = registry.find_algorithm("a2c" if algorithm == "a3c" else algorithm)
        found = registry.load_policy(registry.find_policy(name))
        if algorithm == "a3c" and name == "Central":
            schedule = {**schedule, **ARRIVAL}
        found = dataclasses.replace(found, schedule=Schedule(**schedule))
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

    def row(self, cluster: str, job: Any, device: Any = None) -> Row:
        """What a job would take on a cluster."""
        from mindspore_rl.plan.traffic import predict  # noqa: PLC0415
        from mindspore_rl.scale.choose import bottleneck  # noqa: PLC0415
        from mindspore_rl.scale.cluster import Cluster  # noqa: PLC0415

        if isinstance(job, str):
            return {"cluster": cluster, "why_not": job}
        deployment = self.deployments[cluster]
        where = Cluster.described(self.machine, deployment, device or self.devices[cluster])
        ranks = job.plan.num_ranks
        found = job.on(where, deployment.place(ranks, "GPU") if ranks > 1 else ())
        sent = sum(traffic.message_bytes for traffic in predict(job.plan) if traffic.each)
        return {
            "cluster": cluster,
            "ranks": ranks,
            "iteration_ms": round(1e3 * found.simulation.iteration_s, 3),
            "steps_per_s": round(found.steps_per_s),
            "fixed_steps_s": round(FIXED_STEPS / found.steps_per_s, 2),
            "bytes": sent,
            "binds": bottleneck(found),
            "basis": BASIS,
        }


def scaling(study: Study, quick: bool) -> Iterator[Row]:
    """Time of an iteration, and to a fixed number of steps, by GPUs."""
    for algorithm in ["ppo"] if quick else ALGORITHMS:
        for cluster in CLUSTERS:
            most = sum(host.gpus for host in study.deployments[cluster].hosts)
            for gpus in (n for n in (QUICK_GPUS if quick else GPUS) if n <= most):
                for policy in POLICIES:
                    found = study.row(cluster, study.job(algorithm, policy, gpus))
                    about = {"experiment": "scaling", "algorithm": algorithm, "policy": policy}
                    yield {**about, "gpus": gpus, **found}


def switching(study: Study, quick: bool) -> Iterator[Row]:
    """What choosing the policy gains as the workload changes, and as the network is slower."""
    cluster = "v100_on_10gb_ethernet"
    for workload, config in WORKLOADS.items():
        if quick and workload not in ("as above", "a dear environment"):
            continue
        for policy in POLICIES:
            found = study.row(cluster, study.job("ppo", policy, WORKLOAD_GPUS, **config))
            about = {"experiment": "workload", "algorithm": "ppo", "policy": policy}
            yield {**about, "workload": workload, "gpus": WORKLOAD_GPUS, **found}
    for latency_s in (25e-6, 1e-3, 5e-3):
        device = dataclasses.replace(study.devices[cluster], far_latency_s=latency_s)
        for policy in POLICIES:
            found = study.row(cluster, study.job("ppo", policy, WORKLOAD_GPUS), device)
            about = {"experiment": "latency", "algorithm": "ppo", "policy": policy}
            workload = f"{latency_s * 1e3:g} ms between hosts"
            yield {**about, "workload": workload, "gpus": WORKLOAD_GPUS, **found}


def sensitivity(study: Study, quick: bool) -> Iterator[Row]:
    """How answers move if a described figure is off by a factor of two."""
    gpus = (QUICK_GPUS if quick else GPUS)[-1]
    cluster = "v100_on_10gb_ethernet"
    described = study.devices[cluster]
    for policy in ("GPUOnly", "MultipleLearners", "SingleLearnerCoarse"):
        job = study.job("ppo", policy, gpus)
        for figure in dataclasses.fields(described):
            for factor in (0.5, 2.0):
                value = getattr(described, figure.name) * factor
                found = study.row(
                    cluster, job, dataclasses.replace(described, **{figure.name: value})
                )
                about = {"experiment": "sensitivity", "algorithm": "ppo", "policy": policy}
                yield {**about, "workload": f"{figure.name} x {factor:g}", "gpus": gpus, **found}


EXPERIMENTS = {"scaling": scaling, "switching": switching, "sensitivity": sensitivity}


def draw(rows: list[Row], folder: Path) -> None:
    """Curves by GPUs, a picture for each algorithm."""
    from matplotlib import pyplot  # noqa: PLC0415

    scaled = [r for r in rows if r["experiment"] == "scaling" and r.get("steps_per_s")]
    for algorithm in dict.fromkeys(row["algorithm"] for row in scaled):
        figure, axes = pyplot.subplots(1, len(CLUSTERS), figsize=(11, 4), sharey=True)
        for cluster, place in zip(CLUSTERS, axes, strict=True):
            for policy in POLICIES:
                found = [
                    row
                    for row in scaled
                    if (row["algorithm"], row["cluster"]) == (algorithm, cluster)
                    and row["policy"] == policy
                ]
                x, y = ([float(row[key]) for row in found] for key in ("gpus", "steps_per_s"))
                place.plot(x, y, "-", label=policy)
            place.set(xscale="log", yscale="log", xlabel="GPUs", title=f"predicted: {cluster}")
            place.set_xticks(GPUS, [str(n) for n in GPUS])
            place.grid(alpha=0.3)
        axes[0].set_ylabel(f"{algorithm}: environment steps a second")
        axes[0].legend(fontsize="x-small")
        figure.tight_layout()
        figure.savefig(folder / f"{algorithm}.svg")
        pyplot.close(figure)


def gains(rows: list[Row]) -> str:
    """The best and the worst policy of each workload that all of them can serve, as a table."""
    lines = ["| workload | best | steps/s | worst | best over worst |", "|---|---|---|---|---|"]
    chosen = [r for r in rows if r["experiment"] in ("workload", "latency") and "steps_per_s" in r]
    for workload in dict.fromkeys(row["workload"] for row in chosen):
        found = sorted(
            (row for row in chosen if row["workload"] == workload),
            key=lambda row: -row["steps_per_s"],
        )
        best, worst = found[0], found[-1]
        factor = best["steps_per_s"] / worst["steps_per_s"]
        lines.append(
            f"| {workload} | {best['policy']} | {best['steps_per_s']:,} | {worst['policy']} | "
            f"{factor:.1f} |"
        )
    return "\n".join(lines)


def say(text: str) -> None:
    """Tells what is being done."""
    print(f"reproduce_scaling: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("scaling"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="PPO on 1, 8 and 64 GPUs")
    parser.add_argument("--only", choices=EXPERIMENTS, nargs="+", help="(default: all)")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from mindspore_rl.runtime.rank.settings import prepare_mindspore  # noqa: PLC0415

    prepare_mindspore()
    args.out.mkdir(parents=True, exist_ok=True)
    begun, study, rows = time.monotonic(), Study(), list[Row]()
    with (args.out / "scaling.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for name in args.only or EXPERIMENTS:
            for row in EXPERIMENTS[name](study, args.quick):
                rows.append(row)
                writer.writerow(row)
                stream.flush()
                told = row.get("why_not") or f"{row['iteration_ms']} ms, {row['binds']}"
                about = (str(row.get(k, "")) for k in ("algorithm", "policy", "workload", "gpus"))
                print(f"{', '.join(filter(None, about))} on {row['cluster']}: {told}", flush=True)
    draw(rows, args.out)
    print(gains(rows))
    print(f"{len(rows)} rows in {args.out / 'scaling.csv'}, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
