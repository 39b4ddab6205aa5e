#!/usr/bin/env python3
"""Trains CartPole-v1 to its threshold; writes the rows of the table in algorithms/README.md.

.venv/bin/python scripts/learning_table.py --seeds 1 2 3 --workers 2

Replaces rows of the same algorithm, policy and seed, and keeps all other text.
"""

import argparse
import sys

import study
from study import ROOT

from mindspore_rl.plan.plan import load_plan

README = ROOT / "algorithms" / "README.md"
THRESHOLD = 475.0


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
    """Trains. Returns: a row, and whether it reached the threshold."""
    words = [algorithm, "--policy", policy] if policy else ["--config", algorithm]
    shape = {"env": "CartPole-v1", "workers": args.workers, "seed": seed}
    limits = {"total_steps": args.total_steps, "start_timeout": 900, "timeout": 300}
    try:
        with study.trained(*words, **shape, **limits, stop_return=THRESHOLD) as run:
            plan, end = load_plan(run.folder), run.metrics()[-1]
    except study.NotMeasured as error:
        return study.line([algorithm, policy, seed, "failed", error, ""]), False
    name = plan.policy + (", asynchronous" if plan.arrivals else "")
    name += "" if plan.environment == "CartPole-v1" else f" ({plan.environment})"
    mean = end["mean_return"] or 0.0
    cells = [algorithm, name, seed, f"{end['env_steps']:,}", f"{mean:.1f}", f"{run.wall_s:.0f}"]
    return study.line(cells), mean >= THRESHOLD


if __name__ == "__main__":
    sys.exit(main())
