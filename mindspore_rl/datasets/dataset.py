"""A data set: a file with a replay table of trajectories, and with what made it.

    replay table | origin (JSON) | end

The end has a checksum of the JSON and of the table's index, but not of the records, which may be
too many to read whenever a file is opened. The file is memory-mapped, and each page is read at its
first use; processes that have it open share its memory, and none changes it. A trajectory longer
than a record is split into consecutive records, which `step` identifies.
"""

import dataclasses
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspore_rl.datasets.episodes import NAMES, columns_of
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.errors import ReplayError, shortened
from mindspore_rl.replay.bindings import functions
from mindspore_rl.replay.spec import TableSpec, described
from mindspore_rl.replay.table import Table

MAGIC = b"MSRLDAT1"
_END = struct.Struct("<QQI8s")  # bytes before the records and of the JSON; CRC-32; magic number
_PIECE_BYTES = 1 << 22
_RECORDS = 1024
_MOST_TEXT = 1 << 28


@dataclass(frozen=True)
class Source:
    """The origin of some of the episodes.

    Args:
        name: a file, or a run and its checkpoint.
        episodes: number of episodes.
        steps: of all episodes together.
        mean_return: undiscounted; of several agents the mean over agents.
        min_return: the lowest return.
        max_return: the highest return.
    """

    name: str
    episodes: int
    steps: int
    mean_return: float
    min_return: float
    max_return: float


@dataclass(frozen=True)
class About:
    """The origin of a data set: environment, action space and sources.

    Args:
        environment: its name; empty if unknown.
        action_space: None if unknown.
        sources: in the order in which they were added.
    """

    environment: str = ""
    action_space: Discrete | Box | None = None
    sources: tuple[Source, ...] = ()

    @property
    def episodes(self) -> int:
        """Episodes of all sources."""
        return sum(source.episodes for source in self.sources)

    @property
    def steps(self) -> int:
        """Steps of all sources."""
        return sum(source.steps for source in self.sources)

    def to_text(self) -> bytes:
        """Serialises it as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @staticmethod
    def parse(text: bytes) -> "About":
        """Parses its JSON. Raises: ValueError."""
        try:
            values = json.loads(text)
            space = values["action_space"]
            if space is not None:
                box = "n" not in space
                lists = {key: tuple(x) for key, x in space.items() if isinstance(x, list)}
                space = Box(**space | lists) if box else Discrete(space["n"])
            sources = tuple(Source(**source) for source in values["sources"])
            numbers = (*((*space.low, *space.high) if isinstance(space, Box) else ()),)
            for source in sources:
                numbers += dataclasses.astuple(source)[1:]
            names = (values["environment"], *(source.name for source in sources))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"what made it cannot be read: {error!r}") from error
        if not all(isinstance(x, (int, float)) for x in numbers) or not all(
            isinstance(name, str) for name in names
        ):
            raise ValueError(f"what made it is {shortened(str(values), 500)}")
        return About(values["environment"], space, sources)


class Dataset:
    """An open data set.

    Attributes:
        path: of its file.
        about: its origin.
        table: its records, mapped privately: other processes do not see changes.
        ids: `[N] int64`, ids of the records, in the order in which they were written.
        lengths: `[N] int32`, steps of each record.
    """

    def __init__(self, path: Path) -> None:
        """Opens a file.

        Raises:
            ReplayError: the file is no data set, or damaged.
        """
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ReplayError(f"data set {path} cannot be opened: {error.strerror}") from error
        try:
            self.about, spec = _read_about(descriptor)
            self.table = Table.mapped(spec, descriptor)
            self.table.check_index()
            entries = self.table.entries[0]
            if (entries["generation"] != 2).any() or not entries["length"].all():
                raise ValueError("its index does not say that each record was written once")
        except (OSError, ValueError, ReplayError) as error:
            os.close(descriptor)
            raise ReplayError(f"{path} is not a data set, or damaged: {error}") from error
        functions().table_init(self.table.base)
        self.lengths = entries["length"].astype(np.int32)
        self.ids = np.arange(len(entries)) + len(entries)  # of records that were written once

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, *_: object) -> None:
        self.table.close()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        """Maximum steps of a record."""
        return self.table.spec.length

    def returns(self) -> np.ndarray:
        """Reads the returns of all episodes, `[E] float32`, in their order."""
        out = self.table.buffers(_RECORDS, window=1)
        found = []
        for at in range(0, len(self), _RECORDS):
            ids = self.ids[at : at + _RECORDS]
            self.table.gather(ids, out)
            begins = out["step"][: len(ids), 0] == 0
            found.append(out["return_to_go"][: len(ids), 0][begins])
        return np.concatenate(found)

    def records(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the columns of each record, `[T, ...]`, valid until the next one is requested."""
        out = self.table.buffers(1)
        for record, length in zip(self.ids, self.lengths.tolist(), strict=True):
            self.table.gather(np.array([record]), out)
            yield {name: array[0, :length] for name, array in out.items()}


def finish(descriptor: int, about: About) -> None:
    """Completes a full table's file to a data set. Raises: OSError."""
    size, text = os.fstat(descriptor).st_size, about.to_text()
    index_bytes = int(described(descriptor).header()["data_offset"])
    checksum = zlib.crc32(text, _checksum(descriptor, index_bytes))
    os.pwrite(descriptor, text + _END.pack(index_bytes, len(text), checksum, MAGIC), size)
    os.fsync(descriptor)


def _read_about(descriptor: int) -> tuple[About, TableSpec]:
    """Reads a data set's origin and specification. Raises: OSError, ValueError, ReplayError."""
    size = os.fstat(descriptor).st_size - _END.size
    if size < 0:
        raise ValueError(f"it has {size + _END.size} bytes")
    end = os.pread(descriptor, _END.size, size)
    index_bytes, length, checksum, magic = _END.unpack(end)
    if magic != MAGIC or index_bytes + length > size or length > _MOST_TEXT:
        raise ValueError("it ends differently")
    spec = described(descriptor, length + _END.size)
    if index_bytes != spec.header()["data_offset"]:
        raise ValueError("its end and its header do not agree")
    text = os.pread(descriptor, length, size - length)
    if zlib.crc32(text, _checksum(descriptor, index_bytes)) != checksum:
        raise ValueError("its checksum is not that of its contents")
    names = tuple(column.name for column in spec.columns)
    if names != NAMES:
        raise ValueError(f"its columns are {names}, expected {NAMES}")
    obs, action, reward = spec.columns[:3]
    columns = columns_of(obs.shape, action, reward.shape, obs.dtype)
    plain = TableSpec(columns, spec.capacity, length=spec.length)
    if spec != plain or spec.length < 2 or action.dtype not in ("int32", "float32"):
        raise ValueError(f"its table is none of episodes: {shortened(str(spec), 500)}")
    return About.parse(text), spec


def _checksum(descriptor: int, count: int) -> int:
    """Computes the CRC-32 of the first bytes of a file."""
    found = 0
    for at in range(0, count, _PIECE_BYTES):
        found = zlib.crc32(os.pread(descriptor, min(_PIECE_BYTES, count - at), at), found)
    return found
