"""State machine of a job: events in, orders out.

This module reads no clock, socket, file or process: `event_loop.py` does, and carries out the
orders.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspore_rl.plan.deployment import Deployment
from mindspore_rl.plan.plan import Plan
from mindspore_rl.plan.traffic import Counts
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
    Order,
    Saved,
    Tell,
    Tick,
)
from mindspore_rl.runtime.coordinator.failures import Failures
from mindspore_rl.runtime.coordinator.reports import AsTheyCome, InStep, Joined, Report
from mindspore_rl.runtime.coordinator.root_cause import LAST_WORDS_S, Causes
from mindspore_rl.runtime.coordinator.stall_detector import Watchdog

SUSPENDED_S = 2.0
"""After a longer tick this process was suspended, and the age of a stamp says nothing."""
LAUNCH_S, GONE_S = 10.0, 1.0
"""Seconds that a rank may lack a process before all ranks have had one, and after that."""
MOST_EVALUATIONS = 10
"""While as many checkpoints wait for their evaluation, no more are given to it."""


@dataclass(frozen=True)
class JobOptions:
    """Options of a job: how it is run and when it ends.

    Attributes:
        total_steps: environment steps at which the job ends, for the display; the plan decides.
        stop_return: mean return at which the job ends, reward units: of the last 100 episodes, or
            of an evaluation if there are any.
        start_timeout_s: the deadline of every wait until every rank has done an iteration: imports,
            forming the group and compilation; after that the plan's `timeout_s` holds.
        start_steps: environment steps already done, in a resumed job.
        deployment: the hosts on which the plan's ranks are placed.
        on_iteration: called with a copy of each line of metrics; the job ends once it returns
            False.
        tell: called with `ends` and the exit code if this process must end at once; returns whether
            the message was delivered.
        wandb: project of Weights & Biases that gets the metrics; empty: none.
        eval_every: environment steps between two evaluations; None: there are none.
        eval_episodes: number of episodes of an evaluation.
    """

    progress: bool
    total_steps: int
    stop_return: float | None = None
    checkpoint_every_s: float = 60.0
    start_timeout_s: float = 300.0
    start_steps: int = 0
    deployment: Deployment = Deployment()
    on_iteration: Callable[[dict[str, Any]], object] | None = None
    tell: Callable[[str, object], bool] = lambda what, value: True
    wandb: str = ""
    eval_every: int | None = None
    eval_episodes: int = 10


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: why it ended and how far it came.

    Attributes:
        env_steps: since the start of the run, over all environments.
        mean_return: of the last 100 episodes, reward units; if the threshold was reached, the mean
            return that reached it.
        measured_at: the `env_steps` of that mean return.
        stopped: `threshold`, `steps`, `on_iteration` or `interrupted`.
        checkpoint: the last one written (or resumed from).
    """

    iterations: int
    env_steps: int
    mean_return: float | None
    measured_at: int
    stopped: str
    checkpoint: str | None


