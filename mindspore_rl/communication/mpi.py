"""Messages between processes over MPI."""

import contextlib
import ctypes
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Set
from pathlib import Path

import numpy as np

from mindspore_rl.communication.communicator import Waiting
from mindspore_rl.communication.wakeups import Wakeups

SPIN_S, OWN_CORE_SPIN_S = 0.0002, 0.002
"""Seconds that a waiting rank polls before it sleeps; a message between pinned ranks takes 3 us.

A rank with its own core polls longer: a virtual core wakes up late from sleep, so that two ranks in
step each make the other one sleep, and run at half speed for seconds.
"""
SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 0.00002, 0.001
ARRIVING_SLEEP_S, PIECE_BYTES = 0.0001, 1 << 16
"""Longest sleep while a message of more than `PIECE_BYTES` arrives, in pieces of that size: over
TCP, MPI takes one piece in each call, so that longer sleeps would halve the throughput of a 1 Gb/s
link."""
READY_S = 0.05
"""Seconds between two calls of `waiting` during a wait for another rank of the host."""
_SO_ATTACH_FILTER = 26
_RETURN = 0x06  # of BPF: keeps this many bytes of a packet


class MpiCommunicator:
    """COMM_WORLD with waits that sleep: MPI's own waits poll all the time, and cores may be shared.

    A rank of the same host ends a sleep when it sends something. Between hosts, and while MPI needs
    calls of both ranks to move a large message, a sleeping rank looks now and then.

    Attributes:
        spin_s: seconds that a wait polls before it sleeps.
        wakeups: with which ranks of a host end each other's sleeps.
    """

    def __init__(self) -> None:
        inherited = _inherited_ports()
        from mpi4py import MPI  # noqa: PLC0415  (starts MPI: only in ranks of an MPI job)

        _remove_names()
        # MPI has started when all ranks, and so the proxies of all hosts, are connected: no other
        # process needs mpiexec's port, which is open to every network without authentication.
        for port in inherited:
            _deafen(port)
        self._comm = MPI.COMM_WORLD
        self._byte = MPI.BYTE
        self.rank, self.size = self._comm.rank, self._comm.size
        self._sending: list[tuple] = []
        self.spin_s = SPIN_S
        self.wakeups = Wakeups(self._comm)

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """See `Communicator`."""
        self._has_sent()
        copy = data.copy()
        self._sending.append((self._comm.Isend([copy, self._byte], target, tag), copy))
        self.wakeups.wake(target)

    def receive(self, source: int, tag: int, data: np.ndarray, waiting: Waiting) -> None:
        """See `Communicator`."""
        large = len(data) > PIECE_BYTES
        if large:
            self._wait(lambda: self._comm.Iprobe(source, tag), waiting, {source})
        request = self._comm.Irecv([data, self._byte], source, tag)
        if large:
            self._wait(request.Test, waiting, longest_s=ARRIVING_SLEEP_S)
            self.wakeups.wake(source)  # waits in `flush` until MPI has taken it all
        else:
            self._wait(request.Test, waiting, {source})

    def first_of(self, expected: list[tuple[int, int]], waiting: Waiting) -> int:
        """See `Communicator`."""
        here: list[int] = []

        def look() -> bool:
            here[:] = [i for i, pair in enumerate(expected) if self._comm.Iprobe(*pair)]
            return bool(here)

        self._wait(look, waiting, {source for source, _ in expected})
        return here[0]

    def until(self, ready: Callable[[float], bool], waiting: Waiting) -> None:
        """See `HostCommunicator`."""
        polled = time.perf_counter() + self.spin_s
        while not ready(0.0 if time.perf_counter() < polled else READY_S):
            if time.perf_counter() < polled:
                os.sched_yield()
            else:
                self._has_sent()  # MPI sends large messages only while it is called
                waiting()

    def channel(self, ranks: range, waiting: Waiting) -> Callable[[str, np.ndarray], np.ndarray]:
        """Opens a reduction over some ranks, all of which must open channels in the same order."""
        from mpi4py import MPI  # noqa: PLC0415  (is running)

        comm = self._comm.Create_group(self._comm.Get_group().Incl(list(ranks)))
        functions = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}

        def reduce(reduction: str, data: np.ndarray) -> np.ndarray:
            result = np.empty_like(data)
            request = comm.Iallreduce(data, result, functions[reduction])
            for rank in ranks:
                self.wakeups.wake(rank)
            self._wait(request.Test, waiting)
            for rank in ranks:
                self.wakeups.wake(rank)
            return result

        return reduce

    def flush(self, waiting: Waiting) -> None:
        """See `Communicator`."""
        self._wait(self._has_sent, waiting)

    def close(self) -> None:
        """See `Communicator`."""
        self.flush(lambda: None)

    def _wait(
        self,
        ready: Callable[[], bool],
        waiting: Waiting,
        senders: Set[int] = frozenset(),
        longest_s: float = LONGEST_SLEEP_S,
    ) -> None:
        """Waits; looks seldom if only messages of `senders`, all on this host, can end the wait."""
        begun = time.perf_counter()
        while not ready():
            waited_s = time.perf_counter() - begun
            if waited_s < self.spin_s:
                os.sched_yield()
            elif not self.wakeups.announced:
                self.wakeups.announced = True
            else:
                waiting()
                seldom = senders and self.wakeups.reach >= senders
                seconds = longest_s if seldom else max(waited_s / 10, SHORTEST_SLEEP_S)
                if self.wakeups.sleep(min(seconds, longest_s)):
                    begun = time.perf_counter()  # more messages may come, those of a collective do
        self.wakeups.announced = False

    def _has_sent(self) -> bool:
        self._sending = [entry for entry in self._sending if not entry[0].Test()]
        return not self._sending


def is_mpi_error(error: BaseException) -> bool:
    """Returns whether MPI raised an error, as it does at a rank whose peer has ended.

    Between processes of a host MPI copies from the peer's memory, which may be gone by then.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(error, mpi.Exception)


def _remove_names() -> None:
    """Unlinks MPI's shared-memory files of this machine.

    All ranks have mapped them once MPI has started (checked with mpich 5.0.2 and one rank delayed).
    The files would stay if a rank were killed.
    """
    maps = Path("/proc/self/maps").read_text()
    for name in set(re.findall(r"/dev/shm/(mpich_\w+)$", maps, flags=re.MULTILINE)):
        Path("/dev/shm", name).unlink(missing_ok=True)


def _inherited_ports() -> list[socket.socket]:
    """Returns the listening sockets of this process, which it has inherited from Hydra."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # no socket
            candidate = socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM)
            if candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(candidate)
    return found


def _deafen(port: socket.socket) -> None:
    """Makes the kernel drop packets to a listening socket, whichever process holds it."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    with contextlib.suppress(OSError):  # a system without socket filters
        port.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    port.close()
