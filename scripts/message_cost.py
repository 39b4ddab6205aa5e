"""What a message of transitions costs between two ranks of one host, step by step.

    .venv/bin/mpiexec -n 2 .venv/bin/python scripts/message_cost.py

Prints medians in microseconds as a row of docs/replay.md for each kind of iteration.
"""

import math
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
    kept = KeptReplay(envs)
    kept.extend(20 * steps, *columns)
    works = pack, data.copy, unpack, lambda: kept.extend(20 * steps, *columns)
    alone = [median_us(work, times) for work in works] if comm.rank == 0 else [math.nan] * 4
    cells = [kind, f"{steps} x {envs}", f"{sum(sizes):,}"]
    return f"| {' | '.join([*cells, *(f'{x:,.1f}' for x in [*alone, *trips])])} |"


if __name__ == "__main__":
    communicator = MpiCommunicator()
    for name in ITERATIONS:
        row = measure(communicator, name)
        if communicator.rank == 0:
            print(row, flush=True)
    communicator.close()
