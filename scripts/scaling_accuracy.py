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
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scaling_study
import study
from network_hosts import Network, why_not
from scaling_study import POLICIES, say
from study import ROOT, NotMeasured, Row

from mindspore_rl.errors import MsrlError
from mindspore_rl.performance import predict as scale
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.plan.deployment import Deployment, load

FUSED = ("MultipleLearners", "GPUOnly")
"""Policies of two workers; the others have one worker and its server."""
WORKLOADS: dict[str, Row] = {
    "small": {"env": "CartPole-v1", "num_envs": 8, "num_steps": 32},
    "large network": {"env": "CartPole-v1", "num_envs": 32, "num_steps": 32, "hidden": (256, 256)},
    "dear environment": {"env": "HalfCheetah-v4", "num_envs": 8, "num_steps": 32},
    "many environments": {"env": "CartPole-v1", "num_envs": 64, "num_steps": 32},
    "few, long": {"env": "CartPole-v1", "num_envs": 4, "num_steps": 128},
    "many updates": {"env": "CartPole-v1", "num_envs": 16, "num_steps": 32, "update_epochs": 8},
    "one minibatch": {"env": "CartPole-v1", "num_envs": 32, "num_steps": 32, "num_minibatches": 1},
    "tiny network": {"env": "CartPole-v1", "num_envs": 128, "num_steps": 16, "hidden": (16,)},
    "torque": {"env": "Pendulum-v1", "num_envs": 16, "num_steps": 32},
    "dear and large": {
        "env": "HalfCheetah-v4",
        "num_envs": 16,
        "num_steps": 16,
        "hidden": (256, 256),
    },
}
FAR = tuple(WORKLOADS)[:3]
"""Workloads that are also measured with a latency."""
DELAYS_MS = (0, 1, 5)
"""One-way latencies; 0: on one host."""
COMMON = {"learning_rate": 1e-9, "update_epochs": 2}
COLUMNS = (
    *("policy", "workload", "delay_ms", "predicted_ms"),
    *("fresh_ms", "measured_ms", "fresh_again_ms", "again_ms", "why_not"),
)
TIMES, FRESH, MEASURED = COLUMNS[3:8], COLUMNS[4:8:2], COLUMNS[5:8:2]


def configurations() -> list[Row]:
    """Returns all configurations, without numbers."""
    return [
        {"policy": policy, "workload": workload, "delay_ms": delay}
        for delay in DELAYS_MS
        for workload in (FAR if delay else WORKLOADS)
        for policy in POLICIES
    ]


def job(row: Row) -> tuple[str, str, Row, int]:
    """Returns a row's algorithm, policy, keys of the configuration, and number of workers."""
    workers = 2 if row["policy"] in FUSED else 1
    return "ppo", row["policy"], COMMON | WORKLOADS[row["workload"]], workers


def predict(
    rows: list[Row], deployment: Path | None, key: str = "predicted_ms", anew: bool = False
) -> None:
    """Predicts the rows, all with one latency; `anew`: by costs of this minute.

    Rows with a prediction stay.
    """
    hosts = load(deployment) if deployment else Deployment()
    machine = scale.machine_costs(say, anew=anew and deployment is None)
    cluster = Cluster(machine)
    if deployment:
        cluster = Cluster.measured(machine, hosts, scale.link_between(hosts, say, anew=True))
    for row in rows:
        if key in row or "why_not" in row:
            continue
        try:
            request = scaling_study.request(*job(row), deployment=hosts)
            found = scale.predict(request, cluster, say, anew=anew)
        except MsrlError as error:
            row["why_not"] = str(error).splitlines()[0]
            continue
        row[key] = round(1e3 * found.simulation.iteration_s, 3)
        print(_line(row), flush=True)


def measure(
    rows: list[Row], deployment: Path | None, network: Network | None, keep: Callable[[], None]
) -> None:
    """Measures the rows, all with one latency; rows with a measurement stay."""
    for row in rows:
        if "predicted_ms" not in row or "again_ms" in row or "why_not" in row:
            continue
        for fresh, measured in zip(FRESH, MEASURED, strict=True):
            row.pop(fresh, None)
            if deployment is None or network is None:
                predict([row], None, fresh, anew=True)
            elif fresh == FRESH[0]:  # once: most of the time is the network's, and it is stable
                _predict_apart([row], deployment, network, "--anew", fresh)
            guess_s = row["predicted_ms"] / 1e3
            try:
                row[measured] = scaling_study.iteration_ms(*job(row), guess_s, deployment, network)
            except NotMeasured as error:
                row["why_not"] = str(error)
                break
        print(_line(row), flush=True)
        keep()


def report(rows: list[Row]) -> str:
    """Returns the report; `**` marks errors above 15 % and above twice the repeats' difference."""
    done = [row for row in rows if "measured_ms" in row]
    first = np.array([row["predicted_ms"] / _mean(row) - 1 for row in done])
    errors = np.array([error(row) for row in done])
    spreads = np.array([_spread(row) for row in done])
    outside = np.abs(errors) > np.maximum(0.15, 2 * spreads)
    lines = [
        f"- {len(done)} configurations, as predicted first: |error| {_spoken(first)}",
        f"- by costs measured in the minute before each run: {_spoken(errors)}",
        f"- two runs of one differ by {_spoken(spreads)}",
        f"- off by more than 15 % and twice that, marked **: {outside.sum()}",
        "",
    ]
    heads = ("policy", "workload", "latency", "predicted ms", *("minute before", "measured") * 2)
    cells = []
    for row, off, out in zip(done, errors, outside, strict=True):
        times = (f"{row[key]:.3f}" if key in row else "" for key in TIMES)
        about = (row["policy"], row["workload"], row["delay_ms"], *times)
        cells.append((*about, f"{off:+.1%}{' **' if out else ''}"))
    failed = [row for row in rows if "why_not" in row]
    reasons = [f"- {row['policy']}, {row['workload']}: {row['why_not']}" for row in failed]
    tables = [study.table((*heads, "error"), cells), *reasons, "", _choices(done)]
    return "\n".join([*lines, *tables, "", _measured(done)])


