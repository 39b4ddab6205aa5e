#!/usr/bin/env python3
"""Measures the iteration time of families of algorithms under every policy: a table.

    scripts/family_study.py [--csv FILE] [--only FAMILY ...]
    scripts/family_study.py --from FILE.csv                  (the table of an earlier run)

A family has a small and a large form. Two ranks on this machine: two workers, or one and its
server. A time is the median of the iterations after the first ones, which compile.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import study
from study import Row

from mindspore_rl.jobs import registry

FUSED = ("MultipleLearners", "GPUOnly")
"""Policies of two workers; the others have one worker and its server."""
ROLLOUT = {"num_envs": 8, "num_steps": 32, "update_epochs": 2, "num_minibatches": 4}
OFF_POLICY = {"num_envs": 8, "num_steps": 16, "learning_starts": 0, "updates": 16}
NARROW, WIDE, WIDER = ({"hidden": (width, width)} for width in (64, 256, 512))
PLANS = OFF_POLICY | {"learning_starts": 128, "batch_size": 64}
FORMS: dict[str, tuple[str, str, Row]] = {
    "PPO, small": ("ppo", "CartPole-v1", ROLLOUT),
    "PPO, large": ("ppo", "CartPole-v1", ROLLOUT | WIDER),
    "PPO, slow environment, small": ("ppo", "HalfCheetah-v5", ROLLOUT),
    "PPO, slow environment, large": ("ppo", "HalfCheetah-v5", ROLLOUT | WIDE),
    "MAPPO, 3 agents, small": ("mappo", "graph:simple_spread_v3", ROLLOUT),
    "MAPPO, 8 agents, large": ("mappo", "graph:simple_spread_v3,N=8", ROLLOUT | WIDE),
    "DQN, small": ("dqn", "CartPole-v1", OFF_POLICY),
    "DQN, large": ("dqn", "CartPole-v1", OFF_POLICY | WIDER),
    "SAC, small": ("sac", "Pendulum-v1", OFF_POLICY | NARROW | {"batch_size": 64}),
    "SAC, large": ("sac", "Pendulum-v1", OFF_POLICY | WIDE | {"batch_size": 256}),
    "MuZero, small": ("muzero", "CartPole-v1", PLANS),
    "MuZero, large": ("muzero", "CartPole-v1", PLANS | WIDE | {"simulations": 48}),
}
WARM_UP = 5
COLUMNS = ("family", "policy", "iterations", "median_ms", "why_not")


def measure(family: str, policy: str, iterations: int) -> Row:
    """Trains a family under a policy. Returns: one row of the table."""
    algorithm, environment, keys = FORMS[family]
    row: Row = {"family": family, "policy": policy}
    steps = (iterations + WARM_UP) * keys["num_envs"] * keys["num_steps"]
    flags = {"policy": policy, "env": environment, "stop_return": "nan", "total_steps": steps}
    try:
        workers = 2 if policy in FUSED else 1
        with study.trained(algorithm, keys=keys, workers=workers, **flags) as run:
            durations = run.durations_s(WARM_UP)
    except study.NotMeasured as error:
        return row | {"why_not": str(error)}
    return row | {
        "iterations": len(durations),
        "median_ms": round(1e3 * float(np.median(durations)), 2),
    }


def table(rows: list[Row]) -> str:
    """Returns the rows as a Markdown table, one line a family: slowest over fastest at its end."""
    rows = sorted(rows, key=lambda row: list(FORMS).index(row["family"]))
    cells = [
        (row["family"], row["policy"], f"{row['median_ms']:.1f}" if "median_ms" in row else "")
        for row in rows
    ]
    for family in dict.fromkeys(row["family"] for row in rows):
        times = [r["median_ms"] for r in rows if r["family"] == family and "median_ms" in r]
        if times:
            cells.append((family, "slowest / fastest", f"{max(times) / min(times):.1f}"))
    return study.pivot("ms an iteration", cells)


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=FORMS, metavar="FAMILY")
    parser.add_argument("--csv", type=Path, help="file for the measurements; goes on where it was")
    parser.add_argument("--from", dest="earlier", type=Path, help="show this CSV, measure nothing")
    args = parser.parse_args()
    if args.earlier:
        print(table(study.read(args.earlier)))
        return 0
    rows = study.read(args.csv) if args.csv and args.csv.exists() else []
    for family in args.only or FORMS:
        for policy in registry.policies():
            if any((row["family"], row["policy"]) == (family, policy) for row in rows):
                continue
            rows.append(measure(family, policy, args.iterations))
            print(rows[-1], file=sys.stderr, flush=True)
            if args.csv:
                study.write(rows, args.csv, COLUMNS)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
