"""Asynchronous batches: a learner that takes the rows of whichever workers are ready.

Each update is made with the rows of the first `gather` workers that have sent theirs, in the order
of the workers. Random numbers of the learner are those of a batch's rows and an update's number.
"""

import contextlib
from typing import Any

import numpy as np

from mindspore_rl.platform.cache import writing
from mindspore_rl.runtime.rank.leases import Leases

ARRIVALS_FILE = "arrivals.bin"
"""The log of arrivals: int64 `[updates, gather, 3]`, for each worker whose rows an update used: the
worker, its iteration, and the number of updates that had made the parameters it acted with."""


class BatchServer(Leases):
    """Makes one update with the rows of several workers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        plan = self._rank.plan
        assert plan.arrivals is not None
        self._gather = plan.arrivals.gather
        self._rows = next(m.name for m in plan.messages if m.source == plan.arrivals.sender)
        for served in self._served:
            served.expected = self._rows
        self.tickets.version = self._rank.env_steps // (self._gather * self._served[0].steps)
        self._group: tuple[int, ...] = ()
        self._log = self._rank.run_dir / ARRIVALS_FILE
        with writing(self._log):
            self._log.write_bytes(b"")

    def fire(self, workers: tuple[int, ...]) -> None:
        """Makes an update with a batch of the rows of a group of workers."""
        self._group = workers
        taken = [(w, self._served[w].iteration, self.tickets.read[w]) for w in workers]
        turn = self._serve(self.tickets.version)
        next(turn)
        values = self._exchange.receive(self._rows, workers)
        with contextlib.suppress(StopIteration):
            turn.send(values)
        for worker in workers:
            self._served[worker].iteration += 1
            self._count_steps(self._served[worker].steps, self._staleness.take)
        with writing(self._log), self._log.open("ab") as file:
            file.write(np.array(taken, np.int64).tobytes())

    def send(self, name: str, values: tuple) -> None:
        """Ends the update: parameters wait until a next lease of a worker may begin."""
        self._end(self._group, name, updated=True)

    def _next(self) -> tuple[int, ...]:
        """Returns the first workers whose rows have arrived, in their order."""
        found: list[int] = []
        while len(found) < self._gather:
            found.append(self._first([w for w in self.tickets.read if w not in found]))
        return tuple(sorted(found))

    def _pausing(self) -> bool:
        """Returns whether a worker pauses; those at work must be enough for whole batches."""
        return super()._pausing() and len(self.tickets.read) % self._gather == 0
