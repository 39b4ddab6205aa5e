"""Builds stub CUDA libraries that compute nothing: on any machine, MindSpore's GPU plug-in loads,
selects its kernels and runs whole jobs.

The symbols that the plug-in needs are read from the plug-in. Each becomes a function that does
nothing and succeeds, except those in hollow_cuda.c. The plug-in's own CUDA kernels and NCCL are
stubs too. A loop in a graph makes a few iterations, whatever its condition.
"""

import os
import subprocess
from pathlib import Path

from mindspore_rl.platform import gpu

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("hollow_cuda.c")
SPECIAL = {"libcuda.so.1": "DRIVER", "libcudart.so.11.0": "CUDART", "libcudnn.so.8": "CUDNN"}
NOTHING = 'xorl %eax, %eax\nret\n.section .note.GNU-stack,"",@progbits\n'


def build(folder: Path) -> None:
    """Builds the libraries, at the paths of a machine with a GPU."""
    plugin = gpu.plugin_folder().parent
    kernels = plugin / "gpu" / "libcuda_ops.so.11"
    wanted = _symbols(plugin / "libmindspore_gpu.so.11.6", "--undefined-only")
    wanted |= {name for name in _symbols(kernels, "--undefined-only") if "@" in name}
    libraries: dict[str, set[str]] = {library: set() for library in gpu.LIBRARIES.values()}
    del libraries["libnvrtc.so.11.2"]  # the wheel's own needs no GPU
    for name in wanted:
        symbol, _, library = name.partition("@")
        if library in libraries:
            libraries[library].add(symbol)
    libraries["libcuda.so.1"] = {name for name in wanted if name[:2] == "cu" and "@" not in name}
    libraries[kernels.name] = wanted & _symbols(kernels, "--defined-only")
    nccl = gpu.plugin_folder() / "libnccl.so.2"
    libraries[nccl.name] = {name for name in _symbols(nccl, "--defined-only") if name[:4] == "nccl"}
    for library, symbols in libraries.items():
        _build(library, symbols, folder / _place(library))
    wheels = folder / "wheels" / "nvidia"
    (wheels / "__init__.py").touch()
    import nvidia.cuda_nvrtc  # noqa: PLC0415  (of the extra `test`)

    (wheels / "cuda_nvrtc").symlink_to(next(iter(nvidia.cuda_nvrtc.__path__)))


def environment(folder: Path, gpus: int) -> dict[str, str]:
    """Returns the variables of a process that finds `gpus` GPUs, where `build` was called."""
    ahead = [str(file) for file in (folder / "ahead").iterdir()]  # the plug-in prefers its own
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder / "driver"),
        "LD_PRELOAD": " ".join(ahead),
        "PYTHONPATH": f"{folder / 'wheels'}:{ROOT}",
        "HOLLOW_GPUS": str(gpus),
        "HOLLOW_LOG": str(folder / "opened.txt"),
    }


def _place(library: str) -> str:
    if library == "libcuda.so.1":
        return "driver"
    return "wheels/nvidia/hollow/lib" if library in gpu.LIBRARIES.values() else "ahead"


def _symbols(library: Path, which: str) -> set[str]:
    """Returns names, with @ and their library if the library is known."""
    lines = subprocess.run(
        ["nm", "-D", "--without-symbol-versions", which, library]
        if which == "--defined-only"
        else ["nm", "-D", which, library],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return {line.split()[-1] for line in lines}


def _build(library: str, symbols: set[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / library
    common = ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", "-o", path]
    if _place(library).startswith("wheels"):
        common.append("-Wl,--default-symver")  # each of NVIDIA's symbols has its library's version
    if library in SPECIAL:
        special = [f"-D{SPECIAL[library]}", SOURCE]
        subprocess.run([*common, *special], check=True)
        symbols = symbols - _symbols(path, "--defined-only")
        common += special
    stubs = folder / "stubs.s"
    labels = "".join(f".globl {s}\n.type {s}, @function\n{s}:\n" for s in sorted(symbols))
    stubs.write_text(f".text\n{labels}{NOTHING}")
    subprocess.run([*common, stubs], check=True)
    stubs.unlink()
