"""Runs MindSpore's threads on one core, which no other process that runs tests uses meanwhile."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

EVERY = os.sched_getaffinity(0)
_held: list[int] = []
"""The descriptor of the lock of the core that this process has, if any."""


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
        core, lock = _take()
        _held.append(lock)
        _pin({core})
    elif not alone and _held:
        os.close(_held.pop())
        _pin(EVERY)


def _take() -> tuple[int, int]:
    """Takes a core that is free, or waits for one. Returns: it, and its lock's descriptor."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    cores = sorted(EVERY)
    own = number % len(cores)
    locks = [os.open(_file_of(core), os.O_CREAT | os.O_RDWR, 0o600) for core in cores]
    turn = [*range(own, len(cores)), *range(own)]
    try:
        chosen = next((at for at in turn if _is_free(locks[at])), own)
        fcntl.flock(locks[chosen], fcntl.LOCK_EX)
        return cores[chosen], os.dup(locks[chosen])
    finally:
        for lock in locks:
            os.close(lock)


def _file_of(core: int) -> Path:
    return Path(tempfile.gettempdir()) / f"msrl-tests-{os.getuid()}-core-{core}"


def _is_free(lock: int) -> bool:
    """Takes a lock if nobody has it. Returns: whether it is taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pin(cores: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)
