"""What every worker is doing, in a memory-mapped file that the coordinator can read at any time.

Python cannot interrupt a collective inside a compiled cell, so the deadline is the coordinator's:
before each cell and each wait a worker stamps its row here, at the cost of 24 bytes.
"""

import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from mindspore_rl.runtime.storage import writing

ROW = struct.Struct("<qqd")
STAMPS_FILE = "stamps.bin"


@dataclass(frozen=True)
class Stamp:
    """A worker's last stamp.

    Attributes:
        iteration: -1 before the first.
        stage: index into `Plan.stages()`.
        time_s: `time.monotonic()` when it was made, one clock for all processes of a host.
    """

    iteration: int
    stage: int
    time_s: float


class Stamps:
    """The file of a job's stamps, one row a rank."""

    def __init__(self, folder: Path, num_ranks: int, create: bool = False) -> None:
        path = folder / STAMPS_FILE
        if create:
            with writing(path):
                path.write_bytes(ROW.pack(-1, 0, time.monotonic()) * num_ranks)
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), num_ranks * ROW.size)

    def write(self, rank: int, iteration: int, stage: int) -> None:
        """Stamps a row."""
        # Not `pack_into`: it clears the row first, and a reader would see a stamp of long ago.
        start = rank * ROW.size
        self._map[start : start + ROW.size] = ROW.pack(iteration, stage, time.monotonic())

    def read(self, rank: int) -> Stamp:
        """A rank's last stamp."""
        return Stamp(*ROW.unpack_from(self._map, rank * ROW.size))

    def close(self) -> None:
        """Unmaps the file."""
        self._map.close()
        self._file.close()
