"""Small parts of the drill: disks, directories, environments and limits; one function per case."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from drills.jobs import Broken, Case, Job, Place

from mindspore_rl.runtime.checkpoint import FOLDER, list_checkpoints, load, load_newest

LONG_S = 400.0
"""Time limit for slow machines; the job's own deadlines detect hangs."""
SMALL = (
    *("ppo", "--policy", "SingleLearnerCoarse", "--workers", "2", "--stop-return", "nan"),
    *("num_steps=16", "update_epochs=1", "num_minibatches=2", "--cells", "native", "--quiet"),
)
EACH = 16 * 8
SHORT = (*SMALL, "--total-steps", str(100 * EACH))
ENDLESS = (*SMALL, "--total-steps", "1000000000", "--checkpoint-every", "0.3")
ENVIRONMENT = '''
import os, subprocess, sys, time
import numpy as np
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete

class Odd:
    """Does what it should not in environment 5."""

    def __init__(self, env_indices, seed):
        self.indices, self.count, self.kept = env_indices, 0, []
        self.spec = EnvironmentSpec("odd", (3,), Discrete(2), 100, None, False)

    def reset(self):
        return np.zeros((len(self.indices), 3), np.float32)

    def step(self, action):
        self.count += 1
        if self.count >= 40 and 5 in self.indices:
            self.misbehave()
        n = len(self.indices)
        obs = np.full((n, 3), self.count % 7, np.float32)
        return obs, obs, np.ones(n, np.float32), np.zeros(n, bool), np.zeros(n, bool)

    def misbehave(self):
        MISBEHAVE

    def get_state(self):
        return None

    def set_state(self, state):
        raise AssertionError

    def close(self):
        pass
'''
DAEMONS = """
        if self.count == 40:
            subprocess.Popen(["sleep", "1000"])
            daemon = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(1000)"
            subprocess.run([sys.executable, "-c", daemon], env={}, cwd="/", check=True)
"""
ODD = {
    "raises": ("raise ValueError('the wheel fell off')", 1, "the wheel fell off"),
    "hangs": ("time.sleep(1000)", 1, "no progress"),
    "leaks memory": ("self.kept.append(np.ones(1 << 26))", 1, "Memory"),
    "starts processes and daemons": (DAEMONS.strip(), 0, ""),
}
LEAK_KIB = 4 << 20
"""Limit on data of a job whose environment leaks 512 MiB per step."""
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
/* Weeks by which the wall clock is wrong: the size of a file, less ten. */
static time_t wrong(void) {
  struct stat found;
  const char *path = getenv("DRILL_CLOCK");
  return path && !stat(path, &found) ? (found.st_size - 10) * 604800 : 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += wrong();
  return status;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *out) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (out) *out = found.tv_sec;
  return found.tv_sec;
}
"""


class Skipped(Exception):
    """Raised by a case that cannot run here."""


def run_part(
    part: str, cases: dict[str, Callable[[Place], str]], place: Place, tell: Callable
) -> Iterator[Case]:
    """Runs the cases of a part."""
    for name, case in cases.items():
        tell(f"{part}: {name}")
        try:
            yield Case(part, name, case(place), True)
        except Skipped as reason:
            yield Case(part, name, f"not tried: {reason}", None)
        except Broken as error:
            job = place.jobs[-1]
            place.kill()
            yield Case(part, name, f"{error} ({job.folder})", False)


def ended_well(job: Job, iterations: int = 100) -> str:
    """Checks a job that must succeed. Returns: its outcome. Raises: Broken."""
    job.check(job.wait(LONG_S), 0)
    if (found := newest(job)) != iterations:
        raise Broken(f"the last checkpoint is of iteration {found}, expected {iterations}")
    return f"exit code 0, checkpoint of iteration {iterations}"


def newest(job: Job) -> int:
    """Returns the iteration of a job's newest checkpoint; all checkpoints must be readable."""
    paths = list_checkpoints(job.run / FOLDER)
    if not paths:
        raise Broken("no checkpoint")
    return max(load(path)[1]["iteration"] for path in paths)


