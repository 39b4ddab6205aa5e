"""Jobs of the drill: starts them, finds their processes, and finds what they leave behind."""

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

ROOT = Path(__file__).resolve().parents[2]
TRAIN = (sys.executable, "-m", "mindspore_rl.cli", "train")
SHARED_MEMORY, TEMPORARY = Path("/dev/shm"), Path("/tmp")
MPI_FILES = "hydra_*"
LEFT_S = 15.0
"""Time for all processes of a job to end after its coordinator."""
POLL_S, LOOK_EACH = 0.05, 8
_NEW_MOUNTS = 0x20000  # of unshare(2)


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        good: True if the promise was kept; None if it could not be tested.
    """

    part: str
    tried: str
    came: str
    good: bool | None


class Broken(Exception):
    """Raised if a promise is broken."""


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
    if name.startswith("mpiexec"):
        return "mpiexec"
    if "pmi_proxy" in name:
        return "proxy"
    if not name.startswith("python"):
        return "other"
    if "PMI_RANK" in variables:
        return "rank" if any(word.startswith("mindspore_rl.") for word in words) else "other"
    for before, word in zip(words, words[1:], strict=False):
        if before == "-m" and word == "mindspore_rl.cli":
            return "coordinator"
        if before in ("-m", "-c"):
            return "scheduler" if variables.get("MS_ROLE") == "MS_SCHED" else "other"
        if not word.startswith("-"):
            return "reaper" if "mindspore_rl" in Path(word).parts else "other"
    return "other"


def read(path: str) -> str:
    """Reads a file of /proc; returns an empty text if the process has ended."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """Returns a process's stat after its name: state, parent, ..., start; none if it ended."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _runs(pid: int, started: str) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z" and fields[19] == started


def segments() -> set[str]:
    """Returns the names in shared memory."""
    return {path.name for path in SHARED_MEMORY.iterdir()}


def _mapped() -> set[str]:
    maps = "".join(read(f"/proc/{pid}/maps") for pid in os.listdir("/proc") if pid.isdigit())
    return set(re.findall(r"/dev/shm/(\S+)", maps))


@dataclass
class Place:
    """The folder of the drill's jobs; they share caches, but not temporary files."""

    folder: Path
    jobs: "list[Job]" = field(default_factory=list)
    number: int = 0

    def job(self, words: Sequence[str], name: str = "job", **how: object) -> "Job":
        """Starts a job in a new folder; `how` has the arguments of `Job`."""
        self.number += 1
        self.jobs = [job for job in self.jobs if job.process.poll() is None]
        job = Job(self, self.folder / f"{self.number:03d}-{name}", words, **how)  # type: ignore[arg-type]
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
        self._seen: dict[int, str] = {}
        self._shared = segments()
        self._left = set(TEMPORARY.glob(MPI_FILES))
        self.temporary.mkdir(parents=True)
        self.words = [*TRAIN, *words, *(("--run-dir", str(self.run)) if run else ())]

        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                ["bash", "-c", shell, "bash", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "TMPDIR": str(self.temporary),
                    "XDG_CACHE_HOME": str(place.folder / "cache"),
                    **(variables or {}),
                },
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        """Returns its output."""
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        """Returns its output on standard error."""
        return (self.folder / "err").read_text(errors="replace")

    def processes(self) -> dict[int, str]:
        """Returns its living processes and their kinds: descendants, or with its environment."""
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        stats = {pid: fields for pid in numbers if (fields := _stat(pid)) and fields[0] != "Z"}
        below = {pid for pid, start in self._seen.items() if _runs(pid, start)}
        if self.process.poll() is None:
            below.add(self.process.pid)
        children: dict[int, list[int]] = {}
        for pid, fields in stats.items():
            children.setdefault(int(fields[1]), []).append(pid)
        todo = list(below)
        while todo:
            for pid in children.get(todo.pop(), ()):
                if pid not in below:
                    below.add(pid)
                    todo.append(pid)
        found = {}
        for pid, fields in stats.items():
            variables = dict(
                pair.partition("=")[::2] for pair in read(f"/proc/{pid}/environ").split("\0")
            )
            if pid in below or variables.get("TMPDIR") == str(self.temporary):
                self._seen[pid] = fields[19]
                words = read(f"/proc/{pid}/cmdline").split("\0")[:-1]
                own = pid == self.process.pid
                found[pid] = "above" if own else kind_of(words, variables)
        return found

    def wait(self, within_s: float) -> int:
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

    def train(self, within_s: float, lines: int = 1) -> None:
        """Waits until iterations have been logged. Raises: Broken."""
        log = self.run / "metrics.jsonl"

        def logged() -> bool:
            if self.process.poll() is not None:
                raise Broken(f"exit code {self.process.returncode}: {self.err[-500:]}")
            return read(str(log)).count("\n") >= lines

        self.until(logged, within_s, "log an iteration")

    def left(self) -> list[str]:
        """Returns what remains after its end: processes, shared memory, temporary files."""
        deadline = time.monotonic() + LEFT_S
        while (found := self._look()) and time.monotonic() < deadline:
            time.sleep(4 * POLL_S)
        return found

    def _look(self) -> list[str]:
        found = [f"{kind} {pid}" for pid, kind in self.processes().items()]
        if names := segments() - self._shared:
            found += [f"/dev/shm/{name}" for name in sorted(names - _mapped())]
        found += [str(path) for path in set(TEMPORARY.glob(MPI_FILES)) - self._left]
        own = f"msrl-{os.getuid()}"  # locks of cores, which remain
        found += [str(path) for path in self.temporary.iterdir() if path.name != own]
        return found + [str(path) for path in self.folder.rglob("*.tmp")]

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

    def check(self, code: int, *expected: int, said: str = "") -> None:
        """Compares its end with the promise. Raises: Broken."""
        if code not in expected:
            raise Broken(f"exit code {code}, expected {expected}: {self.err[-500:].strip()}")
        if said not in self.err + self.out:
            raise Broken(f"said nothing of {said!r}: {self.err[-500:].strip()}")
        for told in re.split(r"^(?=msrl: )", self.err, flags=re.MULTILINE):
            if "Traceback" in told and not told.startswith("msrl: rank "):
                raise Broken(f"a traceback that is no rank's: {told[-500:].strip()}")
        if left := self.left():
            raise Broken(f"left behind: {', '.join(left)}")
