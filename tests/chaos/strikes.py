"""Strikes processes of jobs, and compares their results with those of undisturbed jobs.

A plan (plans.py) decides which process gets which signal when. A job that loses its coordinator is
resumed. At the end nothing may be lost.
"""

import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mindspore_rl.runtime.checkpoint import FOLDER, list_checkpoints, load, load_newest
from tests.chaos.jobs import Broken, Job, Outcome, Place, same_arrays

LIFE_S = 900.0
"""Time limit of a job."""
ABOVE = ("above", "coordinator")
"""`msrl train` and the process below it: if either ends, the job ends."""
ITERATIONS = {"native": 300, "mindspore": 60}
ENVS, STEPS = 8, 16
SMALL = (
    *("num_steps=16", "--workers", "2", "--stop-return", "nan", "--quiet"),
    *("--checkpoint-every", "0.3"),
)
PPO = ("ppo", "update_epochs=1", "num_minibatches=2", "--policy")
REMEMBERING = ("torso=gru", "state_size=16", "segment_steps=8")
KEPT = ("num_envs=8", "learning_starts=64", "replay_size=2000", "updates=2", "batch_size=32")
RANKED = ("priority=0.6",)
WINDOWS = ("learnt_steps=16", "learning_starts=64", "replay_size=400", "updates=2", "batch_size=16")
ASYNCHRONOUS = ("--schedule", "order=asynchronous", "--policy")


@dataclass(frozen=True)
class Work:
    """A job that gets signals.

    Attributes:
        exact: True if its result must be equal bit by bit.
        length: its iterations; 0: as many as `ITERATIONS` says.
    """

    name: str
    words: tuple[str, ...]
    cells: str = "native"
    exact: bool = True
    length: int = 0

    @property
    def iterations(self) -> int:
        """Returns the number of its iterations."""
        return self.length or ITERATIONS[self.cells]

    @property
    def command(self) -> tuple[str, ...]:
        """Returns the arguments of `msrl train`."""
        steps = self.iterations * ENVS * STEPS
        return (*self.words, *SMALL, "--cells", self.cells, "--total-steps", str(steps))


GPU_ONLY = Work("GPUOnly", (*PPO, "GPUOnly"))
MINDSPORE = Work("MultipleLearners, MindSpore's cells", (*PPO, "MultipleLearners"), "mindspore")
WORKS = (
    Work("SingleLearnerCoarse", (*PPO, "SingleLearnerCoarse")),
    Work("SingleLearnerFine", (*PPO, "SingleLearnerFine")),
    Work("MultipleLearners", (*PPO, "MultipleLearners")),
    GPU_ONLY,
    Work("Environments", (*PPO, "Environments")),
    Work("Central", (*PPO, "Central")),
    Work("Central, asynchronous", ("a2c", *ASYNCHRONOUS, "Central"), exact=False),
    Work("batches", ("impala", *ASYNCHRONOUS, "SingleLearnerCoarse"), exact=False),
    Work("records", ("dqn", *KEPT, *RANKED, *ASYNCHRONOUS, "SingleLearnerCoarse"), exact=False),
    Work("sequences", ("r2d2", *WINDOWS, *ASYNCHRONOUS, "SingleLearnerCoarse"), exact=False),
    Work("records of SAC", ("sac", *KEPT, *ASYNCHRONOUS, "SingleLearnerCoarse"), exact=False),
    Work("recurrent PPO", (*PPO, "SingleLearnerCoarse", *REMEMBERING)),
    Work("DQN", ("dqn", *KEPT, "--policy", "MultipleLearners")),
    Work("DQN by priority", ("dqn", *KEPT, *RANKED, "--policy", "SingleLearnerCoarse")),
    Work("SAC", ("sac", *KEPT, "--policy", "SingleLearnerFine")),
    Work("MAPPO", ("mappo", "num_envs=8", "num_minibatches=2", "--policy", "Environments")),
    MINDSPORE,
)
LONG = {
    cells: Work(f"GPUOnly in the graph, {cells}", (*PPO, "GPUOnly"), cells, length=length)
    for cells, length in (("native", 20_000), ("mindspore", 600))
}
"""Jobs that live through many restarts."""


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
class Struck:
    """A job with the signals that it got, and its error at the end."""

    work: Work
    strikes: list[Strike]
    wrong: str = "the drill ended before it did"
    folder: str = ""
    restarts: int = 0


