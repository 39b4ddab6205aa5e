"""Jobs that are disturbed: starts them, finds their processes, judges what they leave behind."""

import contextlib
import ctypes
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mindspore_rl.runtime.checkpoint import FOLDER, list_checkpoints, load
from mindspore_rl.runtime.heartbeat import ROW, STAMPS_FILE

ROOT = Path(__file__).resolve().parents[2]
TRAIN = (sys.executable, "-m", "mindspore_rl.cli", "train")
SHARED_MEMORY, TEMPORARY = Path("/dev/shm"), Path("/tmp")
MPI_FILES = "hydra_*"
LONG_S, LEFT_S = 400.0, 15.0
"""Time limit of a job on a slow machine; time for its processes to end after its coordinator."""
POLL_S, LOOK_EACH = 0.05, 8
_NEW_MOUNTS = 0x20000  # of unshare(2)


@dataclass(frozen=True)
class Outcome:
    """A row of the drill's table.

    Attributes:
        good: True if the promise was kept; None if it could not be tested.
    """

    part: str
    tried: str
    came: str
    good: bool | None


class Broken(Exception):
    """Raised if a promise is broken."""


class Skipped(Exception):
    """Raised by a case that cannot run here."""


def private_mounts(folder: Path) -> bool:
    """Gives this process, and all that it starts, a private /dev/shm and /tmp.

    Args:
        folder: the drill's folder; it, the project and its Python keep their paths.

    Returns: whether this is permitted here.
    """
    if ctypes.CDLL(None).unshare(_NEW_MOUNTS):
        return False
    own = folder / "tmp"
    own.mkdir()
    kept = [p for p in (folder, ROOT, Path(sys.prefix)) if TEMPORARY in p.parents]
    commands = [
        ("--make-rprivate", "/"),
        ("-t", "tmpfs", "tmpfs", str(SHARED_MEMORY)),
        ("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(own)),
        *(("--bind", str(path), str(own / path.relative_to(TEMPORARY))) for path in kept),
        ("--move", str(own), str(TEMPORARY)),
    ]
    for command in commands:
        if command[0] == "--bind":
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
        if subprocess.run(["mount", *command], capture_output=True, check=False).returncode:
            return False
    return True


def public_again() -> None:
    """Unmounts the private /tmp, so that the drill's folder can be removed."""
    subprocess.run(["umount", "-l", str(TEMPORARY)], check=True)


def kind_of(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Classifies a process of a job by its command line and its environment."""
    name = Path(words[0]).name if words else ""
    of_scheduler = variables.get("MS_ROLE") == "MS_SCHED"
    if name.startswith("mpiexec"):
        return "mpiexec"
    if "pmi_proxy" in name:
        return "proxy"
    if not name.startswith("python"):
        return "other"
    if "PMI_RANK" in variables:
        return "rank" if any(word.startswith("mindspore_rl.") for word in words) else "other"
    for before, word in itertools.pairwise(words):
        if before == "-m" and word == "mindspore_rl.cli":
            return "coordinator"
        if before in ("-m", "-c"):
            return "scheduler" if of_scheduler else "other"
        if not word.startswith("-"):
            if "mindspore_rl" not in Path(word).parts:
                return "other"
            return "scheduler's reaper" if of_scheduler else "reaper"
    return "other"


def read(path: Path | str) -> str:
    """Reads a file; returns an empty text if there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _segments() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir() if path.is_file()}


def _mapped() -> set[str]:
    maps = "".join(read(f"/proc/{pid}/maps") for pid in psutil.pids())
    return set(re.findall(r"/dev/shm/(\S+)", maps))


@dataclass
class Place:
    """The folder of some jobs; they share caches, but not temporary files.

    Attributes:
        cache: the folder of caches; None: that of this process.
    """

    folder: Path
    cache: Path | None = None
    jobs: "list[Job]" = field(default_factory=list)
    number: int = 0

    def job(self, words: Sequence[str], name: str = "job", **how: object) -> "Job":
        """Starts a job in a new folder; `how` has the arguments of `Job`."""
        self.number += 1
        self.jobs = [job for job in self.jobs if job.process.poll() is None]
        job = Job(self, self.folder / f"{self.number:03d}-{name}", words, **how)
        self.jobs.append(job)
        return job

    def kill(self) -> None:
        """Ends all running jobs."""
        for job in self.jobs:
            job.kill()


class Job:
    """A process of `msrl train` with its own folder and temporary files.

    Args:
        words: its command line.
        run: its run directory, `run` in its folder by default; None: the job chooses.
        variables: its environment variables.
        shell: a bash command line in which `"$@"` is the job.
    """

    def __init__(
        self,
        place: Place,
        folder: Path,
        words: Sequence[str],
        run: Path | str | None = "run",
        variables: Mapping[str, str] | None = None,
        shell: str = 'exec "$@"',
    ) -> None:
        self.folder, self.temporary = folder, folder / "temporary"
        self.run = folder / (run or "runs")
        self._seen: set[psutil.Process] = set()
        self._shared, self._left = _segments(), set(TEMPORARY.glob(MPI_FILES))
        self.temporary.mkdir(parents=True)
        command = [*TRAIN, *words, *(("--run-dir", str(self.run)) if run else ())]
        own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        if place.cache is not None:
            own["XDG_CACHE_HOME"] = str(place.cache)
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                ["bash", "-c", shell, "bash", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**os.environ, **own, **(variables or {})},
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        """Returns its output."""
        return read(self.folder / "out")

    @property
    def err(self) -> str:
        """Returns its output on standard error."""
        return read(self.folder / "err")

    @property
    def restarts(self) -> int:
        """Returns how often it has restarted its ranks."""
        return self.err.count("restarting from")

    def processes(self) -> dict[int, str]:
        """Returns its living processes and their kinds: descendants, or with its environment."""
        return {p.pid: kind for p, kind in self._processes().items()}

    def find(self, whom: str) -> int | None:
        """Returns a process by its kind, or a rank by its number, as in "rank 1"."""
        for process, kind in self._processes().items():
            variables = process.info["environ"] or {}
            if whom in (kind, f"{kind} {variables.get('PMI_RANK')}"):
                return process.pid
        return None

    def strike(self, whom: str, number: int) -> bool:
        """Sends a signal to a process, as `find` names it. Returns: whether there is one."""
        pid = self.find(whom)
        if pid is not None:
            os.kill(pid, number)
        return pid is not None

    def _processes(self) -> dict[psutil.Process, str]:
        alive = list(psutil.process_iter(["ppid", "status", "environ", "cmdline"]))
        alive = [p for p in alive if p.info["status"] != psutil.STATUS_ZOMBIE]
        below = {p.pid for p in alive if p in self._seen}
        if self.process.poll() is None:
            below.add(self.process.pid)
        grown = True
        while grown:
            more = [p for p in alive if p.pid not in below and self._owns(p, below)]
            below |= {p.pid for p in more}
            grown = bool(more)
        found = {}
        for p in alive:
            if p.pid in below:
                own = p.pid == self.process.pid
                kind = kind_of(p.info["cmdline"] or [], p.info["environ"] or {})
                found[p] = "above" if own else kind
        self._seen |= set(found)  # those that leave their parents
        return found

    def _owns(self, process: psutil.Process, below: set[int]) -> bool:
        info = process.info
        variables = info["environ"] or {}
        return info["ppid"] in below or variables.get("TMPDIR") == str(self.temporary)

    def wait(self, within_s: float = LONG_S) -> int:
        """Waits for its end. Returns: its exit code. Raises: Broken."""
        self.until(lambda: self.process.poll() is not None, within_s, "end")
        return self.process.wait()

    def until(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Waits until a condition holds. Raises: Broken."""
        deadline = time.monotonic() + within_s
        for turn in itertools.count():
            if condition():
                return
            if time.monotonic() > deadline:
                raise Broken(f"did not {what} within {within_s:.0f} s")
            if not turn % LOOK_EACH:
                self.processes()  # records processes that leave their parents
            time.sleep(max(0.0, min(POLL_S, deadline - time.monotonic())))

    def comes_to(self, condition: Callable[[], object], what: str) -> None:
        """Waits until a condition holds before its end. Raises: Broken."""

        def holds() -> bool:
            if self.process.poll() is not None:
                raise Broken(f"exit code {self.process.returncode}: {self.err[-500:]}")
            return bool(condition())

        self.until(holds, LONG_S, what)

    def train(self) -> None:
        """Waits until an iteration has been logged. Raises: Broken."""
        self.comes_to(lambda: read(self.run / "metrics.jsonl").count("\n"), "log an iteration")

    def stamp(self, rank: int) -> tuple[int, int]:
        """Returns a rank's iteration and stage; (-1, -1) while the stamps are rewritten."""
        path = self.run / STAMPS_FILE
        rows = path.read_bytes() if path.exists() else b""
        if len(rows) < (rank + 1) * ROW.size:
            return -1, -1
        return ROW.unpack_from(rows, rank * ROW.size)[:2]

    def newest(self) -> int:
        """Returns the iteration of its newest checkpoint; all checkpoints must be readable."""
        paths = list_checkpoints(self.run / FOLDER)
        if not paths:
            raise Broken("no checkpoint")
        return max(load(path)[1]["iteration"] for path in paths)

    def arrays(self) -> dict:
        """Returns the arrays of its last checkpoint."""
        return load(list_checkpoints(self.run / FOLDER)[-1])[0]

    def left(self) -> list[str]:
        """Returns what remains after its end: processes, shared memory, temporary files."""
        deadline = time.monotonic() + LEFT_S
        while (found := self._look()) and time.monotonic() < deadline:
            time.sleep(4 * POLL_S)
        return found

    def _look(self) -> list[str]:
        found = [f"{kind} {pid}" for pid, kind in self.processes().items()]
        if names := _segments() - self._shared:
            found += [f"/dev/shm/{name}" for name in sorted(names - _mapped())]
        found += [str(path) for path in set(TEMPORARY.glob(MPI_FILES)) - self._left]
        own = f"msrl-{os.getuid()}"  # locks of cores, which remain
        found += [str(path) for path in self.temporary.iterdir() if path.name != own]
        found += [str(path) for path in self.folder.rglob("*.tmp")]
        if self.process.returncode == -signal.SIGKILL:  # the next start removes its folders
            found = [path for path in found if not Path(path).match("msrl-*.tmp")]
        return found

    def kill(self) -> None:
        """Ends all of its processes."""
        for _ in range(100):
            if not (found := self.processes()):
                break
            for pid in found:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
            self.process.poll()

    def check(self, code: int, *expected: int, said: Sequence[str] = ()) -> None:
        """Compares its end with the promise. Raises: Broken."""
        if code not in expected:
            raise Broken(f"exit code {code}, expected {expected}: {self.err[-500:].strip()}")
        if missing := [text for text in said if text not in self.err + self.out]:
            raise Broken(f"said nothing of {missing}: {self.err[-500:].strip()}")
        for told in re.split(r"^(?=msrl: )", self.err, flags=re.MULTILINE):
            if "Traceback" in told and not told.startswith("msrl: rank "):
                raise Broken(f"a traceback that is no rank's: {told[-500:].strip()}")
        if left := self.left():
            raise Broken(f"left behind: {', '.join(left)}")

    def ended_well(self, iterations: int = 100) -> str:
        """Checks a job that must succeed. Returns: its outcome. Raises: Broken."""
        self.check(self.wait(), 0)
        if (found := self.newest()) != iterations:
            raise Broken(f"the last checkpoint is of iteration {found}, expected {iterations}")
        return f"exit code 0, checkpoint of iteration {iterations}"


def same_arrays(first: Mapping, second: Mapping) -> None:
    """Compares the arrays of two checkpoints bit by bit. Raises: Broken."""
    if first.keys() != second.keys():
        raise Broken(f"other arrays: {sorted(first.keys() ^ second.keys())}")
    if odd := [name for name in first if first[name].tobytes() != second[name].tobytes()]:
        raise Broken(f"{', '.join(odd)} are not those of an undisturbed job")


def same_end(first: Job, *others: Job) -> None:
    """Compares the last checkpoints of jobs bit by bit. Raises: Broken."""
    for job in others:
        same_arrays(first.arrays(), job.arrays())
