#!/usr/bin/env python3
"""Compares predicted and measured iteration times of up to 64 ranks with sleeping cells.

    scripts/scaling_rehearsal.py predict FILE.csv
    scripts/scaling_rehearsal.py measure FILE.csv

The launcher, the runtime, the plans and the messages are real. Cells and environments only sleep,
and no rank imports MindSpore, so two cores can run 64 ranks. The sleeps are long enough for that.
"""

import argparse
import csv
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
POLICIES = (
    "SingleLearnerCoarse",
    "MultipleLearners",
    "SingleLearnerFine",
    "Environments",
    "Central",
)
RANKS = (4, 8, 32, 64)
CONFIG = {"env": "CartPole-v1", "num_envs": 128, "num_steps": 4, "update_epochs": 1}
SLEEPS_S = {"cell act": 0.02, "cell learn": 0.4, "cell update": 0.02, "step": 0.1, "reset": 0.01}
OTHER_S, REPEATS, WARM_UP, ITERATIONS = 0.02, 2, 2, 8
COLUMNS = ("policy", "ranks", "predicted_ms", "measured_ms", "again_ms", "error", "why_not")
Row = dict[str, Any]


def planned(row: Row, folder: Path) -> Any:
    """Plans a sleep-only job of a row, with its fragments measured alone."""
    from mindspore_rl import programs  # noqa: PLC0415
    from mindspore_rl.compiler.pipeline import JobRequest  # noqa: PLC0415
    from mindspore_rl.errors import MsrlError  # noqa: PLC0415
    from mindspore_rl.jobs import registry  # noqa: PLC0415
    from mindspore_rl.performance import predict  # noqa: PLC0415

    file, ranks = registry.find_algorithm("ppo"), int(row["ranks"])
    config = programs.trainer_class(file).Config(**CONFIG)
    policy = registry.load_policy(registry.find_policy(row["policy"]))
    for workers in (ranks, ranks - 1, ranks // 2):
        request = JobRequest(
            file, policy, config, workers, num_iterations=WARM_UP + ITERATIONS, timeout_s=120
        )
        place = folder / str(workers)
        place.mkdir()
        found = predict.rehearsed(request, place, lambda _, name: SLEEPS_S.get(name, OTHER_S))
        if found.plan.num_ranks <= ranks:
            return found, place
    raise MsrlError(f"no number of workers makes {ranks} ranks")


def predict(row: Row) -> None:
    """Predicts a row."""
    from mindspore_rl.performance.cluster import Cluster  # noqa: PLC0415
    from mindspore_rl.performance.predict import machine_costs  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        job, _ = planned(row, Path(folder))
        found = job.on(Cluster(machine_costs(print)))
    row["predicted_ms"] = f"{1e3 * found.simulation.iteration_s:.1f}"


def measure(row: Row) -> None:
    """Measures a row."""
    from mindspore_rl.platform import interpreter  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator.launch import Commands  # noqa: PLC0415
    from mindspore_rl.runtime.coordinator.run import JobOptions, run_job  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        job, place = planned(row, Path(folder))
        worker = tuple(interpreter.command("-m", "mindspore_rl.performance.sleep_only_job"))
        options = JobOptions(progress=False, total_steps=0, start_timeout_s=600.0)
        run_job(job.plan, place, options, Commands(worker=worker))
        lines = (place / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["wall_s"] for line in lines][WARM_UP - 1 :]
    key = "again_ms" if row["measured_ms"] else "measured_ms"
    row[key] = f"{1e3 * (times[-1] - times[0]) / (len(times) - 1):.1f}"
    mean = np.mean([float(row[k]) for k in ("measured_ms", "again_ms") if row[k]])
    row["error"] = f"{float(row['predicted_ms']) / mean - 1:+.1%}"


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("action", choices=("predict", "measure"))
    parser.add_argument("file", type=Path, metavar="FILE.csv")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from mindspore_rl.runtime.rank.worker_settings import prepare_mindspore  # noqa: PLC0415

    prepare_mindspore()
    if args.action == "predict":
        rows = [
            {**dict.fromkeys(COLUMNS, ""), "policy": policy, "ranks": ranks}
            for ranks in args.ranks
            for policy in POLICIES
        ]
    else:
        with args.file.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
    for _ in range(REPEATS if args.action == "measure" else 1):
        for row in rows:
            predict(row) if args.action == "predict" else measure(row)
            print(", ".join(str(row[key]) for key in COLUMNS if row[key]), flush=True)
            with args.file.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
