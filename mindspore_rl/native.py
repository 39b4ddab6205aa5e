"""C++ sources compiled at their first use, for MindSpore's custom operators.

An operator of MindSpore costs some microseconds whatever its size; what takes twenty of them in
every step of a rollout is one operator in C++. Each is there in MindSpore's operators too, which
run where no compiler is found (`CXX` names one, g++ by default; `CXX=` turns native operators off).
For the GPU, NVRTC of the extra `gpu` compiles the same sources: no CUDA toolkit is needed.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from mindspore_rl.errors import MsrlError
from mindspore_rl.nvrtc import compile_kernels
from mindspore_rl.storage import cached

# Sums and products as they stand, as MindSpore's operators take them.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-shared", "-fPIC")


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def usable(*devices: str) -> bool:
    """Whether native operators can run: there is a compiler, and the device is one of these."""
    from mindspore import get_context  # noqa: PLC0415  (`msrl doctor` asks for the compiler alone)

    return compiler() is not None and get_context("device_target") in devices


def library(source: Path, macros: dict[str, str | int], includes: tuple[Path, ...] = ()) -> Path:
    """The shared library of a source, compiled unless it is in the cache.

    Args:
        source: C++17.
        macros: defined before it.
        includes: files of this project or the user's that it includes.

    Raises:
        MsrlError: it does not compile.
    """
    command = [compiler() or "", *FLAGS, *_defined(macros), "-x", "c++", str(source)]

    def build(path: Path) -> None:
        job = subprocess.run([*command, "-o", path], capture_output=True, text=True, check=False)
        if job.returncode:
            raise MsrlError(
                f"{' '.join(command)} fails:\n{job.stderr.strip()}\n"
                "mend the source or the compiler, or do without native operators: CXX= msrl ..."
            )

    return cached(_name([platform.machine(), *command], (source, *includes), "so"), build)


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

    return cached(_name(options, (source, *includes), "ptx"), build)


def _defined(macros: dict[str, str | int]) -> list[str]:
    return [f"-D{name}={value}" for name, value in macros.items()]


def _name(command: list[str], sources: tuple[Path, ...], suffix: str) -> str:
    """Of a file in the cache: what it was made of, and how."""
    digest = hashlib.sha256("\n".join(command).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return f"native/{sources[-1].stem}-{digest.hexdigest()[:16]}.{suffix}"
