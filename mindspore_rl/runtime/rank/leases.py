"""Leases of an asynchronous job: which worker may begin its next iteration, and when.

A worker's *lease* begins with parameters that the server sends it and ends when the server has made
its update and has new parameters for it. The staleness of an update is the number of other updates
since its worker's lease began. The server alone enforces the bound: it withholds parameters, and
with them a worker's next lease, as long as that lease could make any update too stale.

Before parameters the server sends a command on the control tag, (command, environment steps so
far):

    CONTINUE    parameters follow; continue, with the next iteration if one has just ended
    PAUSE       the iteration has ended: wait for another command
    CHECKPOINT  all workers pause: write one, then wait for another command
    STOP        all workers pause: write a checkpoint and end
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindspore_rl.runtime.rank.exchange import Exchange
from mindspore_rl.runtime.rank.messenger import CONTINUE, CONTROL_TAG, PAUSE, STOP
from mindspore_rl.runtime.rank.rank import Rank

Serve = Callable[[int], Generator[str, tuple, None]]


class Tickets:
    """Admission of leases, such that no update is staler than the bound.

    With v updates made and k leases open, the last of them ends after at most v + k - 1 updates, if
    no other begins. So another lease may begin if v + k, the same with it included, is within the
    bound of the oldest parameters in use: v + k - oldest <= bound.

    If an update ends `gather` leases at once, k others make at most k / gather updates before the
    oldest ends, so with fewer than `gather` leases open another may always begin.

    Args:
        bound: updates; None: a lease may begin at any time.
        gather: leases that an update ends.

    Attributes:
        version: updates made before.
        read: the version of the parameters that each worker at work acts with.
        arrived: likewise for messages that have arrived and wait for their update; their leases
            end with it.
    """

    def __init__(self, bound: int | None, gather: int = 1) -> None:
        self.bound, self.gather = bound, gather
        self.version = self.pending = 0
        self.read: dict[int, int] = {}
        self.arrived: list[int] = []

    @property
    def open(self) -> int:
        """Number of leases that have begun and not ended."""
        return len(self.read) + len(self.arrived)

    @property
    def begun(self) -> int:
        """Number of leases that have begun, with those of all updates before."""
        return self.gather * (self.version + self.pending) + self.open

    def free(self) -> bool:
        """Returns whether another lease may begin."""
        oldest = min([*self.read.values(), *self.arrived], default=self.version)
        others = self.pending + self.open // self.gather
        return self.bound is None or self.version + others - oldest <= self.bound

    def begin(self, worker: int) -> None:
        """Begins a worker's lease on the current parameters."""
        self.read[worker] = self.version

    def staleness(self, worker: int) -> int:
        """Returns the number of updates since a worker's lease began."""
        return self.version - self.read[worker]

    def end(self, worker: int, updated: bool) -> None:
        """Ends a worker's lease, by an update unless its own was dropped."""
        del self.read[worker]
        self.version += updated

    def arrive(self, worker: int) -> int:
        """Lets a worker's message wait for its update. Returns: the version it acted with."""
        self.arrived.append(version := self.read.pop(worker))
        return version

    def take(self) -> None:
        """Ends the leases of the messages that wait: their update is about to be made."""
        self.arrived, self.pending = [], 1

    def made(self) -> None:
        """Counts the update that `take` announced."""
        self.version, self.pending = self.version + 1, 0


@dataclass
class Served:
    """The server's record of a worker.

    Attributes:
        share: its first and last environment (exclusive).
        iteration: the worker's own, which selects its random numbers.
        steps: environment steps of its iteration.
        under_way: the generator of its current iteration; None: between two.
        expected: the edge on which its next message comes.
        fresh: whether its last message was within the bound.
    """

    rank: int
    share: tuple[int, int]
    steps: int
    iteration: int
    under_way: Generator[str, tuple, None] | None = None
    expected: str = ""
    fresh: bool = True


@dataclass
class Staleness:
    """Staleness of the updates since the last report."""

    drops: bool
    values: list[int] = field(default_factory=list)
    dropped: int = 0

    def take(self) -> dict[str, float]:
        """Returns the metrics and resets them."""
        metrics = {"dropped": float(self.dropped)} if self.drops else {}
        if self.values:
            metrics["staleness_mean"] = sum(self.values) / len(self.values)
            metrics["staleness_max"] = float(max(self.values))
        self.values, self.dropped = [], 0
        return metrics


