#!/usr/bin/env python3
"""Trains CartPole-v1 to its threshold under every policy; writes the table of algorithms/README.md.

.venv/bin/python scripts/learning_table.py --seeds 1 2 3 --workers 2
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "algorithms" / "README.md"
HEADER = """# Algorithms

| file | paper |
|---|---|
| `ppo.py` | Schulman et al. 2017, arXiv 1707.06347 |
| `a2c.py` | Mnih et al. 2016, arXiv 1602.01783 |

How to add one: `docs/add_an_algorithm.md`.

## CartPole-v1

Mean return of the last 100 training episodes; a run ends when that reaches {threshold:g} or at
{total:,} environment steps. {workers} workers, {versions}.
Made by `{command}`.

| algorithm | policy | seed | environment steps | mean return | wall time, s |
|---|---|---|---|---|---|
"""
THRESHOLD = 475.0
OUTCOME = re.compile(r"(\w+): (\d+) environment steps, mean return ([-\d.]+)")


def main() -> int:
    """Runs the table. Returns: 1 if a run missed the threshold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithms", nargs="+", default=["ppo", "a2c"])
    parser.add_argument(
        "--policies", nargs="+", default=["SingleLearnerCoarse", "MultipleLearners", "GPUOnly"]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--total-steps", type=int, default=500_000)
    args = parser.parse_args()
    rows, missed = [], 0
    for algorithm in args.algorithms:
        for policy in args.policies:
            for seed in args.seeds:
                row, reached = _run(algorithm, policy, seed, args)
                missed += not reached
                rows.append(row)
                print(row, flush=True)
    command = "python scripts/learning_table.py " + " ".join(sys.argv[1:])
    README.write_text(
        HEADER.format(
            threshold=THRESHOLD,
            total=args.total_steps,
            workers=args.workers,
            versions=_versions(),
            command=command.strip(),
        )
        + "\n".join(rows)
        + "\n"
    )
    return 1 if missed else 0


def _run(algorithm: str, policy: str, seed: int, args: argparse.Namespace) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "mindspore_rl.cli",
                "train",
                algorithm,
                "--policy",
                policy,
                "--seed",
                str(seed),
                "--workers",
                str(args.workers),
                "--env",
                "CartPole-v1",
                "--total-steps",
                str(args.total_steps),
                "--stop-return",
                str(THRESHOLD),
                "--quiet",
                "--run-dir",
                f"{folder}/run",
            ],
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=False,
        )
        wall_s = time.monotonic() - began
        found = OUTCOME.search(done.stdout)
        if found is None:
            return f"| {algorithm} | {policy} | {seed} | failed | {done.stderr.strip()} | |", False
        environment = json.loads((Path(folder) / "run" / "plan.json").read_text())["environment"]
    name = policy if environment == "CartPole-v1" else f"{policy} ({environment})"
    reached = float(found[3]) >= THRESHOLD
    return (
        f"| {algorithm} | {name} | {seed} | {int(found[2]):,} | {found[3]} | {wall_s:.0f} |",
        reached,
    )


def _versions() -> str:
    from importlib import metadata  # noqa: PLC0415

    return ", ".join(f"{p} {metadata.version(p)}" for p in ("mindspore", "gym", "numpy"))


if __name__ == "__main__":
    sys.exit(main())
