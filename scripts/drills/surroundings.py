"""Parts of the drill around a job: other jobs, a suspended machine, compilers, caches, networks."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import network_hosts
from drills.jobs import Broken, Job, Place, read
from drills.small import EACH, ENDLESS, LONG_S, SHORT, SMALL, Skipped, ended_well, newest

from mindspore_rl.communication.link import SILENCE_S
from mindspore_rl.runtime.checkpoint import FOLDER, list_checkpoints, load

SUSPENDED_S = 60.0
EIGHT = 8
DAMAGED_SHARE = 0.5
LINKS = {"20 ms of delay": (20.0, 0.0), "1 ms of delay and 1 % of loss": (1.0, 0.01)}


def same_end(*jobs: Job) -> None:
    """Compares the last checkpoints of jobs bit by bit. Raises: Broken."""
    first, *others = (load(list_checkpoints(job.run / FOLDER)[-1])[0] for job in jobs)
    for arrays in others:
        if odd := [name for name in first if first[name].tobytes() != arrays[name].tobytes()]:
            raise Broken(f"{', '.join(odd)} are not those of an undisturbed job")


def resumed_twice(place: Place) -> str:
    """Two jobs that resume one run at once, each in its own directory."""
    first = place.job(SHORT, "first")
    ended_well(first)
    words = (*SHORT, "--resume", str(first.run), "--total-steps", str(200 * EACH))
    jobs = [place.job(words, "resumed") for _ in range(2)]
    for job in jobs:
        ended_well(job, 200)
    same_end(*jobs)
    return "exit code 0 twice, bit-equal"


def eight_at_once(place: Place) -> str:
    """Eight jobs that start at the same moment, with empty caches."""
    cache = {"XDG_CACHE_HOME": str(place.folder / "cache-of-eight")}
    jobs = [place.job(SHORT, f"one-of-eight-{i}", variables=cache) for i in range(EIGHT)]
    for job in jobs:
        ended_well(job)
    same_end(*jobs)
    return "exit code 0 eight times, bit-equal"


def suspended(place: Place) -> str:
    """All processes of a job are stopped for longer than its deadline, and continue."""
    words = (*ENDLESS, "--total-steps", str(600 * EACH), "--timeout", "20")
    undisturbed = place.job(words, "undisturbed")
    ended_well(undisturbed, 600)
    job = place.job(words, "suspended")
    job.train(LONG_S)
    stopped = list(job.processes())
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(SUSPENDED_S)
    ended_well(job, 600)
    same_end(undisturbed, job)
    return f"exit code 0 after {SUSPENDED_S:.0f} s, bit-equal"


def compiler_killed(place: Place) -> str:
    """The first compiler of native cells is killed."""
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
    return ended_well(job)


def damaged_cache(place: Place) -> str:
    """A cache with changed bytes, or with truncated files."""
    folder = place.folder / "cache-damaged"
    cache = {"XDG_CACHE_HOME": str(folder)}
    jobs = [place.job(SHORT, "undamaged", variables=cache)]
    ended_well(jobs[0])
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
    jobs.append(place.job(SHORT, "damaged", variables=cache))
    ended_well(jobs[1])
    same_end(*jobs)
    return f"{damaged} files damaged; exit code 0, bit-equal"


@contextlib.contextmanager
def two_hosts(place: Place, delay_ms: float | None = None, loss: float = 0.0):
    """Context: two hosts, and a function that makes a job on them."""
    if reason := network_hosts.why_not():
        raise Skipped(reason)
    with network_hosts.Network(2, delay_ms, loss=loss) as network:
        file = place.folder / "hosts.yaml"
        network.write_deployment(file)
        shell = f'exec ip netns exec {network.names[0]} "$@"'
        extra = {k: v for k, v in network.environment().items() if os.environ.get(k) != v}

        def job(*words: str) -> Job:
            words = (*words, "--workers", "1", "--deployment", str(file))
            return place.job(words, "on-two-hosts", shell=shell, variables=extra)

        yield network, job


def slow_link(place: Place, delay_ms: float, loss: float) -> str:
    """Two hosts whose link is slow, or loses packets."""
    words = (*SMALL, "--total-steps", str(50 * EACH), "--timeout", "120")
    alone = place.job((*words, "--workers", "1"), "one-host")
    ended_well(alone, 50)
    with two_hosts(place, delay_ms, loss) as (_, job):
        there = job(*words)
        ended_well(there, 50)
        same_end(alone, there)
    return "exit code 0, bit-equal to one host"


def cut_link(place: Place) -> str:
    """A link that is cut during the run."""
    with two_hosts(place) as (network, job):
        there = job(*ENDLESS)
        there.train(LONG_S)
        network.cut(1)
        code = there.wait(LONG_S)
        there.check(code, 1, said=f"host host1 has not been heard of for {SILENCE_S} s")
    return f"exit code 1 and the host's name, checkpoint of iteration {newest(there)}"


NEIGHBOURS: dict[str, Callable[[Place], str]] = {
    "two --resume of one run at once": resumed_twice,
    "eight jobs at once": eight_at_once,
    "a machine that is suspended": suspended,
    "a compiler that is killed": compiler_killed,
    "a damaged cache": damaged_cache,
}
NETWORK: dict[str, Callable[[Place], str]] = {
    **{
        f"a link with {name}": partial(slow_link, delay_ms=delay_ms, loss=loss)
        for name, (delay_ms, loss) in LINKS.items()
    },
    "a link that is cut": cut_link,
}
PARTS = {"neighbours": NEIGHBOURS, "network": NETWORK}
