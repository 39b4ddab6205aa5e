#!/usr/bin/env python3
"""Compares predicted and measured iteration times of up to 64 ranks with sleeping cells.

    scripts/scaling_rehearsal.py predict FILE.csv
    scripts/scaling_rehearsal.py measure FILE.csv

The launcher, the runtime, the plans and the messages are real. Cells and environments only sleep,
and no rank imports MindSpore, so two cores can run 64 ranks. The sleeps are long enough for that.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import scaling_study
import study
from study import Row

from mindspore_rl.errors import MsrlError
from mindspore_rl.performance import predict as scale
from mindspore_rl.performance.cluster import Cluster
from mindspore_rl.platform import interpreter
from mindspore_rl.runtime.coordinator.launch import Commands
from mindspore_rl.runtime.coordinator.run import JobOptions, run_job

POLICIES = (
    "SingleLearnerCoarse", "MultipleLearners", "SingleLearnerFine", "Environments", "Central",
)  # fmt: skip
RANKS = (4, 8, 32, 64)
KEYS = {"env": "CartPole-v1", "num_envs": 128, "num_steps": 4, "update_epochs": 1}
SLEEPS_S = {"cell act": 0.02, "cell learn": 0.4, "cell update": 0.02, "step": 0.1, "reset": 0.01}
OTHER_S, REPEATS, WARM_UP, ITERATIONS = 0.02, 2, 2, 8
COLUMNS = ("policy", "ranks", "predicted_ms", "measured_ms", "again_ms", "error", "why_not")


def planned(row: Row, folder: Path) -> tuple[scale.Job, Path]:
    """Plans a sleep-only job of a row, with its fragments measured alone."""

    def plan(workers: int) -> tuple[scale.Job, Path]:
        limits = {"num_iterations": WARM_UP + ITERATIONS, "timeout_s": 120}
        request = scaling_study.request("ppo", row["policy"], KEYS, workers, **limits)
        place = Path(tempfile.mkdtemp(dir=folder))
        found = scale.rehearsed(request, place, lambda _, name: SLEEPS_S.get(name, OTHER_S))
        if found.plan.num_ranks > row["ranks"]:
            raise MsrlError(f"no number of workers makes {row['ranks']} ranks")
        return found, place

    return scaling_study.fitting(row["ranks"], plan)


def predict(row: Row) -> None:
    """Predicts a row."""
    with tempfile.TemporaryDirectory() as folder:
        job, _ = planned(row, Path(folder))
        found = job.on(Cluster(scale.machine_costs(print)))
    row["predicted_ms"] = round(1e3 * found.simulation.iteration_s, 1)


def measure(row: Row) -> None:
    """Measures a row."""
    with tempfile.TemporaryDirectory() as folder:
        job, place = planned(row, Path(folder))
        worker = tuple(interpreter.command("-m", "mindspore_rl.performance.sleep_only_job"))
        options = JobOptions(progress=False, total_steps=0, start_timeout_s=600.0)
        run_job(job.plan, place, options, Commands(worker=worker))
        time_s = study.durations_s(place, WARM_UP).mean()
    row["again_ms" if "measured_ms" in row else "measured_ms"] = round(1e3 * float(time_s), 1)
    mean = np.mean([row[key] for key in ("measured_ms", "again_ms") if key in row])
    row["error"] = f"{row['predicted_ms'] / mean - 1:+.1%}"


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("action", choices=("predict", "measure"))
    parser.add_argument("file", type=Path, metavar="FILE.csv")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    args = parser.parse_args()
    if args.action == "predict":
        rows = [{"policy": policy, "ranks": n} for n in args.ranks for policy in POLICIES]
    else:
        rows = study.read(args.file)
    for _ in range(REPEATS if args.action == "measure" else 1):
        for row in rows:
            predict(row) if args.action == "predict" else measure(row)
            print(", ".join(str(row[key]) for key in COLUMNS if key in row), flush=True)
            study.write(rows, args.file, COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
