#!/usr/bin/env python3
"""Compares predicted and measured iteration times: every policy, several workloads and latencies.

    scripts/scaling_accuracy.py predict FILE.csv      # to be kept before anything is measured;
                                                      # what is predicted stays
    scripts/scaling_accuracy.py measure FILE.csv      # twice in turn: predicts by costs of this
                                                      # minute (with a latency once), and runs;
                                                      # goes on where it was
    scripts/scaling_accuracy.py report FILE.csv [--plot FILE.svg]

Two ranks, on this machine's cores or, with a latency, on two network namespaces joined by a relay
(`network_hosts.py`; root only). The learning rate is almost 0, so a policy plays as badly at the
end as when its costs were measured: an environment with short episodes resets often. The report
also gives the cost of choosing the policy by prediction, for each workload.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from iteration_time import NotMeasured, iteration_ms
from network_hosts import Network, why_not

ROOT = Path(__file__).resolve().parents[1]
POLICIES: dict[str, tuple[str, int, int]] = {
    "SingleLearnerCoarse": ("SingleLearnerCoarse", 1, 1),
    "MultipleLearners": ("MultipleLearners", 2, 1),
    "GPUOnly": ("GPUOnly", 2, 1),
    "SingleLearnerFine": ("SingleLearnerFine", 1, 1),
    "SingleLearnerFine, 2 chunks": ("SingleLearnerFine", 1, 2),
    "Environments": ("Environments", 1, 1),
    "Central": ("Central", 1, 1),
}
"""A policy, its number of workers and its chunks, by the name of the row."""
WORKLOADS: dict[str, dict[str, Any]] = {
    "small": {"env": "CartPole-v1", "num_envs": 8, "num_steps": 32},
    "large network": {"env": "CartPole-v1", "num_envs": 32, "num_steps": 32, "hidden": "256,256"},
    "dear environment": {"env": "HalfCheetah-v4", "num_envs": 8, "num_steps": 32},
    "many environments": {"env": "CartPole-v1", "num_envs": 64, "num_steps": 32},
    "few, long": {"env": "CartPole-v1", "num_envs": 4, "num_steps": 128},
    "many updates": {"env": "CartPole-v1", "num_envs": 16, "num_steps": 32, "update_epochs": 8},
    "one minibatch": {"env": "CartPole-v1", "num_envs": 32, "num_steps": 32, "num_minibatches": 1},
    "tiny network": {"env": "CartPole-v1", "num_envs": 128, "num_steps": 16, "hidden": "16"},
    "torque": {"env": "Pendulum-v1", "num_envs": 16, "num_steps": 32},
    "dear and large": {
        "env": "HalfCheetah-v4",
        "num_envs": 16,
        "num_steps": 16,
        "hidden": "256,256",
    },
}
FAR = tuple(WORKLOADS)[:3]
"""Workloads that are also measured with a latency."""
DELAYS_MS = (0.0, 1.0, 5.0)
"""One-way latencies; 0: on one host."""
COMMON = {"learning_rate": "1e-9", "update_epochs": "2"}
COLUMNS = (
    *("policy", "workload", "delay_ms", "predicted_ms"),
    *("fresh_ms", "measured_ms", "fresh_again_ms", "again_ms", "why_not"),
)
KEYS, FRESH, MEASURED = COLUMNS[:3], COLUMNS[4:8:2], COLUMNS[5:8:2]
Row = dict[str, str]


def configurations() -> list[Row]:
    """Returns all configurations, without numbers."""
    return [
        {
            **dict.fromkeys(COLUMNS, ""),
            "policy": policy,
            "workload": workload,
            "delay_ms": f"{delay:g}",
        }
        for delay in DELAYS_MS
        for workload in (FAR if delay else WORKLOADS)
        for policy in POLICIES
    ]


def settings(row: Row) -> dict[str, object]:
    """Returns the configuration of a row's algorithm."""
    return {**COMMON, **WORKLOADS[row["workload"]]}


def predict(
    rows: list[Row], deployment: Path | None, key: str = "predicted_ms", anew: bool = False
) -> None:
    """Predicts the rows, all with one latency; `anew`: by costs of this minute.

    Rows with a prediction stay.
    """
    from mindspore_rl import config, programs  # noqa: PLC0415
    from mindspore_rl.compiler.pipeline import JobRequest, environment_for  # noqa: PLC0415
    from mindspore_rl.errors import MsrlError  # noqa: PLC0415
    from mindspore_rl.jobs import registry  # noqa: PLC0415
    from mindspore_rl.performance import predict as scale  # noqa: PLC0415
    from mindspore_rl.performance.cluster import Cluster  # noqa: PLC0415
    from mindspore_rl.plan.deployment import Deployment, load  # noqa: PLC0415
    from mindspore_rl.policy import Schedule  # noqa: PLC0415

    hosts = load(deployment) if deployment else Deployment()
    machine = scale.machine_costs(_say, anew=anew and deployment is None)
    cluster = Cluster(machine)
    if deployment:
        cluster = Cluster.measured(machine, hosts, scale.link_between(hosts, _say, anew=True))
    file = registry.find_algorithm("ppo")
    for row in rows:
        if row[key] or row["why_not"]:
            continue
        name, workers, chunks = POLICIES[row["policy"]]
        given = [f"{k}={v}" for k, v in settings(row).items()]
        chosen = config.resolve(programs.trainer_class(file).Config, None, {}, given)
        policy = registry.load_policy(registry.find_policy(name))
        policy = replace(policy, schedule=Schedule(chunks=chunks))
        try:
            chosen = replace(chosen, env=environment_for(policy, chosen.env))
            request = JobRequest(file, policy, chosen, workers, deployment=hosts)
            found = scale.predict(request, cluster, _say, anew=anew)
        except MsrlError as error:
            row["why_not"] = str(error).splitlines()[0]
            continue
        row[key] = f"{1e3 * found.simulation.iteration_s:.3f}"
        print(_line(row), flush=True)


