"""Stub communicator and link, so that one fragment can be measured without its peers."""

import contextlib
import socket
from collections import deque
from typing import Any

import numpy as np

from mindspore_rl.communication.communicator import Waiting
from mindspore_rl.communication.link import Link
from mindspore_rl.plan.edges import Edge, plan_edges
from mindspore_rl.plan.plan import Plan
from mindspore_rl.runtime.rank.messenger import BYTES_TAG, CONTROL_TAG, RECORDS_TAG

VARIANTS = 37
"""Number of variants of each message, so that actions differ."""


class Nobody:
    """A communicator without peers: messages arrive at once, with plausible contents."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.rank, self.size = rank, plan.num_ranks
        self._edges = {e.tag: e for e in plan_edges(plan).values()}
        self._known: dict[tuple[int, int, int], deque[np.ndarray]] = {}

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """See `Communicator`; copies the data, as MPI's does."""
        data.copy()

    def receive(self, source: int, tag: int, data: np.ndarray, waiting: Waiting) -> None:
        """See `Communicator`."""
        if tag in (CONTROL_TAG, RECORDS_TAG):
            data[:] = 0
        elif tag == BYTES_TAG:  # numbers whose minimum is taken
            data[:] = 0x7F
        else:
            key = (source, tag, len(data))
            if key not in self._known:
                edge, rng = self._edges[tag], np.random.default_rng(0)
                self._known[key] = deque(_message(edge, len(data), rng) for _ in range(VARIANTS))
            self._known[key].rotate()
            data[:] = self._known[key][0]

    def first_of(self, expected: list[tuple[int, int]], waiting: Waiting) -> int:
        """See `Communicator`."""
        return 0

    def flush(self, waiting: Waiting) -> None:
        """See `Communicator`."""

    def close(self) -> None:
        """See `Communicator`."""


def _message(edge: Edge, size: int, chance: np.random.Generator) -> np.ndarray:
    """Makes plausible contents of a message: small floats, and zeros and ones for integers."""
    if edge.message.parameters:
        numbers = (0.1 * chance.standard_normal(size // 4)).astype(np.float32)
        return np.frombuffer(numbers.tobytes().ljust(size, b"\0"), np.uint8)
    entries = [np.dtype(leaf.dtype) for leaf in edge.leaves]
    whole = [leaf.size * dtype.itemsize for leaf, dtype in zip(edge.leaves, entries, strict=True)]
    parts = []
    for dtype, share in zip(entries, whole, strict=True):
        count = round(size * share / max(sum(whole), 1) / dtype.itemsize)
        if dtype.kind == "f":
            part = chance.standard_normal(count).astype(dtype)
        else:
            part = chance.integers(0, 1 + (dtype.kind == "i"), count).astype(dtype)
        parts.append(part.view(np.uint8))
    data = np.zeros(size, np.uint8)
    found = np.concatenate(parts)[:size] if parts else data
    data[: len(found)] = found
    return data


class Unheard(Link):
    """A link whose other end discards everything."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        super().__init__(ours)

    def _flush(self, last: list[dict[str, Any]]) -> None:
        super()._flush(last)
        with contextlib.suppress(BlockingIOError):
            while self._theirs.recv(1 << 16):
                pass

    def close(self) -> None:
        """See `Link`."""
        super().close()
        self._theirs.close()
