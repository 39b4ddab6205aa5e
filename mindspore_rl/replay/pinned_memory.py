"""Pinned memory of this host, which a GPU reads in place."""

import ctypes
import weakref

from mindspore_rl.errors import ReplayError
from mindspore_rl.platform import gpu

PORTABLE, MAPPED = 1, 2
"""CU_MEMHOSTREGISTER_PORTABLE and _DEVICEMAP."""


class PageLock:
    """Pinned memory, mapped for this process's GPU, until `free` or this object's destruction.

    Attributes:
        address: of the memory, as the GPU sees it.

    Raises:
        MsrlError: there is no CUDA driver.
        ReplayError: the driver refuses to pin that much memory.
    """

    def __init__(self, begin: int, size: int) -> None:
        driver = gpu.entered()
        memory, found = ctypes.c_void_p(begin), ctypes.c_void_p()
        if code := driver.cuMemHostRegister_v2(memory, ctypes.c_size_t(size), PORTABLE | MAPPED):
            raise ReplayError(
                f"{size / 1e6:,.0f} MB of a replay table cannot be page-locked for the GPU (CUDA "
                f"error {code}): lower its capacity, or raise the limit of locked memory"
            )
        self.free = weakref.finalize(self, driver.cuMemHostUnregister, memory)
        if code := driver.cuMemHostGetDevicePointer_v2(ctypes.byref(found), memory, 0):
            self.free()
            raise ReplayError(f"this GPU cannot read the host's memory in place: CUDA error {code}")
        self.address = int(found.value or 0)
