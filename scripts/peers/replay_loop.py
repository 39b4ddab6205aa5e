"""Measures a replay library: trajectories of 1000 steps, 104 KB, or others are read in batches.

A library's program calls `main` with a function for each operation. It runs in that library's
virtual environment, so this file needs only NumPy.
"""

import argparse
import ctypes
import itertools
import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

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
TRANSITION = {
    "action": ((), "int32"),
    "next_obs": ((4,), "float32"),
    "obs": ((4,), "float32"),
    "reward": ((), "float32"),
    "terminated": ((), "bool"),
    "truncated": ((), "bool"),
}
"""A record of 42 bytes."""
KINDS = ("random", "constant", "lengths", "transitions")
"""Trajectories of random and of equal numbers, and of 100 to 1000 steps; single steps."""
WRITES_PER_S, COLD_BATCHES = 500, 8


def shapes(kind: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and type of each column of a record of this kind."""
    return TRANSITION if kind == "transitions" else SHAPES


def records(kind: str, count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return columns `[count, ...]` of random bits (no NaN), 0 behind a trajectory's last step."""
    rng, found = np.random.default_rng(seed), {}
    for name, (shape, dtype) in shapes(kind).items():
        column = rng.random((1 if kind == "constant" else count, *shape), np.float32)
        found[name] = np.repeat(column.astype(dtype), count // len(column), axis=0)
        for row, steps in (
            zip(found[name], lengths(count), strict=True) if kind == "lengths" else ()
        ):
            row[steps:] = 0
    return found


def lengths(count: int) -> np.ndarray:
    """Return the steps of each trajectory of the kind "lengths"."""
    return np.random.default_rng(2).integers(LENGTH // 10, LENGTH + 1, count)


def trajectories(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random trajectories, columns `[count, 1000, ...]`."""
    return records("random", count, seed)


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


def drop(files: Iterable[Path]) -> None:
    """Write files to the disk, and have the system forget what it holds of them in memory."""
    names = {str(path) for path in files}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.partition("/")[1] + line.partition("/")[2] in names:  # mapped pages stay otherwise
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), end - begin, mmap.MADV_DONTNEED)
    for name in names:
        file = os.open(name, os.O_RDWR)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def cold_rate(step: Callable[[], object], files: Iterable[Path], seconds: float) -> float:
    """Return the steps per second of the first ones after files were dropped from memory."""
    took, done, begun = 0.0, 0, time.perf_counter()
    while time.perf_counter() < begun + seconds or not done:
        drop(files)
        start = time.perf_counter()
        for _ in range(COLD_BATCHES):
            step()
        took, done = took + time.perf_counter() - start, done + COLD_BATCHES
    return done / took


def write_for_ever(insert: Callable[[int], object]) -> None:
    """Insert the trajectories 0, 1, ... in turn, at a fixed rate, until the process is killed."""
    begun = time.perf_counter()
    for i in itertools.count():
        time.sleep(max(begun + i / WRITES_PER_S - time.perf_counter(), 0.0))
        insert(i % RECORDS)


def arguments() -> argparse.Namespace:
    """Parse the arguments that scripts/benchmark_replay.py gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what",
        choices=("read", "insert", "update", "checkpoint", "serve", "write"),
        help="to measure; serve: keeps a table; write: inserts into another process's",
    )
    parser.add_argument("--kind", choices=KINDS, default="random", help="of records")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--cold", default="", help="folder for a file that is not in memory")
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
