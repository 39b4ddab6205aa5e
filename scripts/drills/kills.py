"""Sends signals to any process of a job, at random moments, under every policy."""

import contextlib
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drills.jobs import Broken, Case, Job, Place

from mindspore_rl.runtime.checkpoint import FOLDER, list_checkpoints, load, load_newest

LIFE_S, LONGER_S = 900.0, 5.0
"""Time limit of a job; how much longer than the deadline a process stays stopped."""
ABOVE = ("above", "coordinator")
"""`msrl train` and the process below it: if either ends, the job ends."""
KINDS = (*ABOVE, "reaper", "mpiexec", "proxy", "rank")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
ITERATIONS = {"native": 300, "mindspore": 60}
ENVS, STEPS = 8, 16
SMALL = (
    *("num_steps=16", "--workers", "2", "--stop-return", "nan", "--quiet"),
    *("--checkpoint-every", "0.3"),
)
PPO = ("ppo", "update_epochs=1", "num_minibatches=2", "--policy")
REMEMBERING = ("torso=gru", "state_size=16", "segment_steps=8")
KEPT = ("num_envs=8", "learning_starts=64", "replay_size=2000", "updates=2", "batch_size=32")
ARRIVAL = ("a2c", "--policy", "Central", "--schedule", "order=arrival")


@dataclass(frozen=True)
class Work:
    """A job that gets signals.

    Attributes:
        exact: True if its result must be equal bit by bit.
    """

    name: str
    words: tuple[str, ...]
    cells: str = "native"
    exact: bool = True

    @property
    def command(self) -> tuple[str, ...]:
        """Returns the arguments of `msrl train`."""
        steps = ITERATIONS[self.cells] * ENVS * STEPS
        return (*self.words, *SMALL, "--cells", self.cells, "--total-steps", str(steps))


WORKS = (
    Work("SingleLearnerCoarse", (*PPO, "SingleLearnerCoarse")),
    Work("SingleLearnerFine", (*PPO, "SingleLearnerFine")),
    Work("MultipleLearners", (*PPO, "MultipleLearners")),
    Work("GPUOnly", (*PPO, "GPUOnly")),
    Work("Environments", (*PPO, "Environments")),
    Work("Central", (*PPO, "Central")),
    Work("Central by arrival", ARRIVAL, exact=False),
    Work("recurrent PPO", (*PPO, "SingleLearnerCoarse", *REMEMBERING)),
    Work("DQN", ("dqn", *KEPT, "--policy", "MultipleLearners")),
    Work("DQN by priority", ("dqn", *KEPT, "priority=0.6", "--policy", "SingleLearnerCoarse")),
    Work("SAC", ("sac", *KEPT, "--policy", "SingleLearnerFine")),
    Work("MAPPO", ("mappo", "num_envs=8", "num_minibatches=2", "--policy", "Environments")),
    Work("MultipleLearners, MindSpore's cells", (*PPO, "MultipleLearners"), "mindspore"),
)


@dataclass
class Strike:
    """A signal that was sent to a process.

    Attributes:
        came: the job's reaction.
    """

    work: str
    kind: str
    number: signal.Signals
    came: str = ""


@dataclass
class Undisturbed:
    """The result of a job without signals, and its time."""

    took_s: float
    arrays: dict
    lines: dict[int, tuple]


@dataclass
class Struck:
    """A job with the signals that it got, and its error at the end."""

    work: Work
    strikes: list[Strike]
    wrong: str = "the drill ended before it did"
    folder: str = ""


