"""Heartbeats of workers in a memory-mapped file that the coordinator reads.

Workers on several hosts share neither memory nor a clock: they keep their stamps in their own
memory, and send them twice a second, with their age.

Python cannot interrupt a collective inside a compiled cell, so the coordinator enforces the
deadline: before each cell and each wait a worker stamps its row here, at the cost of 24 bytes.
"""

import contextlib
import mmap
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mindspore_rl.communication.link import Link
from mindspore_rl.platform.cache import writing

BEAT_S = 0.5
ROW = struct.Struct("<qqd")
STAMPS_FILE = "stamps.bin"


@dataclass(frozen=True)
class Stamp:
    """A worker's last stamp.

    Attributes:
        iteration: -1 before the first one.
        stage: one of `Stages`.
        time_s: `time.monotonic()` of the stamp; all processes of a host share this clock.
    """

    iteration: int
    stage: int
    time_s: float


class Stamps:
    """The stamps of a job in a file, one row a rank; without a folder, in this process's memory."""

    def __init__(self, folder: Path | None, num_ranks: int, create: bool = False) -> None:
        empty = ROW.pack(-1, 0, time.monotonic()) * num_ranks
        if folder is None:
            self._map = mmap.mmap(-1, len(empty))
            self._map[:] = empty
            return
        path = folder / STAMPS_FILE
        if create:
            with writing(path):
                path.write_bytes(empty)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), len(empty))

    def write(self, rank: int, iteration: int, stage: int, age_s: float = 0.0) -> None:
        """Stamps a rank's row; `age_s` shifts the time of the stamp into the past."""
        # Not `pack_into`: it zeroes the row first, so a reader could see a stamp with time 0.
        start, time_s = rank * ROW.size, time.monotonic() - age_s
        self._map[start : start + ROW.size] = ROW.pack(iteration, stage, time_s)

    def read(self, rank: int) -> Stamp:
        """Returns a rank's last stamp."""
        return Stamp(*ROW.unpack_from(self._map, rank * ROW.size))

    def close(self) -> None:
        """Unmaps the file."""
        self._map.close()


@contextlib.contextmanager
def sent(stamps: Stamps, rank: int, link: Link) -> Iterator[None]:
    """Sends a rank's stamp over its link every `BEAT_S`, from a thread of its own."""
    ended = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError):  # the coordinator is gone, which the link reports
            while not ended.wait(BEAT_S):
                stamp = stamps.read(rank)
                link.send(
                    "stamp",
                    rank=rank,
                    iteration=stamp.iteration,
                    stage=stamp.stage,
                    age_s=time.monotonic() - stamp.time_s,
                )

    thread = threading.Thread(target=send, name="stamps", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
