"""`msrl doctor`: checks this machine for training and prints a fix for each problem found."""

import argparse
import importlib.metadata
import importlib.util
import math
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mindspore_rl.errors import MsrlError, install
from mindspore_rl.platform import gpu, resources, toolchain

SHARED_BYTES = 32 << 20  # for 30 ranks of MPI
OPTIONAL = {"mujoco": "mujoco", "mpe2": "marl", "pettingzoo": "marl", "matplotlib": "plot"}


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        what: the thing that was checked.
        found: the result.
        mend: the command or advice that fixes it; empty if nothing is wrong.
        needed: True if training is impossible without it.
    """

    what: str
    found: str
    mend: str = ""
    needed: bool = False


def doctor(args: argparse.Namespace) -> int:
    """Runs `msrl doctor`. Returns: 1 if something that every training needs is missing, else 0."""
    findings = [finding for look in LOOKS for finding in look()]
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        state = "ok" if not finding.mend else "MISSING" if finding.needed else "-"
        print(f"{state:7}  {finding.what:{width}}  {finding.found}")
        if finding.mend:
            print(f"{'':{width + 11}}{finding.mend}")
    return int(any(finding.mend and finding.needed for finding in findings))


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    right = (3, 10) <= sys.version_info[:2] <= (3, 12)
    mend = "" if right else "make a virtual environment with Python 3.10, 3.11 or 3.12"
    yield Finding("Python", f"{version}, {sys.executable}", mend, needed=True)


def _packages() -> Iterator[Finding]:
    for package in ("mindspore", "numpy", "gymnasium", "gym", "mpi4py"):
        yield _package(package, install(), needed=True)
    for package, extra in OPTIONAL.items():
        yield _package(package, install(extra), needed=False)


def _package(name: str, mend: str, needed: bool) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", mend, needed)


def _mpi() -> Iterator[Finding]:
    from mindspore_rl.plan.deployment import find_mpiexec  # noqa: PLC0415

    try:
        yield Finding("mpiexec", find_mpiexec())
    except MsrlError as error:
        yield Finding("mpiexec", str(error), install(), needed=True)


def _compiler() -> Iterator[Finding]:
    found = toolchain.compiler()
    mend = "" if found else "apt-get install g++, or name one by CXX; rollouts are slower without"
    yield Finding("C++ compiler", found or "not found", mend)


def _machine() -> Iterator[Finding]:
    cores, memory = resources.available_cores(), resources.available_memory() / 2**30
    yield Finding("cores", f"{cores} of {os.cpu_count()} for this process")
    yield Finding("memory", f"{memory:.1f} GiB free; a worker takes about 0.7 GiB")
    free = resources.free_shared_bytes()
    mend = "" if free >= SHARED_BYTES else "docker run --shm-size=1g, or remove files there"
    yield Finding(str(resources.SHARED_MEMORY), f"{free / 2**20:,.0f} MiB free", mend, needed=True)
    name = socket.gethostname()
    try:
        yield Finding("host name", f"{name}: {socket.gethostbyname(name)}")
    except OSError as error:
        mend = f"add '127.0.1.1 {name}' to /etc/hosts"
        yield Finding("host name", f"{name} has no address ({error.strerror})", mend)


def _surroundings() -> Iterator[Finding]:
    """Checks the environment that the shell gives to a job."""
    from mindspore_rl.runtime.coordinator import admission, launch  # noqa: PLC0415

    files, least = resources.descriptors(), admission.DESCRIPTORS + 4 * admission.RANK_DESCRIPTORS
    mend = "ulimit -n 1024" if files < least else ""
    yield Finding("open files", f"{files} for a process", mend, needed=True)
    addresses = resources.address_space()
    found = f"{addresses / 2**30:,.1f} GiB for a process" if addresses < math.inf else "no limit"
    mend = "ulimit -v unlimited" if addresses < admission.ADDRESS_BYTES else ""
    yield Finding("addresses", found, mend, needed=True)
    there = resources.has_working_folder()
    found, mend = (os.getcwd(), "") if there else ("has been removed", "cd to one that is there")
    yield Finding("working folder", found, mend, needed=True)
    foreign = launch.foreign_variables()
    shown = ", ".join(foreign[:4]) + (f" and {len(foreign) - 4} more" if foreign[4:] else "")
    text = f"has left {shown}; ranks do not inherit them" if foreign else "has left no variables"
    yield Finding("other launcher", text)


def _leftovers() -> Iterator[Finding]:
    """Finds this user's shared memory of MPI that no process has open."""
    from mindspore_rl.runtime.coordinator import reaper  # noqa: PLC0415

    segments = [str(path) for path in reaper.shared_segments() if not reaper.is_held(path)]
    mend = f"rm {' '.join(sorted(segments))}" if segments else ""
    yield Finding("earlier runs", f"left {len(segments)} shared-memory segments", mend)


def _gpu() -> Iterator[Finding]:
    try:
        found = gpu.driver()
        yield Finding("GPU driver", f"CUDA {found.cuda}: {', '.join(found.gpus)}")
    except MsrlError as error:
        yield Finding("GPU driver", str(error), "train with --device cpu, or install a driver")
    try:
        yield Finding("GPU plug-in", f"{gpu.plugin_folder()}, with NCCL")
    except MsrlError as error:
        yield Finding("GPU plug-in", str(error), install())
    missing = gpu.missing_wheels()
    have = f"{len(gpu.LIBRARIES) - len(missing)} of {len(gpu.LIBRARIES)} wheels"
    yield Finding("CUDA libraries", have, install("gpu") if missing else "")


LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python,
    _packages,
    _mpi,
    _compiler,
    _machine,
    _surroundings,
    _leftovers,
    _gpu,
)
