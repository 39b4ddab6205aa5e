"""Protocol of a communicator between worker processes."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

Waiting = Callable[[], None]
"""Called now and then during a wait; raises to end it."""


class Communicator(Protocol):
    """Point-to-point messages between the ranks of a job; sends never block."""

    rank: int
    size: int

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """Sends bytes (`uint8`, contiguous), which may be overwritten afterwards."""

    def receive(self, source: int, tag: int, data: np.ndarray, waiting: Waiting) -> None:
        """Receives exactly `len(data)` bytes into `data`."""

    def first_of(self, expected: list[tuple[int, int]], waiting: Waiting) -> int:
        """Waits until one of several expected messages is here; it is still to be received.

        Args:
            expected: (source, tag), those to be preferred first.
            waiting: see `receive`.

        Returns: the position of one that is here.
        """

    def flush(self, waiting: Waiting) -> None:
        """Waits until what was sent is on its way: MPI sends much only while it is called."""

    def close(self) -> None:
        """Finishes outstanding sends."""


class HostCommunicator(Communicator, Protocol):
    """Of ranks that, on one host, also tell each other things in memory that they share."""

    def until(self, ready: Callable[[float], bool], waiting: Waiting) -> None:
        """Waits for what another rank does there.

        Args:
            ready: whether it is done; waits for it so many seconds at most.
            waiting: see `receive`.
        """
