"""What the coordinator knows of a running job's ranks, and what it does about it."""

import contextlib
import re
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspore_rl.communication.link import SILENCE_S, Link
from mindspore_rl.environments.last_actions import last_action
from mindspore_rl.errors import JobFailure
from mindspore_rl.plan.deployment import Deployment
from mindspore_rl.plan.plan import Plan
from mindspore_rl.plan.traffic import Counts
from mindspore_rl.runtime.coordinator.interruption import Interruption
from mindspore_rl.runtime.coordinator.launch import LOG_LINES, WORKERS_LOG, JobProcesses
from mindspore_rl.runtime.coordinator.metrics import Metrics
from mindspore_rl.runtime.coordinator.reports import AsTheyCome, InStep, Joined
from mindspore_rl.runtime.coordinator.watchdog import Watchdog
from mindspore_rl.runtime.stamps import Stamps

TICK_S = 0.2
SUSPENDED_S = 2.0
"""A tick longer than this: this process was stopped, and a stamp's age says nothing."""
LAUNCH_S, GONE_S = 10.0, 1.0
"""How long a rank may be without a process until all have had one, and after that."""
LAST_WORDS_S = 0.3
"""How long a death waits for an error message that explains it."""
MIN_EPISODES = 100
FATAL = {
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Segmentation fault": signal.SIGSEGV,
}
"""Signals by the words of Python's fault handler; mpiexec's status is all ranks' together."""


