"""Free resources of this machine: memory, shared memory, cores, descriptors."""

import contextlib
import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_GROUP_FILES = {
    "cgroup2": ("memory.max", "memory.current", "inactive_file"),
    "cgroup": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files of a control group by its version: limit, usage, and the key of memory.stat for the part of
the usage that the kernel can reclaim."""


def available_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that programs can still allocate, swap included.

    Considers the limits of all control groups that contain this process.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    found = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
    free = (found["MemAvailable"] + found["SwapFree"]) << 10
    return min([free, *_left_of_groups(root)])


def _left_of_groups(root: Path) -> Iterator[int]:
    """Yields the bytes left in each control group that has a limit."""
    for kind, group in _groups(root):
        limit, used, given_back = _GROUP_FILES[kind]
        with contextlib.suppress(OSError, ValueError, IndexError):  # no limit
            most = int((group / limit).read_text())
            stat = (group / "memory.stat").read_text().split()
            spare = int(stat[stat.index(given_back) + 1])
            yield most - int((group / used).read_text()) + spare


def _groups(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields this process's control groups of memory and their ancestors, with their kind."""
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        own = {kinds: path for _, kinds, path in (line.split(":", 2) for line in lines)}
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            mount, _, system = line.partition(" - ")
            kind, _, options = system.split(" ", 2)
            of_memory = kind == "cgroup2" or "memory" in options.split(",")
            if kind not in _GROUP_FILES or not of_memory:
                continue
            names = [kinds for kinds in own if "memory" in kinds.split(",")]
            path = own.get("" if kind == "cgroup2" else next(iter(names), "-"), "/")
            top, place = mount.split(" ")[3:5]
            group = root / place.lstrip("/")
            yield kind, group
            if path.startswith(top):  # a container may see only part of the tree
                for part in Path(path).relative_to(top).parts:
                    group /= part
                    yield kind, group


def address_space() -> float:
    """Returns the bytes of addresses that a process may use (`ulimit -v`)."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def descriptors(least: int = 0) -> int:
    """Returns the limit of open files (`ulimit -n`), raised to `least` if allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < least <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
        return least
    return soft


def has_working_folder() -> bool:
    """Returns whether the working folder still exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def free_shared_bytes() -> float:
    """Returns the free bytes of /dev/shm."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize if found.f_blocks else math.inf  # no limit


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
