"""In-process communicator: all ranks as threads, one running at a time, for debugging."""

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from mindspore_rl.communication.communicator import Waiting


class InprocHub:
    """State that the ranks of one process share. A rank runs only while it holds the baton."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.baton = threading.Condition()
        self.mail: dict[tuple[int, int, int], deque[np.ndarray]] = {}
        self.failed = False
        self.reductions: dict[tuple[str, int], list[np.ndarray]] = {}

    def communicator(self, rank: int) -> "InprocCommunicator":
        """Returns the communicator of one rank."""
        return InprocCommunicator(self, rank)


class InprocCommunicator:
    """One rank of a hub; its thread must hold the baton."""

    def __init__(self, hub: InprocHub, rank: int) -> None:
        self._hub, self.rank, self.size = hub, rank, hub.size
        self._turn: dict[str, int] = {}

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """See `Communicator`."""
        key = (self.rank, target, tag)
        self._hub.mail.setdefault(key, deque()).append(data.copy())
        self._hub.baton.notify_all()

    def receive(self, source: int, tag: int, data: np.ndarray, waiting: Waiting) -> None:
        """See `Communicator`."""
        key = (source, self.rank, tag)
        self._wait(lambda: bool(self._hub.mail.get(key)), waiting)
        data[:] = self._hub.mail[key].popleft()

    def first_of(self, expected: list[tuple[int, int]], waiting: Waiting) -> int:
        """See `Communicator`; waits for the first one, so that runs are reproducible."""
        source, tag = expected[0]
        self._wait(lambda: bool(self._hub.mail.get((source, self.rank, tag))), waiting)
        return 0

    def until(self, ready: Callable[[float], bool], waiting: Waiting) -> None:
        """See `HostCommunicator`."""
        self._hub.baton.notify_all()  # others may wait for this rank's changes
        self._wait(lambda: ready(0.0), waiting)

    def all_reduce(self, group: str, members: int, reduction: str, data: np.ndarray) -> np.ndarray:
        """Computes the sum, maximum or minimum over the `members` ranks of a group."""
        turn = self._turn.get(group, 0)
        self._turn[group] = turn + 1
        parts = self._hub.reductions.setdefault((group, turn), [])
        parts.append(data)
        self._hub.baton.notify_all()
        self._wait(lambda: len(parts) == members, lambda: None)
        functions: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
        return functions[reduction].reduce(np.stack(parts)).astype(data.dtype)

    def flush(self, waiting: Waiting) -> None:
        """See `Communicator`."""

    def close(self) -> None:
        """See `Communicator`."""

    def _wait(self, ready, waiting: Waiting) -> None:
        while not ready():
            if self._hub.failed:
                raise InterruptedError("another rank failed")
            waiting()
            self._hub.baton.wait(timeout=0.2)
