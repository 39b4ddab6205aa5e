"""Cases of `msrl check`: runs a job for each and classifies how it differs from the plain loop."""

import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mindspore_rl.checking import lines
from mindspore_rl.environments import registry
from mindspore_rl.errors import (
    ConfigError,
    JobFailure,
    MsrlError,
    PolicyError,
    ProgramError,
    described,
)
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs.job import Job
from mindspore_rl.jobs.suitable import suggested
from mindspore_rl.platform.stdio import say

SMALL = {"num_envs": 8, "num_steps": 16}
"""Upper bounds of configuration keys that the user does not give."""
EQUAL, ROUNDING, DIFFERENT, FAILED, REFUSED = (
    *("equal", "rounding", "different"),
    *("failed", "refused"),
)
"""Outcomes; `rounding`: different, but no more than the plain loop with nudged parameters."""
TIMEOUT_S = 240.0
"""Timeout of a message or a cell; generous, because only values matter here, not speed."""


@dataclass(frozen=True)
class Case:
    """One way to run the program: a policy's file and name, workers, and kind of cells."""

    file: str
    policy: str
    workers: int
    cells: str

    def __str__(self) -> str:
        several = "s" * (self.workers > 1)
        return f"{self.policy}, {self.workers} worker{several}, {self.cells} cells"


@dataclass(frozen=True)
class Row:
    """The outcome of a case.

    Attributes:
        text: the value that is farthest off, the first difference, or the reason of a refusal.
        far: see `compared.Compared`; None: nothing was compared.
        fallen: cells, out of `cells`, that should be native but were run by MindSpore.
        environment: the environment's form that was run, if anything was compared.
    """

    case: Case
    outcome: str
    text: str = ""
    far: float | None = None
    fallen: int = 0
    cells: int = 0
    environment: str = ""


