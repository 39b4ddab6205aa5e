"""Segments of a replay: files with records of some environments, which checkpoints share.

A segment begins with the frames of its images, each once; then come its columns, of which those of
images hold the numbers of their frames.

Each rank writes the records that its replay got since its last segment, many of them before the
checkpoint, so that it has little to wait for. The metadata of a
checkpoint lists the segments that hold its replay; a file that no checkpoint lists is removed.
"""

import contextlib
import math
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import StorageError
from mindspore_rl.platform.cache import commit, make_folder, writing
from mindspore_rl.replay.frames import NUMBER, FrameColumn, FrameStore, Kind, is_stack, numbers_of

FOLDER = "replay"
"""Folder of the segments, beside the folder of the checkpoints."""
PIECE_BYTES = 1 << 22
"""Bytes that are read or written at once, or one row if that is more."""


@dataclass(frozen=True)
class Segment:
    """A file of consecutive records: column by column, `[records, environments, ...]`.

    Attributes:
        file: its name.
        lanes: first and last environment (exclusive).
        records: first and last record (exclusive) of each of them, as they were inserted.
        columns: numbers of the columns in it.
        checksum: of the file.
        frames: sizes of the frames that it holds once, and how many of each size there are.
    """

    file: str
    lanes: tuple[int, int]
    records: tuple[int, int]
    columns: tuple[int, ...]
    checksum: int
    frames: tuple[tuple[int, int], ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Number of records of an environment, and of environments."""
        return self.records[1] - self.records[0], self.lanes[1] - self.lanes[0]

    def has_frames_of(self, kind: Kind) -> bool:
        """Returns whether a column's records are the numbers of their frames in this file."""
        return is_stack(*kind) and math.prod(kind[1][-2:]) in dict(self.frames)


@dataclass(frozen=True)
class Replay:
    """The replay in a checkpoint.

    Attributes:
        capacity: number of records kept of each environment.
        columns: of each column the dtype, and the shape of a record.
        segments: in the order in which they were written; none if the columns are arrays of the
            checkpoint.
        by_priority: whether the last column holds weights; None in a checkpoint of an earlier
            version.
    """

    capacity: int
    columns: tuple[tuple[str, tuple[int, ...]], ...]
    segments: tuple[Segment, ...] = ()
    by_priority: bool | None = None

    def inserted(self, num_envs: int) -> np.ndarray:
        """Returns the number of records that were inserted for each environment."""
        found = np.zeros(num_envs, np.int64)
        for segment in self.segments:
            lanes = slice(*segment.lanes)
            found[lanes] = np.maximum(found[lanes], segment.records[1])
        return found

    def size(self, segment: Segment) -> int:
        """Returns the bytes of a segment. Raises: ValueError: see `kinds`."""
        kinds = self.kinds()
        stored = (_stored(segment, kinds[number]) for number in segment.columns)
        each = sum(math.prod(record) * dtype.itemsize for dtype, record in stored)
        frames = sum(size * count for size, count in segment.frames)
        return math.prod(segment.shape) * each + frames

    def kinds(self) -> list[Kind]:
        """Returns the dtype and the record's shape of each column. Raises: ValueError: objects."""
        found = [(np.dtype(dtype), shape) for dtype, shape in self.columns]
        if any(dtype.hasobject for dtype, _ in found):
            raise ValueError(f"its replay has columns {self.columns}")
        return found


def write(folder: Path, number: int, rank: int, pieces: Iterable[np.ndarray]) -> tuple[str, int]:
    """Writes a segment durably and reads it back, see `prepare`."""
    name, checksum = prepare(folder, number, rank, pieces)
    keep(folder, name)
    return name, checksum


def prepare(folder: Path, number: int, rank: int, pieces: Iterable[np.ndarray]) -> tuple[str, int]:
    """Writes a segment and reads it back. Until `keep`, it is not durable and has another name.

    Args:
        folder: made if missing.
        number: the iteration, see `remove_unused`.
        rank: that writes it.
        pieces: its contents; each piece is used before the next one is requested.

    Returns: its name, which no other segment has, and its checksum.

    Raises:
        StorageError: the disk is full or faulty.
    """
    path = folder / f"{number:08d}-{rank:04d}-{secrets.token_hex(4)}.segment"
    made, checksum = _made(path), 0
    with writing(path):
        make_folder(folder)
        try:
            with made.open("xb") as file:
                for piece in pieces:
                    data: Any = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
                    checksum = zlib.crc32(data, checksum)
                    file.write(data)
                file.flush()
                if _checksum(made) != checksum:
                    raise StorageError(
                        f"{path} does not hold what was written: is the disk faulty?"
                    )
                # Linux begins to write it to the disk, so that `keep` need not wait for all of it.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except BaseException:
            made.unlink(missing_ok=True)
            raise
    return path.name, checksum


def keep(folder: Path, name: str) -> None:
    """Makes a prepared segment durable. Raises: StorageError: the disk is full or faulty."""
    path = folder / name
    with writing(path):
        try:
            commit(_made(path), path)
        finally:
            drop(folder, name)


def drop(folder: Path, name: str) -> None:
    """Removes a prepared segment that was not kept."""
    _made(folder / name).unlink(missing_ok=True)


def drop_all(folder: Path) -> None:
    """Removes what ranks have prepared, after their end."""
    for made in folder.glob(_made(Path("*.segment")).name):
        made.unlink(missing_ok=True)


def _made(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def contents(
    columns: Sequence[tuple[Any, np.dtype]], lanes: slice, records: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], Iterator[np.ndarray]]:
    """Returns the `frames` of a segment with consecutive records, and its contents in pieces.

    Args:
        columns: rings `[capacity, B, ...]` or `FrameColumn`s, and the dtypes of their pieces.
        lanes: on the axis B.
        records: first and last record (exclusive).
    """
    numbers: dict[int, np.ndarray] = {}  # of the frames of each column of images
    held: dict[FrameStore, np.ndarray] = {}  # whether a frame is in the segment
    for place, (column, _) in enumerate(columns):
        if isinstance(column, FrameColumn):
            parts = ring_pieces(column.index, NUMBER, lanes, records)
            numbers[place] = np.concatenate(list(parts))
            flags = held.setdefault(column.store, np.zeros(column.store.numbers, np.bool_))
            flags[numbers[place]] = True

    def pieces() -> Iterator[np.ndarray]:
        for store, flags in held.items():
            chosen = np.flatnonzero(flags)
            for at, rows in pieces_of((len(chosen), store.frame_bytes), np.dtype(np.uint8)):
                yield store.take(chosen[at : at + rows])
        for place, (column, dtype) in enumerate(columns):
            if place in numbers:
                order = np.cumsum(held[column.store], dtype=NUMBER) - 1
                yield order[numbers[place]]
            else:
                yield from ring_pieces(column, dtype, lanes, records)

    counts = ((store.frame_bytes, int(flags.sum())) for store, flags in held.items())
    return tuple(counts), pieces()


def ring_pieces(
    column: Any, dtype: np.dtype, lanes: slice, records: Sequence[int]
) -> Iterator[np.ndarray]:
    """Yields consecutive records of some environments from a ring `[capacity, B, ...]`, in pieces.

    Args:
        column: the ring: record r is in the row r modulo its length.
        dtype: of the pieces.
        lanes: on the axis B.
        records: first and last record (exclusive).
    """
    first, end = records
    part = column[:, lanes]
    while first < end:
        row = first % len(part)
        count = min(end - first, len(part) - row)
        for at, rows in pieces_of((count, *part.shape[1:]), dtype):
            yield np.ascontiguousarray(part[row + at : row + at + rows], dtype)
        first += count


def pieces(folder: Path, replay: Replay, segment: Segment) -> Iterator[tuple[int, int, np.ndarray]]:
    """Reads a segment.

    Yields: number of a column, number of a piece's first record, and the piece
        `[records, environments, ...]`, to be used before the next one is requested.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged; the checksum is compared only after the last piece.
    """
    kinds, path, checksum = replay.kinds(), folder / Path(segment.file).name, 0
    with path.open("rb") as file:

        def read(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
            nonlocal checksum
            data = bytearray(math.prod(shape) * dtype.itemsize)
            if file.readinto(data) != len(data):
                raise ValueError(f"{segment.file} of its replay ends too early")
            checksum = zlib.crc32(data, checksum)
            return np.frombuffer(data, dtype).reshape(shape)

        frames = dict[int, np.ndarray]()
        for size, count in segment.frames:
            begin = file.tell()
            for _, rows in pieces_of((count, size), np.dtype(np.uint8)):
                read((rows, size), np.dtype(np.uint8))
            frames[size] = np.memmap(path, mode="r", offset=begin, shape=(count, size))
        for number in segment.columns:
            dtype, record = kinds[number]
            stored, held = _stored(segment, kinds[number])
            for row, rows in pieces_of((*segment.shape, *record), dtype):
                piece = read((rows, segment.shape[1], *held), stored)
                if segment.has_frames_of(kinds[number]):
                    found = frames[math.prod(record[-2:])][piece]
                    piece = found.reshape(*piece.shape[:2], *record)
                yield number, segment.records[0] + row, piece
        if file.read(1) or checksum != segment.checksum:
            raise ValueError(f"{segment.file} of its replay is not the one that was saved")


def _stored(segment: Segment, kind: Kind) -> Kind:
    """Returns what a segment stores of a column's record: itself, or the numbers of its frames."""
    return numbers_of(kind[1]) if segment.has_frames_of(kind) else kind


def check_sizes(folder: Path, replay: Replay) -> None:
    """Checks that all segments are there. Raises: OSError, ValueError: one is not."""
    for segment in replay.segments:
        size = replay.size(segment)
        if (folder / segment.file).stat().st_size != size:
            raise ValueError(f"{segment.file} of its replay has not {size} bytes")


def check(folder: Path, replay: Replay) -> None:
    """Checks that all segments are as they were saved. Raises: OSError, ValueError: one is not."""
    check_sizes(folder, replay)
    for segment in replay.segments:
        if _checksum(folder / Path(segment.file).name) != segment.checksum:
            raise ValueError(f"{segment.file} of its replay is not the one that was saved")


def put(column: np.ndarray, piece: np.ndarray, records: np.ndarray, inserted: np.ndarray) -> None:
    """Puts records into the rows of a ring; leaves out those that newer ones would overwrite.

    Args:
        column: the ring `[capacity, B, ...]`.
        piece: `[rows, B, ...]`.
        records: their numbers `[rows, B]`; negative: no record.
        inserted: numbers of records ever inserted, `[B]`.
    """
    rows, lanes = np.nonzero(records >= np.maximum(inserted - len(column), 0))
    column[records[rows, lanes] % len(column), lanes] = piece[rows, lanes]


def remove_unused(folder: Path, used: Iterable[Segment], before: int) -> None:
    """Removes segments, and what killed writers left of them.

    Args:
        folder: of the segments.
        used: these stay.
        before: segments of this iteration's checkpoint, or of later ones, stay: other ranks may be
            writing the next checkpoint.
    """
    names = {segment.file for segment in used}
    for path in folder.glob("*.segment*"):
        with contextlib.suppress(ValueError, FileNotFoundError):
            if path.name not in names and int(path.name.split("-")[0]) < before:
                path.unlink()


def row_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    """Returns the bytes of a row of an array."""
    return math.prod(shape[1:]) * dtype.itemsize


def pieces_of(shape: Sequence[int], dtype: np.dtype) -> Iterator[tuple[int, int]]:
    """Yields the pieces in which an array is written and read: first row and number of rows."""
    rows = max(1, PIECE_BYTES // max(1, row_bytes(shape, dtype)))
    for row in range(0, shape[0], rows):
        yield row, min(rows, shape[0] - row)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            checksum = zlib.crc32(data, checksum)
    return checksum
