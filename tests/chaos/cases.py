"""Disturbed jobs as rows: a strike, whom it hits, when, and the promise. Each row is one job."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mindspore_rl.runtime.checkpoint import FOLDER, list_checkpoints
from tests.chaos import odd
from tests.chaos.jobs import Broken, Job, Outcome, Place, Skipped, read

EACH = 16 * 8
"""Environment steps of an iteration."""
SMALL = (
    *("ppo", "--policy", "SingleLearnerCoarse", "--workers", "2", "--stop-return", "nan"),
    *("num_steps=16", "update_epochs=1", "num_minibatches=2", "--cells", "native"),
    "anneal_learning_rate=false",  # jobs of any length have the same cells
)
SHORT = (*SMALL, "--quiet", "--total-steps", str(100 * EACH))
ENDLESS = (*SMALL, "--quiet", "--total-steps", "1000000000", "--checkpoint-every", "0.3")
REPLICAS = ("--policy", "MultipleLearners")
ONE_PROCESS = (*REPLICAS, "--workers", "1")
LAST_GOOD, WRITTEN = "Last good checkpoint", "cannot be written"
NO_SPACE = f"{WRITTEN} (No space left on device)"
LEAK_KIB = 4 << 20
"""Limit on data of a job whose environment leaks 512 MiB per step."""


@dataclass(frozen=True)
class Case:
    """A job, what happens to it, and the promise.

    Attributes:
        part: the part of the drill.
        words: arguments of `msrl train`; `shell` and `variables` as for `Job`.
        strike: a signal, or a function of the job; None: its surroundings are at fault.
        whom: the process that gets the signal: a kind, or a rank as in "rank 1".
        when: the moment, one of `MOMENTS`.
        code: the promised exit code, or several.
        said: all of these are in its output; `unsaid`: none of these.
        logged: all of these are in `workers.log`.
        reached: the iteration of the newest checkpoint; None: any, or none.
        run: its run directory, in its folder.
        disk: mount options of a small disk for the run directory.
        mend: makes room again; the resumed job must end well.
        quick: tested without `--all`.
    """

    part: str
    name: str
    words: tuple[str, ...] = SHORT
    strike: int | Callable[[Job], None] | None = None
    whom: str = "above"
    when: str = "training"
    code: int | tuple[int, ...] = 0
    said: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()
    reached: int | None = None
    run: str = "run"
    disk: str = ""
    mend: Callable[[Path], None] | None = None
    shell: str = 'exec "$@"'
    variables: dict[str, str] = field(default_factory=dict)
    quick: bool = False

    def __call__(self, place: Place) -> str:
        """Runs it. Returns: its outcome. Raises: Broken, Skipped."""
        with _small_disk(place, self.disk) as disk:
            run = disk / "run" if self.disk else self.run
            job = place.job(
                self.words, self.part, run=run, shell=self.shell, variables=self.variables
            )
            if self.strike is not None:
                job.comes_to(lambda: MOMENTS[self.when](job), f"be {self.when}")
            if callable(self.strike):
                self.strike(job)
            elif self.strike is not None and not job.strike(self.whom, self.strike):
                raise Broken(f"no {self.whom}")
            came = self._judged(job)
            return came if self.mend is None else f"{came}; {self._resumed(place, disk, job)}"

    def _judged(self, job: Job) -> str:
        codes = self.code if isinstance(self.code, tuple) else (self.code,)
        code = job.wait()
        job.check(code, *codes, said=self.said)
        if wrong := [text for text in self.unsaid if text in job.out + job.err]:
            raise Broken(f"said {wrong}: {job.err[-500:]}")
        if code in (1, 2) and "msrl: " not in job.err:
            raise Broken(f"gave no reason: {job.err[-500:]}")
        log = read(job.run / "workers.log")
        if missing := [text for text in self.logged if text not in log]:
            raise Broken(f"logged nothing of {missing}")
        if code not in (0, 130) and self.reached is None:
            return f"exit code {code}: {(job.err.splitlines() or [''])[0][:200]}"
        found, wanted = job.newest(), 100 if code == 0 and self.reached is None else self.reached
        if found != wanted if wanted is not None else not found:
            raise Broken(f"the last checkpoint is of iteration {found}, expected {wanted}")
        return f"exit code {code}, checkpoint of iteration {found}"

    def _resumed(self, place: Place, disk: Path, job: Job) -> str:
        before = job.newest()
        assert self.mend is not None
        self.mend(disk)
        steps = ("--total-steps", str((before + 20) * EACH))
        again = place.job((*SHORT, "--resume", str(job.run), *steps), run=disk / "again")
        again.ended_well(before + 20)
        return f"resumed from iteration {before}"


MOMENTS: dict[str, Callable[[Job], object]] = {
    "training": lambda job: read(job.run / "metrics.jsonl").count("\n"),
    "saved": lambda job: len(list_checkpoints(job.run / FOLDER)) > 1,
}


def run_part(
    part: str, cases: dict[str, Callable[[Place], str]], place: Place, tell: Callable
) -> Iterator[Outcome]:
    """Runs the cases of a part."""
    for name, case in cases.items():
        tell(f"{part}: {name}")
        try:
            yield Outcome(part, name, case(place), True)
        except Skipped as reason:
            yield Outcome(part, name, f"not tried: {reason}", None)
        except Broken as error:
            job = place.jobs[-1]
            place.kill()
            yield Outcome(part, name, f"{error} ({job.folder})", False)


# ---- strikes -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _small_disk(place: Place, options: str) -> Iterator[Path]:
    """Context: a file system in memory is mounted, if there are options."""
    disk = place.folder / "disk"
    if not options:
        yield disk
        return
    disk.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skipped(f"mount is not allowed: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill_bytes(job: Job) -> None:
    """Fills the disk except for 32 KiB."""
    left = os.statvfs(job.run)
    with contextlib.suppress(OSError), (job.run.parent / "filler").open("wb") as file:
        file.write(bytes(left.f_bavail * left.f_bsize - (32 << 10)))


def fill_inodes(job: Job) -> None:
    """Uses all inodes."""
    files = job.run.parent / "filler"
    files.mkdir()
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (files / str(number)).touch()


def empty(disk: Path) -> None:
    """Removes what fills a disk."""
    filler = disk / "filler"
    shutil.rmtree(filler) if filler.is_dir() else filler.unlink()


def remove(name: str) -> Callable[[Job], None]:
    """Returns a strike that removes a file of the run, or all of it."""

    def strike(job: Job) -> None:
        gone = job.run / name
        while gone.exists():
            shutil.rmtree(gone, ignore_errors=True) if gone.is_dir() else gone.unlink()

    return strike


# ---- rows ----------------------------------------------------------------------------------------


def also(case: Case, name: str, *words: str, **changes: object) -> Case:
    """Returns a relative of a case, left to `--all`."""
    changes = {"quick": False, **changes}
    return replace(case, name=f"{case.name}, {name}", words=(*case.words, *words), **changes)


def in_both(*cases: Case) -> Iterator[Case]:
    """Yields cases with native cells, and again with MindSpore's."""
    for case in cases:
        yield case
        yield also(case, "MindSpore's cells", "--cells", "mindspore")


