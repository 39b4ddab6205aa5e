"""Asynchronous batches: a learner that takes the rows of whichever workers are ready.

Each update is made with the first `gather` messages that have arrived, in the order of the workers.
Random numbers of the learner are those of a batch's rows and an update's number.

Without a kept replay, a batch has messages of different workers. Messages to a kept replay are
records, which need not be of one moment: a worker goes on as soon as its message is there, and a
fast one may have several in a batch, whose records all go to the lanes of its environments.

Several learners serve as many workers each, and make every update together: each has a batch, their
gradients are summed in their cells, and all have made the same number of updates. The first of them
is the leader. Before an update, the others tell it their messages, and it tells them how many
updates all make before the next quiet point. So they cannot wait for each other forever: until that
number of updates each learner lets workers begin, and it needs no message of another's worker.
"""

import contextlib
from typing import Any, NamedTuple

import numpy as np

from mindspore_rl.plan.stages import Stage
from mindspore_rl.replay.kept import KeptReplay
from mindspore_rl.runtime import arrivals_log
from mindspore_rl.runtime.rank.leases import Leases
from mindspore_rl.runtime.rank.messenger import CONTINUE, CONTROL_TAG


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
        rank, plan = self._rank, self._rank.plan
        assert plan.arrivals is not None
        self._kept, self._gather = kept, plan.arrivals.gather
        self._rows = next(m.name for m in plan.messages if m.source == plan.arrivals.sender)
        for served in self._served.values():
            served.expected = self._rows
        done, left = rank.env_steps, max(plan.last_step - rank.env_steps, 0)
        self.tickets.version = done // plan.steps_per_update
        self._last = self.tickets.version - (-left // plan.steps_per_update)
        self._until = self._last  # updates before the next quiet point
        self._batch: list[Message] = []
        if rank.replica == 0:
            arrivals_log.begin(rank.run_dir, rank.env_steps)

    def fire(self, batch: list[Message]) -> None:
        """Makes an update with a batch.

        The workers act meanwhile, with the parameters before the update, if the bound permits.
        """
        update, consumers = self.tickets.version, len(self._rank.fragment.ranks)
        values = self._exchange.batch(self._rows, [message.data for message in batch])
        self._agree(batch)
        self.tickets.take()
        if self._kept is None:
            self._waiting.extend(message.worker for message in batch)
        else:
            self._kept.sources = [self._lanes(message.worker) for message in batch]
        self._answer()
        turn = self._serve(update)
        next(turn)
        with contextlib.suppress(StopIteration):
            turn.send(values)
        self.tickets.made()
        for message in batch:
            steps = self._served[message.worker].steps * consumers  # each has as many messages
            self._count_steps(steps, self._staleness.take)

    def send(self, name: str, values: tuple) -> None:
        """Sends nothing: each worker gets the newest parameters when its next lease begins."""

    def _lanes(self, worker: int) -> slice:
        """Returns a worker's environments among those of this learner."""
        (first, end), begin = self._served[worker].share, self._rank.env_indices.start
        return slice(first - begin, end - begin)

    # ---- several learners ------------------------------------------------------------------

    def _agree(self, batch: list[Message]) -> None:
        """Agrees with the other learners on an update, and when the next quiet point is.

        The leader writes the messages of all into the log.
        """
        taken = np.array([message[:3] for message in batch], np.int64)
        told = np.append(taken, self.tickets.begun)
        word = np.zeros(2, np.int64)
        rank, leader = self._rank, self._rank.fragment.ranks[0]
        messenger, others = rank.messenger, rank.fragment.ranks[1:]
        if rank.replica:
            messenger.send(leader, CONTROL_TAG, told.view(np.uint8))
            messenger.receive(leader, CONTROL_TAG, word.view(np.uint8), Stage.BATCHES)
            self._until, self._command = word.tolist()
            return
        found = [told]
        for other in others:
            found.append(np.zeros_like(told))
            messenger.receive(other, CONTROL_TAG, found[-1].view(np.uint8), Stage.BATCHES)
        self._poll()
        if self._command != CONTINUE:  # those at work must be enough for whole batches
            self._until = -(-max(int(one[-1]) for one in found) // self._gather)
        word[:] = self._until, self._command
        for other in others:
            messenger.send(other, CONTROL_TAG, word.view(np.uint8))
        rows = np.concatenate([one[:-1].reshape(-1, 3) for one in found])
        self._staleness.values += (self.tickets.version - rows[:, 2]).tolist()
        arrivals_log.append(rank.run_dir, rows)

    def _pausing(self) -> bool:
        return self.tickets.begun >= self._until * self._gather

    def _ended(self) -> bool:
        return self.tickets.version >= self._last

    def _quiet_point(self) -> int:
        command = super()._quiet_point()
        self._until = self._last
        return command

    # ---- messages --------------------------------------------------------------------------

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
