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
        self.tickets.version = self._rank.env_steps // plan.steps_per_update
        self._log = self._rank.run_dir / ARRIVALS_FILE
        with writing(self._log):
            self._log.write_bytes(b"")

    def fire(self, workers: tuple[int, ...]) -> None:
        """Makes an update with a batch of the rows of a group of workers.

        The workers act meanwhile, with the parameters before the update, if the bound permits.
        """
        values = self._exchange.receive(self._rows, workers)
        update, served = self.tickets.version, [self._served[worker] for worker in workers]
        self._write([(w, self._served[w].iteration, self.tickets.read[w]) for w in workers])
        self._staleness.values += map(self.tickets.staleness, workers)
        self.tickets.take(workers)
        for one in served:
            one.iteration += 1
        self._waiting.extend(workers)
        self._answer()
        turn = self._serve(update)
        next(turn)
        with contextlib.suppress(StopIteration):
            turn.send(values)
        self.tickets.made()
        for one in served:
            self._count_steps(one.steps, self._staleness.take)

    def send(self, name: str, values: tuple) -> None:
        """Sends nothing: each worker gets the newest parameters when its next lease begins."""

    def _write(self, taken: list[tuple[int, int, int]]) -> None:
        with writing(self._log), self._log.open("ab") as file:
            file.write(np.array(taken, np.int64).tobytes())

    def _next(self) -> tuple[int, ...]:
        """Returns the first workers whose rows have arrived, in their order."""
        found: list[int] = []
        while len(found) < self._gather:
            found.append(self._first([w for w in self.tickets.read if w not in found]))
        return tuple(sorted(found))

    def _pausing(self) -> bool:
        """Returns whether a worker pauses; those at work must be enough for whole batches."""
        return super()._pausing() and len(self.tickets.read) % self._gather == 0
