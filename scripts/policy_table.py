#!/usr/bin/env python3
"""Runs every algorithm under every policy; writes the table of distribution/README.md.

.venv/bin/python scripts/policy_table.py                      (to the threshold, or 500,000 steps)
.venv/bin/python scripts/policy_table.py --total-steps 2000   (a trial of what is counted)
"""

import argparse
import json
import sys
from pathlib import Path

import study
from study import ROOT, NotMeasured, Run

from mindspore_rl.jobs import registry
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.plan.traffic import TRAFFIC_FILE, predict

CONFIGS = {"a3c": "a2c"}
"""Configurations with their own row, and their algorithms."""
HEADER = """# Distribution policies

One file per policy; `docs/add_a_policy.md` explains its contents. `deployments/` has lists of hosts
to run on.

## Every algorithm under every policy

{workers} workers, seed {seed}, environments as the algorithms' own defaults say (in-graph forms
where the policy requires one). A run ended at its environment's return threshold or at {total:,}
environment steps. Steps per second are measured from the second iteration on, without start and
compilation; the mean return is that of the last 100 training episodes.

Calls and bytes are those of one iteration, all ranks together: messages at our communicator's
interface, collectives inside compiled cells (MindSpore's; each rank's part is a call). The compiler
predicts them from the graph. In every row the run counted exactly these calls and bytes
(`communication.json`, see `docs/metrics.md`), or the row says what differed. The runtime's own
messages (a few bytes per rank at an iteration boundary, states for checkpoints) are not included.

{machine}. Made by `python scripts/policy_table.py --total-steps {total}`.

"""
HEADS = (
    *("algorithm", "policy", "environment", "ranks", "steps", "steps/s", "return"),
    *("messages", "collectives"),
)


def main() -> int:
    """Writes the table. Returns: 1 if a run failed or its counts differ from the prediction."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithms", nargs="+", default=registry.algorithms())
    parser.add_argument("--policies", nargs="+", default=list(registry.policies()))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-steps", type=int, default=500_000)
    parser.add_argument("--output", type=Path, default=ROOT / "distribution" / "README.md")
    args = parser.parse_args()
    jobs = [
        ((algorithm, policy), [algorithm, "--policy", policy])
        for algorithm in args.algorithms
        for policy in args.policies
    ]
    for name, algorithm in CONFIGS.items():
        if registry.find_config(name).exists() and algorithm in args.algorithms:
            words = [algorithm, "--config", registry.find_config(name)]
            jobs.append(((name, "of its file"), words))
    header = HEADER.format(
        workers=args.workers, seed=args.seed, total=args.total_steps, machine=study.machine()
    )
    shape = {"workers": args.workers, "seed": args.seed, "total_steps": args.total_steps}
    rows, wrong = [], 0
    for (name, policy), words in jobs:
        try:
            with study.trained(*words, **shape) as run:
                cells, good = _measured(name, run)
        except NotMeasured as error:
            # No run started: the policy cannot run this algorithm, which is a valid result.
            why, good = "cannot serve it" if error.refused else "failed", error.refused
            cells = [name, policy, f"{why}: {error}", *[""] * 6]
        rows.append(cells)
        wrong += not good
        print(study.line(cells), flush=True)
        # A long run may be interrupted.
        args.output.write_text(header + study.table(HEADS, rows) + "\n")
    return 1 if wrong else 0


def _measured(name: str, run: Run) -> tuple[list[str], bool]:
    """Makes a row of the table. Returns: its cells, and whether it is as expected."""
    plan, records = load_plan(run.folder), run.metrics()
    first, last = records[0], records[-1]
    took_s, steps = (last[key] - first[key] for key in ("wall_s", "env_steps"))
    reached = last["mean_return"]
    different = _different(json.loads((run.folder / TRAFFIC_FILE).read_text())["program"])
    collective = {reduction.name for reduction in plan.reductions}
    sums = []
    for inside in (False, True):
        found = [t for t in predict(plan) if t.each and (t.name in collective) == inside]
        calls, size = sum(t.calls for t in found), sum(t.message_bytes for t in found)
        sums.append(f"{calls:,} calls, {size:,} B" if calls else "none")
    cells = [
        name,
        plan.policy,
        plan.environment,
        str(plan.num_ranks),
        f"{last['env_steps']:,}",
        f"{steps / took_s:,.0f}" if took_s > 0 else "",
        "" if reached is None else f"{reached:.1f}",
        f"{sums[0]}{'; counted otherwise: ' + ', '.join(different) if different else ''}",
        sums[1],
    ]
    return cells, not different


def _different(program: dict) -> list[str]:
    """Returns the counts that differ from the prediction."""
    return [
        f"{name} {row['calls']} calls for {row['predicted_calls']}"
        for name, row in program.items()
        if not _as_predicted(row)
    ]


def _as_predicted(row: dict) -> bool:
    """Returns whether a row was counted exactly, or at most so under a condition."""
    more = [row[what] - row[f"predicted_{what}"] for what in ("calls", "bytes")]
    return max(more) <= 0 if row["conditional"] else not any(more)


if __name__ == "__main__":
    sys.exit(main())
