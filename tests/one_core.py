"""Runs MindSpore's threads on one core."""

import contextlib
import os
import socket
from collections.abc import Collection, Iterator

EVERY = os.sched_getaffinity(0)
_taken: list[tuple[int, socket.socket]] = []
"""The core that this process has to itself among the processes that run tests, if any."""


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Runs all threads of this process on one core while the context lasts."""
    alone = os.sched_getaffinity(0) != EVERY
    pin(True)
    try:
        yield
    finally:
        pin(alone)


def pin(alone: bool) -> None:
    """Runs all threads of this process, and processes that it starts, on one core or on all.

    MindSpore's threads wait for each other in busy loops. On two busy cores each operator waits
    until both threads have a core, up to twenty times as long; on one core they take turns. The
    core is one that no other such process has, if there is one.
    """
    if alone and not _taken:
        _taken.extend(_free_cores())
    elif not alone and _taken:
        _taken.pop()[1].close()
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    core = _taken[0][0] if _taken else sorted(EVERY)[number % len(EVERY)]
    cores = {core} if alone else EVERY
    if cores != os.sched_getaffinity(0):
        _pin(cores)


def _free_cores() -> list[tuple[int, socket.socket]]:
    """Takes a core. Returns: it and the name that holds it; the name is free once we end."""
    for core in sorted(EVERY):
        name = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):  # another has it
            name.bind(f"\0msrl-tests-core-{core}")
            return [(core, name)]
        name.close()
    return []


def _pin(cores: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)
