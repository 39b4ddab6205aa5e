"""Runs MindSpore's threads on one core."""

import contextlib
import os
from collections.abc import Collection, Iterator

EVERY = os.sched_getaffinity(0)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Runs all threads of this process on one core while the context lasts."""
    before = os.sched_getaffinity(0)
    pin(True)
    try:
        yield
    finally:
        _pin(before)


def pin(alone: bool) -> None:
    """Runs all threads of this process, and processes that it starts, on one core or on all.

    MindSpore's threads wait for each other in busy loops. On two busy cores each operator waits
    until both threads have a core, up to twenty times as long; on one core they take turns.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    cores = {sorted(EVERY)[number % len(EVERY)]} if alone else EVERY
    if cores != os.sched_getaffinity(0):
        _pin(cores)


def _pin(cores: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)
