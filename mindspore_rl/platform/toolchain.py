"""Compiles C++ sources at their first use.

An operator of MindSpore costs some microseconds whatever its size; what takes twenty of them in
every step of a rollout is one operator in C++. Each is there in MindSpore's operators too, which
run where no compiler is found (`CXX` names one, g++ by default; `CXX=` turns native operators off).
For the GPU, NVRTC of the extra `gpu` compiles the same sources: no CUDA toolkit is needed.
"""

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from mindspore_rl.errors import MsrlError
from mindspore_rl.platform.cache import cached
from mindspore_rl.platform.nvrtc import compile_kernels

# Sums and products as they stand, as MindSpore's operators take them.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-shared", "-fPIC")
# No flag that changes what IEEE arithmetic gives: -ffast-math would hide what is not a number.
# Of -O3 what makes cells faster; the whole takes the compiler twice as long.
CELL_FLAGS = ("-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "--param",
              "max-inline-insns-auto=30", "-fno-math-errno", "-fno-trapping-math", "-fwrapv",
              "-shared", "-fPIC", "-w")  # fmt: skip
KERNELS = Path(__file__).parents[1] / "codegen" / "kernels.h"
DRIVER = KERNELS.with_name("driver.h")
"""Launches kernels, for operators that have one."""
_CHECKSUM = b"\n// sha256 "
_making_threads = threading.Lock()
_MARCH = {
    "x86_64": {
        0: ("-march=x86-64",),
        1: ("-march=x86-64-v3",),
        2: ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    }
}


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    return found and os.path.abspath(found)


def usable(*devices: str) -> bool:
    """Whether native operators can run: there is a compiler, and the device is one of these."""
    from mindspore import get_context  # noqa: PLC0415  (`msrl doctor` asks for the compiler alone)

    return compiler() is not None and get_context("device_target") in devices


def library(
    source: Path,
    macros: dict[str, str | int],
    includes: tuple[Path, ...] = (),
    flags: tuple[str, ...] = (),
) -> Path:
    """The shared library of a source, compiled unless it is in the cache.

    Args:
        source: C++17.
        macros: defined before it.
        includes: files of this project or the user's that it includes.
        flags: for the compiler, beside those of all.

    Raises:
        MsrlError: it does not compile.
    """
    command = [compiler() or "", *FLAGS, *flags, *_defined(macros), "-x", "c++", str(source)]

    def build(path: Path) -> None:
        job = _compile([*command, "-o", str(path)])
        if job.returncode:
            raise MsrlError(
                f"{' '.join(command)} fails:\n{job.stderr.strip()}\n"
                "mend the source or the compiler, or do without native operators: CXX= msrl ..."
            )

    return _compiled(_name([platform.machine(), *command], (source, *includes), "so"), build)


def threads() -> Path:
    """The library that runs parts of some work on several threads: `in_parts`, `set_threads`."""
    with _making_threads:
        return library(KERNELS.parent / "threads.cpp", {}, flags=("-std=c++20", "-pthread"))


def begin_threads() -> None:
    """Has that library compiled while this process does something else."""

    def make() -> None:
        with contextlib.suppress(MsrlError, OSError):  # said when a cell needs it
            threads()

    threading.Thread(target=make).start()


def cell_library(text: str, level: int) -> Path:
    """The shared library of a cell's C++, compiled unless it is in the cache.

    Args:
        text: the source.
        level: of the processors that are to run it, see `level`.

    Raises:
        MsrlError: it does not compile.
    """
    flags = [*CELL_FLAGS, *_MARCH.get(platform.machine(), {}).get(level, ()), f"-I{KERNELS.parent}"]
    command = [compiler() or "", *flags, "-x", "c++", "-"]
    libraries = ["-lmvec"] if platform.machine() == "x86_64" and platform.libc_ver()[0] else []
    code = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    digest = hashlib.sha256("\n".join([*flags, _version(), *code]).encode())
    digest.update(KERNELS.read_bytes())

    def build(path: Path) -> None:
        job = _compile([*command, "-o", str(path), *libraries, "-lm"], text)
        if job.returncode:
            raise MsrlError(f"{command[0]} fails: {job.stderr.strip()[:2000]}")

    return _compiled(f"native/cell-{digest.hexdigest()[:24]}.so", build)


def _compiled(name: str, build: Callable[[Path], None]) -> Path:
    """A file of the cache that is compiled, and compiled again if it is not as it was.

    It ends in its checksum, after the end for a loader of libraries, in a comment of PTX.
    """

    def make(path: Path) -> None:
        build(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with path.open("ab") as file:
            file.write(_CHECKSUM + digest.encode())

    return cached(name, make, whole=_is_whole)


def _is_whole(path: Path) -> bool:
    code, _, digest = path.read_bytes().rpartition(_CHECKSUM)
    return hashlib.sha256(code).hexdigest().encode() == digest


def _compile(command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a compiler, in a folder of this project's: headers are looked for there first."""
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, cwd=KERNELS.parent
    )


def level() -> int:
    """How wide this processor's vectors are: 0 for what every one has, 1 for AVX2, 2 for AVX-512.

    Numbers are the same on all processors of a level.
    """
    if platform.machine() != "x86_64":
        return 0
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    if not flags >= {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}:
        return 0
    return 2 if flags >= {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} else 1


@functools.cache
def _version() -> str:
    """Of the compiler, in its own words."""
    command = [compiler() or "", "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def kernel(
    source: Path, macros: dict[str, str | int], includes: tuple[Path, ...], architecture: int
) -> Path:
    """A source's kernels in PTX, which the driver compiles for its GPU.

    Args:
        source: CUDA C++.
        macros: defined before it.
        includes: as for `library`.
        architecture: the oldest that it is for, such as 60 for sm_60.

    Raises:
        MsrlError: it does not compile.
    """
    # A product and a sum as they stand, as on the CPU.
    options = ["-std=c++17", "-fmad=false", f"-arch=compute_{architecture}", *_defined(macros)]

    def build(path: Path) -> None:
        compile_kernels(source, path, options)

    return _compiled(_name(options, (source, *includes), "ptx"), build)


def _defined(macros: dict[str, str | int]) -> list[str]:
    return [f"-D{name}={value}" for name, value in macros.items()]


def _name(command: list[str], sources: tuple[Path, ...], suffix: str) -> str:
    """Of a file in the cache: what it was made of, and how."""
    digest = hashlib.sha256("\n".join(command).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return f"native/{sources[-1].stem}-{digest.hexdigest()[:16]}.{suffix}"
