"""Keeps a program of a job, and ends all that comes of it.

Run by itself: `python keeper.py COORDINATOR MARK [COMMAND ...]`, the process that started it, the
variable that marks the job's processes, and what to start. Its standard input is a pipe of the
coordinator's. When the program ends, the keeper ends what that has left behind: a daemon that an
environment started is the keeper's child as soon as its own parent is gone, whatever it has done
to its session and its environment. When the coordinator dies, or closes the pipe, the keeper ends
the program too, and whatever else carries the mark. If the keeper itself is killed, the program is
killed by a parent-death signal, the coordinator sees both go, and ends what carries the mark.

A keeper without a command waits for a coordinator that runs a job in its own process.

It starts in milliseconds, for it imports nothing of the project, nor what lies in site-packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MARK = "MSRL_COORDINATOR"
END_S = 5.0
POLL_S = 0.02
SWEPT = (("/dev/shm", "mpich_shm_"), ("/tmp", "hydra_hwloc_xmlfile_"))
PROXY = "hydra_pmi_proxy"
_PDEATHSIG, _DUMPABLE, _CHILD_SUBREAPER = 1, 4, 36  # of prctl


def adopt(whether: bool = True) -> None:
    """Makes this process the parent of those below it whose own parent ends, or no longer."""
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, int(whether))


def marked(mark: str) -> dict[int, list[str]]:
    """Processes that carry a mark, and their environments; zombies have none."""
    found = {pid: _read(f"/proc/{pid}/environ").split("\0") for pid in _pids()}
    return {pid: variables for pid, variables in found.items() if f"{MARK}={mark}" in variables}


def children() -> set[int]:
    """Of this process, zombies among them."""
    return {pid for pid in _pids() if _stat(pid)[1:2] == [str(os.getpid())]}


def end(find: Callable[[], Iterable[int]], deadline_s: float = END_S) -> None:
    """Kills what a function finds, until it finds nothing more."""
    deadline = time.monotonic() + deadline_s
    while (found := find()) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def left_over() -> list[str]:
    """What MPI has left where it was killed while it started: segments, and Hydra's topologies.

    Neither says whose it is. One that is older than every proxy that lives, and that nobody has
    mapped, is nobody's.
    """
    files = [
        f"{folder}/{name}"
        for folder, prefix in SWEPT
        for name in os.listdir(folder)
        if name.startswith(prefix)
    ]
    if not files:
        return []
    maps = "".join(_read(f"/proc/{pid}/maps") for pid in _pids())
    oldest = min((_start_s(pid) for pid in _pids() if _is_proxy(pid)), default=float("inf"))
    found = []
    for path in files:
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            own = status.st_uid == os.getuid()
            if own and status.st_mtime < oldest and f"{path}\n" not in maps:
                found.append(path)
    return found


def sweep() -> None:
    """Removes it."""
    for path in left_over():
        with contextlib.suppress(OSError):
            os.unlink(path)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> str:
    """A file of /proc; nothing if its process has ended."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """What stands in a process's stat behind its name: state, parent, ...; nothing if it ended."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _is_proxy(pid: int) -> bool:
    return PROXY in _read(f"/proc/{pid}/cmdline").partition("\0")[0]


def _start_s(pid: int) -> float:
    """When a process started, on the clock of files; to a tick, so a little before it did."""
    fields = _stat(pid)
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    ticks = int(fields[19]) if fields else 0
    return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK") - 1.0


def _start(command: list[str], mark: str) -> int:
    """Starts the program, which is killed when this process is."""
    own, libc = os.getpid(), ctypes.CDLL(None)
    child = os.fork()
    if child:
        return child
    libc.prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != own:
        os._exit(1)  # it died before the call above
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which Hydra tells ranks of another's death
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvpe(command[0], command, {**os.environ, MARK: mark})
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def _reap(child: int) -> int | None:
    """Takes leave of children that have ended. Returns: the program's status, if it has."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = os.waitstatus_to_exitcode(ended[1])
    return status


def main() -> None:
    """Keeps the program that the command line names."""
    coordinator, mark, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    adopt()
    ctypes.CDLL(None).prctl(_DUMPABLE, 0)  # it may end by its program's signal
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child, status = 0, None
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM) if child else None)
    if command and os.getppid() == coordinator:
        child = _start(command, mark)
    while status is None:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            status = _reap(child)
        elif not os.read(0, 4096):
            end(lambda: [pid for pid in marked(mark) if pid != os.getpid()])
            break

    def left() -> set[int]:
        nonlocal status
        found = _reap(child)
        status = found if status is None else status
        return children()

    end(left)
    sweep()
    if status is not None and status < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status or 0)


if __name__ == "__main__":
    main()
