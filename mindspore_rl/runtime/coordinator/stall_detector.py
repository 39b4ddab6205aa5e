"""Stall detector: finds the rank that hangs, and who waits for it."""

import contextlib
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindspore_rl.plan.plan import Plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.runtime.heartbeat import Stamp

NAMED_RANKS = 4


@dataclass(frozen=True)
class Stopped:
    """A process that is stopped by a signal or a debugger.

    Attributes:
        name: of its program.
        rank: the rank that it is or that has started it; None: it belongs to no rank.
    """

    pid: int
    name: str
    rank: int | None


def find_stopped(processes: Mapping[int, list[bytes]]) -> tuple[Stopped, ...]:
    """Returns the processes that are stopped, ranks first.

    Args:
        processes: of this machine: the environment of each by process number.
    """
    found = []
    for pid, variables in processes.items():
        with contextlib.suppress(OSError):  # ended meanwhile
            name, _, state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
            if state[0] in "Tt":
                known = dict(variable.partition(b"=")[::2] for variable in variables)
                rank = known.get(b"PMI_RANK")
                scheduler = known.get(b"MS_ROLE") == b"MS_SCHED"
                name = "MindSpore's scheduler" if scheduler else name.partition(" (")[2]
                found.append(Stopped(pid, name, None if rank is None else int(rank)))
    return tuple(sorted(found, key=lambda process: (process.rank is None, process.pid)))


@dataclass(frozen=True)
class Stall:
    """A stall: a rank has made no progress within the deadline.

    Attributes:
        stamps: the last stamp of each rank.
        ages: seconds since the stamps of the ranks that have not finished.
        unheard: seconds since the last heartbeat of ranks on other hosts, where it is overdue.
        deadline: name and value of the option.
    """

    stamps: dict[int, Stamp]
    ages: dict[int, float]
    unheard: dict[int, float]
    deadline: tuple[str, float]

    @property
    def late(self) -> list[int]:
        """Ranks without progress, the oldest stamp first."""
        found = [rank for rank, age in self.ages.items() if age > self.deadline[1] / 2]
        return sorted(found, key=lambda rank: -self.ages[rank])