Plan = Callable[[Job, Struck, float], None]
"""Strikes a job, as in plans.py; the last argument is the time that it needs undisturbed."""


@dataclass
class Undisturbed:
    """The result of a job without signals, and its time."""

    took_s: float
    arrays: dict
    lines: dict[int, tuple]


@dataclass
class Struggle:
    """Jobs that get signals, each compared with one that gets none."""

    place: Place
    deadline_of_ranks_s: float = 20.0
    undisturbed: dict[Work, Undisturbed] = field(default_factory=dict)

    def one(self, work: Work, plan: Plan, struck: Struck | None = None) -> Struck:
        """Runs a job under a plan to its end. Returns: the strikes, and what is wrong."""
        struck = struck or Struck(work, [])
        try:
            if work not in self.undisturbed:
                self.undisturbed[work] = self._undisturbed(work)
            self._compare(work, self._lives(work, plan, struck))
            struck.wrong = ""
        except Broken as error:
            struck.wrong = str(error)
            struck.folder = str(self.place.jobs[-1].folder)
            self.place.jobs[-1].kill()
        return struck

    def _undisturbed(self, work: Work) -> Undisturbed:
        for _ in range(2):  # the second run finds everything in the caches
            began = time.monotonic()
            job = self.place.job([*work.command, "--timeout", "600"], "undisturbed")
            job.check(job.wait(LIFE_S), 0)
            took_s = time.monotonic() - began
        return Undisturbed(took_s, job.arrays(), metrics([job.run]))

    def _lives(self, work: Work, plan: Plan, struck: Struck) -> list[Path]:
        """Resumes a job until it has ended well. Returns: its run directories."""
        runs: list[Path] = []
        last: Path | None = None
        while True:
            words = [*work.command, "--max-restarts", "1000"]
            words += ["--timeout", str(self.deadline_of_ranks_s)]
            words += ["--resume", str(last)] if last else []
            job = self.place.job(words, "struck")
            runs.append(job.run)
            plan(job, struck, self.undisturbed[work].took_s)
            code = job.wait(LIFE_S)
            struck.restarts += job.restarts
            if code == 0:
                job.check(code, 0)
                return runs
            if code == 2 and "is done: it has trained for" in job.err:
                # Killed after its last checkpoint, perhaps once more before it went on from there.
                return [run for run in runs if list_checkpoints(run / FOLDER)]
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

    def _compare(self, work: Work, runs: list[Path]) -> None:
        """Compares the result of a job with that without signals. Raises: Broken."""
        known = self.undisturbed[work]
        iterations = work.iterations
        arrays, meta = load(list_checkpoints(runs[-1] / FOLDER)[-1])
        counted = (meta["iteration"], meta["env_steps"])
        if counted != (iterations, iterations * ENVS * STEPS):
            raise Broken(f"iteration and env_steps are {counted}")
        lines = metrics(runs)
        if {*lines} != {*range(1, iterations + 1)}:
            raise Broken(f"lines of {len(lines)} iterations, {iterations} were done")
        if not work.exact:
            turns = int(arrays["counters/iterations"].sum())
            if turns != iterations * ENVS:
                raise Broken(f"{turns} turns of environments, expected {iterations * ENVS}")
            return
        same_arrays(known.arrays, arrays)
        if other := [number for number in lines if lines[number] != known.lines[number]]:
            raise Broken(f"metrics of iteration {other[0]} are not those of the undisturbed run")


# ---- results -------------------------------------------------------------------------------------


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


def rows(done: list[Struck]) -> list[Outcome]:
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
        found.append(Outcome(f"kills: {work}", tried, came, not wrong))
    # Failures without a signal.
    found += [
        Outcome(f"kills: {job.work.name}", "nothing", f"{job.wrong} ({job.folder})", False)
        for job in done
        if job.wrong and not job.strikes
    ]
    return found