@dataclass(frozen=True)
class JobOptions:
    """How a job is run and when it ends.

    Attributes:
        total_steps: environment steps at which it ends, for the display; the plan decides.
        stop_return: mean return of the last 100 episodes that ends it, reward units.
        start_timeout_s: the deadline of every wait until all ranks have done an iteration:
            imports, forming the group and compilation; after that the plan's `timeout_s`.
        start_steps: environment steps already done, in a resumed job.
        deployment: where it runs; the plan's ranks are placed on its hosts.
    """

    progress: bool
    total_steps: int
    stop_return: float | None = None
    checkpoint_every_s: float = 60.0
    start_timeout_s: float = 300.0
    start_steps: int = 0
    deployment: Deployment = Deployment()


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        env_steps: since the start of the run, over all environments.
        mean_return: of the last 100 episodes, reward units; when the threshold was reached, if it
            was.
        stopped: `threshold`, `steps` or `interrupted`.
        checkpoint: the last one written (or resumed from).
    """

    iterations: int
    env_steps: int
    mean_return: float | None
    stopped: str
    checkpoint: str | None


class Stalled(JobFailure):
    """A rank that made no progress."""


class Unreached(JobFailure):
    """A host on which no rank could be started."""


@dataclass
class Peer:
    """A connection; who it is comes with its hello."""

    link: Link
    rank: int | None = None


class Monitor:
    """What the coordinator knows of the ranks, and what it does about it."""

    def __init__(
        self,
        plan: Plan,
        options: JobOptions,
        metrics: Metrics,
        stamps: Stamps,
        interruption: Interruption,
        run_dir: Path,
    ) -> None:
        self.plan, self.options, self.metrics = plan, options, metrics
        self.interruption = interruption
        self._stamps, self._run_dir = stamps, run_dir
        self._watchdog = Watchdog(plan, stamps, options.start_timeout_s)
        self._processes: JobProcesses | None = None
        self._listener: socket.socket | None = None
        self._peers: list[Peer] = []
        self._finished: dict[int, int] = {}
        self.traffic: dict[int, tuple[int, Counts]] = {}
        self._closed: dict[int, float] = {}
        self._ended_s: float | None = None
        self._reported: set[int] = set()
        self._joined: Joined = (
            InStep(plan.num_ranks) if plan.arrivals is None else AsTheyCome(plan.leader)
        )
        self._iteration, self._env_steps = 0, options.start_steps
        self._checkpoint: str | None = plan.resume or None
        self._checkpoint_s = self._ticked_s = self._awake_s = time.monotonic()
        self._whole_s, self._all_launched = time.monotonic(), False
        self._stop_deadline_s: float | None = None
        self._reached: float | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(interruption.socket, selectors.EVENT_READ)

    def listen(self, listener: socket.socket, processes: JobProcesses) -> None:
        """Accepts ranks from now on, and watches the processes that start them."""
        self._listener, self._processes = listener, processes
        self._selector.register(listener, selectors.EVENT_READ)

    def add(self, peer: Peer) -> None:
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
        stopped = "steps" if self._reached is None else "threshold"
        return Outcome(
            self._finished.get(self.plan.leader, self._iteration),
            self._env_steps,
            self.metrics.mean_return if self._reached is None else self._reached,
            "interrupted" if self.interruption.poll() else stopped,
            self._checkpoint,
        )

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
                self.add(Peer(Link(self._listener.accept()[0])))
            elif key.data is not None:
                self._read(key.data)
        if len(self._finished) == self.plan.num_ranks or (self._closed and not self._processes):
            if reports := self._joined.rest():
                self._log(reports)
            return True
        self._look_for_deaths(now)
        self._look_for_stalls(now)
        self._ask_for_checkpoint(now)
        return False

    # ---- messages --------------------------------------------------------------------------

    def _read(self, peer: Peer) -> None:
        try:
            while (message := peer.link.poll()) is not None:
                self._handle(peer, message)
        except (ValueError, TypeError, KeyError):
            if peer.rank is not None:
                raise
            peer.link.closed = True  # a stranger at the port
        if peer.link.closed:
            self._selector.unregister(peer.link.connection)
            if peer.rank is not None and peer.rank not in self._finished:
                self._closed[peer.rank] = time.monotonic()

    def _handle(self, peer: Peer, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "hello":
                peer.rank = message["rank"]
                if self._processes is not None:
                    self._processes.remove_in_the_end(message.get("segments", []))
            case "stamp":
                stamp = (message[key] for key in ("rank", "iteration", "stage", "age_s"))
                self._stamps.write(*stamp)
            case "iteration":
                if self.plan.hosts:  # its next stamp is on its way, and this one may be old
                    boundary = self.plan.stages().index("the iteration boundary")
                    self._stamps.write(message["rank"], message["iteration"], boundary)
                self._report(message)
            case "checkpoint":
                self._checkpoint = message["path"]
            case "note":
                self.metrics.note(
                    f"{self.plan.rank_name(message['rank'])}, iteration "
                    f"{message['iteration']}: {message['note']}"
                )
            case "finished":
                self._finished[message["rank"]] = message["iteration"]
                self.traffic[message["rank"]] = (message["iterations_here"], message["traffic"])
            case "error":
                raise self._failure(
                    message["rank"],
                    message["iteration"],
                    message["stage"],
                    message["message"],
                    "" if message["mistake"] else message["traceback"],
                    message["mistake"],
                )

    def _report(self, message: dict[str, Any]) -> None:
        """Records what the ranks have reported, an iteration at a time."""
        self._reported.add(message["rank"])
        reports = self._joined.add(message)
        if reports:
            self._log(reports)

    def _log(self, reports: list[dict[str, Any]]) -> None:
        values: dict[str, float] = {}
        for report in reports:
            values |= report["metrics"]
        self._iteration = reports[-1]["iteration"]
        self._env_steps = reports[-1]["env_steps"]
        self.metrics.log(
            self._iteration,
            self._env_steps,
            values,
            [
                (episode_return, length)
                for report in reports
                for episode_return, length in report["episodes"]
            ],
            reports[-1].get("age_s", 0.0),
        )
        goal, mean_return = self.options.stop_return, self.metrics.mean_return
        if (
            goal is not None
            and mean_return is not None
            and self._reached is None
            and self.metrics.episodes_seen >= MIN_EPISODES
            and mean_return >= goal
        ):
            self._reached = mean_return
            self._tell_leader("stop")

    def _tell_leader(self, kind: str) -> bool:
        """Returns: whether the leader is there to hear it."""
        for peer in self._peers:
            if peer.rank == self.plan.leader and not peer.link.closed:
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
            self._stop_deadline_s = now + self.plan.timeout_s
            if count == 1 and self._tell_leader("stop"):
                self.metrics.note(
                    "Stopping after this iteration, with a checkpoint; interrupt "
                    "again to stop at once."
                )
                return
            raise KeyboardInterrupt
        if count > 1:
            raise KeyboardInterrupt
        if now > self._stop_deadline_s:
            self.metrics.note("The iteration does not end: stopping without another checkpoint.")
            raise KeyboardInterrupt

    # ---- failures --------------------------------------------------------------------------

    def _failure(
        self,
        rank: int,
        iteration: int,
        stage: str,
        message: str,
        trace: str = "",
        mistake: bool = False,
        kind: Callable[..., JobFailure] = JobFailure,
    ) -> JobFailure:
        where = f"iteration {iteration}, {stage}" if iteration >= 0 else stage
        return self._job_failure(
            f"{self.plan.rank_name(rank)}, {where}: {message}", trace, mistake, kind
        )

    def _job_failure(
        self,
        text: str,
        trace: str = "",
        mistake: bool = False,
        kind: Callable[..., JobFailure] = JobFailure,
    ) -> JobFailure:
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
            silent = self._silent_hosts()
            raise self._job_failure(
                f"mpiexec ended ({_ending(mpiexec.returncode)}) before the job{silent}",
                "\n".join(
                    [f"The end of {WORKERS_LOG}:", *self._processes.log().splitlines()[-LOG_LINES:]]
                ),
                kind=Unreached if silent else JobFailure,
            )
        waiting_for = set(self.plan.group_ranks) - set(self._finished)
        if scheduler is not None and scheduler.poll() is not None and waiting_for:
            raise self._job_failure(
                f"the MindSpore scheduler (pid {scheduler.pid}) ended "
                f"({_ending(scheduler.returncode)}) before "
                f"{self.plan.rank_name(min(waiting_for))}: {self._processes.why_scheduler_ended()}"
            )
        self._look_for_deaths_before_hello(now)

    def _look_for_deaths_before_hello(self, now: float) -> None:
        """Notices a rank that dies, say, in its imports: it closes no link, and others wait."""
        here = {rank for rank in range(self.plan.num_ranks) if self.plan.same_host(rank, 0)}
        silent = here - {peer.rank for peer in self._peers}
        if not silent or self._processes is None:
            return
        missing = silent - self._processes.living_ranks()
        if not missing:
            self._whole_s, self._all_launched = now, True
        elif now - self._whole_s > (GONE_S if self._all_launched else LAUNCH_S):
            raise self._death(min(missing))

    def _silent_hosts(self) -> str:
        """Names the hosts of which no rank has said hello."""
        heard = {
            self.plan.hosts[p.rank] for p in self._peers if p.rank is not None and self.plan.hosts
        }
        silent = [host for host in dict.fromkeys(self.plan.hosts) if host not in heard]
        return f"; no rank on {', '.join(silent)} has started" if silent else ""

    def _death(self, rank: int) -> JobFailure:
        """The failure of a rank that closed its link, with what killed it if that can be had.

        mpiexec tells when all ranks are gone, and merges their statuses: a signal stays legible if
        the others end by themselves, as they do when their links close.
        """
        processes = self._processes
        assert processes is not None
        lost = next((p.link.lost for p in self._peers if p.rank == rank), "")
        for peer in self._peers:
            peer.link.close()
        stamp = self._stamps.read(rank)
        if lost:
            host = f"host {self.plan.hosts[rank]}" if self.plan.hosts else "its host"
            return self._failure(
                rank,
                stamp.iteration,
                self._watchdog.stages[stamp.stage],
                f"{host} has not been heard of for {SILENCE_S} s ({lost}); is it up, and its "
                "network connected?",
            )
        processes.wait(5.0)
        found = re.search(r"EXIT STRING: .*\(signal (\d+)\)", processes.log())
        output = processes.output_of(rank)
        number = _fatal_signal(output) or (found and found[1])
        how = f"died (killed by signal {number})" if number else "died"
        how += self._last_action(rank, self._watchdog.stages[stamp.stage])
        return self._failure(
            rank,
            stamp.iteration,
            self._watchdog.stages[stamp.stage],
            how,
            "\n".join(["It printed:", *output] if output else []),
        )

    def _look_for_stalls(self, now: float) -> None:
        started = len(self._reported) == self.plan.num_ranks
        found = self._watchdog.stall(
            now, started=started, finished=self._finished, awake_s=self._awake_s
        )
        if found is not None:
            text = found.text + self._last_action(found.rank, found.stage)
            raise self._failure(found.rank, found.iteration, found.stage, text, kind=Stalled)

    def _last_action(self, rank: int, stage: str) -> str:
        """What the environments of a rank were doing, if that is where it was."""
        fragment, replica = self.plan.fragment_of(rank)
        if stage != "the environment":
            return ""
        said = last_action(self._run_dir, rank, range(*fragment.shares[replica]))
        return f"\n  {said}" if said else ""


def _fatal_signal(output: list[str]) -> int | None:
    """The signal that Python's fault handler told of, in a rank's last words."""
    for line in output:
        name = line.partition("Fatal Python error: ")[2].strip()
        if name in FATAL:
            return int(FATAL[name])
    return None


def _ending(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
