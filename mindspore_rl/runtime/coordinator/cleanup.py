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
CLOSED_EXIT = 74  # EX_IOERR: how a process ends that cannot say so any more


class Reaper:
    """A command under a reaper, or a reaper alone: see `reaper.py`.

    Args:
        name: of the command, for messages.
        mark: of the job's processes, NAME=VALUE.
        log: where its output is appended to.
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
        """The exit status of the command, or of the reaper if that has ended before it."""
        if self._status is None:
            ended = self._process.poll()  # first: it says nothing afterwards
            if said := self._output.read():
                self._status = int(said)
            elif ended is not None:
                self._status, self._was_killed = ended, True
        return self._status

    @property
    def who(self) -> str:
        """What ended with the status that `poll` tells."""
        if self._was_killed:
            return f"the reaper of {self._name} (pid {self._process.pid})"
        return self._name

    def ask_to_end(self) -> None:
        """Has the command ended, and after a while killed."""
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)  # somebody may have stopped it

    def wait(self, timeout_s: float) -> None:
        """Waits until nothing is left of the command, but not for long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def end(self) -> None:
        """Kills the reaper if it is still there, and with it the command."""
        self._process.kill()
        self._process.wait()
        self.poll()
        self._output.close()


class Orphans:
    """A context in which processes whose parents end come to this one, and that ends them.

    So what the environments of a job in one process have started is found even if it hides, and
    where a reaper was killed what that stood over. It is told from this process's own children by
    its session: children have this one's, or one of their own.
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
        """Takes note of those that have ended, which otherwise stay until this process ends."""
        table = reaper.processes()
        for pid in self._strangers(table):
            if table[pid].ended and table[pid].session != pid:  # else somebody may wait for it
                _bury(pid)

    def end(self, mark: str) -> None:
        """Ends them all.

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
        """Children of other sessions than this process's that were not there at first."""
        own, session = os.getpid(), os.getsid(0)
        children = {pid for pid, process in table.items() if process.parent == own}
        return {pid for pid in children if table[pid].session != session} - self._before


class OwnProcess:
    """A context in which this process runs a job; it ends what the job has started.

    If this process is killed, a reaper does, as far as it can find it.
    """

    def __enter__(self) -> "OwnProcess":
        os.environ[MARK] = f"process {os.getpid()}"  # what environments start inherits it
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
        """Sees to it, now and then, that the reaper lives. Returns: what the user should know."""
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
        """Ends what the job has started."""
        self._reaper.end()
        self._orphans.end(self._mark)


def _bury(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
