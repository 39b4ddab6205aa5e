"""Compiles CUDA sources with NVRTC, as a program: SOURCE PTX OPTION ...

It runs in a process of its own, because NVRTC changes the locale of its process, and with it the
encoding in which Python opens files.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from mindspore_rl.errors import MsrlError
from mindspore_rl.platform import gpu, interpreter


def compile_kernels(source: Path, ptx: Path, options: list[str]) -> None:
    """Compiles CUDA C++ into PTX.

    Raises:
        MsrlError: NVRTC is missing, or the source does not compile.
    """
    words = ("-m", "mindspore_rl.platform.nvrtc", str(source), str(ptx), *options)
    done = subprocess.run(
        interpreter.command(*words),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **interpreter.environment()},
    )
    if done.returncode:
        raise MsrlError(f"NVRTC cannot compile {source}:\n{done.stderr.strip()}")


def main() -> None:
    """Compiles the source of the command line."""
    source, ptx, *options = sys.argv[1:]
    nvrtc = gpu.nvrtc()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = Path(source).read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
    kind = "ProgramLog" if failed else "PTX"
    getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    got = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{kind}")(program, got)
    if failed:
        sys.exit(got.value.decode())
    Path(ptx).write_bytes(got.value)


if __name__ == "__main__":
    try:
        main()
    except MsrlError as error:
        sys.exit(str(error))
