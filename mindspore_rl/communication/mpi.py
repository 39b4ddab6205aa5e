"""Messages between processes over MPI."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mindspore_rl.communication.communicator import Waiting

SPIN_S, OWN_CORE_SPIN_S = 0.0002, 0.002
"""How long a waiting rank polls before it sleeps; a message between pinned ranks takes 3 us.

Who has a core for himself polls longer: a virtual core that sleeps comes back late, so that of two
ranks which keep step each makes the other one sleep, and they go at half their pace for seconds.
"""
SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 0.00002, 0.001


class MpiCommunicator:
    """COMM_WORLD, with waits that yield: MPI's own busy-wait, and cores are often shared.

    Attributes:
        spin_s: how long a wait polls before it sleeps.
    """

    def __init__(self) -> None:
        from mpi4py import MPI  # noqa: PLC0415  (starts MPI: only in ranks of an MPI job)

        _remove_names()
        self._comm = MPI.COMM_WORLD
        self._byte = MPI.BYTE
        self.rank, self.size = self._comm.rank, self._comm.size
        self._sending: list[tuple] = []
        self.spin_s = SPIN_S

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
        begun = time.perf_counter()
        while not ready():
            waited_s = time.perf_counter() - begun
            if waited_s < self.spin_s:
                os.sched_yield()
            else:
                waiting()
                time.sleep(min(max(waited_s / 10, SHORTEST_SLEEP_S), LONGEST_SLEEP_S))


def _remove_names() -> None:
    """Removes the names of what MPI shares between the processes of this machine.

    All have it once MPI has started (seen with mpich 5.0.2 where one is delayed). A name would stay
    if a rank were killed.
    """
    maps = Path("/proc/self/maps").read_text()
    for name in set(re.findall(r"/dev/shm/(mpich_\w+)$", maps, flags=re.MULTILINE)):
        Path("/dev/shm", name).unlink(missing_ok=True)
