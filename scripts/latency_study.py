#!/usr/bin/env python3
"""Measures the iteration time of every policy by the latency between two hosts: a table and a plot.

    scripts/latency_study.py [--csv FILE] [--plot FILE.svg]

PPO on HalfCheetah-v4 (extra `mujoco`), on two namespaces of this machine, connected by a relay
(`network_hosts.py`; root only). Latency is one way: a packet and its answer take twice as much. The
first iterations, which compile, are left out; a time is the median of the others, with quartiles.
`--plot` needs matplotlib (extra `plot`); with `--from FILE` it draws the times of an earlier run.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import study
from network_hosts import Network, why_not
from study import Row

POLICIES = {
    "SingleLearnerCoarse": None,
    "SingleLearnerFine": None,
    "SingleLearnerFine, 2 chunks": "chunks=2",
    "MultipleLearners": None,
    "Environments": None,
    "Central": None,
}
"""Schedules by policy, without GPUOnly, which needs an in-graph environment: there is none here."""
FUSED = ("MultipleLearners",)
"""Policies with another worker on the second host; the others have one worker and its server."""
KEYS = {"num_envs": 8, "num_steps": 32, "update_epochs": 2, "num_minibatches": 4}
WARM_UP = 3
COLUMNS = ("policy", "delay_ms", "iterations", "median_s", "lower_s", "upper_s", "why_not")


def measure(policy: str, delay_ms: float, iterations: int) -> Row:
    """Trains a policy on two hosts with a latency. Returns: one row of the table."""
    name = policy.split(",", maxsplit=1)[0]
    row: Row = {"policy": policy, "delay_ms": delay_ms}
    flags = {"env": "HalfCheetah-v4", "schedule": POLICIES[policy], "stop_return": "nan"}
    steps = (iterations + WARM_UP) * KEYS["num_envs"] * KEYS["num_steps"]
    with tempfile.TemporaryDirectory() as folder, Network(2, delay_ms) as network:
        hosts = Path(folder, "hosts.yaml")
        network.write_deployment(hosts, name, 2 if name in FUSED else 1)
        flags |= {"deployment": hosts, "total_steps": steps}
        try:
            with study.trained("ppo", keys=KEYS, network=network, **flags) as run:
                durations = run.durations_s(WARM_UP)
        except study.NotMeasured as error:
            return row | {"why_not": str(error)}
    quantiles = np.quantile(durations, (0.5, 0.25, 0.75)).round(4).tolist()
    found = dict(zip(("median_s", "lower_s", "upper_s"), quantiles, strict=True))
    return row | {"iterations": len(durations)} | found


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table, one line a policy."""
    rows = sorted(rows, key=lambda row: row["delay_ms"])
    return study.pivot("policy", ((r["policy"], f"{r['delay_ms']:g} ms", _cell(r)) for r in rows))


def _cell(row: Row) -> str:
    if "median_s" not in row:
        return row["why_not"]
    return "{:.0f} ({:.0f} to {:.0f})".format(
        *(1e3 * row[k] for k in ("median_s", "lower_s", "upper_s"))
    )


def plot(rows: list[Row], file: Path) -> None:
    """Draws iteration time by latency, one line per policy, with quartiles as bars."""
    keys = ("delay_ms", "median_s", "lower_s", "upper_s")
    with study.picture(file, (7, 4)) as (axes,):
        for policy in dict.fromkeys(row["policy"] for row in rows):
            found = [row for row in rows if row["policy"] == policy and "median_s" in row]
            if not found:
                continue
            delay, median, lower, upper = (np.array([row[key] for row in found]) for key in keys)
            spread = 1e3 * np.stack([median - lower, upper - median])
            axes.errorbar(delay, 1e3 * median, spread, label=policy, marker="o", capsize=3)
        axes.set(xlabel="latency between the hosts, one way, ms", ylabel="time of an iteration, ms")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--delays", default="0,1,5", help="ms, one way (default: 0,1,5)")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--only", choices=POLICIES, help="measure only this policy (default: all)")
    parser.add_argument(
        "--csv", type=Path, help="file for the measurements; keeps rows of other policies"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--from", dest="earlier", type=Path, help="draw this CSV without measuring")
    args = parser.parse_args()
    if args.earlier:
        rows = study.read(args.earlier)
    elif reason := why_not():
        print(f"latency_study: {reason}", file=sys.stderr)
        return 2
    else:
        chosen = [args.only] if args.only else list(POLICIES)
        rows = study.read(args.csv) if args.csv and args.csv.exists() else []
        rows = [row for row in rows if row["policy"] not in chosen]
        # The delays of a policy follow each other: the machine's load then differs least.
        for policy in chosen:
            for delay in args.delays.split(","):
                rows.append(measure(policy, float(delay), args.iterations))
                print(rows[-1], file=sys.stderr, flush=True)
                if args.csv:
                    study.write(rows, args.csv, COLUMNS)
    print(table(rows))
    if args.plot:
        plot(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