def _spoken(errors: np.ndarray) -> str:
    if not len(errors):
        return "none"
    sizes = np.abs(errors)
    text = f"median {np.median(sizes):.1%}, nine in ten within {np.quantile(sizes, 0.9):.1%}"
    return text + ("" if (errors >= 0).all() else f", mean {errors.mean():+.1%}")


def _choices(done: list[Row]) -> str:
    """Returns a table: the cost of choosing by prediction on one host, and the policies' spread."""
    lines = []
    for workload in WORKLOADS:
        found = [r for r in done if r["workload"] == workload and r["delay_ms"] == 0]
        if len(found) < len(POLICIES) - 1:
            continue
        found.sort(key=_mean)
        chosen = min(found, key=lambda row: _mean(row, FRESH))
        fastest, slowest = found[0], found[-1]
        others = [row for row in found if row["policy"] != "GPUOnly"]  # of one form of environment
        regret = f"{_over(chosen, fastest) - 1:.1%}"
        factor = f"{_over(slowest, fastest):.1f} ({_over(others[-1], others[0]):.1f})"
        names = (workload, chosen["policy"], fastest["policy"], regret, slowest["policy"])
        lines.append((*names, factor))
    heads = ("workload", "chosen", "fastest", "regret", "slowest", "over fastest (but GPUOnly)")
    return study.table(heads, lines)


def _measured(done: list[Row]) -> str:
    """Returns a table of milliseconds per iteration, by workload and policy."""
    places = [(delay, name) for delay in DELAYS_MS for name in (FAR if delay else WORKLOADS)]
    found = {(r["delay_ms"], r["workload"], r["policy"]): f"{_mean(r):.1f}" for r in done}
    lines = [
        (
            f"{workload}, {delay} ms apart" if delay else workload,
            *(found.get((delay, workload, policy), "") for policy in POLICIES),
        )
        for delay, workload in places
    ]
    return study.table(("workload", *POLICIES), lines)


def _over(one: Row, other: Row) -> float:
    return _mean(one) / _mean(other)


def error(row: Row) -> float:
    """Returns the relative error of the prediction from the costs of the minute before."""
    return _mean(row, FRESH) / _mean(row) - 1


def _mean(row: Row, keys: tuple[str, ...] = MEASURED) -> float:
    return float(np.mean([row[key] for key in keys if key in row]))


def _spread(row: Row) -> float:
    return abs(row["measured_ms"] - row.get("again_ms", row["measured_ms"])) / _mean(row)


def _line(row: Row) -> str:
    return ", ".join(f"{row[key]}" for key in COLUMNS if key in row)


def plot(rows: list[Row], file: Path) -> None:
    """Draws measured times over predicted ones, with a band of 15 % around the diagonal."""
    done = [row for row in rows if "measured_ms" in row]
    ends = np.array([1.0, max(_mean(row) for row in done) * 1.3])
    with study.picture(file, (6, 5)) as (axes,):
        for policy in POLICIES:
            found = [row for row in done if row["policy"] == policy]
            x = [_mean(row, FRESH) for row in found]
            axes.plot(x, [_mean(row) for row in found], "o", markersize=4, label=policy)
        axes.plot(ends, ends, "k-", linewidth=0.8)
        axes.fill_between(ends, ends * 0.85, ends * 1.15, color="k", alpha=0.1, label="within 15 %")
        axes.set(xscale="log", yscale="log", xlabel="predicted, ms", ylabel="measured, ms")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")


def _each_delay(args: argparse.Namespace, rows: list[Row]) -> None:
    """Predicts or measures, on hosts with the latencies of the rows."""

    def keep() -> None:
        study.write(rows, args.file, COLUMNS)

    for delay in args.delays:
        own = [row for row in rows if row["delay_ms"] == delay]
        if not delay:
            predict(own, None) if args.action == "predict" else measure(own, None, None, keep)
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
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "rows.csv")
        study.write(rows, file, COLUMNS)
        command = [sys.executable, __file__, "predict", str(file), "--deployment", str(hosts)]
        command = network.command(0, ["taskset", "-c", cores, *command, *options])
        environment = {**network.environment(), "PYTHONPATH": str(ROOT)}
        subprocess.run(command, env=environment, check=True, cwd=ROOT)
        for row, found in zip(rows, study.read(file), strict=True):
            row.update(found)


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
    fresh = args.action == "predict" and not args.file.exists()
    rows = configurations() if fresh else study.read(args.file)
    if args.deployment:
        predict(rows, args.deployment, args.anew or "predicted_ms", bool(args.anew))
        study.write(rows, args.file, COLUMNS)
        return 0
    if args.action != "report":
        _each_delay(args, rows)
    print(report(rows) if args.action != "predict" else f"predictions are in {args.file}")
    if args.plot:
        plot(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