@dataclass
class Kills:
    """Sends signals to jobs, to the rarest kind of process first.

    Args:
        wanted: the number of signals; more if there is a deadline.
        deadline_s: the time of the last signal, on the monotonic clock.
    """

    place: Place
    rng: random.Random
    wanted: int
    deadline_s: float | None = None
    works: Sequence[Work] = WORKS
    deadline_of_ranks_s: float = 20.0
    done: list[Struck] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    undisturbed: dict[Work, Undisturbed] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """True if no more signals are to be sent."""
        if self.deadline_s is not None:
            return time.monotonic() > self.deadline_s
        return len(self) >= self.wanted

    def run(self, tell: Callable[[str, int], None]) -> None:
        """Sends signals to one job after another."""
        while not self.over:
            for work in self.works:
                if self.over:
                    break
                tell(work.name, len(self))
                self._one(work)

    def __len__(self) -> int:
        return sum(len(job.strikes) for job in self.done)

    def _one(self, work: Work) -> None:
        struck = Struck(work, [])
        self.done.append(struck)
        try:
            if work not in self.undisturbed:
                self.undisturbed[work] = self._undisturbed(work)
            self._strike(work, struck)
            struck.wrong = ""
        except Broken as error:
            struck.wrong = str(error)
            struck.folder = str(self.place.jobs[-1].folder)
            self.place.jobs[-1].kill()

    def _undisturbed(self, work: Work) -> Undisturbed:
        for _ in range(2):  # the second run finds everything in the caches
            began = time.monotonic()
            job = self.place.job([*work.command, "--timeout", "600"], "undisturbed")
            job.check(job.wait(LIFE_S), 0)
            took_s = time.monotonic() - began
        path = list_checkpoints(job.run / FOLDER)[-1]
        return Undisturbed(took_s, load(path)[0], metrics([job.run]))

    def _strike(self, work: Work, struck: Struck) -> None:
        """Starts a job, sends signals until it ends, and resumes it if its coordinator dies."""
        known, runs = self.undisturbed[work], []
        last: Path | None = None
        while True:
            words = [*work.command, "--max-restarts", "1000"]
            words += ["--timeout", str(self.deadline_of_ranks_s)]
            words += ["--resume", str(last)] if last else []
            job = self.place.job(words, "struck")
            runs.append(job.run)
            code = self._life(job, work, struck, known.took_s)
            if code == 0:
                job.check(code, 0)
                break
            if code == 2 and "is done: it has trained for" in job.err:
                runs.pop()  # killed after its last checkpoint
                break
            by = struck.strikes[-1] if struck.strikes else None
            if not by or by.kind not in ABOVE:
                job.check(code, 0)
            killed = -9 if by.kind == "above" else 1
            # SIGTERM before it has a handler, and after.
            job.check(code, *((killed,) if by.number == signal.SIGKILL else (-15, 130)))
            with contextlib.suppress(Exception):
                load_newest(job.run / FOLDER)
                last = job.run
            by.came = "resumed" if last else "started anew"
        self._compare(work, runs)

    def _life(self, job: Job, work: Work, struck: Struck, took_s: float) -> int:
        """Sends signals to a job at random moments until it ends. Returns: its exit code."""
        ends = time.monotonic() + LIFE_S
        while job.process.poll() is None:
            # Early moments are more likely: more can go wrong then.
            at = time.monotonic() + took_s * self.rng.random() ** 2
            with contextlib.suppress(Broken):
                job.until(lambda: job.process.poll() is not None, at - time.monotonic(), "end")
            if self.over:
                break
            if job.process.poll() is None and self._hit(job, work, struck):
                break
        return job.wait(max(ends - time.monotonic(), 60.0))

    def _hit(self, job: Job, work: Work, struck: Struck) -> bool:
        """Sends the rarest pair of kind and signal so far to a process.

        Returns: True if it was meant to end the coordinator.
        """
        choices = [
            (pid, kind, number)
            for pid, kind in job.processes().items()
            for number in SIGNALS
            if kind != "other"
        ]
        before = job.err.count("restarting from")

        def restarted() -> bool:
            return job.process.poll() is not None or job.err.count("restarting from") > before

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
        strike = Strike(work.name, kind, number, "went on")
        self.counts[kind, number] += 1
        struck.strikes.append(strike)
        stopped = number == signal.SIGSTOP
        with contextlib.suppress(Broken):  # a job may continue without the process
            job.until(restarted, self.deadline_of_ranks_s + LONGER_S if stopped else 2.0, "say")
        if stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if job.err.count("restarting from") > before:
            strike.came = "restarted"
        return kind in ABOVE and not stopped

    def _compare(self, work: Work, runs: list[Path]) -> None:
        """Compares the result of a job with that without signals. Raises: Broken."""
        known = self.undisturbed[work]
        iterations = ITERATIONS[work.cells]
        arrays, meta = load(list_checkpoints(runs[-1] / FOLDER)[-1])
        counted = (meta["iteration"], meta["env_steps"])
        if counted != (iterations, iterations * ENVS * STEPS):
            raise Broken(f"iteration and env_steps are {counted}")
        lines = metrics(runs)
        # A killed coordinator takes with it the lines that it had not flushed.
        lost = {
            number
            for earlier, later in itertools.pairwise(filter(None, (metrics([run]) for run in runs)))
            for number in range(max(earlier) + 1, min(later))
        }
        if {*lines} | lost != {*range(1, iterations + 1)}:
            raise Broken(f"lines of {len(lines)} iterations, {iterations} were done")
        if not work.exact:
            turns = int(arrays["counters/iterations"].sum())
            if turns != iterations * ENVS:
                raise Broken(f"{turns} turns of environments, expected {iterations * ENVS}")
            return
        if arrays.keys() != known.arrays.keys():
            raise Broken(f"other arrays: {sorted(arrays.keys() ^ known.arrays.keys())}")
        other = [n for n in arrays if arrays[n].tobytes() != known.arrays[n].tobytes()]
        if other:
            raise Broken(f"{', '.join(other)} are not those of the undisturbed run")
        if other := [number for number in lines if lines[number] != known.lines[number]]:
            raise Broken(f"metrics of iteration {other[0]} are not those of the undisturbed run")


def metrics(runs: list[Path]) -> dict[int, tuple]:
    """Returns the metrics by iteration of consecutive runs, without times and averages."""
    lines = {}
    for run in runs:
        with contextlib.suppress(FileNotFoundError), (run / "metrics.jsonl").open() as file:
            for text in file:
                if not text.endswith("\n"):
                    break  # the process was killed while it wrote
                line = json.loads(text)
                lines[line["iteration"]] = (line["env_steps"], line["values"])
    return lines


def rows(done: list[Struck]) -> list[Case]:
    """Returns the outcomes of all signals, by policy, kind of process and signal."""
    groups: dict[tuple[str, str, str], list[tuple[Strike, Struck]]] = {}
    for job in done:
        for strike in job.strikes:
            key = (strike.work, strike.kind, strike.number.name)
            groups.setdefault(key, []).append((strike, job))
    found = []
    for (work, kind, number), strikes in sorted(groups.items()):
        counted = Counter(strike.came for strike, _ in strikes)
        came = ", ".join(f"{count} {what}" for what, count in sorted(counted.items()))
        wrong = sorted({f"{job.wrong} ({job.folder})" for _, job in strikes if job.wrong})
        equal = "bit-equal" if strikes[0][1].work.exact else "nothing lost"
        tried = f"{number} to {kind}, {len(strikes)} times"
        came = "; ".join([came, *(wrong or [equal])])
        found.append(Case(f"kills: {work}", tried, came, not wrong))
    # Failures without a signal.
    found += [
        Case(f"kills: {job.work.name}", "nothing", f"{job.wrong} ({job.folder})", False)
        for job in done
        if job.wrong and not job.strikes
    ]
    return found
