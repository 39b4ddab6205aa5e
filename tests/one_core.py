"""Runs MindSpore's threads on one core, which no other process that runs tests uses meanwhile."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

EVERY = os.sched_getaffinity(0)
_locks: dict[int, int] = {}
"""Descriptors of the locks of cores, which are open for as long as this process lives."""
_held: list[int] = []
"""The core that this process has, if any."""


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Runs all threads of this process on one core while the context lasts."""
    alone = bool(_held)
    pin(True)
    try:
        yield
    finally:
        pin(alone)


def pin(alone: bool) -> None:
    """Runs all threads of this process, and processes that it starts, on one core or on all.

    MindSpore's threads wait for each other in busy loops. On two busy cores each operator waits
    until both threads have a core, up to twenty times as long; on one core they take turns. With
    more processes than cores those of a core take turns, too, a test at a time.
    """
    if alone and not _held:
        _held.append(_take())
        _pin(_held)
    elif not alone and _held:
        fcntl.flock(_locks[_held.pop()], fcntl.LOCK_UN)  # closing would leave it to forks
        _pin(EVERY)


def _take() -> int:
    """Takes a core that is free, or waits for one. Returns: its number."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    cores = sorted(EVERY)
    own = number % len(cores)
    turn = [*cores[own:], *cores[:own]]
    core = next(filter(_is_free, turn), turn[0])
    fcntl.flock(_lock(core), fcntl.LOCK_EX)
    return core


def _lock(core: int) -> int:
    if core not in _locks:
        file = Path(tempfile.gettempdir()) / f"msrl-tests-{os.getuid()}-core-{core}"
        _locks[core] = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
    return _locks[core]


def _is_free(core: int) -> bool:
    """Takes a core if nobody has it. Returns: whether it is taken."""
    try:
        fcntl.flock(_lock(core), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pin(cores: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)
