"""Event loop of the coordinator: feeds the state machine and carries out its orders."""

import contextlib
import math
import os
import select
import selectors
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_rl.communication.link import Link
from mindspore_rl.environments.crash_log import last_action
from mindspore_rl.errors import JobFailure, StorageError
from mindspore_rl.plan.plan import Plan
from mindspore_rl.plan.stages import Stage, Stages
from mindspore_rl.runtime.best_checkpoint import keep_best
from mindspore_rl.runtime.checkpoint import FOLDER
from mindspore_rl.runtime.coordinator.evaluator import Evaluator
from mindspore_rl.runtime.coordinator.events import (
    Closed,
    Enough,
    Evaluated,
    Event,
    Examine,
    Fail,
    Finish,
    GiveUp,
    Heard,
    Interrupted,
    Keep,
    Log,
    Logged,
    Note,
    Remains,
    Saved,
    Tell,
    Tick,
)
from mindspore_rl.runtime.coordinator.interruption import Interruption
from mindspore_rl.runtime.coordinator.launch import JobProcesses
from mindspore_rl.runtime.coordinator.messages import check
from mindspore_rl.runtime.coordinator.metrics import Metrics
from mindspore_rl.runtime.coordinator.stall_detector import find_stopped
from mindspore_rl.runtime.coordinator.state_machine import JobOptions, Monitor, Outcome
from mindspore_rl.runtime.heartbeat import Stamp, Stamps

TICK_S = 0.2
HASTEN_AFTER_S = 5.0
"""Wait for the last evaluations after which their process gets the priority of this one."""
STRANGERS = 16
"""Connections, beyond the number of ranks, that may wait for a hello; then the oldest is closed."""


@dataclass
class Peer:
    """A connection; its `rank` is known once its hello has arrived."""

    link: Link
    rank: int | None = None


