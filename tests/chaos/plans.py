"""Plans of strikes: one at a fraction of the job, many at moments of an iteration, or at random."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from mindspore_rl.plan.plan import load_plan
from mindspore_rl.plan.stages import Stages
from tests.chaos.jobs import Broken, Job
from tests.chaos.strikes import ABOVE, Plan, Strike, Struck

KINDS = (*ABOVE, "reaper", "mpiexec", "proxy", "rank")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
LONGER_S = 5.0
"""How much longer than the deadline a process stays stopped."""


def once(whom: str, fraction: float) -> Plan:
    """Returns a plan that kills one process when a fraction of the iterations is done."""

    def plan(job: Job, struck: Struck, took_s: float) -> None:
        if struck.strikes:  # it has been resumed
            return
        first = fraction * struck.work.iterations
        job.comes_to(lambda: job.stamp(0)[0] >= first or not fraction, "train so far")
        job.comes_to(lambda: job.strike(whom, signal.SIGKILL), f"have a {whom}")
        struck.strikes.append(Strike(struck.work.name, whom, signal.SIGKILL))

    return plan


MOMENTS = ("start", "rollout", "collective", "checkpoint")
MOMENT_OF = {
    "starting": "start",
    "cell reset of loop": "start",
    "cell iteration of loop": "rollout",
    "a checkpoint": "checkpoint",
}
START_S = {"native": 2.5, "mindspore": 8.0}
"""Time of a rank's start; a later kill hits training."""


@dataclass
class AtMoments:
    """A plan that kills ranks until each of `MOMENTS` has come `each` times.

    The moments come from the stamps that ranks write; the last stamp of a killed rank, read after
    its death, says what it was doing.
    """

    rng: random.Random
    each: int
    counts: Counter = field(default_factory=Counter)

    def __call__(self, job: Job, struck: Struck, took_s: float) -> None:
        """Kills the ranks of a job."""
        wanted = list(MOMENTS * self.each)
        self.rng.shuffle(wanted)
        pids: list[int] = []
        while wanted:
            pids = self._next_life(job, pids)
            words = Stages(load_plan(job.run)).words
            moments = [MOMENT_OF.get(word, word) for word in words]
            at = self._kill(job, wanted[0], pids, moments, START_S[struck.work.cells])
            struck.strikes.append(Strike(struck.work.name, "rank", signal.SIGKILL))
            self.counts[at] += 1
            if at in wanted:
                wanted.remove(at)

    def _next_life(self, job: Job, earlier: Sequence[int]) -> list[int]:
        """Returns the processes of both ranks, when they are new."""
        found: list[int | None] = []

        def new() -> bool:
            found[:] = [job.find("rank 0"), job.find("rank 1")]
            return None not in found and not {*earlier} & {*found}

        job.comes_to(new, "restart")
        return found

    def _kill(
        self, job: Job, wanted: str, pids: list[int], moments: list[str], start_s: float
    ) -> str:
        """Kills one rank at a moment. Returns: the moment of its death."""
        victim = 0 if wanted == "checkpoint" else self.rng.randrange(2)  # rank 0 writes it
        pid, other, stopped = pids[victim], pids[1 - victim], wanted == "collective"
        if wanted == "start":
            time.sleep(self.rng.uniform(0.0, start_s))
        else:
            _wait_for(job, victim, "rollout" if stopped else wanted, moments)
        if stopped:  # the victim cannot finish without the other
            os.kill(other, signal.SIGSTOP)
            time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(psutil.Error):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.001)
        at = moments[job.stamp(victim)[1]]
        if stopped:
            os.kill(other, signal.SIGCONT)
        return "collective" if stopped and at == "rollout" else at


def _wait_for(job: Job, rank: int, wanted: str, moments: list[str]) -> None:
    """Waits until a rank is at a moment of an iteration after its first; a busy loop."""
    first = None
    while job.process.poll() is None:
        iteration, stage = job.stamp(rank)
        if first is None and iteration >= 0 and moments[stage] == "rollout":
            first = iteration
        if first is not None and iteration > first and moments[stage] == wanted:
            return
    raise Broken(f"it ended by itself: {job.err[-500:]}")


@dataclass
class AtRandom:
    """A plan that sends signals at random moments, to the rarest kind of process first.

    Args:
        wanted: the number of signals; more if there is a deadline.
        deadline_s: the time of the last signal, on the monotonic clock.
    """

    rng: random.Random
    wanted: int
    deadline_s: float | None = None
    deadline_of_ranks_s: float = 20.0
    counts: Counter = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        """True if no more signals are to be sent."""
        if self.deadline_s is not None:
            return time.monotonic() > self.deadline_s
        return self.counts.total() >= self.wanted

    def __call__(self, job: Job, struck: Struck, took_s: float) -> None:
        """Sends signals to a job until it ends, or is meant to."""
        while job.process.poll() is None:
            # Early moments are more likely: more can go wrong then.
            at = time.monotonic() + took_s * self.rng.random() ** 2
            with contextlib.suppress(Broken):
                job.until(lambda: job.process.poll() is not None, at - time.monotonic(), "end")
            if self.over:
                break
            if job.process.poll() is None and self._hit(job, struck):
                break

    def _hit(self, job: Job, struck: Struck) -> bool:
        """Sends the rarest pair of kind and signal so far to a process.

        Returns: True if it was meant to end the coordinator.
        """
        choices = [
            (pid, kind, number)
            for pid, kind in job.processes().items()
            for number in SIGNALS
            if kind != "other"
        ]
        before = job.restarts

        def restarted() -> bool:
            return job.process.poll() is not None or job.restarts > before

        try:
            pid, kind, number = min(
                choices, key=lambda choice: (self.counts[choice[1:]], self.rng.random())
            )
            least = min(self.counts[other, each] for other in KINDS for each in SIGNALS)
            if self.counts[kind, number] > least:
                return False  # others come first: at the start only these two kinds exist
            os.kill(pid, number)
        except (ValueError, ProcessLookupError):
            return False  # it has just ended
        strike = Strike(struck.work.name, kind, number, "went on")
        self.counts[kind, number] += 1
        struck.strikes.append(strike)
        stopped = number == signal.SIGSTOP
        with contextlib.suppress(Broken):  # a job may continue without the process
            job.until(restarted, self.deadline_of_ranks_s + LONGER_S if stopped else 2.0, "say")
        if stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if job.restarts > before:
            strike.came = "restarted"
        return kind in ABOVE and not stopped
