"""Cases of several jobs, or of a machine that is odd; one function each."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from mindspore_rl.checking.replayed import replay
from mindspore_rl.communication.link import SILENCE_S
from mindspore_rl.runtime.checkpoint import FOLDER, list_checkpoints, load_newest
from scripts import network_hosts
from tests.chaos.cases import EACH, ENDLESS, LAST_GOOD, ROWS, SHORT, SMALL
from tests.chaos.jobs import LONG_S, Broken, Job, Place, Skipped, read, same_arrays, same_end

SUSPENDED_S = 60.0
EIGHT = 8
DAMAGED_SHARE = 0.5
FOR_EVER = ("--total-steps", "1000000000", "--checkpoint-every", "0.3")
SIX_HUNDRED = (*ENDLESS, "--total-steps", str(600 * EACH))
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


# ---- two jobs ------------------------------------------------------------------------------------


def same_run_directory(place: Place) -> str:
    run = place.folder / "shared-run"
    jobs = [place.job(SHORT, "same", run=run) for _ in range(2)]
    codes = [job.wait() for job in jobs]
    if sorted(codes) != [0, 2]:
        raise Broken(f"exit codes {codes}, expected 0 and 2: {jobs[0].err}{jobs[1].err}")
    jobs[codes.index(2)].check(2, 2, said=("already holds a run",))
    return f"{jobs[codes.index(0)].ended_well()}; the other exit code 2"


def same_folder(place: Place) -> str:
    first = place.job(SHORT, "beside", run=None)
    second = place.job(SHORT, "beside", run=None, shell=f'cd "{first.folder}" && exec "$@"')
    for job in (first, second):
        job.check(job.wait(), 0)
    runs = list((first.folder / "runs").iterdir())
    found = [load_newest(run / FOLDER)[0].name for run in runs]
    if len(found) != 2:
        raise Broken(f"{len(found)} run directories")
    return "exit code 0 twice, a run directory each"


def own_cores(place: Place) -> str:
    """Two jobs at once: a job that finds too few free cores pins nothing."""
    (place.folder / "locks").mkdir()
    locks = {"TMPDIR": str(place.folder / "locks")}
    jobs = [place.job((*SHORT, "--workers", "1"), "pinned", variables=locks) for _ in range(2)]
    pinned: list[set[int]] = [set(), set()]
    while any(job.process.poll() is None for job in jobs):
        for job, cores in zip(jobs, pinned, strict=True):
            for rank in ("rank 0", "rank 1"):
                with contextlib.suppress(psutil.Error):  # it has ended
                    if (pid := job.find(rank)) is not None:
                        allowed = psutil.Process(pid).cpu_affinity()
                        cores.update(allowed if len(allowed) == 1 else ())
    for job in jobs:
        job.ended_well()
    if pinned[0] & pinned[1]:
        raise Broken(f"both are pinned to the cores {pinned[0] & pinned[1]}")
    return f"exit code 0 twice, pinned to the cores {pinned}"


def resumed_twice(place: Place) -> str:
    first = place.job(SHORT, "first")
    first.ended_well()
    words = (*SHORT, "--resume", str(first.run), "--total-steps", str(200 * EACH))
    jobs = [place.job(words, "resumed") for _ in range(2)]
    for job in jobs:
        job.ended_well(200)
    same_end(*jobs)
    return "exit code 0 twice, bit-equal"


def eight_at_once(place: Place) -> str:
    cache = {"XDG_CACHE_HOME": str(place.folder / "cache-of-eight")}
    jobs = [place.job(SHORT, f"one-of-eight-{i}", variables=cache) for i in range(EIGHT)]
    for job in jobs:
        job.ended_well()
    same_end(*jobs)
    return "exit code 0 eight times, bit-equal"


# ---- odd machines --------------------------------------------------------------------------------


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
        job = place.job(SIX_HUNDRED, "clock", variables=variables)
        if jumps:
            job.train()
        for weeks in jumps:
            offset.write_bytes(bytes(weeks))
            time.sleep(1.0)
        job.ended_well(600)
        finals.append(job.arrays())
        offset.unlink(missing_ok=True)
    same_arrays(*finals)
    return "exit code 0, bit-equal"


def suspended(place: Place) -> str:
    """All processes of a job are stopped for longer than its deadline, and continue."""
    words = (*SIX_HUNDRED, "--timeout", "20")
    undisturbed = place.job(words, "undisturbed")
    undisturbed.ended_well(600)
    job = place.job(words, "suspended")
    job.train()
    stopped = list(job.processes())
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(SUSPENDED_S)
    job.ended_well(600)
    same_end(undisturbed, job)
    return f"exit code 0 after {SUSPENDED_S:.0f} s, bit-equal"


def compiler_killed(place: Place) -> str:
    cache = {"XDG_CACHE_HOME": str(place.folder / "cache-without-compiler")}
    job = place.job(SHORT, "compiling", variables=cache)
    struck: list[int] = []

    def strike() -> bool:
        for pid in job.processes():
            if Path(read(f"/proc/{pid}/cmdline").split("\0")[0]).name == "cc1plus":
                os.kill(pid, signal.SIGKILL)
                struck.append(pid)
        return bool(struck) or job.process.poll() is not None

    job.until(strike, LONG_S, "compile")
    if not struck:
        raise Broken("it ended before a compiler ran")
    return job.ended_well()


def damaged_cache(place: Place) -> str:
    folder = place.folder / "cache-damaged"
    cache = {"XDG_CACHE_HOME": str(folder)}
    first = place.job(SHORT, "undamaged", variables=cache)
    first.ended_well()
    rng, damaged = random.Random(1), 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = bytearray(file.read_bytes())
        if not content or rng.random() > DAMAGED_SHARE:
            continue
        damaged += 1
        if damaged % 2:
            content[rng.randrange(len(content))] ^= 0xFF
        else:
            content = content[: rng.randrange(len(content))]
        file.write_bytes(content)
    job = place.job(SHORT, "damaged", variables=cache)
    job.ended_well()
    same_end(first, job)
    return f"{damaged} files damaged; exit code 0, bit-equal"


REFUSED = (
    ("hidden=32", "has shape (64, 4) in it and shape (32, 4) here"),
    ("--env=Acrobot-v1", "environment is CartPole-v1 in it and Acrobot-v1 here"),
)


def damaged_checkpoint(place: Place, cells: str) -> str:
    """A resumed job uses the checkpoint before a damaged one, and is the job that it was."""
    words = (*SMALL, "--quiet", "--workers", "1", "--cells", cells)
    job = place.job((*words, "--total-steps", str(10 * EACH), "--checkpoint-every", "0.01"))
    job.ended_well(10)
    *_, before, newest = list_checkpoints(job.run / FOLDER)
    newest.write_bytes(newest.read_bytes()[:-1000])
    for change, reason in REFUSED:
        other = place.job(("ppo", "--resume", str(job.run), change), "other")
        other.check(other.wait(), 2, said=(reason,))
    steps = ("--total-steps", str(11 * EACH))
    again = place.job(("ppo", "--resume", str(job.run), *steps), "again")
    again.ended_well(11)
    damage = f"{newest.name} is damaged (BadZipFile: File is not a zip file)"
    again.check(0, 0, said=(damage, f"using {before}"))
    return "exit code 0 from the one before, and 2 of another network or environment"


# ---- several hosts -------------------------------------------------------------------------------


@contextlib.contextmanager
def hosts(
    place: Place, number: int, delay_ms: float | None = None, loss: float = 0.0, ssh: bool = False
):
    """Context: some hosts, and a function that makes a job on them."""
    if reason := network_hosts.why_not(ssh):
        raise Skipped(reason)
    with network_hosts.Network(number, delay_ms, ssh, loss=loss) as network:
        file = place.folder / "hosts.yaml"
        network.write_deployment(file)
        shell = f'exec {" ".join(network.command(0, []))} "$@"'
        extra = {k: v for k, v in network.environment().items() if os.environ.get(k) != v}

        def job(*words: str) -> Job:
            words = (*words, "--deployment", str(file))
            return place.job(words, "on-hosts", shell=shell, variables=extra)

        yield network, job


def equal_to_one(
    place: Place, policy: str, workers: int, number: int, *link: float, iterations: int = 4
) -> str:
    """Hosts compute the results of one, also if their link is slow or loses packets."""
    words = (*SMALL, "--quiet", "--total-steps", str(iterations * EACH), "--timeout", "120")
    words = (*words, "--policy", policy, "--workers", str(workers))
    alone = place.job(words, "one-host")
    alone.ended_well(iterations)
    with hosts(place, number, *link) as (_, job):
        there = job(*words)
        there.ended_well(iterations)
        same_end(alone, there)
    return "exit code 0, bit-equal to one host"


def asynchronous(place: Place, words: tuple[str, ...]) -> str:
    """Actors on hosts of their own; the log repeats the run, and a cut link is named."""
    words = (*words, "--workers", "2", "--stop-return", "nan", "--quiet")
    with hosts(place, 3) as (_, job):
        there = job(*words, "--total-steps", "3000")
        there.check(there.wait(), 0)
        compared = replay(there.run, lambda done, total: None)
        if wrong := [str(one) for one in compared if one.wrong]:
            raise Broken(f"the plain loop of its log differs: {wrong[0]}")
    return f"{len(compared)} comparisons equal; " + cut_link(place, (*words, *FOR_EVER), 3)


def cut_link(place: Place, words: tuple[str, ...], number: int = 2) -> str:
    with hosts(place, number) as (network, job):
        there = job(*words)
        there.train()
        network.cut(1)
        code = there.wait()
        silent = f"host host1 has not been heard of for {SILENCE_S} s"
        there.check(code, 1, said=(silent, LAST_GOOD))
    return f"exit code 1 and the host's name, checkpoint of iteration {there.newest()}"


COARSE = "SingleLearnerCoarse"
TWO: dict[str, Callable[[Place], str]] = {
    "two jobs with one --run-dir": same_run_directory,
    "two jobs in one folder": same_folder,
    "two jobs on one machine": own_cores,
}
NEIGHBOURS: dict[str, Callable[[Place], str]] = {
    "two --resume of one run at once": resumed_twice,
    "eight jobs at once": eight_at_once,
    "a machine that is suspended": suspended,
    "a compiler that is killed": compiler_killed,
    "a damaged cache": damaged_cache,
    "a damaged checkpoint": partial(damaged_checkpoint, cells="native"),
    "a damaged checkpoint, MindSpore's cells": partial(damaged_checkpoint, cells="mindspore"),
}
NETWORK: dict[str, Callable[[Place], str]] = {
    f"hosts: {number}, {policy}": partial(
        equal_to_one, policy=policy, workers=workers, number=number
    )
    for policy, number, workers in (
        (COARSE, 3, 2),
        ("SingleLearnerFine", 2, 1),
        ("MultipleLearners", 2, 2),
        ("GPUOnly", 3, 3),
    )
}
NETWORK |= {
    f"a link with {name}": lambda place, link=link: equal_to_one(
        place, COARSE, 1, 2, *link, iterations=50
    )
    for name, link in (
        ("20 ms of delay", (20.0, 0.0)),
        ("1 ms of delay and 1 % of loss", (1.0, 0.01)),
    )
}
NETWORK |= {
    "a link that is cut": partial(cut_link, words=(*ENDLESS, "--workers", "1")),
    "a link that is cut, GPUOnly": partial(cut_link, words=(*ENDLESS, "--policy", "GPUOnly")),
    "IMPALA": partial(asynchronous, words=("--config", "impala")),
    "Ape-X": partial(asynchronous, words=("--config", "apex")),
}
LIMITS = {"a wall clock that jumps": clock_jumps}
EXTRA = {"two": TWO, "limits": LIMITS, "neighbours": NEIGHBOURS, "network": NETWORK}
PARTS: dict[str, dict[str, Callable[[Place], str]]] = {}
for _case in ROWS:
    PARTS.setdefault(_case.part, {})[_case.name] = _case
for _part, _cases in EXTRA.items():
    PARTS.setdefault(_part, {}).update(_cases)
