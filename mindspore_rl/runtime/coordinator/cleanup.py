"""Cleans up after a job: ends everything it started, whichever of its processes is killed."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

from mindspore_rl.runtime.coordinator import reaper

MARK = "MSRL_COORDINATOR"
LOOK_S = 5.0
CLOSED = """the program has closed descriptors of this process that are not its own \
(os.closerange?); expected that it closes what it has opened"""
CLOSED_EXIT = 74  # EX_IOERR: exit status of a process that can no longer report its error


class Reaper:
    """A command under a reaper process, or a reaper alone: see `reaper.py`.

    Args:
        name: of the command, for error messages.
        mark: environment variable of the job's processes, NAME=VALUE.
        log: the file that its output is appended to.
    """

    def __init__(
        self,
        name: str,
        mark: str,
        command: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        arguments = [reaper.__file__, str(os.getpid()), mark, *command]
        self._name = name
        self._status: int | None = None
        self._was_killed = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)

    def poll(self) -> int | None:
        """Returns the exit status of the command, or of the reaper if the reaper ended first."""
        if self._status is None:
            ended = self._process.poll()  # first: after its end the reaper writes no more
            if said := self._output.read():
                self._status = int(said)
            elif ended is not None:
                self._status, self._was_killed = ended, True
        return self._status

    @property
    def who(self) -> str:
        """The name of the process whose exit status `poll` returns."""
        if self._was_killed:
            return f"the reaper of {self._name} (pid {self._process.pid})"
        return self._name

    def ask_to_end(self) -> None:
        """Asks the reaper to terminate the command, and to kill it after a grace period."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)  # in case the reaper was stopped by a signal

    def wait(self, timeout_s: float) -> None:
        """Waits until no process of the command is left, at most `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def end(self) -> None:
        """Kills the reaper if it still runs; the kernel then kills the command too."""
        self._process.kill()
        self._process.wait()
        self.poll()
        self._output.close()


class Orphans:
    """A context that makes this process a subreaper, which adopts orphans and ends them.

    It finds what the environments of a job in one process have started, even detached processes,
    and the orphans of a reaper that was killed. An adopted process differs from this process's own
    children by its session: children have this process's session, or one that they created.
    """

    def __init__(self) -> None:
        self._before: set[int] = set()
        self._before = self._strangers(reaper.processes())

    def __enter__(self) -> "Orphans":
        was = ctypes.c_int()
        reaper.prctl(reaper.GET_CHILD_SUBREAPER, ctypes.byref(was))
        self._was = was.value
        reaper.prctl(reaper.SET_CHILD_SUBREAPER, 1)
        return self

    def __exit__(self, *_: object) -> None:
        reaper.prctl(reaper.SET_CHILD_SUBREAPER, self._was)

    def bury(self) -> None:
        """Reaps adopted processes that have ended, which would else stay as zombies."""
        table = reaper.processes()
        for pid in self._strangers(table):
            if table[pid].ended and table[pid].session != pid:  # else its starter may wait for it
                _bury(pid)

    def end(self, mark: str) -> None:
        """Ends all adopted processes.

        Args:
            mark: NAME=VALUE; other processes that have it in their environment are ended too.
        """

        def left() -> set[int]:
            table = reaper.processes()
            own = self._strangers(table)
            for pid in own:
                if table[pid].ended:
                    _bury(pid)
            living = {pid for pid in own if not table[pid].ended} | reaper.descendants(own, table)
            return living | set(reaper.marked(mark.encode()))

        reaper.end_all(left)

    def _strangers(self, table: dict[int, reaper.Process]) -> set[int]:
        """Returns children of other sessions than this process's that did not exist at first."""
        own, session = os.getpid(), os.getsid(0)
        children = {pid for pid, process in table.items() if process.parent == own}
        return {pid for pid in children if table[pid].session != session} - self._before


class OwnProcess:
    """A context in which this process runs a job; on exit it ends what the job has started.

    If this process is killed, a reaper ends the processes that carry the job's mark.
    """

    def __enter__(self) -> "OwnProcess":
        os.environ[MARK] = f"process {os.getpid()}"  # processes that environments start inherit it
        self._mark = f"{MARK}={os.environ[MARK]}"
        self._orphans = Orphans()
        self._orphans.__enter__()
        self._reaper = Reaper("this job", self._mark)
        self._looked_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._orphans.__exit__()
        os.environ.pop(MARK, None)  # an environment may have cleared them

    def look(self) -> str:
        """Restarts the reaper if it was killed, checked every 5 s. Returns: a note for users."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return ""
        self._looked_s = time.monotonic()
        self._orphans.bury()
        if self._reaper.poll() is None:
            return ""
        said = f"{self._reaper.who} was killed; another one takes its place"
        self._reaper.end()
        self._reaper = Reaper("this job", self._mark)
        return said

    def end(self) -> None:
        """Ends all processes that the job has started."""
        self._reaper.end()
        self._orphans.end(self._mark)


def _bury(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
