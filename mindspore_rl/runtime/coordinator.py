"""Runs a job: starts its ranks, watches them, records what they report, and ends them.

First failure wins. The coordinator takes no part in the training: all that it does to it is to ask
rank 0 for a checkpoint or for an end, at an iteration boundary.
"""

import _thread
import contextlib
import os
import re
import selectors
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from mindspore_rl.communication.link import Link
from mindspore_rl.errors import JobFailure, MsrlError
from mindspore_rl.lowering.plan import Plan
from mindspore_rl.runtime.launch import (
    HOST,
    LOG_LINES,
    WORKERS_LOG,
    Commands,
    JobProcesses,
    pin_cores,
)
from mindspore_rl.runtime.metrics import Metrics
from mindspore_rl.runtime.stamps import Stamp, Stamps

LEADER = 0
TICK_S = 0.2
SUSPENDED_S = 2.0
"""A tick longer than this: this process was stopped, and a stamp's age says nothing."""
LAST_WORDS_S = 0.3
"""How long a death waits for an error message that explains it."""
STOP_S = 10.0
MIN_EPISODES = 100
NAMED_RANKS = 4
INTERRUPTED_EXIT = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class JobOptions:
    """How a job is run and when it ends.

    Attributes:
        total_steps: environment steps at which it ends, for the display; the plan decides.
        stop_return: mean return of the last 100 episodes that ends it, reward units.
        start_timeout_s: the deadline of every wait until all ranks have done an iteration:
            imports, forming the group and compilation; after that the plan's `timeout_s`.
        start_steps: environment steps already done, in a resumed job.
    """

    progress: bool
    total_steps: int
    stop_return: float | None = None
    checkpoint_every_s: float = 60.0
    start_timeout_s: float = 300.0
    start_steps: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        env_steps: since the start of the run, over all environments.
        mean_return: of the last 100 episodes, reward units.
        stopped: `threshold`, `steps` or `interrupted`.
        checkpoint: the last one written (or resumed from).
    """

    iterations: int
    env_steps: int
    mean_return: float | None
    stopped: str
    checkpoint: str | None


def run_job(plan: Plan, run_dir: Path, options: JobOptions, commands: Commands | None = None
            ) -> Outcome:
    """Runs a plan to its end; whatever the outcome, no process of the job is left.

    Args:
        plan: the job.
        run_dir: holds its `plan.json` and fragments.
        options: how it is run and when it ends.
        commands: what to start instead of the workers and the scheduler (tests).

    Returns: how it ended; a job that was interrupted is no failure.

    Raises:
        JobFailure: a rank failed, died or made no progress.
        MsrlError: it cannot be started.
    """
    with contextlib.ExitStack() as stack:
        interruption = stack.enter_context(_Interruption())
        metrics = Metrics(run_dir, options.total_steps, options.progress, options.start_steps)
        stack.callback(metrics.close)
        stamps = Stamps(run_dir, plan.num_ranks, create=True)
        stack.callback(stamps.close)
        monitor = _Monitor(plan, options, metrics, stamps, interruption)
        stack.callback(monitor.close)
        if plan.num_ranks == 1 or not plan.compiled:
            _run_here(monitor, run_dir)
        else:
            _run_ranks(monitor, run_dir, commands or Commands())
        return monitor.outcome()


def _run_ranks(monitor: "_Monitor", run_dir: Path, commands: Commands) -> None:
    """Runs the ranks under mpiexec."""
    plan = monitor.plan
    with (pin_cores(plan.num_ranks) as cores,
          socket.create_server((HOST, 0), backlog=plan.num_ranks) as listener,
          JobProcesses(plan, run_dir, commands) as processes):  # ended first
        monitor.listen(listener, processes)
        processes.start(listener.getsockname()[1], cores)
        try:
            while not monitor.step():
                pass
        except KeyboardInterrupt:
            return
        processes.wait(5.0)  # MPI's own shutdown


def _run_here(monitor: "_Monitor", run_dir: Path) -> None:
    """Runs a job of one rank in this thread (or uncompiled ranks as threads of this process), and
    the monitor in a second one.
    """
    from mindspore_rl.runtime.worker import run_inproc, run_worker  # noqa: PLC0415

    pairs = [tuple(map(Link, socket.socketpair())) for _ in range(monitor.plan.num_ranks)]
    ours, theirs = pairs[LEADER]
    for rank, (link, _) in enumerate(pairs):
        monitor.add(_Peer(link, rank))
    ended = threading.Event()
    failures: list[Exception] = []

    def watch() -> None:
        try:
            while not monitor.step():
                pass
        except _Stalled as failure:
            # Nothing can end a thread that hangs in a cell or in an environment but the end of
            # the process. (A hang that holds the interpreter's lock is out of reach even so.)
            monitor.metrics.note(str(failure))
            monitor.metrics.close()
            os._exit(failure.exit_code)
        except KeyboardInterrupt:
            _thread.interrupt_main()
            if not ended.wait(2.0):
                monitor.metrics.note("Interrupted.")
                monitor.metrics.close()
                os._exit(INTERRUPTED_EXIT)
        except Exception as error:  # noqa: BLE001  (raised below, in the main thread)
            failures.append(error)
            with contextlib.suppress(OSError):
                ours.send("stop")
            ours.close()

    watcher = threading.Thread(target=watch, name="monitor")
    watcher.start()
    interrupted = False
    try:
        with monitor.interruption.raised_at_second():
            if len(pairs) == 1:
                run_worker(monitor.plan, run_dir, rank=LEADER, link=theirs)
            else:
                run_inproc(monitor.plan, run_dir, [link for _, link in pairs])
    except KeyboardInterrupt:
        interrupted = True
    except (Exception, SystemExit) as error:
        with contextlib.suppress(OSError):  # ignored if the worker has reported it already
            theirs.send("error", rank=LEADER, iteration=-1, stage="starting", message=str(error),
                        traceback=traceback.format_exc(), mistake=isinstance(error, MsrlError))
        watcher.join()
        if failures:
            raise failures[0] from error
        raise
    finally:
        ended.set()
        for _, link in pairs:
            link.close()
        watcher.join()
    if failures and not interrupted:
        raise failures[0]


class _Interruption:
    """Counts SIGINT and SIGTERM from the moment they arrive.

    A Python handler runs only when the main thread is back from native code; the wake-up socket
    tells the monitor's thread at once.
    """

    def __init__(self) -> None:
        self._count = 0
        self._handled = 0
        self._raise = False
        self.socket, self._wakeup = socket.socketpair()
        self.socket.setblocking(False)
        self._wakeup.setblocking(False)

    def __enter__(self) -> "_Interruption":
        self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        self._previous_wakeup = signal.set_wakeup_fd(
            self._wakeup.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous_wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self.socket.close()
        self._wakeup.close()

    def poll(self) -> int:
        """How many arrived until now."""
        with contextlib.suppress(BlockingIOError):
            self._count += sum(byte in SIGNALS for byte in self.socket.recv(1 << 10))
        return self._count

    @contextlib.contextmanager
    def raised_at_second(self) -> Iterator[None]:
        """Raises KeyboardInterrupt in the main thread at the second one."""
        self._raise = True
        try:
            yield
        finally:
            self._raise = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._handled += 1
        if self._raise and self._handled == 2:
            raise KeyboardInterrupt


class _Stalled(JobFailure):
    """A rank that made no progress."""


@dataclass
class _Peer:
    """A connection; who it is comes with its hello."""

    link: Link
    rank: int | None = None


class _Monitor:
    """What the coordinator knows of the ranks, and what it does about it."""

    def __init__(self, plan: Plan, options: JobOptions, metrics: Metrics, stamps: Stamps,
                 interruption: _Interruption) -> None:
        self.plan, self.options, self.metrics = plan, options, metrics
        self.interruption = interruption
        self._stamps = stamps
        self._stages = plan.stages()
        self._processes: JobProcesses | None = None
        self._listener: socket.socket | None = None
        self._peers: list[_Peer] = []
        self._finished: dict[int, int] = {}
        self._closed: dict[int, float] = {}
        self._ended_s: float | None = None
        self._reported: set[int] = set()
        self._reports: dict[int, dict[int, dict[str, Any]]] = {}
        self._iteration, self._env_steps = 0, options.start_steps
        self._checkpoint: str | None = plan.resume or None
        self._checkpoint_s = self._ticked_s = self._awake_s = time.monotonic()
        self._stop_deadline_s: float | None = None
        self._threshold = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(interruption.socket, selectors.EVENT_READ)

    def listen(self, listener: socket.socket, processes: JobProcesses) -> None:
        """Accepts ranks from now on, and watches the processes that start them."""
        self._listener, self._processes = listener, processes
        self._selector.register(listener, selectors.EVENT_READ)

    def add(self, peer: _Peer) -> None:
        """Takes a connection."""
        self._peers.append(peer)
        self._selector.register(peer.link.connection, selectors.EVENT_READ, peer)

    def close(self) -> None:
        """Closes all connections."""
        self._selector.close()
        for peer in self._peers:
            peer.link.close()

    def outcome(self) -> Outcome:
        """How the job ended, once it did."""
        stopped = "threshold" if self._threshold else "steps"
        return Outcome(
            self._finished.get(LEADER, self._iteration), self._env_steps, self.metrics.mean_return,
            "interrupted" if self.interruption.poll() else stopped, self._checkpoint)

    def step(self) -> bool:
        """Waits for a tick or for news, and deals with it.

        Returns: whether every rank has finished (or the rank in this process has ended).

        Raises:
            JobFailure: the first failure.
            KeyboardInterrupt: the job is to be ended at once.
        """
        ready = self._selector.select(TICK_S)
        now = time.monotonic()
        if now - self._ticked_s > SUSPENDED_S:
            self._awake_s = now
        self._ticked_s = now
        self._obey(now)
        for key, _ in ready:
            if key.fileobj is self._listener:
                assert self._listener is not None
                self.add(_Peer(Link(self._listener.accept()[0])))
            elif key.data is not None:
                self._read(key.data)
        if len(self._finished) == self.plan.num_ranks or (self._closed and not self._processes):
            return True
        self._look_for_deaths(now)
        self._look_for_stalls(now)
        self._ask_for_checkpoint(now)
        return False

    # ---- messages --------------------------------------------------------------------------

    def _read(self, peer: _Peer) -> None:
        try:
            while (message := peer.link.poll()) is not None:
                self._handle(peer, message)
        except ValueError:
            if peer.rank is not None:
                raise
            peer.link.closed = True  # a stranger at the port
        if peer.link.closed:
            self._selector.unregister(peer.link.connection)
            if peer.rank is not None and peer.rank not in self._finished:
                self._closed[peer.rank] = time.monotonic()

    def _handle(self, peer: _Peer, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "hello":
                peer.rank = message["rank"]
            case "iteration":
                self._report(message)
            case "checkpoint":
                self._checkpoint = message["path"]
            case "resumed":
                self.metrics.note(f"{self.plan.rank_name(message['rank'])}, iteration "
                                  f"{message['iteration']}: {message['note']}")
            case "finished":
                self._finished[message["rank"]] = message["iteration"]
            case "error":
                raise self._failure(
                    message["rank"], message["iteration"], message["stage"], message["message"],
                    "" if message["mistake"] else message["traceback"], message["mistake"])

    def _report(self, message: dict[str, Any]) -> None:
        """Records an iteration once all ranks, which report in order, have reported it."""
        self._reported.add(message["rank"])
        reports = self._reports.setdefault(message["iteration"], {})
        reports[message["rank"]] = message
        if len(reports) < self.plan.num_ranks:
            return
        del self._reports[message["iteration"]]
        values: dict[str, float] = {}
        for rank in sorted(reports):
            values |= reports[rank]["metrics"]
        self._iteration = message["iteration"]
        self._env_steps = max(report["env_steps"] for report in reports.values())
        self.metrics.log(self._iteration, self._env_steps, values, [
            (episode_return, length) for rank in sorted(reports)
            for episode_return, length in reports[rank]["episodes"]])
        goal, mean_return = self.options.stop_return, self.metrics.mean_return
        if (goal is not None and mean_return is not None and not self._threshold
                and self.metrics.episodes_seen >= MIN_EPISODES and mean_return >= goal):
            self._threshold = True
            self._tell_leader("stop")

    def _tell_leader(self, kind: str) -> bool:
        """Returns: whether the leader is there to hear it."""
        for peer in self._peers:
            if peer.rank == LEADER and not peer.link.closed:
                with contextlib.suppress(OSError):  # it just died: its end is seen elsewhere
                    peer.link.send(kind)
                return True
        return False

    def _ask_for_checkpoint(self, now: float) -> None:
        if now - self._checkpoint_s >= self.options.checkpoint_every_s:
            self._checkpoint_s = now
            if len(self._reported) == self.plan.num_ranks:
                self._tell_leader("checkpoint")

    def _obey(self, now: float) -> None:
        """Passes an interruption on: to the leader at first, then to everybody."""
        count = self.interruption.poll()
        if count == 0:
            return
        if self._stop_deadline_s is None:
            self._stop_deadline_s = now + STOP_S
            if count == 1 and self._tell_leader("stop"):
                self.metrics.note("Stopping after this iteration, with a checkpoint; interrupt "
                                  "again to stop at once.")
                return
            raise KeyboardInterrupt
        if count > 1 or now > self._stop_deadline_s:
            raise KeyboardInterrupt

    # ---- failures --------------------------------------------------------------------------

    def _failure(self, rank: int, iteration: int, stage: str, message: str, trace: str = "",
                 mistake: bool = False, kind: Callable[..., JobFailure] = JobFailure
                 ) -> JobFailure:
        where = f"iteration {iteration}, {stage}" if iteration >= 0 else stage
        return self._job_failure(f"{self.plan.rank_name(rank)}, {where}: {message}", trace,
                                 mistake, kind)

    def _job_failure(self, text: str, trace: str = "", mistake: bool = False,
                     kind: Callable[..., JobFailure] = JobFailure) -> JobFailure:
        parts = [text, trace.rstrip()]
        if self._checkpoint is not None:
            parts.append(f"Last good checkpoint: {self._checkpoint}")
        return kind("\n".join(filter(None, parts)), mistake)

    def _look_for_deaths(self, now: float) -> None:
        if self._processes is None or self._processes.mpiexec is None:
            return  # one rank, in this process: if it ends, so does the monitor
        mpiexec, scheduler = self._processes.mpiexec, self._processes.scheduler
        if self._ended_s is None and (self._closed or mpiexec.poll() is not None):
            self._ended_s = now
        if self._ended_s is not None:
            if now - self._ended_s < LAST_WORDS_S:
                return
            if self._closed and not (mpiexec.poll() or 0) < 0:
                raise self._death(next(iter(self._closed)))
            raise self._job_failure(
                f"mpiexec ended ({_ending(mpiexec.returncode)}) before the job; the end of "
                f"{WORKERS_LOG}:", "\n".join(self._processes.log().splitlines()[-LOG_LINES:]))
        waiting_for = set(self.plan.group_ranks) - set(self._finished)
        if scheduler is not None and scheduler.poll() is not None and waiting_for:
            raise self._job_failure(
                f"the MindSpore scheduler (pid {scheduler.pid}) ended "
                f"({_ending(scheduler.returncode)}) before "
                f"{self.plan.rank_name(min(waiting_for))}; see scheduler.log")

    def _death(self, rank: int) -> JobFailure:
        """The failure of a rank that closed its link, with what killed it if that can be had.

        mpiexec tells when all ranks are gone, and merges their statuses: a signal stays legible if
        the others end by themselves, as they do when their links close.
        """
        processes = self._processes
        assert processes is not None
        for peer in self._peers:
            peer.link.close()
        processes.wait(1.0)
        found = re.search(r"EXIT STRING: .*\(signal (\d+)\)", processes.log())
        how = f"died (killed by signal {found[1]})" if found else "died"
        output = processes.output_of(rank)
        stamp = self._stamps.read(rank)
        return self._failure(rank, stamp.iteration, self._stages[stamp.stage], how,
                             "\n".join(["It printed:", *output] if output else []))

    # ---- the watchdog ----------------------------------------------------------------------

    def _look_for_stalls(self, now: float) -> None:
        started = len(self._reported) == self.plan.num_ranks
        deadline_s = self.plan.timeout_s if started else self.options.start_timeout_s
        stamps = {rank: self._stamps.read(rank) for rank in range(self.plan.num_ranks)}
        ages = {rank: now - max(stamp.time_s, self._awake_s) for rank, stamp in stamps.items()
                if rank not in self._finished}
        if max(ages.values()) > deadline_s:
            name = "timeout_s" if started else "start_timeout_s"
            raise self._stall(stamps, ages, deadline_s, name)

    def _stall(self, stamps: dict[int, Stamp], ages: dict[int, float], deadline_s: float, name: str
               ) -> JobFailure:
        """Blames a rank that hangs in its own work before any that wait for others."""
        suspects = [rank for rank, age in ages.items() if age > deadline_s
                    or (age > deadline_s / 2 and not self._waits(rank, stamps[rank]))]
        blamed = min(suspects, key=lambda rank: (self._waits(rank, stamps[rank]), -ages[rank]))
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - ages[blamed]))
        lines = [f"no progress for {ages[blamed]:.1f} s, since {since} ({name}: {deadline_s:g}; if "
                 "it is only slow, raise that)"]
        waiting = [rank for rank, age in sorted(ages.items(), key=lambda item: -item[1])
                   if age > deadline_s / 2 and self._waits(rank, stamps[rank])]
        if waiting:
            lines += [f"  waited for: {self._stages[stamps[waiting[0]].stage]}",
                      f"  waiting: {self._list(waiting, stamps)}"]
            place = stamps[waiting[0]]
            missing = [rank for rank, stamp in stamps.items()
                       if stamp.iteration < place.iteration or stamp.stage != place.stage]
            missing.sort(key=lambda rank: rank != blamed)
            lines.append(f"  missing: {self._list(missing, stamps) or 'nobody'}")
        stamp = stamps[blamed]
        return self._failure(blamed, stamp.iteration, self._stages[stamp.stage], "\n".join(lines),
                             kind=_Stalled)

    def _waits(self, rank: int, stamp: Stamp) -> bool:
        """Whether a rank's stage ends only when others do something."""
        fragment, _ = self.plan.fragment_of(rank)
        stage = self._stages[stamp.stage]
        return (stage.startswith("edge ") or stage == "the iteration boundary"
                or stage in {f"cell {name} of {fragment.name}" for name in fragment.collectives})

    def _list(self, ranks: list[int], stamps: dict[int, Stamp]) -> str:
        named = [f"{self.plan.rank_name(rank)} in {self._stages[stamps[rank].stage]}, iteration "
                 f"{stamps[rank].iteration}" for rank in ranks[:NAMED_RANKS]]
        if len(ranks) > NAMED_RANKS:
            named.append(f"and {len(ranks) - NAMED_RANKS} more")
        return "; ".join(named)


def _ending(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