@dataclass
class Held:
    """A program to compare with its plain loops, one for each configuration.

    Args:
        job: the job to run, with the policy left open.
        folder: where run directories are made.
        iterations: number of iterations of each job.
        sizes: upper bounds of configuration keys that the user does not give.

    Attributes:
        shrunk: the values of keys that were reduced, as `key=value`.
        lines: source lines of compared values, see `lines.of_program`.
        unread: sites of boundaries whose values nobody reads.
        uneven: sites that were not compared in every iteration, see `Compared.uneven`.
        replayed: sizes of an iteration of asynchronous jobs, by environment.
        runs: configuration, plain run and names of carried variables, by environment and lag.
    """

    job: Job
    folder: Path
    iterations: int
    sizes: dict[str, int]
    shrunk: str = ""
    lines: dict[str, str] = field(default_factory=dict)
    runs: dict[str, tuple[Any, Any, dict[str, str]]] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    uneven: set[str] = field(default_factory=set)
    replayed: dict[str, str] = field(default_factory=dict)
    _number: int = 0

    def row(self, case: Case) -> Row:
        """Runs a case, prints its outcome and returns it.

        Raises:
            MsrlError: the job is invalid under every policy, or the plain loop fails.
        """
        began = time.monotonic()
        try:
            row = self._run(case)
        except (ProgramError, PolicyError) as error:
            parts = (part.strip() for part in str(error).splitlines())
            row = Row(case, REFUSED, "\n".join(parts))
        say(f"{case}: {row.outcome}, {time.monotonic() - began:.1f} s")
        return row

    def _run(self, case: Case) -> Row:
        from mindspore_rl.checking import held, plain  # noqa: PLC0415
        from mindspore_rl.checking.compared import MARKS  # noqa: PLC0415
        from mindspore_rl.compiler import pipeline  # noqa: PLC0415  (imports MindSpore)

        request = self._request(case)
        self._number += 1
        run_dir = self.folder / f"{self._number}"
        recorded_dir = self.folder / f"{self._number}-recorded"
        with suggested(request.algorithm, request.config.env):
            plan, cut = pipeline.prepare(request, run_dir, self._see)
        if plan.arrivals is not None:
            return self._replayed(case, request, plan, run_dir)
        with_marks = replace(request, record=MARKS)
        recorded, _ = pipeline.prepare(with_marks, recorded_dir, cut=cut)
        carried = held.names_in_source(plan, cut)
        unread = held.unread_sites(cut)
        self.unread.update(unread)
        reference = self._reference(request, carried)
        loop = reference, self.iterations, unread
        try:
            native, as_trained = held.run_held(plan, run_dir, *loop)
            _, found = held.run_held(recorded, recorded_dir, *loop)
        except (JobFailure, MsrlError) as error:
            return Row(case, FAILED, str(error))
        found += as_trained
        self.uneven.update(one.name for one in found if one.uneven)
        row = Row(
            case,
            EQUAL,
            fallen=len(native) - sum(native.values()),
            cells=len(native),
            environment=request.config.env,
        )
        wrong = [one for one in found if one.wrong]
        if not wrong:
            worst = max(found, key=lambda one: one.far)
            text = lines.told(worst, self.lines) if worst.far else "to the last bit"
            return replace(row, far=worst.far, text=text)
        known = request.algorithm, request.config, reference, carried
        moved = plain.rounding_alone(wrong, *known)
        mistakes = [one for one in wrong if not plain.is_rounding(one, moved[one])]
        first = (mistakes or wrong)[0]
        text = f"{lines.told(first, self.lines)}: {first.wrong}; in the plain loop a "
        text += f"millionth in parameters and gradients moves it by {moved[first].far:.1e}"
        return replace(row, outcome=DIFFERENT if mistakes else ROUNDING, far=first.far, text=text)

    def _replayed(self, case: Case, request: Any, plan: Any, run_dir: Path) -> Row:
        """Runs an asynchronous job, and the plain loop that its log of arrivals drives.

        Raises:
            PolicyError: such a job writes no log.
        """
        from mindspore_rl.checking import held, replayed  # noqa: PLC0415  (imports MindSpore)

        if not plan.arrivals.gather:
            raise PolicyError(
                f"policy {request.policy.name} sends gradients, and asynchronous ones depend on "
                "timing, of which there is no log; check it with --schedule order=synchronous, or "
                "a policy that sends trajectories, such as SingleLearnerCoarse"
            )
        try:
            end, _ = held.run_plan(plan, run_dir)
        except (JobFailure, MsrlError) as error:
            return Row(case, FAILED, str(error))
        native = held.native_cells(end).values()
        worst = replayed.worst(replayed.replay(run_dir, lambda made, of: None))
        config = request.config
        self.replayed[config.env] = f"num_envs={config.num_envs} num_steps={config.num_steps}"
        text = f"{worst.name}, after update {worst.iteration}" if worst.far else "to the last bit"
        return Row(
            case,
            DIFFERENT if worst.wrong else EQUAL,
            f"{text}: {worst.wrong}" if worst.wrong else text,
            worst.far,
            len(native) - sum(native),
            len(native),
            config.env,
        )

    def _request(self, case: Case) -> Any:
        """Makes the request of a case as it trains, with sizes reduced.

        Raises:
            PolicyError: the policy cannot run the environment.
        """
        job = replace(
            jobs.with_file(self.job),
            policy=case.file,
            workers=case.workers,
            cells=case.cells,
            timeout=TIMEOUT_S,
        )
        more: dict[str, Any] = {"num_iterations": self.iterations}
        if job.device == "gpu":
            more["device"] = "GPU"
        request = jobs.request(job, **more)
        registry.spec(request.config.env)
        given = {word.partition("=")[0] for word in job.assignments}
        given |= {*(job.written or ()), *(["num_envs"] if job.num_envs else [])}
        own = {key: getattr(request.config, key) for key in self.sizes if key not in given}
        small = {key: _halved(value, self.sizes[key]) for key, value in own.items()}
        small = {key: value for key, value in small.items() if value != own[key]}
        if not small:
            return request
        try:
            request = jobs.request(job, small, **more)
        except ConfigError:
            return request
        self.shrunk = " ".join(f"{key}={value}" for key, value in small.items())
        return request

    def _reference(self, request: Any, carried: dict[str, str]) -> Any:
        """Returns the plain run of an environment, which all policies and worker counts share."""
        from mindspore_rl.checking import plain  # noqa: PLC0415

        name, lag = request.config.env, request.policy.schedule.lag
        key = f"{name}, lag={lag}" if lag else name
        known = self.runs.get(key)
        if known and known[2] == carried:
            return known[1]
        began = time.monotonic()
        place = self.folder / f"plain-{self._number}"
        file, config = request.algorithm, request.config
        try:
            run = plain.run_reference(file, config, place, self.iterations, carried, lag)
        except plain.UnsteadyError as error:
            where = lines.of(error.first.name, self.lines)
            raise plain.UnsteadyError(where or file.name, error.first) from None
        except MsrlError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            own = [f for f in frames if Path(f.filename).parent == file.parent] or frames
            raise ConfigError(
                f"the plain loop fails at {Path(own[-1].filename).name}:{own[-1].lineno}: "
                f"{own[-1].line}\n  {described(error)}"
            ) from error
        self.runs[key] = config, run, carried
        say(f"the plain loop of {key}: two runs agree, {time.monotonic() - began:.1f} s")
        return run

    def _see(self, name: str, result: Any) -> None:
        """Stores the source lines of compared values once the program is inferred."""
        if name == "infer" and not self.lines:
            self.lines = lines.of_program(result)


def _halved(value: int, most: int) -> int:
    """Halves a number until it is at most `most` or odd, so that it still divides its multiples."""
    while value > most and value % 2 == 0:
        value //= 2
    return value