@contextlib.contextmanager
def small_disk(place: Place, options: str) -> Iterator[Path]:
    """Context: a file system in memory is mounted."""
    disk = place.folder / "disk"
    disk.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skipped(f"mount is not allowed: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def full(place: Place, options: str, fill: Callable[[Path], None], free: Callable) -> str:
    """A disk that is full during the run, and has room again afterwards."""
    with small_disk(place, options) as disk:
        job = place.job(ENDLESS, "full", run=disk / "run")
        job.until(lambda: len(list_checkpoints(job.run / FOLDER)) > 1, LONG_S, "save twice")
        fill(disk)
        code = job.wait(LONG_S)
        job.check(code, 1, said="cannot be written (No space left on device)")
        before = newest(job)
        free(disk)
        steps = str((before + 20) * EACH)
        words = (*SHORT, "--resume", str(job.run), "--total-steps", steps)
        again = place.job(words, "resumed", run=disk / "again")
        ended_well(again, before + 20)
    return f"exit code 1 and its reason; resumed from iteration {before}"


def fill_bytes(disk: Path) -> None:
    """Fills the disk except for 32 KiB."""
    left = os.statvfs(disk)
    with contextlib.suppress(OSError), (disk / "filler").open("wb") as file:
        file.write(bytes(left.f_bavail * left.f_bsize - (32 << 10)))


def fill_inodes(disk: Path) -> None:
    """Uses all inodes."""
    (disk / "files").mkdir()
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (disk / "files" / str(number)).touch()


DISK: dict[str, Callable[[Place], str]] = {
    "full disk": partial(
        full, options="size=16m", fill=fill_bytes, free=lambda disk: (disk / "filler").unlink()
    ),
    "full inodes": partial(
        full,
        options="size=64m,nr_inodes=150",
        fill=fill_inodes,
        free=lambda disk: shutil.rmtree(disk / "files"),
    ),
}


def same_run_directory(place: Place) -> str:
    """Two jobs with the same run directory at once."""
    run = place.folder / "shared-run"
    jobs = [place.job(SHORT, "same", run=run) for _ in range(2)]
    codes = [job.wait(LONG_S) for job in jobs]
    if sorted(codes) != [0, 2]:
        raise Broken(f"exit codes {codes}, expected 0 and 2: {jobs[0].err}{jobs[1].err}")
    jobs[codes.index(2)].check(2, 2, said="already holds a run")
    return f"{ended_well(jobs[codes.index(0)])}; the other exit code 2"


def same_folder(place: Place) -> str:
    """Two jobs that choose their run directories in one folder at once."""
    first = place.job(SHORT, "beside", run=None)
    second = place.job(SHORT, "beside", run=None, shell=f'cd "{first.folder}" && exec "$@"')
    for job in (first, second):
        job.check(job.wait(LONG_S), 0)
    runs = list((first.folder / "runs").iterdir())
    found = [load_newest(run / FOLDER)[0].name for run in runs]
    if len(found) != 2:
        raise Broken(f"{len(found)} run directories")
    return "exit code 0 twice, a run directory each"


def removed(place: Place) -> str:
    """A run directory that is removed during the run."""
    job = place.job((*SMALL, "--total-steps", str(1500 * EACH)), "removed")
    job.train(LONG_S)
    while job.run.exists():
        shutil.rmtree(job.run, ignore_errors=True)
    job.check(job.wait(LONG_S), 1, said=str(job.run))
    return "exit code 1, and the directory's name"


TWO: dict[str, Callable[[Place], str]] = {
    "two jobs with one --run-dir": same_run_directory,
    "two jobs in one folder": same_folder,
    "run directory removed in mid-run": removed,
}


def odd(place: Place, does: str) -> str:
    """An environment with a fault."""
    code, expected, said = ODD[does]
    file = place.folder / f"odd-{does.split(maxsplit=1)[0]}.py"
    file.write_text(ENVIRONMENT.replace("MISBEHAVE", code))
    words = (*SHORT, "--env", f"{file}:Odd", "--timeout", "10" if "hangs" in does else "120")
    limit = f"ulimit -d {LEAK_KIB}; " if "leaks" in does else ""
    job = place.job(words, "odd", shell=f'{limit}exec "$@"')
    if not expected:
        return f"{ended_well(job)}, nothing left"
    job.check(job.wait(LONG_S), expected, said=said)
    job.check(expected, expected, said="actor[1]")
    return f"exit code {expected}: {job.err.splitlines()[0][:150]}"


ENVIRONMENTS: dict[str, Callable[[Place], str]] = {
    f"an environment that {does}": partial(odd, does=does) for does in ODD
}


def told(place: Place, limit: str) -> str:
    """A limit under which a job may fail, but with a message."""
    job = place.job(SHORT, "limited", shell=f'{limit}; exec "$@"')
    code = job.wait(LONG_S)
    if code == 0:
        return ended_well(job)
    job.check(code, 1, 2, said="msrl: ")
    return f"exit code {code}: {job.err.splitlines()[0][:200]}"


def unheard(place: Place, shell: str) -> str:
    """A job whose input or output is closed."""
    return ended_well(place.job(SHORT, "unheard", shell=shell))


def hung_up(place: Place) -> str:
    """A terminal that is closed."""
    job = place.job(ENDLESS, "hung-up")
    job.train(LONG_S)
    job.process.send_signal(signal.SIGHUP)
    job.check(job.wait(LONG_S), 130, said="interrupted")
    return f"exit code 130, checkpoint of iteration {newest(job)}"


def many(place: Place) -> str:
    """4096 environments."""
    words = (*SHORT, "num_envs=4096", "--total-steps", str(4096 * 16 * 3))
    return ended_well(place.job(words, "many"), 3)


def clock_jumps(place: Place) -> str:
    """A wall clock that jumps, for all processes of a job, two weeks ahead and three back."""
    source, library = place.folder / "clock.c", place.folder / "clock.so"
    source.write_text(CLOCK)
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Skipped(f"no C compiler ({error})") from error
    offset = place.folder / "offset"
    variables = {"LD_PRELOAD": str(library), "DRILL_CLOCK": str(offset)}
    finals = []
    for jumps in ((), (12, 9)):
        job = place.job((*ENDLESS, "--total-steps", str(600 * EACH)), "clock", variables=variables)
        if jumps:
            job.train(LONG_S)
        for weeks in jumps:
            offset.write_bytes(bytes(weeks))
            time.sleep(1.0)
        ended_well(job, 600)
        finals.append(load(list_checkpoints(job.run / FOLDER)[-1])[0])
        offset.unlink(missing_ok=True)
    same = all(finals[0][name].tobytes() == finals[1][name].tobytes() for name in finals[0])
    if not same:
        raise Broken("the last checkpoint is not that of an undisturbed clock")
    return "exit code 0, bit-equal"


LIMITS: dict[str, Callable[[Place], str]] = {
    "num_envs=4096": many,
    **{
        limit: partial(told, limit=limit)
        for limit in ("ulimit -v 1000000", "ulimit -v 3000000", "ulimit -n 64")
    },
    "closed stdin": partial(unheard, shell='exec "$@" <&-'),
    "closed stdout": partial(unheard, shell='exec "$@" >&-'),
    "closed stderr": partial(unheard, shell='exec "$@" 2>&-'),
    "| head -1": partial(unheard, shell='"$@" 2>&1 | head -1; exit ${PIPESTATUS[0]}'),
    "SIGHUP": hung_up,
    "a wall clock that jumps": clock_jumps,
}
PARTS = {"disk": DISK, "two": TWO, "environments": ENVIRONMENTS, "limits": LIMITS}
