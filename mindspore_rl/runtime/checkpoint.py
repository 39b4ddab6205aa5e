"""Checkpoints: arrays and JSON in one file, keyed by global environment index, never by rank."""

import contextlib
import json
import math
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mindspore_rl.errors import CheckpointError, StorageError
from mindspore_rl.platform.cache import make_folder, replacing, writing

FOLDER = "checkpoints"
KEEP = 3
META = "meta.json"
REPLAY = "replay/"
"""Prefix of the names of arrays that are written and read in pieces: they may fill the memory."""
PIECE_BYTES = 1 << 22
FORMAT = 2
NUMBERS = ("iteration", "num_envs", "env_steps", "steps_per_iteration")
"""Fields that the metadata of every checkpoint must have."""
MAX_STEPS = 1 << 53
"""Environment steps of 285 years at 10^6 a second; JSON readers may round larger numbers."""


@dataclass(frozen=True)
class Stream:
    """An array that is produced in pieces.

    Args:
        dtype: of the entries.
        shape: of the whole array.
        pieces: consecutive rows of the array; each piece is used before the next one is requested.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    pieces: Iterable[np.ndarray]


def save(
    folder: Path,
    iteration: int,
    arrays: dict[str, np.ndarray],
    meta: dict[str, Any],
    streams: Mapping[str, Stream] | None = None,
) -> Path:
    """Writes `checkpoint-<iteration>.npz` atomically, reads it back and keeps the newest `KEEP`.

    Args:
        folder: created if missing.
        iteration: iterations done.
        arrays: by name; each gets a checksum.
        meta: JSON-serialisable metadata, with all of `NUMBERS` except `iteration`.
        streams: arrays that are never whole in memory, by names that begin with `REPLAY`.

    Raises:
        StorageError: the disk is full or faulty, or the folder cannot be written; existing
            checkpoints stay.
    """
    path = _path(folder, iteration)
    about = {**meta, "iteration": iteration, "format": FORMAT}
    with writing(path):
        make_folder(folder)
        for stale in folder.glob("checkpoint-*.tmp"):  # left by a writer that was killed
            stale.unlink()
        with replacing(path, _read_back) as file:
            _write(file, arrays, streams or {}, about)
        found = list_checkpoints(folder)
        newest = found.index(path) + 1
        # Higher numbers are damaged checkpoints: else this run would have resumed from them.
        for old in [*found[newest:], *found[:newest]][:-KEEP]:
            old.unlink()
    return path


def _entry(array: np.ndarray) -> list[Any]:
    """Returns the entry of an array in `meta.json`: dtype, shape and checksum.

    The archive's own checksums do not show that two members were swapped; this one does.
    """
    data: Any = np.ascontiguousarray(array)
    return [array.dtype.str, list(array.shape), zlib.crc32(data)]


def _write(
    file: BinaryIO,
    arrays: dict[str, np.ndarray],
    streams: Mapping[str, Stream],
    about: dict[str, Any],
) -> None:
    """Writes the format of `np.savez`, without pickle, and closes the file if writing fails."""
    listed = {name: _entry(np.asanyarray(array)) for name, array in arrays.items()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        for name, stream in streams.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                listed[name] = _write_stream(member, stream)
        text = json.dumps({**about, "arrays": listed}).encode()
        with archive.open(f"{META}.npy", "w") as member:
            np.lib.format.write_array(member, np.frombuffer(text, np.uint8), allow_pickle=False)


def _write_stream(member: Any, stream: Stream) -> list[Any]:
    """Writes an array piece by piece. Returns: its entry, see `_entry`."""
    head = {"descr": stream.dtype.str, "fortran_order": False, "shape": stream.shape}
    np.lib.format.write_array_header_1_0(member, head)
    checksum = 0
    for piece in stream.pieces:
        data: Any = np.ascontiguousarray(piece, stream.dtype).reshape(-1).view(np.uint8)
        checksum = zlib.crc32(data, checksum)
        member.write(data)
    return [stream.dtype.str, list(stream.shape), checksum]


def _read_back(path: Path) -> None:
    try:
        look(path)
    except CheckpointError as error:
        raise StorageError(f"a new checkpoint is not kept: {error}") from error


def load(path: Path, replay: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads a checkpoint; nothing in it is ever executed.

    Args:
        path: of the checkpoint.
        replay: whether to read the replay arrays too; see `replay_pieces`.

    Returns: the arrays, and the metadata, with the dtypes, shapes and checksums of all arrays by
        name under `arrays`.

    Raises:
        CheckpointError: it is damaged (checksums), of another format, or holds values that no
            training run can have written.
    """
    (_, meta), *arrays = _members(path)
    found = dict(arrays)
    for name in _replay(meta) if replay else ():
        dtype, shape, _ = meta["arrays"][name]
        found[name] = np.empty(shape, dtype)
        for row, piece in replay_pieces(path, meta, name):
            found[name][row : row + len(piece)] = piece
    return found, meta


def look(path: Path, replay: bool = True) -> dict[str, Any]:
    """Verifies a checkpoint, with little of it in memory at a time. Returns: its metadata.

    Args:
        path: of the checkpoint.
        replay: whether to verify the replay arrays too.

    Raises:
        CheckpointError: see `load`.
    """
    members = _members(path)
    _, meta = next(members)
    for _ in members:
        pass
    for name in _replay(meta) if replay else ():
        for _ in replay_pieces(path, meta, name):
            pass
    return meta


def _replay(meta: dict[str, Any]) -> list[str]:
    return [name for name in meta["arrays"] if name.startswith(REPLAY)]


