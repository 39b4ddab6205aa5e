"""Events that the state machine receives, and orders that it gives."""

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from mindspore_rl.errors import JobFailure
from mindspore_rl.runtime.coordinator.stall_detector import Stall
from mindspore_rl.runtime.coordinator.stopped import Stopped
from mindspore_rl.runtime.heartbeat import Stamp

FATAL = {
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Segmentation fault": signal.SIGSEGV,
}
"""Signals by the words of Python's fault handler; mpiexec's status is all ranks' together."""

# ---- events ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """A message of a rank, see `communication/link.py`."""

    rank: int
    message: dict[str, Any]


@dataclass(frozen=True)
class Closed:
    """A rank's link ended; `lost` says why if its host fell silent."""

    rank: int
    lost: str = ""


@dataclass(frozen=True)
class Interrupted:
    """The user has interrupted so many times."""

    count: int


@dataclass(frozen=True)
class Logged:
    """A line of metrics was written: what the display shows since."""

    mean_return: float | None
    episodes: int


@dataclass(frozen=True)
class Enough:
    """The user's function has seen enough iterations."""


@dataclass(frozen=True)
class Tick:
    """Time has passed.

    Attributes:
        stamps: what every rank is doing.
        mpiexec: its exit status once it has ended.
        scheduler: that of MindSpore's scheduler.
        living: ranks that have a process on this machine; None where nobody asked (`silent`).
    """

    stamps: dict[int, Stamp]
    mpiexec: int | None = None
    scheduler: int | None = None
    living: frozenset[int] | None = None


Event = Heard | Closed | Interrupted | Logged | Enough | Tick


# ---- orders ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tell:
    """To the leader: `stop` or `checkpoint`, at its next iteration boundary."""

    kind: str


@dataclass(frozen=True)
class Note:
    """For the user."""

    text: str


@dataclass(frozen=True)
class Log:
    """A line of metrics."""

    iteration: int
    env_steps: int
    values: dict[str, float]
    episodes: list[tuple[float, int]]
    age_s: float


@dataclass(frozen=True)
class Saved:
    """A checkpoint has been written."""

    path: str


@dataclass(frozen=True)
class Fail:
    """The job failed."""

    failure: JobFailure


@dataclass(frozen=True)
class Examine:
    """The job failed: `explain` says how, from what was left behind.

    Attributes:
        what: a rank's `death`, a `stall`, or the end of `mpiexec` or of the `scheduler`.
    """

    what: str
    rank: int = -1
    stall: Stall | None = None
    lost: str = ""


@dataclass(frozen=True)
class Finish:
    """Every rank has finished, or the rank in this process has ended."""


@dataclass(frozen=True)
class GiveUp:
    """The user wants the job to end at once."""


Order = Tell | Note | Log | Saved | Fail | Examine | Finish | GiveUp


@dataclass(frozen=True)
class Remains:
    """What a failure left behind.

    Attributes:
        status: exit status of what ended.
        who: what ended, if it was no rank.
        log: all that mpiexec and the ranks printed.
        output: what the rank printed.
        actions: what the environments of ranks were doing.
        words: of the scheduler.
        stopped: processes of the job that do not run.
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
        """That a rank died of, as far as it or mpiexec has told."""
        for line in self.output:
            name = line.partition("Fatal Python error: ")[2].strip()
            if name in FATAL:
                return int(FATAL[name])
        killed = re.search(r"EXIT STRING: .*\(signal (\d+)\)", self.log)
        return int(killed[1]) if killed else None

    @property
    def lost_proxy(self) -> bool:
        """Whether mpiexec ended because a proxy was gone, and had not told of its ranks' ends."""
        return bool(re.search(r"^\[mpiexec@.*\] control_cb .*closed", self.log, re.M))