class Watchdog:
    """Compares the age of every rank's stamp with the deadline.

    Args:
        plan: the job.
        start_timeout_s: the deadline until every rank has done an iteration.
    """

    def __init__(self, plan: Plan, start_timeout_s: float) -> None:
        self.plan, self.start_timeout_s = plan, start_timeout_s
        self.stages = Stages(plan)

    def stall(
        self,
        stamps: dict[int, Stamp],
        now: float,
        *,
        started: bool,
        finished: Container[int],
        awake_s: float,
        heard: Mapping[int, float],
    ) -> Stall | None:
        """Detects a stall: a stamp older than the deadline.

        Args:
            stamps: the last stamp of each rank.
            now: the time, on the stamps' clock.
            started: whether every rank has done an iteration.
            finished: ranks that have finished.
            awake_s: when this process was last resumed; older stamps are not counted against ranks.
            heard: time of the last heartbeat of ranks that send heartbeats.
        """
        name, deadline_s = "timeout_s", self.plan.timeout_s
        if not started:
            name, deadline_s = "start_timeout_s", self.start_timeout_s
        ages = {
            rank: now - max(stamp.time_s, awake_s)
            for rank, stamp in stamps.items()
            if rank not in finished
        }
        if max(ages.values()) <= deadline_s:
            return None
        silent = {rank: now - max(at, awake_s) for rank, at in heard.items() if rank in ages}
        unheard = {rank: age for rank, age in silent.items() if age > deadline_s / 2}
        return Stall(stamps, ages, unheard, (name, deadline_s))

    def blame(self, stall: Stall, stopped: tuple[Stopped, ...]) -> tuple[int | None, str]:
        """Finds the rank at fault: a stopped process before a hanging one, and that before waiters.

        Args:
            stall: as detected.
            stopped: processes of the job that are stopped by a signal.

        Returns: the rank, or None if no rank is or all wait for each other; and the message.
        """
        waits = self._waits(stall)
        halted = [process for process in stopped if process.rank in stall.ages]
        working = [rank for rank in stall.late if rank not in waits]
        oldest = stall.late[0]
        rank: int | None = None
        if halted:
            rank, text = halted[0].rank, _halted(halted[0], stall)
        elif stopped and stall.stamps[oldest].stage == Stage.STARTING:
            text = _halted(stopped[0], stall)  # such as mpiexec or the scheduler
        elif stall.unheard:
            rank = max(stall.unheard, key=stall.unheard.__getitem__)
            silence = f"its process has not been heard of for {stall.unheard[rank]:.1f} s"
            text = f"{silence}; is it stopped, or its host overloaded? {_since(stall, oldest)}"
        elif working:
            rank, text = working[0], _since(stall, working[0])
        elif all(waits[one] <= waits.keys() for one in stall.late):
            last = min(stall.ages, key=stall.ages.__getitem__)
            text = f"every rank waits for another: {_since(stall, oldest)}"
            text += f"\n  {self._last(stall, last)}"
        else:
            rank, text = oldest, _since(stall, oldest)
        return rank, "\n".join([text, *self._waiting(stall, waits, rank)])

    def _waits(self, stall: Stall) -> dict[int, set[int]]:
        """Returns the ranks that each rank waits for; ranks that wait for none are left out."""
        waits = {}
        for rank in stall.ages:
            stamp = stall.stamps[rank]
            if others := self.stages.awaited(rank, stamp.stage, stamp.iteration):
                waits[rank] = others
        for rank in list(waits):
            if stall.stamps[rank].stage == Stage.CHECKPOINT:
                # A rank that waits elsewhere has sent its part. If all have, rank 0 is writing.
                waits[rank] = {one for one in stall.ages if one not in waits}
        return {rank: others for rank, others in waits.items() if others}

    def _waiting(self, stall: Stall, waits: dict[int, set[int]], blamed: int | None) -> list[str]:
        """Describes each waiting rank and whom it waits for, the blamed rank first."""
        ranks = [rank for rank in stall.late if rank in waits]
        lines = []
        for rank in ranks[:NAMED_RANKS]:
            others = sorted(waits[rank], key=lambda one: (one != blamed, one in waits, one))
            names = [self._place(other, stall.stamps[other]) for other in others[:NAMED_RANKS]]
            more = f" and {len(others) - NAMED_RANKS} more" if len(others) > NAMED_RANKS else ""
            place = self._place(rank, stall.stamps[rank])
            lines.append(f"  {place} waits for {', '.join(names)}{more}")
        if len(ranks) > NAMED_RANKS:
            lines.append(f"  and {len(ranks) - NAMED_RANKS} more ranks wait")
        return lines

    def _last(self, stall: Stall, rank: int) -> str:
        """Names the rank that may hold up the others, which came last where it is."""
        place = self._place(rank, stall.stamps[rank])
        return (
            f"{place} came last, at {_clock(stall.ages[rank])}: on a busy core it may still be at "
            "work there"
        )

    def _place(self, rank: int, stamp: Stamp) -> str:
        where = f"iteration {stamp.iteration}, " if stamp.iteration >= 0 else ""
        return f"{self.plan.rank_name(rank)} ({where}{self.stages.words[stamp.stage]})"


def _since(stall: Stall, rank: int) -> str:
    age, (name, deadline_s) = stall.ages[rank], stall.deadline
    return (
        f"no progress for {age:.1f} s, since {_clock(age)} ({name}: {deadline_s:g}; "
        "if it is only slow, raise that)"
    )


def _clock(age: float) -> str:
    """Returns the time of day some seconds ago."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() - age))


def _halted(process: Stopped, stall: Stall) -> str:
    pid, name = process.pid, process.name
    return (
        f"{name} (pid {pid}) is stopped (signal SIGSTOP?), and nobody let it go on (kill -CONT "
        f"{pid}): {_since(stall, stall.late[0])}"
    )
