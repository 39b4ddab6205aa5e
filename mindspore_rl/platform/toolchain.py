"""Compiles C++ sources at their first use.

An operator of MindSpore costs some microseconds whatever its size, so a computation of twenty
operators in every step of a rollout is one operator in C++ instead. Each also exists in MindSpore's
operators, which run if no compiler is found (`CXX` names one, g++ by default; `CXX=` turns native
operators off). For the GPU, NVRTC of the extra `gpu` compiles the same sources: no CUDA toolkit is
needed.
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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from mindspore_rl.errors import MsrlError
from mindspore_rl.platform.cache import cached, temporary_folder
from mindspore_rl.platform.nvrtc import compile_kernels

# Products and sums are not fused (no FMA), as in MindSpore's operators.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-shared", "-fPIC")
# No flag changes the results of IEEE arithmetic: -ffast-math would hide NaNs. Only those parts of
# -O3 that make cells faster; all of it doubles the compile time.
CELL_FLAGS = ("-std=c++17", "-O2", "-ftree-vectorize", "-funswitch-loops",
              "-fvect-cost-model=dynamic", "--param", "max-inline-insns-auto=30",
              "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-shared", "-fPIC",
              "-w")  # fmt: skip
HALVES = """\
#ifdef HALF  // two halves of this file are compiled side by side
#define LOCAL __attribute__((visibility("hidden")))
#define IN_HALF(number) (HALF == number)
#else
#define LOCAL static
#define IN_HALF(number) 1
#endif
"""
"""Lines of a cell's C++ that is compiled in two halves; `LOCAL` and `IN_HALF` mark functions."""
KERNELS = Path(__file__).parents[1] / "codegen" / "kernels.h"
DRIVER = KERNELS.with_name("driver.h")
"""Launches kernels of operators that have one."""
MAX_THREADS = 8
"""Limit on the threads that share a cell's work, and so on the parts of it that help."""
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
    """Returns the path of the C++ compiler, or None."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    return found and os.path.abspath(found)


def usable(*devices: str) -> bool:
    """Returns whether native operators can run: there is a compiler, and one of the devices."""
    from mindspore import get_context  # noqa: PLC0415  (`msrl doctor` asks for the compiler alone)

    return compiler() is not None and get_context("device_target") in devices


def library(
    source: Path,
    macros: dict[str, str | int],
    includes: tuple[Path, ...] = (),
    flags: tuple[str, ...] = (),
) -> Path:
    """Returns the shared library of a source, compiled unless it is cached.

    Args:
        source: C++17.
        macros: defined before the source.
        includes: files of this project or the user's that the source includes.
        flags: for the compiler, in addition to `FLAGS`.

    Raises:
        MsrlError: the source does not compile.
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
    """Returns the library that runs work on several threads: `in_parts`, `set_threads`."""
    with _making_threads:
        return library(
            KERNELS.parent / "threads.cpp",
            {"MAX_THREADS": MAX_THREADS},
            flags=("-std=c++20", "-pthread"),
        )


def begin(*makers: Callable[[], Path]) -> None:
    """Starts compiling libraries in a background thread, one after the other."""

    def make() -> None:
        for maker in makers:
            with contextlib.suppress(MsrlError, OSError):  # reported when the library is needed
                maker()

    if makers and compiler() is not None:
        threading.Thread(target=make).start()


def cell_library(text: str, level: int) -> Path:
    """Returns the shared library of a cell's C++, compiled unless it is cached.

    Raises:
        MsrlError: the source does not compile.
    """
    flags = [*CELL_FLAGS, *_MARCH.get(platform.machine(), {}).get(level, ()), f"-I{KERNELS.parent}"]
    command, stdin = [compiler() or "", *flags], ["-x", "c++", "-"]
    libraries = ["-lmvec"] if platform.machine() == "x86_64" and platform.libc_ver()[0] else []
    code = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    digest = hashlib.sha256("\n".join([*flags, _version(), *code]).encode())
    for header in sorted(KERNELS.parent.glob("*.h")):
        digest.update(header.read_bytes())

    def build(path: Path) -> None:
        ends = ["-o", str(path), *libraries, "-lm"]
        if HALVES not in text:
            jobs = [_compile([*command, *stdin, *ends], text)]
        else:
            with temporary_folder() as folder, ThreadPoolExecutor(2) as both:
                files = [f"{folder}/0.o", f"{folder}/1.o"]
                halves = [
                    [*command, f"-DHALF={half}", "-c", *stdin, "-o", file]
                    for half, file in enumerate(files)
                ]
                jobs = [*both.map(partial(_compile, text=text), halves)]
                jobs.append(_compile([*command, *files, *ends]))
        if failed := next((job for job in jobs if job.returncode), None):
            raise MsrlError(f"{command[0]} fails: {failed.stderr.strip()[:2000]}")

    return _compiled(f"native/cell-{digest.hexdigest()[:24]}.so", build)


def _compiled(name: str, build: Callable[[Path], None]) -> Path:
    """Returns a compiled file of the cache; compiles it again if it is damaged.

    The file ends with its checksum: behind the end of a library, in a comment of PTX.
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
    """Runs a compiler in this project's folder, where it searches for headers first."""
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, cwd=KERNELS.parent
    )


def level() -> int:
    """Returns the vector level of this processor: 0 baseline, 1 AVX2, 2 AVX-512.

    Results are bitwise equal on all processors of a level.
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
    """Returns the output of the compiler's `--version`."""
    command = [compiler() or "", "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def kernel(
    source: Path, macros: dict[str, str | int], includes: tuple[Path, ...], architecture: int
) -> Path:
    """Returns a source's kernels as PTX, which the driver compiles for its GPU.

    Args:
        source: CUDA C++.
        macros: defined before the source.
        includes: as for `library`.
        architecture: the oldest supported GPU, such as 60 for sm_60.

    Raises:
        MsrlError: the source does not compile.
    """
    # Products and sums are not fused (no FMA), as on the CPU.
    options = ["-std=c++17", "-fmad=false", f"-arch=compute_{architecture}", *_defined(macros)]

    def build(path: Path) -> None:
        compile_kernels(source, path, options)

    return _compiled(_name(options, (source, *includes), "ptx"), build)


def _defined(macros: dict[str, str | int]) -> list[str]:
    return [f"-D{name}={value}" for name, value in macros.items()]


def _name(command: list[str], sources: tuple[Path, ...], suffix: str) -> str:
    """Names a file of the cache by a hash of its sources and command."""
    digest = hashlib.sha256("\n".join(command).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return f"native/{sources[-1].stem}-{digest.hexdigest()[:16]}.{suffix}"
