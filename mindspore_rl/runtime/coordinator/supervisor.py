"""Supervisor of a command of `msrl`, whose process an algorithm or environment may end.

The command runs in a child. Its exit code counts only if the child has sent it over a pipe:
`os._exit(0)` in a step and a crash in native code are failures, and are reported as those of a
rank. All descendants of the child are ended. Signals to this process are passed on to the child;
signals of a terminal reach the child directly.
"""

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from mindspore_rl.errors import JobFailure, MsrlError
from mindspore_rl.plan.plan import Plan, load_plan
from mindspore_rl.plan.stages import Stage
from mindspore_rl.platform.held_signals import INTERRUPTED_EXIT, SIGNALS, heard
from mindspore_rl.platform.stdio import say
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.coordinator import reaper
from mindspore_rl.runtime.coordinator.cleanup import CLOSED, CLOSED_EXIT
from mindspore_rl.runtime.coordinator.events import Examine, Remains
from mindspore_rl.runtime.coordinator.failures import Failures
from mindspore_rl.runtime.coordinator.interruption import Burst
from mindspore_rl.runtime.coordinator.launch import ENDING_S, LOG_LINES, WORKERS_LOG
from mindspore_rl.runtime.coordinator.stall_detector import Watchdog
from mindspore_rl.runtime.heartbeat import Stamp, Stamps

OF_KERNEL = 0x80  # SI_KERNEL
Tell = Callable[[str, object], bool]
"""Tells the supervisor the directory of a `run`, or the exit code that this process `ends` with;
returns whether the message was delivered."""


def run_below(command: Callable[[Tell], int]) -> int:
    """Runs a command in a child process.

    Args:
        command: returns its exit code; if the child ends without sending one, that is a failure.

    Returns: the exit code, both in the child and in this process.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # its reader is gone
                stream.flush()
    followed = {signal.SIGCHLD, *heard()}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would lose the exit status
    own, (ours, theirs) = os.getpid(), _pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, followed)
    try:
        child = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise MsrlError(
            f"no process can be started here ({error.strerror}); end some, or raise the limit "
            "(ulimit -u)"
        ) from error
    if not child:
        os.close(ours)
        return _below(command, theirs, own, before)
    os.close(theirs)
    reaper.prctl(reaper.SET_CHILD_SUBREAPER, 1)
    status = _stand_over(child, followed)
    os.set_blocking(ours, False)  # processes forked by the child may hold the other end open
    said: dict[str, Any] = {}
    with open(ours, "rb") as told:
        for line in (told.read() or b"").splitlines():
            said |= json.loads(line)
    _end_what_is_left()
    if "run" in said:
        checkpoint.remove_unfinished(Path(said["run"]))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if "ends" in said:
        return int(said["ends"])
    if -status in SIGNALS:  # a signal that came before its handler was set
        say("interrupted")
        return INTERRUPTED_EXIT
    say(_explained(status, said.get("run")))
    return JobFailure("").exit_code


def _pipe() -> list[int]:
    """Opens a pipe with descriptors above those of the standard streams, which may be closed."""
    found = []
    for end in os.pipe():
        found.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))
        os.close(end)
    return found


# ---- the child ---------------------------------------------------------------------------------


def _below(command: Callable[[Tell], int], pipe: int, parent: int, mask: set[Any]) -> int:
    """Runs the command in the child, and sends over the pipe how it ended."""
    reaper.prctl(reaper.SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    burst = Burst()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if burst.is_new():
            raise KeyboardInterrupt

    for number in heard():
        signal.signal(number, interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    identity = os.fstat(pipe)

    def tell(what: str, value: object) -> bool:
        with contextlib.suppress(OSError):  # closed by an environment, and perhaps another file now
            if os.path.samestat(os.fstat(pipe), identity):
                return os.write(pipe, json.dumps({what: value}).encode() + b"\n") > 0
        return False

    code = JobFailure("").exit_code
    try:
        code = command(tell)
    except SystemExit as error:
        say(_exited(error))
    finally:
        tell("ends", code)
        _end_despite_threads(code)
    return code


def _end_despite_threads(code: int) -> None:
    """Ends this process if Python's own end takes long: it waits for an environment's threads."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            stream.flush()
    late = threading.Timer(ENDING_S, os._exit, [code])
    late.daemon = True
    late.start()


