"""Wakes ranks of a host that wait for a message: a word of shared memory for each rank.

A rank that is about to sleep sets its word. The sender of a message clears the word and wakes the
rank by a futex of the kernel. Each sleep has an end: a lost wakeup makes a rank late, nothing more.
"""

import contextlib
import ctypes
import mmap
import os
import platform
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WAIT, _WAKE = 0, 1
_WORD_BYTES = 64  # a cache line: a rank's word is read by all that send to it


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Wakeups:
    """The words of all ranks of a job, of which those of this host are shared.

    Where memory cannot be shared, and on other processors, a sleep takes its whole time.

    Args:
        comm: all ranks of the job, which call this together.

    Attributes:
        reach: ranks that end each other's sleeps, this one among them; none without shared memory.
        woken: sleeps of this rank that another rank has ended.
    """

    def __init__(self, comm: "Intracomm") -> None:
        memory, self.reach = _shared(comm, _WORD_BYTES * comm.size)
        self._asleep = [ctypes.c_int.from_buffer(memory, _WORD_BYTES * i) for i in range(comm.size)]
        self._own = self._asleep[comm.rank]
        self._system_call = ctypes.CDLL(None).syscall
        self.woken = 0

    def wake(self, rank: int) -> None:
        """Ends a rank's sleep; called after a change that it may be waiting for."""
        word = self._asleep[rank]
        if word.value:
            word.value = 0
            self._system_call(_FUTEX, ctypes.byref(word), _WAKE, 1, None, None, None)

    @property
    def announced(self) -> bool:
        """True if others know that this rank sleeps; it must look once more after it has told."""
        return bool(self._own.value)

    @announced.setter
    def announced(self, value: bool) -> None:
        self._own.value = int(value)

    def sleep(self, seconds: float) -> bool:
        """Sleeps, as announced, for so long at most. Returns: whether another rank has ended it."""
        if _FUTEX is None:
            time.sleep(seconds)
            return False
        end = ctypes.byref(_Time(int(seconds), int(seconds % 1 * 1e9)))
        self._system_call(_FUTEX, ctypes.byref(self._own), _WAIT, 1, end, None, None)
        woken = not self.announced
        self.woken += woken
        return woken


def _shared(comm: "Intracomm", size: int) -> tuple[mmap.mmap, frozenset[int]]:
    """Maps memory that the ranks of a host share. Returns: it, and these ranks.

    The memory has no name, which could stay behind.
    """
    from mpi4py import MPI  # noqa: PLC0415  (is running)

    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    file, memory = -1, None
    with contextlib.suppress(OSError):
        if host.rank == 0:
            file = os.memfd_create("wakeups", os.MFD_CLOEXEC)
            os.ftruncate(file, size)
    path = host.bcast(f"/proc/{os.getpid()}/fd/{file}")
    with contextlib.suppress(OSError):
        if host.rank != 0:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        memory = mmap.mmap(file, size)
    ranks = host.allgather(comm.rank if _FUTEX and memory else None)
    host.Free()
    if file >= 0:
        os.close(file)  # not earlier: all have opened it
    if memory is None or None in ranks:
        return mmap.mmap(-1, size), frozenset()
    return memory, frozenset(ranks)
