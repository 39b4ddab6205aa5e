"""What this machine has left for a job: memory, shared memory and cores."""

import contextlib
import math
import os
import resource
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_GROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that programs can still have, swap included, and within the limit of a container."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
    free = (found["MemAvailable"] + found["SwapFree"]) << 10
    with contextlib.suppress(OSError, ValueError):  # no group, or one without a limit
        used = int((_GROUP / "memory.current").read_text())
        free = min(free, int((_GROUP / "memory.max").read_text()) - used)
    return free


def address_space() -> float:
    """Bytes of addresses that a process may use (`ulimit -v`)."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def free_shared_bytes() -> float:
    """What is left of /dev/shm."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize if found.f_blocks else math.inf  # it has no limit


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
