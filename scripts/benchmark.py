#!/usr/bin/env python3
"""Measures steps per second of training, alternating between programs, with resident memory.

    .venv/bin/python scripts/benchmark.py
    .venv/bin/python scripts/benchmark.py --minutes 10 --only graph:CartPole-v1  (flat memory)
    .venv/bin/python scripts/benchmark.py --peers --repeats 5     (beside others; scripts/peers)
    .venv/bin/python scripts/benchmark.py --peers --only gym-8 a2c --seconds 2 --repeats 1

Without `--peers`, each row trains PPO for a while with 4 epochs of 4 minibatches and 64-64 tanh
networks, and takes the median of the time between iterations after the first 20. Rows alternate
between repeats, so that a drift of the machine shows as spread.

With `--peers`, each row of scripts/peers/table.py runs this project and other libraries in turn,
each in its virtual environment (scripts/setup_peers.sh makes them), and prints medians, ranges, and
the ratio to the best of them with its target.
"""

import argparse
import platform
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import study
from peers import table, turns

WARM_UP, PROFILED = 20, 60


@dataclass(frozen=True)
class Case:
    """A row of the benchmark."""

    policy: str
    environment: str
    num_envs: int
    workers: int
    floor: int | None = None
    device: str = "cpu"


CASES = (
    Case("MultipleLearners", "CartPole-v1", 8, 1, 15_000),
    Case("GPUOnly", "graph:CartPole-v1", 8, 1, 20_000),
    Case("GPUOnly", "graph:CartPole-v1", 64, 1, 80_000),
    Case("SingleLearnerCoarse", "CartPole-v1", 8, 1),
    Case("MultipleLearners", "CartPole-v1", 8, 2),
    Case("GPUOnly", "graph:CartPole-v1", 64, 2),
)


def main() -> int:
    """Runs the benchmark. Returns: 1 if a floor was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="each run (default: 10)")
    parser.add_argument("--minutes", type=float, help="instead of --seconds, to measure memory")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="environments; with --peers names of rows")
    parser.add_argument("--peers", action="store_true", help="compare with other libraries")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds, with --peers")
    parser.add_argument("--profile", action="store_true", help="show where our time goes in a row")
    parser.add_argument("--json", type=Path, help="with --peers: file for every turn's values")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SIGTERM ends the running program too
    return (beside_peers if args.peers else alone)(args)


def alone(args: argparse.Namespace) -> int:
    """Runs the cases. Returns: 1 if a floor was missed."""
    seconds = args.minutes * 60 if args.minutes else args.seconds
    cases = [case for case in CASES if not args.only or case.environment in args.only]
    results: dict[Case, list[tuple[float, float, float]]] = {case: [] for case in cases}
    for _ in range(1 if args.minutes else args.repeats):
        for case in cases:
            results[case].append(measure(case, seconds))
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\n{platform.processor() or platform.machine()}, {study.machine()}\n", file=sys.stderr)
    rows, missed = [], False
    for case, runs in results.items():
        speeds, early, late = zip(*runs, strict=True)
        missed |= case.floor is not None and statistics.median(speeds) < case.floor
        floor = "" if case.floor is None else f"{case.floor:,}"
        memory = f"{max(early):.0f} -> {max(late):.0f}"
        work = (case.policy, case.environment, f"{case.num_envs} x 128", case.workers)
        rows.append((*work, study.spread(speeds), floor, memory))
    heads = ("policy", "environment", "environments x steps", "workers")
    found = ("steps/s: median (min-max)", "floor", "resident MiB a worker, start -> end")
    print(study.table((*heads, *found), rows))
    return 1 if missed else 0


def beside_peers(args: argparse.Namespace) -> int:
    """Runs the rows of the peers' table. Returns: 1 if a target was missed, 2 for a wrong name."""
    known = {row.name: row for row in table.rows()}
    if unknown := set(args.only or ()) - set(known):
        print(f"no row {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    rows = [known[name] for name in args.only or known]
    if args.profile:
        for row in rows:
            if row.unit == "steps/s":
                words = row.programs[0].commands[0][4:]
                words = [word for word in words if not word.startswith("total_steps=")]
                found = study.profile(*words, total_steps=PROFILED * row.steps)
                print(f"{row.work}\n\n{found}\n", flush=True)
        return 0
    results = turns.run(rows, args.seconds, args.warm_up, args.repeats)
    facts = turns.machine()
    print(turns.render(results, facts))
    if args.json:
        args.json.write_text(turns.as_json(results, facts) + "\n")
    return 0 if all(r.met(target) for r in results for target in r.row.targets) else 1


def measure(case: Case, seconds: float) -> tuple[float, float, float]:
    """Trains for a while and measures speed and memory.

    Returns: steps/s, and the largest worker's resident MiB after the warm-up and at the end.
    """
    task = table.Task("ppo", case.environment, case.num_envs, 128)
    how = {"gpu": case.device == "gpu"}
    program = task.ours(case.policy, how, device=case.device, workers=case.workers)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        with turns.started(program, folder) as job:
            while len(study.metrics(run)) < WARM_UP:
                turns.check(program, folder, job)
                time.sleep(0.2)
            early = _memory_mib(job.pid)
            time.sleep(seconds)
            turns.check(program, folder, job)
            late = _memory_mib(job.pid)
        iteration_s = float(np.median(study.durations_s(run, WARM_UP + 1)))
    return case.num_envs * 128 / iteration_s, early, late


def _memory_mib(pid: int) -> float:
    job = psutil.Process(pid)
    workers = [
        p
        for p in job.children(recursive=True)
        if p.name().startswith("python") and "runtime.rank.worker" in " ".join(p.cmdline())
    ]
    return max(p.memory_info().rss for p in workers or [job, *job.children()]) / 2**20


if __name__ == "__main__":
    sys.exit(main())
