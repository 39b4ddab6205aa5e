"""Measures a replay library: trajectories of 1000 steps, 104 KB, are read in batches.

A library's program calls `main` with a function for each operation. It runs in that library's
virtual environment, so this file needs only NumPy.
"""

import argparse
import json
import sys
import time

import numpy as np

LENGTH, RECORDS = 1000, 1000
SHAPES = {
    "action": ((LENGTH, 6), "float32"),
    "obs": ((LENGTH, 17), "float32"),
    "return_to_go": ((LENGTH,), "float32"),
    "reward": ((LENGTH,), "float32"),
    "terminated": ((LENGTH,), "bool"),
}
BYTES = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in SHAPES.values())


def trajectories(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return columns `[count, 1000, ...]` of random bits (no NaN)."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.random((count, *shape), np.float32).astype(dtype)
        for name, (shape, dtype) in SHAPES.items()
    }


def priorities(count: int) -> np.ndarray:
    """Return priorities `[count]`, distributed like temporal-difference errors."""
    return np.random.default_rng(1).exponential(size=count) + 1e-3


def rate(step, seconds: float) -> float:
    """Return the steps per second, after a tenth of the time as warm-up."""
    end = time.perf_counter() + seconds / 10
    while time.perf_counter() < end:
        step()
    start, done = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        step()
        done += 1
    return done / (time.perf_counter() - start)


def arguments() -> argparse.Namespace:
    """Parse the arguments that scripts/benchmark_replay.py gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", choices=("read", "insert", "update", "checkpoint", "serve"), help="to measure"
    )
    parser.add_argument("--weighted", action="store_true", help="draw by priority")
    parser.add_argument("--hosts", action="store_true", help="each rank is on its own host")
    parser.add_argument("--skew", type=float, default=0.0, help="rank 0's fraction of the weights")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1, help="threads with which ours copies")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--table", default="", help="location of another process's table, or a folder"
    )
    return parser.parse_args()


def serve(where: str) -> None:
    """Print the table's location, and keep the table until all readers are done."""
    print(where, flush=True)
    sys.stdin.read()


def tell(value: float) -> None:
    """Print a rate: batches or records per second, or seconds."""
    print(json.dumps({"rate": value}), flush=True)
