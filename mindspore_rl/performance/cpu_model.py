"""Model of the processors of a simulated host, and of how its ranks wait."""

from dataclasses import dataclass

import simpy

from mindspore_rl.communication.mpi import LONGEST_SLEEP_S, SHORTEST_SLEEP_S

MIN_CORES = 0.25
"""Cores that remain for work, however many ranks poll for messages."""


class HostModel:
    """Cores that ranks share equally: all work at the same pace, the slower the more ranks work.

    Attributes:
        pinned: whether each rank has its own core.
    """

    def __init__(self, env: simpy.Environment, cores: int, ranks: int) -> None:
        self._env, self._cores = env, cores
        self.pinned = ranks <= cores
        self._jobs: dict[simpy.Event, list[float]] = {}
        self._spinning, self._since, self._version = 0, 0.0, 0
        self._polling = 0.0

    def work(self, alone: float, busy: float) -> simpy.Event:
        """Returns an event after some work: its seconds with other cores idle, and all busy."""
        done = self._env.event()
        if alone <= 0:
            return done.succeed()
        self._pass()
        self._jobs[done] = [alone, max(busy / alone, 1e-3)]
        self._plan()
        return done

    def spin(self, change: int) -> None:
        """Counts one more, or one less, rank that spins for a message."""
        self._pass()
        self._spinning += change
        self._plan()

    def poll(self, change: float) -> None:
        """Changes the share of cores that ranks take while they poll and sleep."""
        self._pass()
        self._polling += change
        self._plan()

    def _pace(self) -> tuple[float, float]:
        """Returns each job's share of a core, and the others' load: 0 alone, 1 all cores busy."""
        working = len(self._jobs)
        left = max(self._cores - self._polling, MIN_CORES)
        others = min(working + self._spinning, self._cores) - 1
        return min(1.0, left / working), others / max(self._cores - 1, 1)

    def _pass(self) -> None:
        """Subtracts the work done since the last change."""
        spent, self._since = self._env.now - self._since, self._env.now
        if spent > 0 and self._jobs:
            share, crowd = self._pace()
            for job in self._jobs.values():
                job[0] -= spent * share / (1 + (job[1] - 1) * crowd)

    def _plan(self) -> None:
        """Sets a timer for the next job to end."""
        self._version += 1
        if not self._jobs:
            return
        share, crowd = self._pace()
        soonest = min(left * (1 + (slow - 1) * crowd) for left, slow in self._jobs.values()) / share
        timer, version = self._env.timeout(max(soonest, 0.0)), self._version
        timer.callbacks.append(lambda _: self._look(version))

    def _look(self, version: int) -> None:
        if version != self._version:
            return
        self._pass()
        for done in [done for done, job in self._jobs.items() if job[0] <= 1e-10]:
            del self._jobs[done]
            done.succeed()
        self._plan()


@dataclass
class Meeting:
    """A collective that some ranks have entered."""

    complete: simpy.Event
    missing: int


def noticed_after(waited_s: float, spin_s: float, oversleep_s: float) -> float:
    """Computes when a rank notices a message of another host, `waited_s` after its wait began.

    Like `MpiCommunicator` it polls for `spin_s`, then sleeps longer and longer, each time by
    `oversleep_s` too long.
    """
    looked_s = spin_s
    while looked_s < waited_s:
        looked_s += min(max(looked_s / 10, SHORTEST_SLEEP_S), LONGEST_SLEEP_S) + oversleep_s
    return looked_s
