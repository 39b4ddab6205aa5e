"""Measures messages between two ranks: `mpiexec -n 2 python -m ...measure_network FILE [far]`.

On one host each rank is pinned to a core, as in a job. On two hosts (`far`) ranks are not pinned,
and wait as in a job: there every message is waited for, and how late a sleeping rank notices it
depends on the hosts.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mindspore_rl.communication.link import Link as Line
from mindspore_rl.communication.mpi import SPIN_S as MPI_SPIN_S
from mindspore_rl.communication.mpi import MpiCommunicator
from mindspore_rl.performance.cost_tables import CostTable, LinkCosts
from mindspore_rl.runtime.coordinator.metrics import Metrics

SIZES = (8, 256, 4096, 16384, 65536, 262144, 1 << 20, 1 << 22)
FAR = "far"
REPORTS, OTHER_BYTES, POLLED_S = 300, 1 << 20, 0.5
TAG, ROUNDS, ROUNDS_S, IN_A_ROW = 7, 200, 0.3, 8
SETTLED_S, SPIN_S = 0.002, 1.0
"""Seconds that a message gets to arrive, and that ranks of a host poll here, since the costs of
sleeping are measured separately."""


def measure(comm: MpiCommunicator) -> LinkCosts:
    """Measures messages between ranks 0 and 1, by bytes; both ranks call it together."""
    tables = {name: [_median(comm, size, how) for size in SIZES] for name, how in _HOW.items()}
    both = zip(tables["round"], tables["send"], tables["receive"], strict=True)
    transit = [max(whole / 2 - send - receive, 0.0) for whole, send, receive in both]
    reduce = comm.channel(range(2), _nothing)
    reduced = [_median(comm, size, lambda comm, data: _reduced(reduce, data)) for size in SIZES]
    return LinkCosts(
        CostTable(SIZES, tuple(tables["send"])),
        CostTable(SIZES, tuple(tables["receive"])),
        CostTable(SIZES, tuple(transit)),
        CostTable(SIZES, tuple(reduced)),
    )


def _nothing() -> None:
    pass


def _median(
    comm: MpiCommunicator, size: int, how: Callable[[MpiCommunicator, np.ndarray], float]
) -> float:
    """Returns the median seconds of rank 0's tries; rank 1 makes as many."""
    data, more, times = np.zeros(size, np.uint8), np.ones(1, np.uint8), list[float]()
    until = time.perf_counter() + ROUNDS_S
    while more[0]:
        times.append(how(comm, data))
        if comm.rank == 0:
            more[0] = len(times) < 3 or (len(times) < ROUNDS and time.perf_counter() < until)
            comm.send(1, TAG, more)
        else:
            comm.receive(0, TAG, more, _nothing)
    return float(np.median(times))


def _round(comm: MpiCommunicator, data: np.ndarray) -> float:
    """Times a round trip."""
    begun = time.perf_counter()
    if comm.rank == 0:
        comm.send(1, TAG, data)
        comm.receive(1, TAG, data, _nothing)
    else:
        comm.receive(0, TAG, data, _nothing)
        comm.send(0, TAG, data)
    return time.perf_counter() - begun


def _send(comm: MpiCommunicator, data: np.ndarray) -> float:
    """Times the sender's call."""
    if comm.rank == 1:
        comm.receive(0, TAG, data, _nothing)
        return 0.0
    begun = time.perf_counter()
    comm.send(1, TAG, data)
    return time.perf_counter() - begun


def _receive(comm: MpiCommunicator, data: np.ndarray) -> float:
    """Times the receiver's call for a message that has already arrived."""
    if comm.rank == 1:
        comm.send(0, TAG, data)
        comm.flush(_nothing)
        return 0.0
    comm.first_of([(1, TAG)], _nothing)
    until = time.perf_counter() + SETTLED_S
    while time.perf_counter() < until:
        pass
    begun = time.perf_counter()
    comm.receive(1, TAG, data, _nothing)
    return time.perf_counter() - begun


def _reduced(reduce: Callable[[str, np.ndarray], np.ndarray], data: np.ndarray) -> float:
    floats = data.view(np.float32)
    reduce("sum", floats)  # synchronises both ranks
    took, other = 0.0, np.zeros(OTHER_BYTES, np.uint8)
    for _ in range(IN_A_ROW):
        other += 1  # evicts caches, as a job does
        begun = time.perf_counter()
        reduce("sum", floats)
        took += time.perf_counter() - begun
    return took / IN_A_ROW


_HOW = {"round": _round, "send": _send, "receive": _receive}


def oversleep() -> float:
    """Measures by how many seconds a short sleep exceeds the requested time."""
    times = []
    for _ in range(100):
        begun = time.perf_counter()
        time.sleep(2e-5)
        times.append(time.perf_counter() - begun - 2e-5)
    return float(np.median(times))


def polling_share(comm: MpiCommunicator) -> float:
    """Measures rank 0's share of a core while it waits for rank 1; both ranks call it together."""
    word, comm.spin_s = np.zeros(1, np.uint8), MPI_SPIN_S
    if comm.rank == 1:
        time.sleep(POLLED_S)
        comm.send(0, TAG, word)
        return 0.0
    begun, used = time.perf_counter(), time.process_time()
    comm.receive(1, TAG, word, _nothing)
    return (time.process_time() - used) / (time.perf_counter() - begun)


def reported() -> float:
    """Measures the seconds that the coordinator takes for an iteration's report."""
    ours, theirs = map(Line, socket.socketpair())
    values = dict.fromkeys("abcdefghij", 0.123456)
    with tempfile.TemporaryDirectory() as folder:
        metrics = Metrics(Path(folder), 1 << 30, progress=False)
        begun = time.perf_counter()
        for number in range(REPORTS):
            ours.send("iteration", rank=0, iteration=number, episodes=[], metrics=values)
            found = theirs.poll()
            assert found is not None
            metrics.log(number, number, found["metrics"], [(1.0, 20)] * 4)
        took = time.perf_counter() - begun
        metrics.close()
    return took / REPORTS


def main() -> None:
    """Measures on two ranks, and writes the results of rank 0."""
    comm = MpiCommunicator()
    cores = sorted(os.sched_getaffinity(0))
    if sys.argv[2:] != [FAR]:
        comm.spin_s = SPIN_S
        if len(cores) > 1:
            os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    found = measure(comm)
    share = polling_share(comm)
    if comm.rank == 0:
        Path(sys.argv[1]).write_text(
            json.dumps(
                {
                    "link": asdict(found),
                    "oversleep_s": oversleep(),
                    "reported_s": reported(),
                    "polling_share": share,
                }
            )
        )
    comm.close()


if __name__ == "__main__":
    main()