COARSE, SOON = (*ENDLESS, "--workers", "1"), ("--timeout", "5")
INTERRUPTED = Case(
    "ends", "SIGINT", COARSE, signal.SIGINT, code=130, said=("interrupted",), quick=True
)
SIGNAL_9 = ("killed by signal 9", LAST_GOOD)
KILLED = Case(
    *("ends", "a killed rank", COARSE, signal.SIGKILL, "rank 0"), code=1, said=("actor", *SIGNAL_9)
)
NAN = Case(
    *("ends", "NaN", (*COARSE, "learning_rate=1e30", "update_epochs=2")),
    code=2,
    said=("iteration 0", "nan", LAST_GOOD),
    reached=0,
)
ENDS = (
    *in_both(
        KILLED,
        also(KILLED, "replicas", "--workers", "2", *REPLICAS, said=("actor+learner", *SIGNAL_9)),
        Case("ends", "killed msrl", COARSE, signal.SIGKILL, code=-signal.SIGKILL),
        INTERRUPTED,
        also(INTERRUPTED, "one process", *ONE_PROCESS),
        replace(INTERRUPTED, name="SIGTERM", strike=signal.SIGTERM, quick=False),
        NAN,
        also(NAN, "one process", *ONE_PROCESS, quick=True),
    ),
    replace(INTERRUPTED, name="SIGHUP", words=ENDLESS, strike=signal.SIGHUP, quick=False),
    Case(
        *("ends", "a killed scheduler", (*ENDLESS, *REPLICAS, "--cells", "mindspore")),
        *(signal.SIGKILL, "scheduler"),
        code=1,
        said=("scheduler",),
    ),
)

