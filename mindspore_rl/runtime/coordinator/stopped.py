"""Finds processes of a job that a signal has stopped."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


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