def replay_pieces(path: Path, meta: dict[str, Any], name: str) -> Iterator[tuple[int, np.ndarray]]:
    """Reads an array of the replay in pieces.

    Args:
        path: of the checkpoint.
        meta: the checkpoint's metadata.
        name: of the array.

    Yields: the index of a piece's first row, and the piece, to be used before the next one is
        requested.

    Raises:
        CheckpointError: it is damaged; the checksum is compared only after the last piece.
    """
    with _reading(path):
        dtype, shape, expected = meta["arrays"][name]
        kind, checksum = np.dtype(dtype), 0
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as opened:
            member: Any = opened
            np.lib.format.read_magic(member)
            head = np.lib.format.read_array_header_1_0(member)
            if head != (tuple(shape), False, kind) or kind.hasobject:
                raise ValueError(f"{name} is not the array that was saved under this name")
            for row, rows in pieces_of(shape, kind):
                data = bytearray(rows * row_bytes(shape, kind))
                if member.readinto(data) != len(data):
                    raise ValueError(f"{name} ends too early")
                checksum = zlib.crc32(data, checksum)
                yield row, np.frombuffer(data, kind).reshape(rows, *shape[1:])
        if checksum != expected:
            raise ValueError(f"{name} is not the array that was saved under this name")


def row_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    """Returns the bytes of a row of an array."""
    return math.prod(shape[1:]) * dtype.itemsize


def pieces_of(shape: Sequence[int], dtype: np.dtype) -> Iterator[tuple[int, int]]:
    """Yields the pieces in which an array is written and read: first row and number of rows."""
    rows = max(1, PIECE_BYTES // max(1, row_bytes(shape, dtype)))
    for row in range(0, shape[0], rows):
        yield row, min(rows, shape[0] - row)


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields a checkpoint's metadata, then its arrays, each verified before it is yielded.

    Skips the arrays of the replay.
    """
    with _reading(path), np.load(path, allow_pickle=False) as file:
        meta = json.loads(bytes(file[META]))
        if meta["format"] != FORMAT:
            raise _Refused(f"has format {meta['format']}, expected {FORMAT}")
        _check_numbers(meta)
        if {META, *meta["arrays"]} != set(file.files):
            raise ValueError("its list of arrays is not whole")
        yield META, meta
        for name, entry in meta["arrays"].items():
            if name.startswith(REPLAY):
                continue
            array = file[name]
            if _entry(array) != entry:
                raise ValueError(f"{name} is not the array that was saved under this name")
            if name.startswith("parameters/") and not np.isfinite(array).all():
                raise _Refused(f"cannot be used: {name} is not finite")
            yield name, array


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except _Refused as refused:
        raise CheckpointError(f"checkpoint {path} {refused}; use one before it") from refused
    except CheckpointError:
        raise
    except Exception as error:  # damage to an archive raises many types of errors
        raise CheckpointError(
            f"checkpoint {path} is damaged ({type(error).__name__}: {error}); use one before it"
        ) from error


class _Refused(Exception):  # noqa: N818
    """A checkpoint that is intact but cannot be used."""


def _check_numbers(meta: dict[str, Any]) -> None:
    numbers = [meta[key] for key in NUMBERS]
    if not all(type(number) is int for number in numbers):
        raise ValueError(f"{', '.join(NUMBERS)} are {numbers}, expected whole numbers")
    iteration, num_envs, env_steps, per_iteration = numbers
    said = ", ".join(f"{key}={number}" for key, number in zip(NUMBERS, numbers, strict=True))
    if not (0 <= env_steps <= MAX_STEPS and 1 <= num_envs <= per_iteration):
        raise _Refused(f"cannot be used: it says {said}, which no training comes to")
    if env_steps // per_iteration != iteration:
        raise _Refused(f"cannot be used: it says {said}, which do not fit together")


def lagged(age: int, name: str) -> str:
    """Names the array of one of the actor's parameters as it was `age` iterations before."""
    return f"lagged/{age}/{name}"


def _path(folder: Path, iteration: int) -> Path:
    return folder / f"checkpoint-{iteration:08d}.npz"


def list_checkpoints(folder: Path) -> list[Path]:
    """Lists a folder's checkpoints by iteration, oldest first; names have eight digits or more."""
    return [path for _, path in _numbered(folder)]


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Lists checkpoints by iteration; skips files with other names, such as copies."""
    found = ((path.stem[len("checkpoint-") :], path) for path in folder.glob("checkpoint-*.npz"))
    return sorted((int(text), path) for text, path in found if re.fullmatch("[0-9]{1,20}", text))


def of_iteration(folder: Path, iteration: int) -> Path:
    """Returns the path of an iteration's checkpoint. Raises: CheckpointError."""
    path, found = _path(folder, iteration), _numbered(folder)
    if (iteration, path) not in found:
        there = [number for number, _ in found]
        raise CheckpointError(
            f"{folder} has no checkpoint of iteration {iteration}; there are those of {there}"
        )
    return path


def load_newest(folder: Path, replay: bool = True) -> tuple[Path, dict[str, Any], list[str]]:
    """Finds the newest checkpoint that can be used.

    Args:
        folder: of the checkpoints.
        replay: whether the arrays of the replay must be intact too.

    Returns: its path, its metadata, and the errors of newer checkpoints.

    Raises:
        CheckpointError: there is no usable checkpoint.
    """
    damaged: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return path, look(path, replay), damaged
        except CheckpointError as error:
            damaged.append(str(error))
    raise CheckpointError("\n".join([f"no usable checkpoint in {folder}", *damaged]))
