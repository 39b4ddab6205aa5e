"""Messages between processes over MPI."""

import contextlib
import ctypes
import os
import re
import socket
import struct
import sys
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
ARRIVING_SLEEP_S, PIECE_BYTES = 0.0001, 1 << 16
"""While a message of more bytes arrives, which it does in such pieces: over TCP, MPI takes one
whenever it is called, so that with longer sleeps a link of 1 Gb/s would have half its pace."""
READY_S = 0.05
"""Between two calls of `waiting` while another rank of the host is waited for."""
_SO_ATTACH_FILTER = 26
_RETURN = 0x06  # of BPF: keeps so many bytes of a packet


class MpiCommunicator:
    """COMM_WORLD, with waits that yield: MPI's own busy-wait, and cores are often shared.

    Attributes:
        spin_s: how long a wait polls before it sleeps.
    """

    def __init__(self) -> None:
        inherited = _inherited_ports()
        from mpi4py import MPI  # noqa: PLC0415  (starts MPI: only in ranks of an MPI job)

        _remove_names()
        # MPI has started when all ranks, and so the proxies of all hosts, are connected: nobody
        # else has business at mpiexec's port, which is open to every network and asks for no
        # secret.
        for port in inherited:
            _deafen(port)
        self._comm = MPI.COMM_WORLD
        self._byte = MPI.BYTE
        self.rank, self.size = self._comm.rank, self._comm.size
        self._sending: list[tuple] = []
        self.spin_s = SPIN_S

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """See `Communicator`."""
        self._has_sent()
        copy = data.copy()
        self._sending.append((self._comm.Isend([copy, self._byte], target, tag), copy))

    def receive(self, source: int, tag: int, data: np.ndarray, waiting: Waiting) -> None:
        """See `Communicator`."""
        large = len(data) > PIECE_BYTES
        if large:
            self._wait(lambda: self._comm.Iprobe(source, tag), waiting)
        request = self._comm.Irecv([data, self._byte], source, tag)
        self._wait(request.Test, waiting, ARRIVING_SLEEP_S if large else LONGEST_SLEEP_S)

    def first_of(self, expected: list[tuple[int, int]], waiting: Waiting) -> int:
        """See `Communicator`."""
        here: list[int] = []

        def look() -> bool:
            here[:] = [i for i, pair in enumerate(expected) if self._comm.Iprobe(*pair)]
            return bool(here)

        self._wait(look, waiting)
        return here[0]

    def until(self, ready: Callable[[float], bool], waiting: Waiting) -> None:
        """See `HostCommunicator`."""
        polled = time.perf_counter() + self.spin_s
        while not ready(0.0 if time.perf_counter() < polled else READY_S):
            if time.perf_counter() < polled:
                os.sched_yield()
            else:
                self._has_sent()  # MPI sends much only while it is called
                waiting()

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

    def flush(self, waiting: Waiting) -> None:
        """See `Communicator`."""
        self._wait(self._has_sent, waiting)

    def close(self) -> None:
        """See `Communicator`."""
        self.flush(lambda: None)

    def _wait(
        self, ready: Callable[[], bool], waiting: Waiting, longest_s: float = LONGEST_SLEEP_S
    ) -> None:
        begun = time.perf_counter()
        while not ready():
            waited_s = time.perf_counter() - begun
            if waited_s < self.spin_s:
                os.sched_yield()
            else:
                waiting()
                time.sleep(min(max(waited_s / 10, SHORTEST_SLEEP_S), longest_s))

    def _has_sent(self) -> bool:
        self._sending = [entry for entry in self._sending if not entry[0].Test()]
        return not self._sending


def is_mpi_error(error: BaseException) -> bool:
    """Whether MPI itself raises it, as it does at a rank whose peer has ended.

    Between processes of a host it copies from the peer's memory, which may be gone by then.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(error, mpi.Exception)


def _remove_names() -> None:
    """Removes the names of what MPI shares between the processes of this machine.

    All have it once MPI has started (seen with mpich 5.0.2 where one is delayed). A name would stay
    if a rank were killed.
    """
    maps = Path("/proc/self/maps").read_text()
    for name in set(re.findall(r"/dev/shm/(mpich_\w+)$", maps, flags=re.MULTILINE)):
        Path("/dev/shm", name).unlink(missing_ok=True)


def _inherited_ports() -> list[socket.socket]:
    """The listening sockets of this process, which Hydra has left open in what it starts."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # no socket
            candidate = socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM)
            if candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(candidate)
    return found


def _deafen(port: socket.socket) -> None:
    """Has the operating system drop what comes at a listening socket, whoever else holds it."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    with contextlib.suppress(OSError):  # a system without filters
        port.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    port.close()
