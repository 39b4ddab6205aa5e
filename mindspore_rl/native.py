"""C++ sources compiled at their first use, for MindSpore's custom operators.

An operator of MindSpore costs some microseconds whatever its size; what takes twenty of them in
every step of a rollout is one operator in C++. Each is there in MindSpore's operators too, which
run where no compiler is found (`CXX` names one, g++ by default; `CXX=` turns native operators off).
"""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from mindspore import get_context

from mindspore_rl.errors import MsrlError
from mindspore_rl.storage import cached

# Sums and products as they stand, as MindSpore's operators take them.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-shared", "-fPIC")


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def library(source: Path, macros: dict[str, str | int], includes: tuple[Path, ...] = ()) -> Path:
    """The shared library of a source, compiled unless it is in the cache.

    Args:
        source: C++17.
        macros: defined before it.
        includes: files of this project or the user's that it includes.

    Raises:
        MsrlError: it does not compile.
    """
    command = [compiler() or "", *FLAGS, *(f"-D{name}={value}" for name, value in macros.items())]
    command += ["-x", "c++", str(source)]
    digest = hashlib.sha256("\n".join([platform.machine(), *command]).encode())
    sources = (source, *includes)
    for path in sources:
        digest.update(path.read_bytes())

    def build(path: Path) -> None:
        job = subprocess.run([*command, "-o", path], capture_output=True, text=True, check=False)
        if job.returncode:
            raise MsrlError(
                f"{' '.join(command)} fails:\n{job.stderr.strip()}\n"
                "mend the source or the compiler, or do without native operators: CXX= msrl ..."
            )

    return cached(f"native/{sources[-1].stem}-{digest.hexdigest()[:16]}.so", build)


def usable() -> bool:
    """Whether native operators can run: there is a compiler, and the device is the CPU."""
    return compiler() is not None and get_context("device_target") == "CPU"
