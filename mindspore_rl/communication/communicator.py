"""Protocol of a communicator between worker processes."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

Waiting = Callable[[], None]
"""Called repeatedly during a wait; raises to end it."""


class Communicator(Protocol):
    """Point-to-point messages between the ranks of a job; sends never block."""

    rank: int
    size: int

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """Sends bytes (`uint8`, contiguous), which may be overwritten once this returns."""

    def receive(self, source: int, tag: int, data: np.ndarray, waiting: Waiting) -> None:
        """Receives exactly `len(data)` bytes into `data`."""

    def first_of(self, expected: list[tuple[int, int]], waiting: Waiting) -> int:
        """Waits until one of several expected messages has arrived, without receiving it.

        Args:
            expected: (source, tag), in order of preference.
            waiting: see `receive`.

        Returns: the index of one that has arrived.
        """

    def flush(self, waiting: Waiting) -> None:
        """Waits until all sends have left; MPI sends large messages only while it is called."""

    def close(self) -> None:
        """Finishes outstanding sends."""


class HostCommunicator(Communicator, Protocol):
    """Communicator of ranks that, on one host, also share memory."""

    def until(self, ready: Callable[[float], bool], waiting: Waiting) -> None:
        """Waits for a change that another rank makes in shared memory.

        Args:
            ready: returns whether the change is there, after waiting for it at most so many
                seconds.
            waiting: see `receive`.
        """