class Leases(ABC):
    """Serves workers in the order in which their messages arrive.

    A subclass receives the messages, and chooses which of them one update takes. Several replicas
    of a server have as many workers each.

    Args:
        rank: that serves.
        exchange: the rank's side of the cut edges.
        iterations: done by each environment's worker, `[num_envs]`.
        serve: generated; runs one worker's iteration, and yields the edge of the message that it
            needs next.
        save: writes a checkpoint together with all workers.
        count_steps: called with the environment steps of an iteration that ended, and a function
            that returns the metrics since its last call.
    """

    def __init__(
        self,
        rank: Rank,
        exchange: Exchange,
        iterations: np.ndarray,
        serve: Serve,
        save: Callable[[], None],
        count_steps: Callable[[int, Callable[[], dict[str, float]]], None],
    ) -> None:
        plan = rank.plan
        assert plan.arrivals is not None
        self._rank, self._exchange, self._serve = rank, exchange, serve
        self._save, self._count_steps = save, count_steps
        self._drops = plan.arrivals.drop_stale
        self._bound = plan.arrivals.staleness
        bound = None if self._drops else self._bound
        self.tickets = Tickets(bound, max(plan.arrivals.gather, 1))
        sender = next(f for f in plan.fragments if f.name == plan.arrivals.sender)
        each = len(sender.ranks) // plan.arrivals.consumers
        self._served: dict[int, Served] = {}
        for worker in range(rank.replica * each, (rank.replica + 1) * each):
            share = sender.shares[worker]
            steps = plan.steps_per_env * len(range(*share))
            done = int(iterations[slice(*share)].max())
            self._served[worker] = Served(sender.ranks[worker], share, steps, done)
        reply = next(m.name for m in plan.messages if m.parameters)
        self._reply = dict.fromkeys(self._served, reply)
        self._waiting: deque[int] = deque()
        self._paused = list(self._served)
        self._command = CONTINUE
        self._begun = rank.env_steps
        self._staleness = Staleness(self._drops)

    def __iter__(self) -> Iterator[Any]:
        """Yields what `fire` can serve next, until the job ends."""
        while True:
            self._waiting.extend(self._paused)
            self._paused.clear()
            self._answer()
            while self.tickets.read:
                yield self._next()
                self._answer()
            if self._quiet_point() == STOP:
                return

    @abstractmethod
    def fire(self, workers: Any) -> None:
        """Receives the messages of what `_next` chose and makes its update."""

    @abstractmethod
    def send(self, name: str, values: tuple) -> None:
        """Sends to the workers being served; parameters wait until a next lease may begin."""

    # ---- between leases --------------------------------------------------------------------

    def _answer(self) -> None:
        """Sends parameters to workers that wait for them, first come first served."""
        while self._waiting:
            worker = self._waiting[0]
            served = self._served[worker]
            if served.under_way is None and self._pausing():
                self._say(PAUSE, served)
                self._paused.append(self._waiting.popleft())
                continue
            if not self.tickets.free():
                return
            self._waiting.popleft()
            self._say(CONTINUE, served)
            self._exchange.send(self._reply[worker], (), worker)
            self.tickets.begin(worker)
            if served.under_way is None:
                self._begin(worker)

    def _begin(self, worker: int) -> None:
        """Counts an iteration that a worker begins."""
        self._begun += self._served[worker].steps

    def _poll(self) -> None:
        """Takes what the coordinator has commanded since the last call."""
        self._command = max(self._command, self._rank.poll_command())

    def _pausing(self) -> bool:
        """Returns whether a worker pauses that has ended an iteration."""
        return self._command != CONTINUE or self._ended()

    def _ended(self) -> bool:
        """Returns whether all iterations of the job have begun."""
        return self._begun >= self._rank.plan.last_step

    @abstractmethod
    def _next(self) -> Any:
        """Waits for messages. Returns: the worker or workers to serve."""

    def _first(self, workers: list[int]) -> int:
        """Waits for a message. Returns: the first worker whose message has arrived."""
        expected = []
        for served in (self._served[worker] for worker in workers):
            expected.append((served.rank, self._exchange.edges[served.expected].tag))
        stage = self._rank.stages.edge(self._served[workers[0]].expected)
        return workers[self._rank.messenger.first_of(expected, stage)]

    def _quiet_point(self) -> int:
        """Writes a checkpoint while all workers pause. Returns: the command that was sent."""
        command = STOP if self._ended() else self._command
        for served in self._served.values():
            self._say(command, served)
        self._save()
        self._command = CONTINUE
        return command

    def _say(self, command: int, served: Served) -> None:
        word = np.array([command, self._rank.env_steps], np.int64)
        self._rank.messenger.send(served.rank, CONTROL_TAG, word.view(np.uint8))
