"""Exchanges bytes and arrays with other ranks, and reports what it waits for."""

import io
from collections.abc import Callable

import numpy as np

from mindspore_rl.communication.communicator import Communicator
from mindspore_rl.runtime.profile_recorder import clock_difference

CONTROL_TAG, BYTES_TAG, RECORDS_TAG = 1, 2, 3
CONTINUE, CHECKPOINT, STOP, PAUSE = range(4)
"""Commands on the control tag at an iteration boundary; `PAUSE` in asynchronous jobs only."""


class Messenger:
    """A communicator that stamps its waits; in a job of one rank it has no peers.

    Args:
        comm: None in a job of one rank.
        stamp: called with the stage before every wait.
        waiting: called repeatedly during a wait; raises to end it.

    Attributes:
        sent: messages and bytes sent so far, by tag.
    """

    def __init__(
        self, comm: Communicator | None, stamp: Callable[[int], None], waiting: Callable[[], None]
    ) -> None:
        self._comm, self._stamp, self._waiting = comm, stamp, waiting
        self.alone = comm is None
        self.sent: dict[int, tuple[int, int]] = {}

    @property
    def comm(self) -> Communicator:
        """The communicator; fails in a job of one rank."""
        assert self._comm is not None
        return self._comm

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """Sends bytes `[n]` uint8 without waiting."""
        messages, size = self.sent.get(tag, (0, 0))
        self.sent[tag] = (messages + 1, size + data.nbytes)
        self.comm.send(target, tag, data)

    def receive(self, source: int, tag: int, data: np.ndarray, stage: int) -> None:
        """Receives into `data`, uint8 of the message's length."""
        self._stamp(stage)
        self.comm.receive(source, tag, data, self._waiting)

    def first_of(self, expected: list[tuple[int, int]], stage: int) -> int:
        """Waits for one of several (source, tag). Returns: the index of one that has arrived."""
        self._stamp(stage)
        return self.comm.first_of(expected, self._waiting)

    def send_arrays(self, target: int, arrays: dict[str, np.ndarray]) -> None:
        """Sends named arrays of any shape."""
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        data = np.frombuffer(stream.getvalue(), np.uint8)
        self.send(target, BYTES_TAG, np.array([len(data)], np.int64).view(np.uint8))
        self.send(target, BYTES_TAG, data)

    def receive_arrays(self, source: int, stage: int) -> dict[str, np.ndarray]:
        """Receives arrays sent by `send_arrays`."""
        size = np.zeros(1, np.int64)
        self.receive(source, BYTES_TAG, size.view(np.uint8), stage)
        data = np.empty(int(size[0]), np.uint8)
        self.receive(source, BYTES_TAG, data, stage)
        with np.load(io.BytesIO(data.tobytes()), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def gather_arrays(
        self, arrays: dict[str, np.ndarray], stage: int
    ) -> list[dict[str, np.ndarray]]:
        """Gathers the named arrays of all ranks on rank 0; the other ranks get an empty list."""
        if self._comm is None:
            return [arrays]
        if self._comm.rank != 0:
            self.send_arrays(0, arrays)
            return []
        return [arrays] + [
            self.receive_arrays(source, stage) for source in range(1, self._comm.size)
        ]

    def agree(self, ranks: range, stage: int, number: int) -> int:
        """Returns the minimum of the numbers that the given ranks pass; all of them call it."""
        if self._comm is None or len(ranks) == 1:
            return number
        least = np.array([number], np.int64)
        other = np.zeros(1, np.int64)
        if self.comm.rank != ranks[0]:
            self.send(ranks[0], BYTES_TAG, least.view(np.uint8))
            self.receive(ranks[0], BYTES_TAG, least.view(np.uint8), stage)
            return int(least[0])
        for rank in ranks[1:]:
            self.receive(rank, BYTES_TAG, other.view(np.uint8), stage)
            least = np.minimum(least, other)
        for rank in ranks[1:]:
            self.send(rank, BYTES_TAG, least.view(np.uint8))
        return int(least[0])

    def clock_difference(self, stage: int) -> int:
        """Returns the offset in ns from this host's clock to rank 0's; all ranks call it."""
        self._stamp(stage)
        return clock_difference(self.comm, BYTES_TAG, self._waiting)

    def close(self) -> None:
        """Finishes outstanding sends."""
        if self._comm is not None:
            self._comm.close()
