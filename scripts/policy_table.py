#!/usr/bin/env python3
"""Runs every algorithm under every policy; writes the table of distribution/README.md.

.venv/bin/python scripts/policy_table.py                      (to the threshold, or 500,000 steps)
.venv/bin/python scripts/policy_table.py --total-steps 2000   (a trial of what is counted)
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mindspore_rl.jobs import registry  # noqa: E402
from mindspore_rl.plan.plan import load_plan  # noqa: E402
from mindspore_rl.plan.traffic import TRAFFIC_FILE, predict  # noqa: E402

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

{machine}. Made by `{command}`.

| algorithm | policy | environment | ranks | steps | steps/s | return | messages | collectives |
|---|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Traffic:
    """Calls and bytes of an iteration."""

    calls: int
    size: int

    def __str__(self) -> str:
        return f"{self.calls:,} calls, {self.size:,} B" if self.calls else "none"


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
        (algorithm, [algorithm, "--policy", policy], policy)
        for algorithm in args.algorithms
        for policy in args.policies
    ]
    for name, algorithm in CONFIGS.items():
        file = registry.find_config(name)
        if file.exists() and algorithm in args.algorithms:
            jobs.append((name, [algorithm, "--config", str(file)], "of its file"))
    header = HEADER.format(
        workers=args.workers,
        seed=args.seed,
        total=args.total_steps,
        machine=_machine(),
        command=f"python scripts/policy_table.py --total-steps {args.total_steps}",
    )
    rows, wrong = [], 0
    for name, words, policy in jobs:
        row, good = _row(name, words, policy, args)
        print(row, flush=True)
        rows.append(row)
        wrong += not good
        args.output.write_text(header + "\n".join(rows) + "\n")  # a long run may be interrupted
    return 1 if wrong else 0


def _row(name: str, words: list[str], policy: str, args: argparse.Namespace) -> tuple[str, bool]:
    """Makes a row of the table. Returns: it, and whether it is as expected."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "mindspore_rl.cli", "train", *words, "--quiet"]
        command += ["--workers", str(args.workers), "--seed", str(args.seed)]
        command += ["--total-steps", str(args.total_steps), "--run-dir", str(run)]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        if done.returncode:
            first = done.stderr.strip().splitlines()[0].removeprefix("msrl: ")
            # No run started: the policy cannot run this algorithm, which is a valid result.
            refused = done.returncode == 2 and not run.exists()
            why = f"cannot serve it: {first}" if refused else f"failed: {first}"
            return f"| {name} | {policy} | {why} | | | | | | |", refused
        return _measured(name, run)


def _measured(name: str, run: Path) -> tuple[str, bool]:
    plan = load_plan(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[0], lines[-1]
    took_s = last["wall_s"] - first["wall_s"]
    speed = f"{(last['env_steps'] - first['env_steps']) / took_s:,.0f}" if took_s > 0 else ""
    reached = last["mean_return"]
    collective = {reduction.name for reduction in plan.reductions}
    sums = []
    for inside in (False, True):
        found = [t for t in predict(plan) if t.each and (t.name in collective) == inside]
        sums.append(Traffic(sum(t.calls for t in found), sum(t.message_bytes for t in found)))
    different = _different(json.loads((run / TRAFFIC_FILE).read_text())["program"])
    cells = [
        name,
        plan.policy,
        plan.environment,
        str(plan.num_ranks),
        f"{last['env_steps']:,}",
        speed,
        "" if reached is None else f"{reached:.1f}",
        f"{sums[0]}{'; counted otherwise: ' + ', '.join(different) if different else ''}",
        str(sums[1]),
    ]
    return f"| {' | '.join(cells)} |", not different


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


def _machine() -> str:
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("mindspore", "gymnasium", "numpy"))
    python = platform.python_version()
    return f"{os.cpu_count()} cores, {platform.system()}, Python {python}, {versions}"


if __name__ == "__main__":
    sys.exit(main())