def measure(
    rows: list[Row], deployment: Path | None, network: Network | None, keep: Callable[[], None]
) -> None:
    """Measures the rows, all with one latency; rows with a measurement stay."""
    for row in rows:
        if not row["predicted_ms"] or row["again_ms"] or row["why_not"]:
            continue
        row.update(dict.fromkeys(FRESH, ""))
        for fresh, measured in zip(FRESH, MEASURED, strict=True):
            if deployment is None or network is None:
                predict([row], None, fresh, anew=True)
            elif fresh == FRESH[0]:  # once: most of the time is the network's, and it is stable
                _predict_apart([row], deployment, network, "--anew", fresh)
            _measure(row, measured, deployment, network)
        print(_line(row), flush=True)
        keep()


def _measure(row: Row, key: str, deployment: Path | None, network: Network | None) -> None:
    name, workers, chunks = POLICIES[row["policy"]]
    words = ["ppo", "--policy", name, "--workers", str(workers), "--schedule", f"chunks={chunks}"]
    guess_s = float(row["predicted_ms"]) / 1e3
    try:
        found = iteration_ms(words, settings(row), guess_s, deployment, network)
    except NotMeasured as error:
        row["why_not"] = str(error)
        return
    row[key] = f"{found:.3f}"


def report(rows: list[Row]) -> str:
    """Returns the report; `**` marks errors above 15 % and above twice the repeats' difference."""
    done = [row for row in rows if row["measured_ms"]]
    first = np.array([float(row["predicted_ms"]) / _mean(row) - 1 for row in done])
    errors = np.array([error(row) for row in done])
    spreads = np.array([_spread(row) for row in done])
    outside = np.abs(errors) > np.maximum(0.15, 2 * spreads)
    lines = [
        f"- {len(done)} configurations, as predicted first: |error| {_spoken(first)}",
        f"- by costs measured in the minute before each run: {_spoken(errors)}",
        f"- two runs of one differ by {_spoken(spreads)}",
        f"- off by more than 15 % and twice that, marked **: {outside.sum()}",
        "",
        "| policy | workload | latency | predicted ms | minute before | measured "
        "| minute before | measured | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row, off, out in zip(done, errors, outside, strict=True):
        cells = [row[key] for key in COLUMNS[:-1]]
        lines.append(f"| {' | '.join(cells)} | {off:+.1%}{' **' if out else ''} |")
    failed = [row for row in rows if row["why_not"]]
    lines += [f"- {row['policy']}, {row['workload']}: {row['why_not']}" for row in failed]
    return "\n".join([*lines, "", *_choices(done), "", *_measured(done)])


def _spoken(errors: np.ndarray) -> str:
    if not len(errors):
        return "none"
    sizes = np.abs(errors)
    text = f"median {np.median(sizes):.1%}, nine in ten within {np.quantile(sizes, 0.9):.1%}"
    return text + ("" if (errors >= 0).all() else f", mean {errors.mean():+.1%}")


def _choices(done: list[Row]) -> list[str]:
    """Returns a table: the cost of choosing by prediction on one host, and the policies' spread."""
    lines = [
        "| workload | chosen | fastest | regret | slowest | over fastest (but GPUOnly) |",
        "|---|---|---|---|---|---|",
    ]
    for workload in WORKLOADS:
        found = [r for r in done if r["workload"] == workload and float(r["delay_ms"]) == 0]
        if len(found) < len(POLICIES) - 1:
            continue
        found.sort(key=_mean)
        chosen = min(found, key=lambda row: _mean(row, FRESH))
        fastest, slowest = found[0], found[-1]
        cells = (workload, chosen["policy"], fastest["policy"], f"{_over(chosen, fastest) - 1:.1%}")
        others = [row for row in found if row["policy"] != "GPUOnly"]  # of one form of environment
        factor = f"{_over(slowest, fastest):.1f} ({_over(others[-1], others[0]):.1f})"
        lines.append(f"| {' | '.join((*cells, slowest['policy'], factor))} |")
    return lines


def _measured(done: list[Row]) -> list[str]:
    """Returns a table of milliseconds per iteration, by workload and policy."""
    lines = [f"| workload | {' | '.join(POLICIES)} |", "|---" * (1 + len(POLICIES)) + "|"]
    for delay in DELAYS_MS:
        for workload in FAR if delay else WORKLOADS:
            found = {
                row["policy"]: f"{_mean(row):.1f}"
                for row in done
                if row["workload"] == workload and float(row["delay_ms"]) == delay
            }
            where = f"{workload}, {delay:g} ms apart" if delay else workload
            lines.append(f"| {where} | {' | '.join(found.get(p, '') for p in POLICIES)} |")
    return lines


def _over(one: Row, other: Row) -> float:
    return _mean(one) / _mean(other)


def error(row: Row) -> float:
    """Returns the relative error of the prediction from the costs of the minute before."""
    return _mean(row, FRESH) / _mean(row) - 1


def _mean(row: Row, keys: tuple[str, ...] = MEASURED) -> float:
    return float(np.mean([float(row[key]) for key in keys if row[key]]))


def _spread(row: Row) -> float:
    if not row["again_ms"]:
        return 0.0
    return abs(float(row["measured_ms"]) - float(row["again_ms"])) / _mean(row)


def _line(row: Row) -> str:
    return ", ".join(f"{row[key]}" for key in COLUMNS if row[key])


def plot(rows: list[Row], file: Path) -> None:
    """Draws measured times over predicted ones, with a band of 15 % around the diagonal."""
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(6, 5))
    done = [row for row in rows if row["measured_ms"]]
    for policy in POLICIES:
        found = [row for row in done if row["policy"] == policy]
        x = [_mean(row, FRESH) for row in found]
        axes.plot(x, [_mean(row) for row in found], "o", markersize=4, label=policy)
    ends = np.array([1.0, max(_mean(row) for row in done) * 1.3])
    axes.plot(ends, ends, "k-", linewidth=0.8)
    axes.fill_between(ends, ends * 0.85, ends * 1.15, color="k", alpha=0.1, label="within 15 %")
    axes.set(xscale="log", yscale="log", xlabel="predicted, ms", ylabel="measured, ms")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file)