def _exited(error: SystemExit) -> str:
    """Describes the `sys.exit` that has ended a command."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else ""
    return f"sys.exit({error.code!r}){where} ended it before it was done; raise an error there"


# ---- the process above -------------------------------------------------------------------------


def _stand_over(child: int, heard: set[signal.Signals]) -> int:
    """Waits for the child. Returns: its exit status, a signal as a negative number."""
    while True:
        came = signal.sigwaitinfo(heard)
        if came.si_signo != signal.SIGCHLD:
            if came.si_code != OF_KERNEL:
                os.kill(child, came.si_signo)
            continue
        while (ended := _bury()) is not None:
            if ended[0] == child:
                return os.waitstatus_to_exitcode(ended[1])


def _bury() -> tuple[int, int] | None:
    """Reaps one descendant that has ended, if any."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _end_what_is_left() -> None:
    """Ends the remaining descendants, after the reapers of a job have ended theirs."""

    def left() -> set[int]:
        while _bury():
            pass
        return reaper.descendants({os.getpid()}, reaper.processes())

    deadline = time.monotonic() + ENDING_S
    while any(map(_is_reaper, left())) and time.monotonic() < deadline:
        time.sleep(0.02)
    reaper.end_all(left)


def _is_reaper(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() == reaper.NAME
    except OSError:  # it has ended
        return False


def _explained(status: int, run: str | None) -> str:
    """Describes the end of a child that has not reported it."""
    how = f"its process ended (exit status {status})"
    if status < 0:
        how = f"its process was killed by signal {-status}"
    elif status == CLOSED_EXIT:
        how = CLOSED
    if run is None:
        return f"{how}, before the command was done"
    try:
        plan = load_plan(Path(run))
        stamps = Stamps(Path(run), plan.num_ranks)
    except (MsrlError, OSError, ValueError):
        return f"{how}, before the run {run} was done"
    found = [stamps.read(rank) for rank in range(plan.num_ranks)]
    stamps.close()
    saved = checkpoint.list_checkpoints(Path(run) / checkpoint.FOLDER)
    last = str(saved[-1]) if saved else plan.resume
    if not plan.in_one_process:
        tail = f"\nLast good checkpoint: {last}" if last else ""
        return f"the coordinator: {how}, before the job was done{tail}"
    rank = max(range(plan.num_ranks), key=lambda rank: found[rank].time_s)
    return _death(plan, Path(run), rank, found[rank], f": {how}", last)


def _death(plan: Plan, run_dir: Path, rank: int, stamp: Stamp, how: str, last: str | None) -> str:
    """Returns the message about a rank that ended together with its process."""
    from mindspore_rl.environments.crash_log import last_action  # noqa: PLC0415

    failures = Failures(plan, Watchdog(plan, 0.0))
    failures.checkpoint = last or failures.checkpoint
    fragment, replica = plan.fragment_of(rank)
    said = ""
    if stamp.stage == Stage.ENVIRONMENT:
        said = last_action(run_dir, rank, range(*fragment.shares[replica]))
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (run_dir / WORKERS_LOG).read_text(errors="replace").splitlines()
    crashes = [i for i, line in enumerate(lines) if line.startswith("Fatal Python")]
    output = lines[crashes[-1] :][:LOG_LINES] if crashes else []
    remains = Remains(output=output, actions={rank: f"{how}\n  {said}" if said else how})
    return str(failures.explain(Examine("death", rank), stamp, remains))
