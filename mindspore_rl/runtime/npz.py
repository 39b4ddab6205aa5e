"""Reads arrays of an `.npz` file without Python's parser.

NumPy evaluates an array's header as Python source. In Python 3.11 that fails if another thread
parses at the same time (SystemError: AST constructor recursion depth mismatch), and it makes the
other thread fail too. A checkpoint is read back in a thread beside MindSpore's compilation.
"""

import re
import zipfile
from typing import IO, Literal

import numpy as np

_HEADER = re.compile(
    rb"\{'descr': '([^']+)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \}\s*"
)
_PIECE = 1 << 24
"""Bytes that are read at a time."""


def read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Reads an array, and compares the archive's checksum.

    Raises:
        ValueError: it is no array of numbers, or not whole.
    """
    with archive.open(f"{name}.npy") as member:
        dtype, shape, order = header(member)
        array = np.empty(shape, dtype, order)
        data, done = array.reshape(-1, order=order).view(np.uint8), 0
        while piece := member.read(_PIECE):
            data[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
    if done != len(data):
        raise ValueError(f"{name} has {done} bytes, expected {len(data)}")
    return array


def header(member: IO[bytes]) -> tuple[np.dtype, tuple[int, ...], Literal["C", "F"]]:
    """Reads an array's header. Returns: its dtype, its shape, and the order of its values.

    Raises:
        ValueError: it is not the header of an array of numbers.
    """
    version = np.lib.format.read_magic(member)
    size = int.from_bytes(member.read(2 if version == (1, 0) else 4), "little")
    found = _HEADER.fullmatch(member.read(size))
    if found is None:
        raise ValueError("an array's header is not one of an array of numbers")
    dtype, transposed, sizes = (text.decode() for text in found.groups())
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError("an array holds Python objects")
    return kind, shape, "F" if transposed == "True" else "C"
