"""Messages between processes over MPI."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mindspore_rl.communication.communicator import Waiting

SPINS = 200
"""Polls before a waiting rank gives its core away; a message between pinned ranks takes 3 us."""
LONGEST_SLEEP_S = 0.001


class MpiCommunicator:
    """COMM_WORLD, with waits that yield: MPI's own busy-wait, and cores are often shared."""

    def __init__(self) -> None:
        from mpi4py import MPI  # noqa: PLC0415  (starts MPI: only in ranks of an MPI job)

        self._comm = MPI.COMM_WORLD
        self._byte = MPI.BYTE
        self.rank, self.size = self._comm.rank, self._comm.size
        self._sending: list[tuple] = []

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """See `Communicator`."""
        self._sending = [entry for entry in self._sending if not entry[0].Test()]
        copy = data.copy()
        self._sending.append((self._comm.Isend([copy, self._byte], target, tag), copy))

    def receive(self, source: int, tag: int, data: np.ndarray, waiting: Waiting) -> None:
        """See `Communicator`."""
        request = self._comm.Irecv([data, self._byte], source, tag)
        self._wait(request.Test, waiting)

    def first_of(self, expected: list[tuple[int, int]], waiting: Waiting) -> int:
        """See `Communicator`."""
        here: list[int] = []

        def look() -> bool:
            here[:] = [i for i, pair in enumerate(expected) if self._comm.Iprobe(*pair)]
            return bool(here)

        self._wait(look, waiting)
        return here[0]

    def channel(self, ranks: range, waiting: Waiting) -> Callable[[str, np.ndarray], np.ndarray]:
        """A reduction over some ranks; each of them must open its channels in the same order."""
        from mpi4py import MPI  # noqa: PLC0415  (is running)

        comm = self._comm.Create_group(self._comm.Get_group().Incl(list(ranks)))
        functions = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}

        def reduce(reduction: str, data: np.ndarray) -> np.ndarray:
            result = np.empty_like(data)
            request = comm.Iallreduce(data, result, functions[reduction])
            self._wait(request.Test, waiting)
            return result

        return reduce

    def close(self) -> None:
        """See `Communicator`."""
        for request, _ in self._sending:
            self._wait(request.Test, lambda: None)
        self._sending = []

    def _wait(self, ready: Callable[[], bool], waiting: Waiting) -> None:
        polls, sleep_s = 0, 0.00002
        while not ready():
            polls += 1
            if polls < SPINS:
                os.sched_yield()
                continue
            waiting()
            time.sleep(sleep_s)
            sleep_s = min(sleep_s * 1.5, LONGEST_SLEEP_S)


def shared_segments() -> list[str]:
    """Names in /dev/shm of what MPI shares between this process and others.

    MPI removes them when it ends in peace, and leaves them behind if a rank is killed.
    """
    maps = Path("/proc/self/maps").read_text()
    return sorted(set(re.findall(r"/dev/shm/(mpich_\w+)", maps)))
