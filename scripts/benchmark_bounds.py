#!/usr/bin/env python3
"""Predicts rows of the benchmark from two numbers of this machine, and measures their parts.

    .venv/bin/python scripts/benchmark_bounds.py
    .venv/bin/python scripts/benchmark_bounds.py --only dqn sac

The numbers are the rate of float32 products (NumPy's of 1024 x 1024) and the bandwidth of memory
(copies of 256 MB), on all cores. The operations of a row's cells over the rate, plus the measured
time of its environments, are the least time of an iteration. The bytes are those of a device that
writes every operator's result to memory; native code keeps most of them in registers and caches,
so its cells may take less. Run it alone on the machine.
"""

import argparse
import os
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import study
from peers import table

from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs.job import Job
from mindspore_rl.performance import predict
from mindspore_rl.performance.cluster import Cluster

ROWS = ("gym-8", "gym-64", "cheetah", "cheetah-512", "cheetah-1024", "pong", "pong-impala",
        "graph-64", "graph-256", "dqn", "sac")  # fmt: skip
HEADS = ("row", "iteration, ms", "environments, ms", "cells, ms", "operations, MFLOP",
         "over the rate, ms", "traffic, MB", "over the bandwidth, ms", "least iteration, ms",
         "share")  # fmt: skip
REPEATS = 20


def main() -> None:
    """Prints the two numbers and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=ROWS, metavar="ROW", help="names of rows")
    args = parser.parse_args()
    flops, moved = _products(), _copies()
    print(f"{study.machine()}\n{flops / 1e9:,.0f} GFLOP/s, {moved / 1e9:,.1f} GB/s\n")
    print(study.table(HEADS, ()))
    cluster = Cluster(predict.machine_costs(lambda _: None))
    for row in (row for row in table.rows() if row.name in args.only):
        print(study.line(_line(row, cluster, flops, moved)), flush=True)


def _products() -> float:
    """Returns the floating-point operations per second of a product, the fastest of many."""
    a, b = np.random.default_rng(0).random((2, 1024, 1024), np.float32)
    out = np.empty_like(a)
    return 2 * 1024**3 / _fastest_s(lambda: np.matmul(a, b, out))


def _copies() -> float:
    """Returns the bytes per second, read and written, of a copy by all cores."""
    cores = len(os.sched_getaffinity(0))
    parts = np.ones((2, cores, 2**26 // cores), np.float32)
    with ThreadPoolExecutor(cores) as pool:
        seconds = _fastest_s(lambda: list(pool.map(np.copyto, parts[0], parts[1])))
    return parts.nbytes / seconds


def _fastest_s(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=1, repeat=REPEATS))


def _line(row: table.Row, cluster: Cluster, flops: float, moved: float) -> list[str]:
    job = predict.job_of(jobs.request(_job(row)), lambda _: None)
    found = job.on(cluster).simulation
    ((_, costs),) = job.costs.items()
    (spent,) = found.spent
    cells = {name: s for name, s in spent.items() if name in costs.work}
    calls = {name: s / sum(costs.doings[name].alone) for name, s in cells.items()}
    operations = sum(calls[name] * costs.work[name][1] for name in cells)
    size = sum(calls[name] * costs.work[name][2] for name in cells)
    environments = spent.get("environment", 0.0)
    least = environments + operations / flops
    numbers = (
        found.iteration_s * 1e3, environments * 1e3, sum(cells.values()) * 1e3, operations / 1e6,
        operations / flops * 1e3, size / 1e6, size / moved * 1e3, least * 1e3,
    )  # fmt: skip
    return [row.name, *(f"{x:,.2f}" for x in numbers), f"{least / found.iteration_s:.0%}"]


def _job(row: table.Row) -> Job:
    """Returns the job of a row's own program, from its command."""
    (words,) = row.programs[0].commands
    _, algorithm, *words = words[words.index("train") :]
    options = dict(zip(words, words[1:], strict=False))
    return Job(
        algorithm,
        config="none",
        env=options["--env"],
        policy=options["--policy"],
        device="cpu",
        assignments=[word for word in words if "=" in word],
    )


if __name__ == "__main__":
    main()
