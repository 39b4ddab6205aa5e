"""GPU detection, and the CUDA libraries of the extra `gpu`."""

import ast
import ctypes
import importlib.util
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from mindspore_rl.errors import ConfigError, MsrlError, ProgramError, install
from mindspore_rl.platform import interpreter
from mindspore_rl.platform.cache import cached

# Libraries that MindSpore's plug-in for CUDA 11 links to, by the wheel that contains them.
LIBRARIES = {
    "nvidia-cublas-cu11": "libcublas.so.11",
    "nvidia-cuda-nvrtc-cu11": "libnvrtc.so.11.2",
    "nvidia-cuda-runtime-cu11": "libcudart.so.11.0",
    "nvidia-cudnn-cu11": "libcudnn.so.8",
    "nvidia-cufft-cu11": "libcufft.so.10",
    "nvidia-curand-cu11": "libcurand.so.10",
    "nvidia-cusolver-cu11": "libcusolver.so.11",
    "nvidia-cusparse-cu11": "libcusparse.so.11",
}
CUDA = (11, 8)
"""Oldest CUDA version of the driver that runs NVRTC's output."""
NEWEST = 90
"""Newest GPU architecture that NVRTC 11.8 knows; newer GPUs run its PTX too."""
NEWEST_PLUGIN = 89
"""Newest GPU architecture that runs the machine code of MindSpore's plug-in, which is for 8.0. For
newer ones the driver compiles its 407 modules at the first start and caches them; ptxas took 457 s.
"""
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""
PLUGIN = "lib/plugin/gpu11.6"
# Functions of mindspore.ops 2.10 with a kernel for the CPU and none for the GPU.
NO_KERNEL = (
    *("fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "rfft", "rfft2", "rfftn", "irfft", "irfft2"),
    *("irfftn", "hfft", "hfft2", "hfftn", "ihfft", "ihfft2", "ihfftn", "fftshift", "ifftshift"),
    *("histc", "nan_to_num", "nanmedian"),
)
# The plug-in uses a CUDA toolkit only to ask for the version of its compiler.
_NVCC = """#!/bin/sh
echo "Cuda compilation tools, release 11.6, V11.6.124"
"""


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver's version and GPUs.

    Attributes:
        cuda: the newest CUDA version that it supports, such as "12.4".
        gpus: names of the GPUs, in the order of their numbers.
    """

    cuda: str
    gpus: tuple[str, ...]


def driver() -> Driver:
    """Queries the NVIDIA driver.

    Raises:
        MsrlError: there is no driver, it is too old, or it has no GPU for this process.
    """
    cuda = _cuda()
    number, count, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
    cuda.cuDriverGetVersion(ctypes.byref(number))
    version = (number.value // 1000, number.value % 1000 // 10)
    if version < CUDA:
        raise MsrlError(
            f"the NVIDIA driver is for CUDA {_dotted(version)}, expected {_dotted(CUDA)} or newer"
        )
    cuda.cuDeviceGetCount(ctypes.byref(count))
    gpus = []
    for device in range(count.value):
        cuda.cuDeviceGetName(name, len(name), device)
        gpus.append(name.value.decode())
    return Driver(_dotted(version), tuple(gpus))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _cuda() -> ctypes.CDLL:
    """Loads and initialises the driver's library. Raises: MsrlError."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise MsrlError("no NVIDIA driver answers here: libcuda.so.1 is not found") from None
    code = cuda.cuInit(0)
    if code == NO_DEVICE:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise MsrlError(
            f"the NVIDIA driver has no GPU for this process (CUDA_VISIBLE_DEVICES: {visible!r})"
        )
    if code:
        raise MsrlError(f"no NVIDIA driver answers here: cuInit gives CUDA error {code}")
    return cuda


def missing_wheels() -> list[str]:
    """Lists wheels of the extra `gpu` whose library is missing."""
    folders = _wheel_folders()
    return [
        wheel
        for wheel, library in LIBRARIES.items()
        if not any((folder / library).exists() for folder in folders)
    ]


def choose(wanted: str) -> tuple[str, str]:
    """Chooses the device of a job.

    Args:
        wanted: auto, cpu or gpu.

    Returns: "CPU" or "GPU", and the reason if `wanted` left the choice.

    Raises:
        MsrlError: `gpu` is wanted but not available.
    """
    if wanted == "cpu":
        return "CPU", ""
    try:
        found = driver()
        plugin_folder()
        if missing := missing_wheels():
            raise MsrlError(f"{', '.join(missing)} not installed: {install('gpu')}")
    except MsrlError as error:
        if wanted == "auto":
            return "CPU", str(error)
        raise MsrlError(f"device=gpu: {error}; use --device cpu") from error
    return "GPU", f"{len(found.gpus)} x {found.gpus[0]}"


def refuse_native_cells() -> NoReturn:
    """Refuses native cells on a GPU. Raises: ConfigError: always."""
    raise ConfigError("--cells native is for the CPU; on a GPU cells are MindSpore's")


def environment() -> dict[str, str]:
    """Returns variables that MindSpore's plug-in needs when its process starts."""
    paths = [str(folder) for folder in (plugin_folder(), *_wheel_folders())]
    inherited = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    paths += [path for path in inherited if path and path not in paths]
    # If a GPU is newer than the plug-in, the driver compiles its kernels: lazily, and cached.
    defaults = {"CUDA_MODULE_LOADING": "LAZY", "CUDA_CACHE_MAXSIZE": str((1 << 32) - 1)}
    return {
        **{name: os.environ.get(name, value) for name, value in defaults.items()},
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        "CUDA_HOME": str(_cuda_home()),
    }


def take(number: int, members: int) -> None:
    """Restricts this process to one of its host's GPUs; call it before MindSpore is imported.

    Args:
        number: of this process on its host; numbers beyond the last GPU start again at the first.
        members: processes of a group on this host, which cannot share a GPU (NCCL).

    Raises:
        MsrlError: there are fewer GPUs than `members`.
    """
    # In another process: the driver reads CUDA_VISIBLE_DEVICES only once, at its first call.
    command = "from mindspore_rl.platform import gpu; print(len(gpu.driver().gpus))"
    asked = subprocess.run(
        interpreter.command("-c", command),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **interpreter.environment()},
    )
    if asked.returncode:
        *_, text = asked.stderr.strip().splitlines()
        raise MsrlError(text.removeprefix("mindspore_rl.errors.MsrlError: "))
    count = int(asked.stdout)
    if members > count:
        raise MsrlError(
            f"{members} ranks of a group on this host, but {count} GPU: each needs one of its own; "
            "use fewer --workers, or --device cpu"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[number % count]
    os.environ["CUDA_HOME"] = str(_cuda_home())  # this host's, whichever host started the job


def architecture() -> int:
    """Returns the architecture of this process's GPU, such as 90 for sm_90."""
    cuda = _cuda()
    version, found = ctypes.c_int(), []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        cuda.cuDeviceGetAttribute(ctypes.byref(version), attribute, 0)
        found.append(version.value)
    return 10 * found[0] + found[1]


def entered() -> ctypes.CDLL:
    """Returns the driver's library, in the CUDA context that MindSpore uses in this process.

    Raises:
        MsrlError: there is no context.
    """
    cuda, context = _cuda(), ctypes.c_void_p()
    cuda.cuCtxGetCurrent(ctypes.byref(context))
    if not context:
        code = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        if code or (code := cuda.cuCtxSetCurrent(context)):
            raise MsrlError(f"the GPU cannot be used: CUDA error {code}")
    return cuda


def refuse_operators(modules: Iterable[ModuleType]) -> None:
    """Refuses operators without a GPU kernel in a program's own modules.

    Raises:
        ProgramError: there is such an operator; tells its line.
    """
    from mindspore import ops  # noqa: PLC0415  (every command's start)

    lacking = {id(getattr(ops, name)): name for name in NO_KERNEL if hasattr(ops, name)}
    for module in modules:
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if name := lacking.get(id(_meant(node, module))):
                raise ProgramError(
                    f"{module.__file__}:{node.lineno}: MindSpore has no kernel of ops.{name} for "  # type: ignore[attr-defined]
                    "the GPU; compute it by other operators, or use --device cpu"
                )


def _meant(node: ast.AST, module: ModuleType) -> Any:
    """Resolves a name such as `ops.fft` in a module, or returns None."""
    if isinstance(node, ast.Attribute):
        return getattr(_meant(node.value, module), node.attr, None)
    return getattr(module, node.id, None) if isinstance(node, ast.Name) else None


def nvrtc() -> ctypes.CDLL:
    """Loads NVRTC, the compiler of CUDA C++.

    Raises:
        MsrlError: its wheel is not installed.
    """
    for folder in _wheel_folders():
        for builtins in folder.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins))  # so that NVRTC finds it by its name
            return ctypes.CDLL(str(folder / LIBRARIES["nvidia-cuda-nvrtc-cu11"]))
    raise MsrlError(f"NVRTC is not installed: {install('gpu')}")


def plugin_folder() -> Path:
    """Returns the folder of the libraries of MindSpore's GPU plug-in, NCCL among them.

    Raises:
        MsrlError: MindSpore is not installed, or has no such plug-in.
    """
    found = importlib.util.find_spec("mindspore")
    if found is None or found.origin is None:
        raise MsrlError(f"MindSpore is not installed: {install()}")
    folder = Path(found.origin).parent / PLUGIN
    if not (folder / "libnccl.so.2").exists():
        raise MsrlError(f"this MindSpore has no plug-in for GPUs in {folder}: {install()}")
    return folder


def _wheel_folders() -> list[Path]:
    found = importlib.util.find_spec("nvidia")
    roots = found.submodule_search_locations if found else None
    return sorted(folder for root in roots or () for folder in Path(root).glob("*/lib"))


def _cuda_home() -> Path:
    """Returns a folder whose `bin/nvcc` reports the CUDA version that the plug-in was built for."""

    def write(path: Path) -> None:
        path.write_text(_NVCC)
        path.chmod(0o755)

    return cached("cuda-11.6/bin/nvcc", write).parents[1]
