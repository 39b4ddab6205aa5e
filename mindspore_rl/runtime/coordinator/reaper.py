"""Reaper: stands over a command of a job (mpiexec, scheduler) and ends what is left of it.

`python reaper.py PARENT MARK COMMAND...`, one process for each command. When the command ends, when
the coordinator (PARENT) ends or on SIGTERM, it ends all descendants of the command: it is a
subreaper, which adopts processes whose parents have ended, even those that environments have
detached with two forks, a session and an environment of their own. Then it removes the shared
memory that MPI left. If the reaper itself is killed, the kernel kills the command (and the proxy of
mpiexec ends its ranks); the coordinator notices, and ends the rest.

Without a command it waits for the end of a job in one process. That job's processes are not its
descendants; it ends those with MARK, NAME=VALUE, in their environments.

On standard output it writes the exit status of the command, a signal as a negative number, which
the coordinator reads. Standard error is the command's output.

This file is also run as a script, without the packages of the project.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

TERM_GRACE_S = 1.0
KILL_GRACE_S = 3.0
NAME = "msrl-reaper"
SHARED_MEMORY = Path("/dev/shm")
ORPHANED = signal.SIGCONT  # it arrives even if this process is stopped
HEARD = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, ORPHANED}
SET_PDEATHSIG, SET_NAME, SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER = 1, 15, 36, 37  # of prctl


@dataclass(frozen=True)
class Process:
    """A process as `/proc` describes it.

    Attributes:
        ended: whether it is a zombie, which waits for its parent to reap it.
    """

    parent: int
    session: int
    ended: bool


def processes() -> dict[int, Process]:
    """Returns all processes of this machine, by their numbers."""
    found = {}
    for pid in _numbers():
        with contextlib.suppress(OSError):  # ended meanwhile
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            state, parent, _, session = text.rpartition(") ")[2].split()[:4]
            found[pid] = Process(int(parent), int(session), state in "ZX")
    return found


def descendants(roots: set[int], table: dict[int, Process]) -> set[int]:
    """Returns the living descendants of some processes."""
    children = defaultdict(list)
    for pid, process in table.items():
        children[process.parent].append(pid)
    found, unseen = set(), list(roots)
    while unseen:
        below = [pid for pid in children[unseen.pop()] if pid not in found]
        found |= set(below)
        unseen += below
    return {pid for pid in found if not table[pid].ended}


def marked(mark: bytes) -> dict[int, list[bytes]]:
    """Returns other processes with a variable NAME=VALUE, and their environments; no zombies."""
    name, _, value = mark.partition(b"=")
    if not name or not value:  # it would match other processes, and marked ones are killed
        raise ValueError(f"no mark of a job: {mark!r}")
    found = {}
    for pid in _numbers():
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if mark in variables and pid != os.getpid():
                found[pid] = variables
    return found


def _numbers() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def end_all(find: Callable[[], set[int]]) -> None:
    """Kills the processes that `find` returns until none is left, for at most `KILL_GRACE_S`."""
    deadline = time.monotonic() + KILL_GRACE_S
    while (left := find()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):  # ended meanwhile, or by now another user's
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def shared_segments() -> set[Path]:
    """Returns this user's shared-memory segments of MPI; their names do not tell the job.

    Ranks unlink a segment as soon as all have mapped it: one that stays belonged to a rank that was
    killed while it started.
    """
    found = set()
    for path in SHARED_MEMORY.glob("mpich_shm_*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if path.lstat().st_uid == os.getuid():
                found.add(path)
    return found


def remove_segments(before: set[Path]) -> None:
    """Removes MPI's segments that jobs have left since `before`.

    A segment that a living process holds belongs to another job. (Processes in other containers are
    not visible. If one has the same /dev/shm and the same user, a job that starts there at this
    moment may lose its segment, and fails to start.)
    """
    left = shared_segments() - before
    for _ in range(2 if left else 0):  # a new segment may be unheld for a moment
        left -= {path for path in left if is_held(path)}
        time.sleep(0.05)
    for path in left:
        path.unlink(missing_ok=True)


def is_held(path: Path) -> bool:
    """Returns whether a process that this user may inspect has a file mapped or open."""
    return any(str(path) in _maps(pid) or str(path) in _files(pid) for pid in _numbers())


def _maps(pid: int) -> str:
    with contextlib.suppress(OSError):  # ended meanwhile, or another user's
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    return ""


def _files(pid: int) -> Iterator[str]:
    """Yields the files that a process has open."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(entry.path)


def prctl(option: int, value: object) -> int:
    """Calls Linux's `prctl` for this process."""
    return ctypes.CDLL(None).prctl(option, value)


def main(parent: int, mark: str, command: list[str]) -> None:
    """Runs a command, or waits for the end of a job in one process; then ends what is left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    prctl(SET_NAME, NAME.encode())
    prctl(SET_CHILD_SUBREAPER, 1)
    prctl(SET_PDEATHSIG, ORPHANED)
    before = shared_segments()
    orphaned = os.getppid() != parent  # it died before the call above
    if orphaned and command:
        return
    child = _start(command) if command else 0
    if not orphaned:
        _wait(parent, child)

    def left() -> set[int]:
        _bury(child)
        own = {os.getpid()}
        return descendants(own, processes()) if command else set(marked(mark.encode()))

    end_all(left)
    _bury(child)
    if command:
        remove_segments(before)
        with contextlib.suppress(OSError, KeyError):  # none, or removed by the coordinator
            os.unlink(os.environ["MSRL_SECRETS"])


def _start(command: list[str]) -> int:
    """Starts the command, which the kernel kills when this process ends."""
    own = os.getpid()
    if child := os.fork():
        return child
    try:
        prctl(SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == own:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
            # Hydra sends it to ranks when another rank dies.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            os.dup2(2, 1)
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _wait(parent: int, child: int) -> None:
    """Returns when the command or the parent has ended, or some time after a signal to end."""
    deadline_s = float("inf")
    while True:
        left_s = max(0.0, min(deadline_s - time.monotonic(), 1 << 20))
        heard = signal.sigtimedwait(HEARD, left_s)
        number = heard.si_signo if heard else 0
        ends = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if number == signal.SIGCHLD and _bury(child):
            return
        if os.getppid() != parent:  # at ORPHANED: else only its thread has ended
            return
        if time.monotonic() >= deadline_s or ends and not child:
            return
        if ends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
            deadline_s = min(deadline_s, time.monotonic() + TERM_GRACE_S)


def _bury(child: int) -> bool:
    """Reaps all children that have ended. Returns: whether the command was one of them."""
    found = False
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = True
                with contextlib.suppress(OSError):  # the coordinator may be gone
                    status = os.waitstatus_to_exitcode(ended[1])
                    os.write(1, f"{status}\n".encode())
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
