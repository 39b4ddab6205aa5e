#!/usr/bin/env python3
"""Measures the iteration time of every policy by the latency between two hosts: a table and a plot.

    scripts/latency_study.py [--csv FILE] [--plot FILE.svg]

PPO on HalfCheetah-v4 (extra `mujoco`), on two namespaces of this machine, connected by a relay
(`network_hosts.py`; root only). Latency is one way: a packet and its answer take twice as much. The
first iterations, which compile, are left out; a time is the median of the others, with quartiles.
`--plot` needs matplotlib (extra `plot`); with `--from FILE` it draws the times of an earlier run.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from network_hosts import Network, why_not

ROOT = Path(__file__).resolve().parents[1]
POLICIES = {
    "SingleLearnerCoarse": (),
    "SingleLearnerFine": (),
    "SingleLearnerFine, 2 chunks": ("--schedule", "chunks=2"),
    "MultipleLearners": (),
    "Environments": (),
    "Central": (),
}
"""Without GPUOnly, which needs an in-graph environment: HalfCheetah-v4 has none."""
FUSED = ("MultipleLearners",)
"""Policies with another worker on the second host; the others have one worker and its server."""
CONFIG = ("num_envs=8", "num_steps=32", "update_epochs=2", "num_minibatches=4")
WARM_UP = 3
COLUMNS = ("policy", "delay_ms", "iterations", "median_s", "lower_s", "upper_s", "why_not")


def measure(policy: str, delay_ms: float, iterations: int, folder: Path) -> dict[str, object]:
    """Trains a policy on two hosts with a latency. Returns: one row of the table."""
    name = policy.split(",", maxsplit=1)[0]
    row: dict[str, object] = dict.fromkeys(COLUMNS, "")
    row |= {"policy": policy, "delay_ms": delay_ms}
    run_dir = folder / f"{policy}-{delay_ms:g}"
    steps = (iterations + WARM_UP) * 8 * 32
    with Network(2, delay_ms) as network:
        hosts = folder / "hosts.yaml"
        network.write_deployment(hosts, name, 2 if name in FUSED else 1)
        command = [sys.executable, "-m", "mindspore_rl.cli", "train", "ppo", *CONFIG]
        command += ["--env", "HalfCheetah-v4", "--deployment", str(hosts), "--quiet"]
        command += ["--run-dir", str(run_dir), "--total-steps", str(steps), "--stop-return", "nan"]
        environment = {**network.environment(), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            network.command(0, [*command, *POLICIES[policy]]),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return row | {"why_not": done.stderr.strip().splitlines()[0]}
    times = [json.loads(line)["wall_s"] for line in (run_dir / "metrics.jsonl").open()]
    durations = np.diff(times)[WARM_UP - 1 :]
    lower, median, upper = np.quantile(durations, (0.25, 0.5, 0.75))
    return row | {
        "iterations": len(durations),
        "median_s": round(median, 4),
        "lower_s": round(lower, 4),
        "upper_s": round(upper, 4),
    }


def write(rows: list[dict[str, object]], file: Path) -> None:
    """Writes the rows for `--from`."""
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(file: Path) -> list[dict[str, object]]:
    """Reads the rows that `write` wrote."""
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def table(rows: list[dict[str, object]]) -> str:
    """The rows as a Markdown table, one line a policy."""
    delays = sorted({float(row["delay_ms"]) for row in rows})
    lines = ["| policy | " + " | ".join(f"{delay:g} ms" for delay in delays) + " |"]
    lines.append("|---" * (len(delays) + 1) + "|")
    for policy in dict.fromkeys(str(row["policy"]) for row in rows):
        cells = []
        for delay in delays:
            found = [r for r in rows if r["policy"] == policy and float(r["delay_ms"]) == delay]
            cells.append(_cell(found[0]) if found else "")
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, object]) -> str:
    if not row["median_s"]:
        return str(row["why_not"])
    low, high = (f"{1e3 * float(row[key]):.0f}" for key in ("lower_s", "upper_s"))
    return f"{1e3 * float(row['median_s']):.0f} ({low} to {high})"


def plot(rows: list[dict[str, object]], file: Path) -> None:
    """Draws iteration time by latency, one line per policy, with quartiles as bars."""
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for policy in dict.fromkeys(str(row["policy"]) for row in rows):
        found = [row for row in rows if row["policy"] == policy and row["median_s"]]
        if not found:
            continue
        delay, median, lower, upper = (
            np.array([float(row[key]) for row in found])
            for key in ("delay_ms", "median_s", "lower_s", "upper_s")
        )
        spread = 1e3 * np.stack([median - lower, upper - median])
        axes.errorbar(delay, 1e3 * median, spread, label=policy, marker="o", capsize=3)
    axes.set(xlabel="latency between the hosts, one way, ms", ylabel="time of an iteration, ms")
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(file)


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
        rows = read(args.earlier)
    elif reason := why_not():
        print(f"latency_study: {reason}", file=sys.stderr)
        return 2
    else:
        chosen = [args.only] if args.only else list(POLICIES)
        rows = read(args.csv) if args.csv and args.csv.exists() else []
        rows = [row for row in rows if row["policy"] not in chosen]
        with tempfile.TemporaryDirectory() as folder:
            # The delays of a policy follow each other: the machine's load then differs least.
            for policy in chosen:
                for delay in args.delays.split(","):
                    rows.append(measure(policy, float(delay), args.iterations, Path(folder)))
                    print(rows[-1], file=sys.stderr, flush=True)
                    if args.csv:
                        write(rows, args.csv)
    print(table(rows))
    if args.plot:
        plot(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
