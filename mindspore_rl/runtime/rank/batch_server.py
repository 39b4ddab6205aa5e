"""Asynchronous batches: a learner that takes the rows of whichever workers are ready.

Each update is made with the first `gather` messages that have arrived, in the order of the workers.
Random numbers of the learner are those of a batch's rows and an update's number.

Without a kept replay, a batch has messages of different workers. Messages to a kept replay are
records, which need not be of one moment: a worker goes on as soon as its message is there, and a
fast one may have several in a batch, whose records all go to the lanes of its environments.
"""

import contextlib
from typing import Any, NamedTuple

import numpy as np

from mindspore_rl.platform.cache import writing
from mindspore_rl.replay.kept import KeptReplay
from mindspore_rl.runtime.rank.leases import Leases

ARRIVALS_FILE = "arrivals.bin"
"""The log of arrivals: int64 `[updates, gather, 3]`, for each message whose rows an update used:
the worker, its iteration, and the number of updates that had made the parameters it acted with."""


class Message(NamedTuple):
    """A worker's rows of one iteration, with the version of the parameters it acted with."""

    worker: int
    iteration: int
    version: int
    data: np.ndarray


class BatchServer(Leases):
    """Makes one update with the rows of several messages.

    Args:
        kept: the replay to which the rows go; None: they go to no replay.
        args: see `Leases`.
    """

    def __init__(self, kept: KeptReplay | None, *args: Any) -> None:
        super().__init__(*args)
        plan = self._rank.plan
        assert plan.arrivals is not None
        self._kept, self._gather = kept, plan.arrivals.gather
        self._rows = next(m.name for m in plan.messages if m.source == plan.arrivals.sender)
        for served in self._served:
            served.expected = self._rows
        self.tickets.version = self._rank.env_steps // plan.steps_per_update
        self._batch: list[Message] = []
        self._log = self._rank.run_dir / ARRIVALS_FILE
        with writing(self._log):
            self._log.write_bytes(b"")

    def fire(self, batch: list[Message]) -> None:
        """Makes an update with a batch.

        The workers act meanwhile, with the parameters before the update, if the bound permits.
        """
        update = self.tickets.version
        values = self._exchange.batch(self._rows, [message.data for message in batch])
        self._write(batch)
        self._staleness.values += [update - message.version for message in batch]
        self.tickets.take()
        if self._kept is None:
            self._waiting.extend(message.worker for message in batch)
        else:
            self._kept.sources = [slice(*self._served[message.worker].share) for message in batch]
        self._answer()
        turn = self._serve(update)
        next(turn)
        with contextlib.suppress(StopIteration):
            turn.send(values)
        self.tickets.made()
        for message in batch:
            self._count_steps(self._served[message.worker].steps, self._staleness.take)

    def send(self, name: str, values: tuple) -> None:
        """Sends nothing: each worker gets the newest parameters when its next lease begins."""

    def _write(self, batch: list[Message]) -> None:
        taken = [(message.worker, message.iteration, message.version) for message in batch]
        with writing(self._log), self._log.open("ab") as file:
            file.write(np.array(taken, np.int64).tobytes())

    def _next(self) -> list[Message]:
        """Receives messages until there are enough. Returns: a batch, in the workers' order."""
        several = self._filled()  # which this batch does not change
        while len(self._batch) < self._gather:
            here = set() if several else {message.worker for message in self._batch}
            worker = self._first([w for w in self.tickets.read if w not in here])
            served = self._served[worker]
            data = self._exchange.received(self._rows, worker)
            version = self.tickets.arrive(worker)
            self._batch.append(Message(worker, served.iteration, version, data))
            served.iteration += 1
            if self._kept is not None:
                self._waiting.append(worker)
                self._answer()
        batch, self._batch = sorted(self._batch, key=lambda message: message[:2]), []
        return batch

    def _filled(self) -> bool:
        """Returns whether there are records of all environments to draw.

        Until then, a batch has one message of each worker.
        """
        return self._kept is not None and bool((self._kept.inserted > 0).all())

    def _pausing(self) -> bool:
        """Returns whether a worker pauses; those at work must be enough for whole batches."""
        return super()._pausing() and self.tickets.open % self._gather == 0