class Watch:
    """The event loop: feeds sockets, clock and processes to a job's monitor and obeys its orders.

    Args:
        interruption: counts the user's signals.
        here: whether the ranks run in this process.
        evaluator: evaluates checkpoints; None: none does.

    Attributes:
        error: the exception of the user's function, to be raised once the job has ended.
    """

    def __init__(
        self,
        plan: Plan,
        options: JobOptions,
        metrics: Metrics,
        stamps: Stamps,
        interruption: Interruption,
        run_dir: Path,
        here: bool = False,
        evaluator: Evaluator | None = None,
    ) -> None:
        self.plan, self.options, self.metrics = plan, options, metrics
        self.interruption = interruption
        self.monitor = Monitor(plan, options, time.monotonic(), here)
        self._stamps, self._run_dir = stamps, run_dir
        self._evaluator = evaluator
        self._processes: JobProcesses | None = None
        self._listener: socket.socket | None = None
        self._peers: list[Peer] = []
        self._finished = self._enough = False
        self.error: Exception | None = None
        self._stages = Stages(plan).words
        self._selector = selectors.DefaultSelector()
        self._selector.register(interruption.socket, selectors.EVENT_READ)
        # It returns processes in the order in which they ended; links may close in another one.
        self._ended, self._rank_of_pidfd = select.epoll(), dict[int, int]()

    def listen(self, listener: socket.socket, processes: JobProcesses) -> None:
        """Accepts ranks from now on, and watches the processes that start them."""
        self._listener, self._processes = listener, processes
        self._selector.register(listener, selectors.EVENT_READ)

    def add(self, peer: Peer) -> None:
        """Adds a connection."""
        self._peers.append(peer)
        self._selector.register(peer.link.connection, selectors.EVENT_READ, peer)

    def close(self) -> None:
        """Closes all connections."""
        self._selector.close()
        self._ended.close()
        for pidfd in self._rank_of_pidfd:
            os.close(pidfd)
        for peer in self._peers:
            peer.link.close()

    def outcome(self) -> Outcome:
        """Returns how the job ended, once it has."""
        return self.monitor.outcome(self.metrics.mean_return, self.interruption.poll() > 0)

    def step(self) -> bool:
        """Waits for an event, at most one tick, and handles it.

        Returns: whether every rank has finished (or the rank in this process has ended).

        Raises:
            JobFailure: the first failure.
            KeyboardInterrupt: the job must end at once.
        """
        ready = self._selector.select(TICK_S)
        now = time.monotonic()
        if count := self.interruption.poll():
            self._on(Interrupted(count), now)
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif key.data is not None and key.data in self._peers:
                self._read(key.data, now)
        self._look_at_evaluations(now)
        self._on(self._tick(), now)
        return self._finished

    def _accept(self) -> None:
        assert self._listener is not None and self._processes is not None
        strangers = [peer for peer in self._peers if not peer.link.known]
        if len(strangers) >= STRANGERS + self.plan.num_ranks:
            self._drop(strangers[0])
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the peer has closed it again, or too many files are open
            if strangers:
                self._drop(strangers[-1])
            return
        self.add(Peer(Link(connection, self._processes.token)))

    def _drop(self, peer: Peer) -> None:
        """Closes a connection that has not said hello; the monitor is not told."""
        self._peers.remove(peer)
        self._selector.unregister(peer.link.connection)
        peer.link.close()

    def _tick(self) -> Tick:
        stamps = {rank: self._stamps.read(rank) for rank in range(self.plan.num_ranks)}
        processes = self._processes
        if processes is None or processes.mpiexec is None:
            return Tick(stamps)
        living = frozenset(processes.living_ranks()) if self.monitor.silent else None
        scheduler = processes.scheduler.poll() if processes.scheduler is not None else None
        ended = tuple(self._rank_of_pidfd[pidfd] for pidfd, _ in self._ended.poll(0))
        return Tick(stamps, processes.mpiexec.poll(), scheduler, living, ended)

    def _follow(self, rank: int, pid: int) -> None:
        """Notices from now on when a rank of this machine ends."""
        with contextlib.suppress(OSError):  # it has ended, or the kernel permits it not
            pidfd = os.pidfd_open(pid)
            self._rank_of_pidfd[pidfd] = rank
            self._ended.register(pidfd, select.EPOLLIN)

    def _read(self, peer: Peer, now: float) -> None:
        while (message := self._next(peer, now)) is not None:
            self._hear(peer, message, now)
        if not peer.link.closed:
            return
        if peer.rank is None:
            self._drop(peer)
        else:
            self._selector.unregister(peer.link.connection)
            self._on(Closed(peer.rank, peer.link.lost), now)

    def _next(self, peer: Peer, now: float) -> dict[str, Any] | None:
        """Returns the next message, if any. Raises: JobFailure: the message is invalid."""
        try:
            if (message := peer.link.poll()) is not None:
                taken = [other.rank for other in self._peers if other.rank is not None]
                check(message, peer.rank, taken, self.plan.num_ranks, len(self._stages))
        except ValueError as error:
            if peer.rank is None:
                raise JobFailure(f"a process that has the job's token sent {error}") from error
            stamp = self._stamps.read(peer.rank)
            failure = {"iteration": stamp.iteration, "stage": self._stages[stamp.stage]}
            failure |= {"message": f"it sent {error}", "traceback": ""}
            failure |= {"mistake": False, "symptom": False, "echo": False}
            self._on(Heard(peer.rank, {"kind": "error", **failure}), now)
            return None
        return message

    def _hear(self, peer: Peer, message: dict[str, Any], now: float) -> None:
        if message["kind"] == "hello":
            peer.rank = message["rank"]
            if self._processes is not None and self.plan.same_host(message["rank"], 0):
                self._follow(message["rank"], message["pid"])
        assert peer.rank is not None
        if message["kind"] == "stamp":
            stamp = (message[key] for key in ("iteration", "stage", "age_s"))
            self._stamps.write(peer.rank, *stamp)
        elif message["kind"] == "iteration" and self.plan.hosts:
            # The next stamp may still be under way, and the last one may be old.
            self._stamps.write(peer.rank, message["iteration"], Stage.BOUNDARY)
        self._on(Heard(peer.rank, message), now)

    def _on(self, event: Event, now: float) -> None:
        for order in self.monitor.on(event, now):
            match order:
                case Tell(kind):
                    self._tell(self.plan.leader, kind)
                case Keep():
                    self.metrics.keep()
                    self._tell(0, "logged")
                case Note(text):
                    self.metrics.note(text)
                case Log():
                    line = self.metrics.log(
                        order.iteration, order.env_steps, order.values, order.episodes, order.age_s
                    )
                    self._on(Logged(self.metrics.settled_return), now)
                    self._show(line, now)
                case Saved(path, evaluate):
                    if self.options.eval_every is None:
                        self._keep_best(Path(path))
                    elif evaluate:
                        self._evaluate(Path(path))
                case Fail(failure):
                    raise failure
                case Examine():
                    raise self._examine(order)
                case Finish():
                    self._finished = True
                case GiveUp():
                    raise KeyboardInterrupt

    def _keep_best(self, path: Path) -> None:
        mean_return = self.metrics.settled_return
        if mean_return is None:
            return
        try:
            keep_best(path, mean_return)
        except OSError as error:  # the checkpoint itself is already written
            self.metrics.note(f"the best checkpoint is not kept: {error}")

    def _evaluate(self, path: Path) -> None:
        if self._evaluator is None:
            return
        try:
            self._evaluator.give(path, self.metrics.wall_s)
        except OSError as error:
            self.metrics.note(f"{path} is not evaluated: {error}")

    def _look_at_evaluations(self, now: float) -> None:
        """Records the evaluations that are done."""
        if self._evaluator is None:
            return
        for done in self._evaluator.take():
            mean_return = self.metrics.evaluated(done)
            try:
                keep_best(done.path, mean_return, self._run_dir / FOLDER)
                self._evaluator.forget(done)
            except OSError as error:
                self.metrics.note(f"the best checkpoint is not kept: {error}")
            if not self._finished:
                self._on(Evaluated(mean_return, done.env_steps), now)
        if failed := self._evaluator.failed():
            self.metrics.note(f"{failed}; the job goes on without evaluations")
            self._evaluator = None

    def evaluate_rest(self) -> None:
        """Waits for the evaluations of the last checkpoints, until the user interrupts it."""
        if self._evaluator is not None and self._evaluator.waiting and self.options.progress:
            self.metrics.note("Evaluating the last checkpoints; interrupt to leave them out.")
        since, waiting, hasten_at = time.monotonic(), 0, time.monotonic() + HASTEN_AFTER_S
        while self._evaluator is not None and self._evaluator.waiting:
            now = time.monotonic()
            if now >= hasten_at:  # other programs may keep the cores busy
                hasten_at = math.inf
                self._hasten(self._evaluator)
            if self._evaluator.waiting != waiting:
                since, waiting = now, self._evaluator.waiting
            if self.interruption.poll() or now - since > self.options.start_timeout_s:
                self.metrics.note(f"Checkpoints without an evaluation: {waiting}.")
                return
            self._evaluator.wait(TICK_S)
            self._look_at_evaluations(now)

    def _hasten(self, evaluator: Evaluator) -> None:
        try:
            evaluator.hasten()
        except StorageError as error:  # that its process has ended is told as well
            self.metrics.note(str(error))

    def _show(self, line: dict[str, Any], now: float) -> None:
        """Passes a line of metrics to the user's function, until that returns False."""
        if self._enough or self.options.on_iteration is None:
            return
        try:
            self._enough = self.options.on_iteration(line) is False
        except Exception as error:  # noqa: BLE001  (raised by `run_job`, after a checkpoint)
            self.error, self._enough = error, True
        if self._enough:
            self._on(Enough(), now)

    def _tell(self, rank: int, kind: str) -> None:
        for peer in self._peers:
            if peer.rank == rank and not peer.link.closed:
                with contextlib.suppress(OSError):  # its death is handled elsewhere
                    peer.link.send(kind)

    def _examine(self, found: Examine) -> JobFailure:
        """Collects the evidence of a failure and returns the failure that it explains."""
        stamp = self._stamps.read(found.rank) if found.rank >= 0 else None
        return self.monitor.failures.explain(found, stamp, self._remains(found, stamp))

    def _remains(self, found: Examine, stamp: Stamp | None) -> Remains:
        """Returns what the processes of a failed job, and the files of its ranks, tell of it."""
        processes = self._processes
        if found.stall is not None:
            stamps = found.stall.stamps.items()
            actions = {rank: self._last_action(rank, last) for rank, last in stamps}
            stopped = find_stopped(processes.marked()) if processes is not None else ()
            return Remains(actions=actions, stopped=stopped)
        if found.what == "death":
            # mpiexec reports only when all ranks are gone, and merges their statuses: a signal is
            # reported only if the other ranks end by themselves, as they do when their links close.
            for peer in self._peers:
                peer.link.close()
            if processes is None or stamp is None or found.lost:
                return Remains()
            processes.wait(5.0)
            log, output = processes.log(), processes.output_of(found.rank)
            action = self._last_action(found.rank, stamp) + processes.why_bus_error()
            return Remains(log=log, output=output, actions={found.rank: action})
        if processes is None:
            return Remains()
        if found.what == "mpiexec" and (mpiexec := processes.mpiexec) is not None:
            log = processes.log() + processes.why_bus_error()
            return Remains(mpiexec.poll() or 0, mpiexec.who, log=log)
        if (scheduler := processes.scheduler) is not None:
            words = processes.why_scheduler_ended()
            return Remains(scheduler.poll() or 0, scheduler.who, words=words)
        return Remains()

    def died(self, rank: int, how: str) -> JobFailure:
        """Returns the failure of a rank that could not report it itself."""
        stamp = self._stamps.read(rank)
        action = self._last_action(rank, stamp)
        return self.monitor.failures.explain(
            Examine("death", rank), stamp, Remains(actions={rank: how + action})
        )

    def _last_action(self, rank: int, stamp: Stamp) -> str:
        """Describes the last action of a rank's environments, if the rank was stepping them."""
        fragment, replica = self.plan.fragment_of(rank)
        if stamp.stage != Stage.ENVIRONMENT:
            return ""
        said = last_action(self._run_dir, rank, range(*fragment.shares[replica]))
        return f"\n  {said}" if said else ""
