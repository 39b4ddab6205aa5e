"""Runs MindSpore's threads on one core."""

import contextlib
import os
from collections.abc import Collection, Iterator


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Runs all threads of this process on one core while the context lasts.

    MindSpore's threads wait for each other in busy loops. On two busy cores each operator waits
    until both threads have a core; on one core they take turns.
    """
    every = os.sched_getaffinity(0)
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    _pin({sorted(every)[number % len(every)]})
    try:
        yield
    finally:
        _pin(every)


def _pin(cores: Collection[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), cores)
