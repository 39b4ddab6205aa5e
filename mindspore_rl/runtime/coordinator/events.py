"""Events that the state machine receives, and orders that it gives."""

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from mindspore_rl.errors import JobFailure
from mindspore_rl.runtime.coordinator.stall_detector import Stall, Stopped
from mindspore_rl.runtime.heartbeat import Stamp

FATAL = {
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Segmentation fault": signal.SIGSEGV,
}
"""Signals by the words of Python's fault handler; mpiexec merges the ranks' exit statuses."""

# ---- events ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """A message from a rank, see `communication/link.py`."""

    rank: int
    message: dict[str, Any]


@dataclass(frozen=True)
class Closed:
    """A rank's link closed; `lost` gives the reason if its host has fallen silent."""

    rank: int
    lost: str = ""


@dataclass(frozen=True)
class Interrupted:
    """The user has interrupted the job, `count` times so far."""

    count: int


@dataclass(frozen=True)
class Logged:
    """A line of metrics was written; `settled_return` is that of `Metrics` after it."""

    settled_return: float | None


@dataclass(frozen=True)
class Evaluated:
    """A checkpoint was evaluated; `mean_return` is that of its policy, after `env_steps`."""

    mean_return: float
    env_steps: int


@dataclass(frozen=True)
class Enough:
    """The user's function has returned False: the job is to stop."""


@dataclass(frozen=True)
class Tick:
    """A tick of the event loop.

    Attributes:
        stamps: the last stamp of every rank.
        mpiexec: the exit status of mpiexec, once it has ended.
        scheduler: the exit status of MindSpore's scheduler, once it has ended.
        living: ranks with a process on this machine; None if not looked up (see `silent`).
        ended: ranks of this machine whose processes have ended, in this order.
    """

    stamps: dict[int, Stamp]
    mpiexec: int | None = None
    scheduler: int | None = None
    living: frozenset[int] | None = None
    ended: tuple[int, ...] = ()


Event = Heard | Closed | Interrupted | Logged | Evaluated | Enough | Tick


# ---- orders ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tell:
    """Sends the leader `stop` or `checkpoint`, to obey at its next iteration boundary."""

    kind: str


@dataclass(frozen=True)
class Note:
    """Prints a note for the user."""

    text: str


@dataclass(frozen=True)
class Log:
    """Writes a line of metrics."""

    iteration: int
    env_steps: int
    values: dict[str, float]
    episodes: list[tuple[Any, ...]]
    age_s: float


@dataclass(frozen=True)
class Keep:
    """Ends the line of metrics, and tells rank 0 once all lines are in their file."""


@dataclass(frozen=True)
class Saved:
    """Reports that a checkpoint has been written; `evaluate` if it is to be evaluated."""

    path: str
    evaluate: bool = False


@dataclass(frozen=True)
class Fail:
    """Fails the job."""

    failure: JobFailure


@dataclass(frozen=True)
class Examine:
    """Fails the job after an examination: `explain` finds the failure from the evidence.

    Attributes:
        what: the `death` of a rank, a `stall`, or the end of `mpiexec` or of the `scheduler`.
    """

    what: str
    rank: int = -1
    stall: Stall | None = None
    lost: str = ""


@dataclass(frozen=True)
class Finish:
    """Ends the event loop: every rank has finished, or the rank in this process has ended."""


@dataclass(frozen=True)
class GiveUp:
    """Ends the job at once, as the user wants."""


Order = Tell | Note | Log | Keep | Saved | Fail | Examine | Finish | GiveUp


@dataclass(frozen=True)
class Remains:
    """The evidence of a failure.

    Attributes:
        status: exit status of the process that ended.
        who: name of the process that ended, if it is no rank.
        log: output of mpiexec and all ranks.
        output: output of the failed rank.
        actions: the last actions of the environments, by rank.
        words: the scheduler's last output.
        stopped: processes of the job that were stopped by a signal.
    """

    status: int = 0
    who: str = "mpiexec"
    log: str = ""
    output: list[str] = field(default_factory=list)
    actions: dict[int, str] = field(default_factory=dict)
    words: str = ""
    stopped: tuple[Stopped, ...] = ()

    @property
    def signal(self) -> int | None:
        """Signal that killed the rank, as far as it or mpiexec has reported."""
        for line in self.output:
            name = line.partition("Fatal Python error: ")[2].strip()
            if name in FATAL:
                return int(FATAL[name])
        killed = re.search(r"EXIT STRING: .*\(signal (\d+)\)", self.log)
        return int(killed[1]) if killed else None

    @property
    def lost_proxy(self) -> bool:
        """True if mpiexec ended because it lost a proxy, before it reported its ranks' ends."""
        return bool(re.search(r"^\[mpiexec@.*\] control_cb .*closed", self.log, re.M))
