"""Measures the cost of a message of transitions between two ranks of one host, step by step.

    .venv/bin/mpiexec -n 2 .venv/bin/python scripts/message_cost.py

Prints medians in microseconds as a row of docs/replay.md for each kind of iteration. Then, for
waits of some milliseconds, how late rank 1 notices a message (median and 90 %), and its processor
time for a wait: first when it only looks now and then, then when the sender wakes it. Each rank has
a core, as in a job; with `chrt -f 10` before the program, other processes do not take it away.
"""

import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mindspore_rl.communication.mpi import MpiCommunicator
from mindspore_rl.replay.kept import KeptReplay

BOX = ((4,), "f4"), ((), "i4")
STACKS = ((4, 84, 84), "u1"), ((), "i4")
ITERATIONS = {  # steps, environments, and shapes and types of an observation and an action
    "DQN, CartPole": (10, 8, *BOX),
    "SAC, Pendulum": (4, 4, ((3,), "f4"), ((1,), "f4")),
    "SAC, 17 numbers": (64, 64, ((17,), "f4"), ((6,), "f4")),
    "two stacks of four images": (10, 8, *STACKS),
}
BYTES_OF_ALL = 1 << 28
WAITS_MS, TURNS, TIMES = (0.5, 1, 3, 10, 20), 10, 20


class NoWakeups:
    """Stands for a communicator's `wakeups`: a sleep takes its whole time."""

    announced, reach = True, frozenset[int]()

    def wake(self, rank: int) -> None:
        """Does nothing."""

    def sleep(self, seconds: float) -> bool:
        """Sleeps."""
        time.sleep(seconds)
        return False


def median_us(work: Callable[[], object], times: int) -> float:
    """Returns the median time of some calls."""
    spent = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent) * 1e6


def measure(comm: MpiCommunicator, kind: str) -> str:
    """Measures an iteration's message on both ranks. Returns: the row of a table."""
    steps, envs, obs, action = ITERATIONS[kind]
    flag = (), "?"
    columns = [
        np.zeros((steps, envs, *shape), dtype)
        for shape, dtype in (obs, action, ((), "f4"), flag, flag, obs)
    ]
    noise = np.random.default_rng(comm.rank)
    for column in columns:
        column[...] = noise.integers(0, 200, column.shape)
    sizes = [column.nbytes for column in columns]
    data, word = np.empty(sum(sizes), np.uint8), np.zeros(1, np.uint8)
    ends = np.cumsum(sizes).tolist()
    times = min(2000, max(40, BYTES_OF_ALL // sum(sizes)))

    def pack() -> None:
        out = np.empty(sum(sizes), np.uint8)
        for column, end, size in zip(columns, ends, sizes, strict=True):
            out[end - size : end].view(column.dtype)[:] = column.reshape(-1)

    def unpack() -> None:
        for column, end, size in zip(columns, ends, sizes, strict=True):
            out = np.zeros(column.shape, column.dtype)
            out[...] = data[end - size : end].view(column.dtype).reshape(column.shape)

    def round_trip(sent: np.ndarray) -> None:
        if comm.rank == 0:
            comm.send(1, 1, sent)
            comm.receive(1, 2, word, lambda: None)
        else:
            comm.receive(0, 1, sent, lambda: None)
            comm.send(0, 2, word)

    trips = [median_us(lambda x=x: round_trip(x), times) for x in (data, word)]
    kept = KeptReplay(envs, 20 * steps)
    kept.extend(*columns)
    works = pack, data.copy, unpack, lambda: kept.extend(*columns)
    alone = [median_us(work, times) for work in works] if comm.rank == 0 else [math.nan] * 4
    cells = [kind, f"{steps} x {envs}", f"{sum(sizes):,}"]
    return f"| {' | '.join([*cells, *(f'{x:,.1f}' for x in [*alone, *trips])])} |"


def late(comm: MpiCommunicator, wait_ms: float) -> str:
    """Measures how late rank 1 notices messages, in turn. Returns: the row of a table."""
    word, ways = np.zeros(1), (NoWakeups(), comm.wakeups)
    times: list[list[float]] = [[], []]
    used = [0.0, 0.0]
    for turn in range(TURNS):
        for way in (turn % 2, 1 - turn % 2):
            comm.wakeups = ways[way]  # type: ignore[assignment]
            begun = time.process_time()
            for _ in range(TIMES):
                if comm.rank == 0:
                    time.sleep(wait_ms / 1e3)
                    word[0] = time.perf_counter()
                    comm.send(1, 1, word.view(np.uint8))
                    comm.receive(1, 2, word.view(np.uint8), lambda: None)
                else:
                    comm.receive(0, 1, word.view(np.uint8), lambda: None)
                    times[way].append((time.perf_counter() - word[0]) * 1e6)
                    comm.send(0, 2, word.view(np.uint8))
            used[way] += time.process_time() - begun
    comm.wakeups = ways[1]  # type: ignore[assignment]
    cells = [f"{wait_ms:g}"]
    for way in (0, 1) if comm.rank == 1 else ():
        middle, most = np.quantile(times[way], (0.5, 0.9))
        cells += [f"{middle:,.0f}", f"{most:,.0f}", f"{used[way] / TURNS / TIMES * 1e6:,.0f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    communicator = MpiCommunicator()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[communicator.rank % len(cores)]})
    for name in ITERATIONS:
        row = measure(communicator, name)
        if communicator.rank == 0:
            print(row, flush=True)
    for milliseconds in WAITS_MS:
        row = late(communicator, milliseconds)
        if communicator.rank == 1:
            print(row, flush=True)
    communicator.close()
