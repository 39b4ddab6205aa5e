#!/usr/bin/env python3
"""Trains CartPole-v1 to its threshold; writes the rows of the table in algorithms/README.md.

.venv/bin/python scripts/learning_table.py --seeds 1 2 3 --workers 2

Replaces rows of the same algorithm, policy and seed, and keeps all other text.
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
THRESHOLD = 475.0
OUTCOME = re.compile(r"(\w+): (\d+) environment steps, mean return ([-\d.]+)")


def main() -> int:
    """Runs the table. Returns: 1 if a run missed the threshold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--algorithms", nargs="+", default=["ppo", "a2c", "a3c"], help="or names of configurations"
    )
    parser.add_argument(
        "--policies", nargs="+", default=["SingleLearnerCoarse", "MultipleLearners", "GPUOnly"]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--total-steps", type=int, default=500_000)
    args = parser.parse_args()
    missed = 0
    for algorithm in args.algorithms:
        configured = (ROOT / "algorithms" / "configs" / f"{algorithm}.yaml").exists()
        for policy in [""] if configured else args.policies:
            for seed in args.seeds:
                row, reached = _run(algorithm, policy, seed, args)
                missed += not reached
                print(row, flush=True)
                README.write_text(with_row(README.read_text(), row))
    return 1 if missed else 0


def with_row(page: str, row: str) -> str:
    """Returns a page with a row in its table; it replaces a row that starts with the same cells.

    A row of another algorithm, policy or seed is added after the most similar rows.
    """
    lines = page.splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("|"))
    key = row.split("|")[1:4]
    for shared in (3, 2, 1, 0):
        alike = [
            i for i, line in enumerate(lines) if line.split("|")[1 : shared + 1] == key[:shared]
        ]
        alike = [i for i in alike if lines[i].startswith("|") and i <= last]
        if alike:
            lines[alike[-1] : alike[-1] + 1] = [row] if shared == 3 else [lines[alike[-1]], row]
            break
    return "\n".join(lines) + "\n"


def _run(algorithm: str, policy: str, seed: int, args: argparse.Namespace) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "mindspore_rl.cli",
                "train",
                *([algorithm, "--policy", policy] if policy else ["--config", algorithm]),
                "--seed",
                str(seed),
                "--workers",
                str(args.workers),
                "--env",
                "CartPole-v1",
                "--total-steps",
                str(args.total_steps),
                "--start-timeout",
                "900",
                "--timeout",
                "300",
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
            why = done.stderr.strip().splitlines()[0]
            return f"| {algorithm} | {policy} | {seed} | failed | {why} | |", False
        plan = json.loads((Path(folder) / "run" / "plan.json").read_text())
    name = plan["policy"] + (" by arrival" if plan["arrivals"] else "")
    name += "" if plan["environment"] == "CartPole-v1" else f" ({plan['environment']})"
    reached = float(found[3]) >= THRESHOLD
    return (
        f"| {algorithm} | {name} | {seed} | {int(found[2]):,} | {found[3]} | {wall_s:.0f} |",
        reached,
    )


if __name__ == "__main__":
    sys.exit(main())