def _say(text: str) -> None:
    print(f"scaling_accuracy: {text}", file=sys.stderr, flush=True)


def read(file: Path) -> list[Row]:
    """Reads the rows of a file."""
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def write(rows: list[Row], file: Path) -> None:
    """Writes rows."""
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _each_delay(args: argparse.Namespace, rows: list[Row]) -> None:
    """Predicts or measures, on hosts with the latencies of the rows."""

    def keep() -> None:
        write(rows, args.file)

    for delay in args.delays:
        own = [row for row in rows if float(row["delay_ms"]) == delay]
        if not delay:
            if args.action == "predict":
                predict(own, None)
            else:
                measure(own, None, None, keep)
        elif reason := why_not():
            for row in own:
                row["why_not"] = reason
        else:
            _apart(args.action, own, delay, keep)
        keep()


def _apart(action: str, rows: list[Row], delay_ms: float, keep: Callable[[], None]) -> None:
    with tempfile.TemporaryDirectory() as name, Network(2, delay_ms, pinned=True) as network:
        hosts = Path(name, "hosts.yaml")
        network.write_deployment(hosts, "SingleLearnerCoarse", 1)
        if action == "measure":
            measure(rows, hosts, network, keep)
        else:
            _predict_apart(rows, hosts, network)


def _predict_apart(rows: list[Row], hosts: Path, network: Network, *options: str) -> None:
    """Predicts from inside the first host, where links can be measured.

    Fragments are measured alone and together, which needs more than the host's own core.
    """
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "rows.csv")
        write(rows, file)
        command = [sys.executable, __file__, "predict", str(file), "--deployment", str(hosts)]
        environment = {**network.environment(), "PYTHONPATH": str(ROOT)}
        command = network.command(0, ["taskset", "-c", _cores(), *command, *options])
        subprocess.run(command, env=environment, check=True, cwd=ROOT)
        for row, found in zip(rows, read(file), strict=True):
            row.update(found)


def _cores() -> str:
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("action", choices=("predict", "measure", "report"))
    parser.add_argument("file", type=Path, metavar="FILE.csv")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument(
        "--delays", type=float, nargs="+", default=DELAYS_MS, help="ms (default: all)"
    )
    parser.add_argument("--deployment", type=Path, help=argparse.SUPPRESS)  # from inside a host
    parser.add_argument("--anew", choices=FRESH, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from mindspore_rl.runtime.rank.worker_settings import prepare_mindspore  # noqa: PLC0415

    prepare_mindspore()
    if args.action == "predict" and args.deployment:
        rows = read(args.file)
        predict(rows, args.deployment, args.anew or "predicted_ms", bool(args.anew))
        write(rows, args.file)
        return 0
    rows = read(args.file) if args.file.exists() or args.action != "predict" else configurations()
    if args.action != "report":
        _each_delay(args, rows)
    print(report(rows) if args.action != "predict" else f"predictions are in {args.file}")
    if args.plot:
        plot(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
