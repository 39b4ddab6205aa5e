"""Native operators of replay tables, see `table.cpp`."""

import ctypes
import functools
from pathlib import Path

import numpy as np

from mindspore_rl.platform import toolchain

SOURCE = Path(__file__).parent / "table.cpp"
INCLUDES = tuple(
    SOURCE.with_name(f"{name}.h")
    for name in ("barrier", "copying", "draw", "index", "kept", "order", "rate_limiter", "views")
)
FLAGS = ("-pthread",)


def pointers(arrays: list[np.ndarray]) -> ctypes.Array:
    """Returns the addresses of arrays as a C array of pointers."""
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


@functools.cache
def _threads() -> tuple[ctypes.CDLL, int]:
    """Returns the library of the thread pool, which native cells share, and `in_parts`' address."""
    found = ctypes.CDLL(str(toolchain.threads()))
    return found, ctypes.cast(found.in_parts, ctypes.c_void_p).value or 0


def in_parts() -> int:
    """Returns the address of `in_parts`, with which `table_gather` copies on several threads."""
    return _threads()[1]


def use_threads(count: int) -> None:
    """Sets the number of threads that copy large batches and run native cells; initially 1."""
    _threads()[0].set_threads(count)


def library() -> Path:
    """Returns the library of `table.cpp`. Raises: MsrlError."""
    return toolchain.library(SOURCE, {}, INCLUDES, FLAGS)


@functools.cache
def functions() -> ctypes.CDLL:
    """Loads the functions of `table.cpp`. Raises: MsrlError."""
    found = ctypes.CDLL(str(library()))
    p, i, d, u = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_uint32
    for name, result, arguments in (
        ("init", None, [p]),
        ("take", None, [p, i]),
        ("begin", i, [p, i]),
        ("commit", i, [p, i, d, d]),
        ("append", None, [p, i, i, i, p, p, p]),
        ("insert", i, [p, i, i, p, p, p, d, i, p, p, p, p]),
        ("totals", None, [p, p]),
        ("draw", i, [u, u, u, u, i, i, i, p, p, p]),
        ("sample", i, [p, u, u, u, i, i, p, i, p, p, p, p, p]),
        ("assign", None, [i, p, p, i, p, p, p]),
        ("resolve", None, [p, p, i, i, p, p, p, p, p, p]),
        ("find", i, [p, p, i, i, p, p, p, p, i, p, i, p, p, p, p, p, p, p]),
        ("share", i, [p, p, i, u, u, u, i, i, p, p, p, i, p, i, p, i, p, p, p, p, p]),
        ("gather", None, [p, p, i, i, p, p, i, i, p, p, p, p, p]),
        ("will_need", None, [p, i, p, p, i, i, p, p]),
        ("n_step", None, [p, i, p, i, d, i, i, i, p, p, i, p, p, p, p, p]),
        ("update", i, [p, i, p, p, d]),
        ("checksum", ctypes.c_uint64, [p, i, ctypes.c_uint64]),
        ("pick", i, [p, i, i, p, p, p]),
        ("peek", i, [p, i, i, p, p, p]),
        ("claim", None, [p, p, i, i, p, p, p]),
        ("release", None, [p, p, i, i, p, p]),
        ("want", None, [p, i, p]),
        ("mend", None, [p]),
        ("admit", i, [p, i]),
        ("count", None, [p, i]),
        ("post", ctypes.c_uint64, [p, i]),
        ("posted", ctypes.c_bool, [p, ctypes.c_uint64, d, p]),
        ("watch", u, [p]),
        ("sleep", None, [p, u, d]),
    ):
        function = getattr(found, f"table_{name}")
        function.restype, function.argtypes = result, arguments
    return found
