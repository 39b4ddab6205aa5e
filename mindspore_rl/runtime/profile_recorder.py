"""Profile recorder of a rank: when it began, sent, received and reduced what."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.communication.communicator import Communicator, Waiting
from mindspore_rl.errors import ConfigError
from mindspore_rl.platform.cache import writing

FOLDER = "profile"
WARM_UP = 12
"""Iterations before the first profiled one, which compile cells and trim memory."""
STAGE, ITERATION, SEND, RECEIVE, COLLECTIVE = range(5)
EVENT = np.dtype(
    [(name, "i8") for name in ("kind", "begin", "end", "what", "peer", "number", "bytes")]
)
"""An event, times in ns of this host's monotonic clock.

    kind        begin, end  what            peer    number                       bytes
    STAGE       the same    the stage
    ITERATION   the same    the iteration
    SEND        of the call the tag         target  of its messages to this one  payload
    RECEIVE     of the call the tag         source  likewise                     payload
    COLLECTIVE  of the call the channel             of this channel's calls      payload
"""
ROUNDS = 16


def check(profile: int, num_iterations: int) -> None:
    """Raises: ConfigError: a job has too few iterations for the requested profile."""
    if profile < 0 or profile and num_iterations <= WARM_UP:
        raise ConfigError(
            f"--profile is {profile} and the run has {num_iterations} iterations; "
            f"expected a number from 1 on, and more than {WARM_UP} iterations, for the first "
            f"{WARM_UP} are left out; raise --total-steps"
        )


class Profile:
    """The events of a rank, from its iteration `WARM_UP` on.

    Args:
        path: where they are written after the last profiled iteration.
        iterations: number of profiled iterations.
    """

    def __init__(self, path: Path, iterations: int) -> None:
        self._path, self._last = path, WARM_UP + iterations
        self._done, self._events = 0, list[tuple[int, ...]]()
        self._numbers: dict[tuple[int, int, int], int] = {}
        self.recording = False
        self.clock_ns = 0
        """Offset in ns from this host's clock to rank 0's, to be added to times of this host."""

    def stage(self, stage: int) -> None:
        """Records the start of a stage."""
        if self.recording:
            now = time.perf_counter_ns()
            self._events.append((STAGE, now, now, stage, 0, 0, 0))

    def iteration(self, iteration: int) -> None:
        """Records the end of an iteration and the start of the next, number `iteration`."""
        self._done += 1
        # One iteration more at both ends: every event that a peer records has its counterpart here.
        self.recording = WARM_UP - 1 <= self._done <= self._last + 1
        if self.recording:
            now = time.perf_counter_ns()
            self._events.append((ITERATION, now, now, iteration, 0, 0, 0))
        if self._done > self._last:
            self.write()

    def call(self, kind: int, what: int, peer: int, size: int, work: Callable[[], Any]) -> Any:
        """Times a call that another rank takes part in. Returns: its result."""
        number = self._numbers.get((kind, what, peer), 0)
        self._numbers[kind, what, peer] = number + 1
        begin = time.perf_counter_ns()
        result = work()
        if self.recording:
            end = time.perf_counter_ns()
            self._events.append((kind, begin, end, what, peer, number, size))
        return result

    def wait(self, expected: list[tuple[int, int]], work: Callable[[], int]) -> int:
        """Waits for one of several messages, (source, tag). Returns: the index of one here."""
        begin = time.perf_counter_ns()
        result = work()
        if self.recording:
            source, tag = expected[result]
            number = self._numbers.get((RECEIVE, tag, source), 0)
            end = time.perf_counter_ns()
            self._events.append((RECEIVE, begin, end, tag, source, number, 0))
        return result

    def write(self) -> None:
        """Writes the events recorded so far, and stops recording."""
        self.recording = False
        if self._events:
            with writing(self._path):
                self._path.parent.mkdir(exist_ok=True)
                events = np.array(self._events, dtype=EVENT)
                np.savez(self._path, events=events, clock_ns=self.clock_ns)
            self._events = []


class ProfiledCommunicator:
    """A communicator that records each of its messages in the profile."""

    def __init__(self, comm: Any, profile: Profile) -> None:
        self._comm, self._profile = comm, profile
        self.rank, self.size = comm.rank, comm.size
        self.flush, self.close = comm.flush, comm.close

    def send(self, target: int, tag: int, data: np.ndarray) -> None:
        """See `Communicator`."""
        work = lambda: self._comm.send(target, tag, data)  # noqa: E731
        self._profile.call(SEND, tag, target, data.nbytes, work)

    def receive(self, source: int, tag: int, data: np.ndarray, waiting: Waiting) -> None:
        """See `Communicator`."""
        work = lambda: self._comm.receive(source, tag, data, waiting)  # noqa: E731
        self._profile.call(RECEIVE, tag, source, data.nbytes, work)

    def first_of(self, expected: list[tuple[int, int]], waiting: Waiting) -> int:
        """Records the wait for the message that the next call receives; see `Communicator`."""
        return self._profile.wait(expected, lambda: self._comm.first_of(expected, waiting))


def clock_difference(comm: Communicator, tag: int, waiting: Waiting) -> int:
    """Measures the offset, in ns, from this rank's clock to rank 0's; all ranks call it together.

    Rank 0 answers each rank in turn with its time, `ROUNDS` times. The fastest round trip counts:
    its error is at most half the round trip.
    """
    word = np.zeros(1, np.int64)
    data, best = word.view(np.uint8), (1 << 62, 0)
    if comm.rank == 0:
        for rank in range(1, comm.size):
            for _ in range(ROUNDS):
                comm.receive(rank, tag, data, waiting)
                word[0] = time.perf_counter_ns()
                comm.send(rank, tag, data)
        return 0
    for _ in range(ROUNDS):
        asked = time.perf_counter_ns()
        comm.send(0, tag, data)
        comm.receive(0, tag, data, waiting)
        answered = time.perf_counter_ns()
        best = min(best, (answered - asked, int(word[0]) - (asked + answered) // 2))
    return best[1]