FULL = Case(
    *("disk", "full disk", ENDLESS, fill_bytes),
    when="saved",
    code=1,
    said=(NO_SPACE,),
    unsaid=("Traceback",),
    disk="size=16m",
    mend=empty,
)
REFUSED = Case(
    *("disk", "read-only disk"),
    code=2,
    said=(f"{WRITTEN} (Read-only file system)",),
    unsaid=("Traceback",),
    disk="ro",
    quick=True,
)
DISK = (
    FULL,
    also(FULL, "one process", "--policy", "GPUOnly", "--workers", "1"),
    replace(
        FULL, name="full inodes", strike=fill_inodes, disk="size=64m,nr_inodes=150", quick=False
    ),
    REFUSED,
    replace(REFUSED, name="tiny disk", said=(NO_SPACE,), disk="size=64k", quick=False),
    replace(
        REFUSED,
        name="a file in its place",
        said=(f"file {WRITTEN} (File exists)",),
        disk="",
        run="file",
        shell='touch file; exec "$@"',
        quick=False,
    ),
)

GONE = Case(
    *("two", "run directory removed in mid-run"),
    (*SMALL, "--quiet", "--total-steps", str(1500 * EACH)),
    remove("."),
    code=1,
    said=("/run",),
)
LONGER = ("--total-steps", "300000")
TWO = (
    GONE,
    *(
        also(GONE, f"one process, {name}", *ONE_PROCESS, *LONGER, strike=remove(name))
        for name in ("plan.json", "metrics.jsonl", ".")
    ),
)


def misbehaves(name: str, deed: str, *said: str, words: Sequence[str] = (), **how: object) -> Case:
    """Returns the case of an environment that does something in environment 5, of worker 1."""
    return Case(
        *("environments", f"an environment that {name}"),
        (*SHORT, "--env", f"{odd.__file__}:Odd", *words),
        code=1 if said else 0,
        said=("rank 1 (actor[1])", *said) if said else (),
        variables={odd.VARIABLE: f"5 40 {deed}"},
        **how,
    )


def misbehaves_in_gym(name: str, deed: str) -> Case:
    """Returns the case of an environment of gym: the second of four hangs or crashes."""
    words = (*COARSE, *SOON, "num_envs=4", "--env", name)
    return Case(
        *("environments", f"{name} whose deed is {deed}", words),
        code=1,
        said=(
            "rank 0 (actor[0]), iteration 6, the environment: ",
            "it was environment 1; the last action was ",
        ),
        variables={odd.VARIABLE: deed},
        shell=f'cp {Path(odd.__file__).with_name("odd_gym.py")} .; exec "$@"',
    )


BATCH = "environments 4..7 are one batch; the last action was ["
RAISED = "after 39 steps: step raised ValueError: the wheel fell off"
HANGS = ("the environment: no progress", BATCH)
ENVIRONMENTS = (
    misbehaves("raises", "raise", RAISED, BATCH, "Traceback", "odd.py"),
    misbehaves("hangs", "hang", *HANGS, words=SOON, unsaid=("Traceback",), quick=True),
    misbehaves("leaks memory", "leak", "Memory", shell=f'ulimit -d {LEAK_KIB}; exec "$@"'),
    misbehaves("starts processes and daemons", "start"),
    *(
        misbehaves_in_gym(name, deed)
        for name in ("odd_gym:Odd-v0", "odd_gym.py:Odd")
        for deed in ("hang", "abort")
    ),
)

UNHEARD = {
    "closed stdin": 'exec "$@" <&-',
    "closed stdout": 'exec "$@" >&-',
    "closed stderr": 'exec "$@" 2>&-',
    "| head -1": '"$@" 2>&1 | head -1; exit ${PIPESTATUS[0]}',
}
LIMITS = (
    Case(
        *("limits", "num_envs=4096"),
        (*SHORT, "num_envs=4096", "--total-steps", str(4096 * 16 * 3)),
        reached=3,
    ),
    *(
        Case("limits", limit, code=(0, 1, 2), shell=f'{limit}; exec "$@"')
        for limit in ("ulimit -v 1000000", "ulimit -v 3000000", "ulimit -n 64")
    ),
    *(Case("limits", name, shell=shell) for name, shell in UNHEARD.items()),
    Case(
        *("limits", "output that nobody reads"),
        (*SMALL, *ONE_PROCESS, "--total-steps", str(20 * EACH)),
        reached=20,
        logged=("msrl: stderr is closed", "msrl: stdout is closed"),
        shell='"$@" > >(true) 2> >(head -1 > here)',
        quick=True,
    ),
)
ROWS = (*ENDS, *DISK, *TWO, *ENVIRONMENTS, *LIMITS)