class Monitor:
    """State machine that follows a job from its first event to its end.

    Args:
        plan: the job.
        options: how the job is run and when it ends.
        now: the time in seconds, on any clock.
        here: whether the ranks are in this process.
    """

    def __init__(self, plan: Plan, options: JobOptions, now: float, here: bool = False) -> None:
        self.plan, self.options, self._here = plan, options, here
        self.traffic: dict[int, tuple[int, Counts]] = {}
        self._watchdog = Watchdog(plan, options.start_timeout_s)
        self.failures = Failures(plan, self._watchdog)
        self._finished = self.failures.finished
        self._joined: Joined = (
            InStep(plan.num_ranks) if plan.arrivals is None else AsTheyCome(plan.leader)
        )
        self._known: set[int] = set(range(plan.num_ranks)) if here else set()
        self._causes = Causes(plan)
        self._heard: dict[int, float] = {}
        self._gone: dict[int, str] = {}
        self._died: list[int] = []
        self._reported: set[int] = set()
        self._saving: set[int] = set()
        self._ended_s: float | None = None
        self._iteration, self._env_steps = 0, options.start_steps
        self._ordered = 0  # the iteration after which the last checkpoint was asked for
        self._evaluate_at, self._evaluate_from, self._evaluations = 0.0, math.inf, 0
        self._plan_evaluation()
        self._checkpoint_s = self._ticked_s = self._awake_s = now
        self._missed_s: float | None = now
        self._all_launched = False
        self._stop_deadline_s: float | None = None
        self._reached: tuple[float, int] | None = None
        self._enough = False

    @property
    def silent(self) -> set[int]:
        """Ranks of this machine without a hello; the event loop looks up their processes."""
        local = {rank for rank in range(self.plan.num_ranks) if self.plan.same_host(rank, 0)}
        return local - self._known

    def on(self, event: Event, now: float) -> list[Order]:
        """Handles an event. Returns: orders; after `Fail`, `Examine`, `Finish`, `GiveUp` none."""
        match event:
            case Heard(rank, message):
                return self._hear(rank, message, now)
            case Closed(rank, lost):
                self._gone[rank] = lost
                if rank not in self._finished:
                    self._died.append(rank)
                return []
            case Interrupted(count):
                return self._obey(count, now)
            case Logged(settled):
                return [] if self.options.eval_every else self._reach(settled, self._env_steps)
            case Evaluated(mean_return, env_steps):
                self._evaluations -= 1
                return self._reach(mean_return, env_steps)
            case Enough():
                self._enough = True
                return self._tell_leader("stop")
            case Tick():
                return self._tick(event, now)

    def outcome(self, mean_return: float | None, interrupted: bool) -> Outcome:
        """Returns how the job ended, once it has; `mean_return` is the current one."""
        ended = "on_iteration" if self._enough else "steps"
        stopped = ended if self._reached is None else "threshold"
        return Outcome(
            self._finished.get(self.plan.leader, self._iteration),
            self._env_steps,
            *(self._reached or (mean_return, self._env_steps)),
            "interrupted" if interrupted else stopped,
            self.failures.checkpoint,
        )

    def _tick(self, tick: Tick, now: float) -> list[Order]:
        if now - self._ticked_s > SUSPENDED_S:
            self._awake_s = now
        self._ticked_s = now
        if self._causes:
            if not (found := self._causes.found(now, self._gone)):
                return []
            silent = [rank for rank in self._died if rank not in self._causes]
            if found[1]["echo"] and silent:
                return [self._death(silent, tick)]
            return [Fail(self.failures.told(*found))]
        if len(self._finished) == self.plan.num_ranks or (self._died and self._here):
            return [*self._line(self._joined.rest()), Finish()]
        if not self._here and (deaths := self._look_for_deaths(tick, now)):
            return deaths
        started = len(self._reported) == self.plan.num_ranks
        stall = self._watchdog.stall(
            tick.stamps,
            now,
            started=started,
            finished=self._finished,
            awake_s=self._awake_s,
            heard=self._heard,
        )
        if stall is not None:
            return [Examine("stall", stall=stall)]
        if not started:
            self._checkpoint_s = now
        # One checkpoint an iteration suffices: orders in direct succession would keep the leader
        # from the next iteration.
        fresh = self._iteration > self._ordered
        evaluate = self._env_steps >= self._evaluate_at and self._evaluations < MOST_EVALUATIONS
        if fresh and (evaluate or now - self._checkpoint_s >= self.options.checkpoint_every_s):
            self._checkpoint_s, self._ordered = now, self._iteration
            if evaluate:
                self._evaluate_from = self._iteration
                self._plan_evaluation()
            return self._tell_leader("checkpoint")
        return []

    def _plan_evaluation(self) -> None:
        """Sets the steps of the next evaluation, the next multiple of `eval_every`."""
        every = self.options.eval_every
        self._evaluate_at = (self._env_steps // every + 1) * every if every else math.inf

    # ---- messages --------------------------------------------------------------------------

    def _hear(self, rank: int, message: dict[str, Any], now: float) -> list[Order]:
        match message["kind"]:
            case "hello":
                self._known.add(rank)
                self.failures.proxies[rank] = message["host"], message["proxy"]
            case "stamp":
                self._heard[rank] = now
            case "iteration":
                self._reported.add(rank)
                return self._line(self._joined.add(message))
            case "saving":  # when all are, all have reported what the checkpoint has
                self._saving.add(rank)
                if len(self._saving) == self.plan.num_ranks:
                    self._saving.clear()
                    return [*self._line(self._joined.rest()), Keep()]
            case "checkpoint":
                self.failures.checkpoint = message["path"]
                return [Saved(message["path"], self._is_to_evaluate(message))]
            case "note":
                name = self.plan.rank_name(rank)
                return [Note(f"{name}, iteration {message['iteration']}: {message['note']}")]
            case "finished":
                if rank == self.plan.leader and self._too_early(message["iteration"]):
                    text = f"ended before iteration {self.plan.num_iterations}, and none had asked"
                    where = message["iteration"], "finished"
                    return [Fail(self.failures.of_rank(rank, *where, text))]
                self._finished[rank] = message["iteration"]
                self.traffic[rank] = (message["iterations_here"], message["traffic"])
            case "error":
                self._causes.add(rank, message, now)
        return []

    def _line(self, reports: list[Report]) -> list[Order]:
        """Returns the line of an iteration from the reports of all ranks, or none."""
        if not reports:
            return []
        values: dict[str, float] = {}
        for report in reports:
            values |= report["metrics"]
        self._iteration = reports[-1]["iteration"]
        self._env_steps = reports[-1]["env_steps"]
        episodes = [tuple(episode) for report in reports for episode in report["episodes"]]
        age_s = reports[-1].get("age_s", 0.0)
        return [Log(self._iteration, self._env_steps, values, episodes, age_s)]

    def _reach(self, mean_return: float | None, env_steps: int) -> list[Order]:
        """Orders the end of the job if a mean return is the one that ends it."""
        goal = self.options.stop_return
        if goal is None or mean_return is None or self._reached is not None:
            return []
        if not mean_return >= goal:  # a goal of NaN is never reached
            return []
        self._reached = mean_return, env_steps
        return self._tell_leader("stop")

    def _is_to_evaluate(self, saved: dict[str, Any]) -> bool:
        """Returns whether a checkpoint was asked for to be evaluated, or is the last one."""
        if self.options.eval_every is None:
            return False
        found = saved["iteration"] >= self._evaluate_from or not self._too_early(saved["iteration"])
        self._evaluate_from = math.inf if found else self._evaluate_from
        self._evaluations += found
        return found

    def _too_early(self, iteration: int) -> bool:
        told = self._reached is not None or self._enough
        stopped = told or self._stop_deadline_s is not None
        return iteration < self.plan.num_iterations and not stopped

    def _tell_leader(self, kind: str) -> list[Order]:
        """Orders a message to the leader, or nothing if the leader is not connected."""
        leader = self.plan.leader
        return [Tell(kind)] if leader in self._known and leader not in self._gone else []

    def _obey(self, count: int, now: float) -> list[Order]:
        """Obeys an interruption: first asks the leader to stop, then ends the job."""
        if self._stop_deadline_s is None:
            self._stop_deadline_s = now + self.plan.timeout_s
            if count == 1 and (told := self._tell_leader("stop")):
                text = "Stopping after this iteration, with a checkpoint; interrupt again to stop "
                return [*told, Note(text + "at once.")]
            return [GiveUp()]
        if count > 1:
            return [GiveUp()]
        if now > self._stop_deadline_s:
            text = "The iteration does not end: stopping without another checkpoint."
            return [Note(text), GiveUp()]
        return []

    # ---- failures --------------------------------------------------------------------------

    def _look_for_deaths(self, tick: Tick, now: float) -> list[Order]:
        if self._ended_s is None and (self._died or tick.mpiexec is not None):
            self._ended_s = now
        if self._ended_s is not None:
            if now - self._ended_s < LAST_WORDS_S:
                return []
            if self._died and not (tick.mpiexec or 0) < 0:
                return [self._death(self._died, tick)]
            return [Examine("mpiexec")]
        if tick.scheduler is not None and set(self.plan.group_ranks) - set(self._finished):
            return [Examine("scheduler")]
        # A rank that dies before its hello, e.g. in an import, closes no link, and others wait.
        missing = self.silent - tick.living if tick.living is not None else None
        if missing is None:
            return []
        if not missing:
            self._missed_s, self._all_launched = None, True
        elif self._missed_s is None:  # /proc hides a process for a moment during exec
            self._missed_s = now
        elif now - self._missed_s > (GONE_S if self._all_launched else LAUNCH_S):
            return [Examine("death", min(missing))]
        return []

    def _death(self, ranks: list[int], tick: Tick) -> Examine:
        """Examines the first of some ranks that died: Hydra may kill the others within 1 ms."""
        first = next((rank for rank in tick.ended if rank in ranks), ranks[0])
        return Examine("death", first, lost=self._gone[first])
