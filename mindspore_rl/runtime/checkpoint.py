"""Checkpoints: arrays and JSON in one file, keyed by global environment index, never by rank.

Records of a replay are in segments beside it, see `replay_segments`.
"""

import contextlib
import json
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mindspore_rl.errors import CheckpointError, StorageError
from mindspore_rl.plan.plan import GRAPH_FILE, JOB_FILE, OUTCOME_FILE, PLAN_FILE
from mindspore_rl.plan.reading import read
from mindspore_rl.platform.cache import make_folder, replacing, writing
from mindspore_rl.runtime import npz, replay_segments
from mindspore_rl.runtime.arrivals_log import ARRIVALS_FILE
from mindspore_rl.runtime.replay_segments import Replay, Segment, pieces_of, row_bytes

FOLDER = "checkpoints"
KEEP = 3
META = "meta.json"
REPLAY = "replay/"
"""Prefix of the names of a replay's columns; in earlier formats they were arrays of the file."""
FORMAT, FORMATS = 3, (2, 3)
"""The format that is written, and those that are read."""
NUMBERS = ("iteration", "num_envs", "env_steps", "steps_per_iteration")
"""Fields that the metadata of every checkpoint must have."""
LOOK_S = 0.02
"""Time between two looks at whether another rank's segment is there."""
MAX_STEPS = 1 << 53
"""Environment steps of 285 years at 10^6 a second; JSON readers may round larger numbers."""


def save(folder: Path, iteration: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Path:
    """Writes `checkpoint-<iteration>.npz` atomically, reads it back and keeps the newest `KEEP`.

    Then removes the segments of replays that none of these has.

    Args:
        folder: created if missing.
        iteration: iterations done.
        arrays: by name; each gets a checksum.
        meta: JSON-serialisable metadata, with all of `NUMBERS` except `iteration`; also that of
            `meta_of` the replays whose segments have been written.

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
            _write(file, arrays, about)
        found = list_checkpoints(folder)
        newest = found.index(path) + 1
        # Higher numbers are damaged checkpoints: else this run would have resumed from them.
        for old in [*found[newest:], *found[:newest]][:-KEEP]:
            old.unlink()
        remove_unused(folder, iteration)
    return path


def await_segments(folder: Path, meta: dict[str, Any], ended: threading.Event) -> bool:
    """Waits until the segments of a checkpoint that is to be written are durable, on all ranks.

    Returns: whether they are: False if the job ended before.
    """
    place = _segments(folder)
    for replay in replays_of({"arrays": {}, **meta}).values():
        for segment in replay.segments:
            while not (place / segment.file).exists():
                if ended.wait(LOOK_S):
                    return False
    return True


def remove_unused(folder: Path, before: int) -> None:
    """Removes the segments that no checkpoint lists, see `replay_segments.remove_unused`.

    Removes nothing if the list of a checkpoint cannot be read.
    """
    place, used = _segments(folder), list[Segment]()
    if not place.exists():
        return
    with contextlib.suppress(CheckpointError):
        for path in list_checkpoints(folder):
            _, meta = next(_members(path))
            used += [one for replay in replays_of(meta).values() for one in replay.segments]
        replay_segments.remove_unused(place, used, before)


def remove_unfinished(run_dir: Path) -> None:
    """Removes what killed or failed processes had written of a next file; none may be left."""
    with contextlib.suppress(OSError):
        files = JOB_FILE, PLAN_FILE, GRAPH_FILE, OUTCOME_FILE, ARRIVALS_FILE
        own = (run_dir / f"{name}.tmp" for name in files)
        for made in (*own, *(run_dir / FOLDER).glob("*.npz.tmp")):
            made.unlink(missing_ok=True)
        replay_segments.drop_all(run_dir / replay_segments.FOLDER)
        remove_unused(run_dir / FOLDER, MAX_STEPS)


def _entry(array: np.ndarray) -> list[Any]:
    """Returns the entry of an array in `meta.json`: dtype, shape and checksum.

    The archive's own checksums do not show that two members were swapped; this one does.
    """
    data: Any = np.ascontiguousarray(array)
    return [array.dtype.str, list(array.shape), zlib.crc32(data)]


def _write(file: BinaryIO, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Writes the format of `np.savez`, without pickle, and closes the file if writing fails."""
    listed = {name: _entry(np.asanyarray(array)) for name, array in arrays.items()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        text = json.dumps({**about, "arrays": listed}).encode()
        with archive.open(f"{META}.npy", "w") as member:
            np.lib.format.write_array(member, np.frombuffer(text, np.uint8), allow_pickle=False)


def _read_back(path: Path) -> None:
    """Verifies a new checkpoint; the ranks have read back the segments that they wrote."""
    try:
        look(path, segments=replay_segments.check_sizes)
    except CheckpointError as error:
        raise StorageError(f"a new checkpoint is not kept: {error}") from error


def load(path: Path, replay: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads a checkpoint; nothing in it is ever executed.

    Args:
        path: of the checkpoint.
        replay: whether to read the replay too, as arrays `[capacity, num_envs, ...]` whose names
            begin with `REPLAY`, see `column_of`; see also `replay_parts`.

    Returns: the arrays, and the metadata, with the dtypes, shapes and checksums of all arrays by
        name under `arrays`.

    Raises:
        CheckpointError: it is damaged (checksums), of another format, or holds values that no
            training run can have written.
    """
    (_, meta), *arrays = _members(path)
    found = dict(arrays)
    for name, about in replays_of(meta).items() if replay else ():
        inserted = np.full(meta["num_envs"], about.capacity)
        if not _in_file(meta, name):
            inserted = about.inserted(meta["num_envs"])
        with _reading(path):
            for number, (dtype, record) in enumerate(about.kinds()):
                shape = (about.capacity, meta["num_envs"], *record)
                found[column_of(name, number)] = np.zeros(shape, dtype)
        for number, lanes, records, piece in replay_parts(path, meta, inserted, name):
            column = found[column_of(name, number)]
            replay_segments.put(column[:, lanes], piece, records, inserted[lanes])
    return found, meta


def look(
    path: Path, replay: bool = True, segments: Callable = replay_segments.check
) -> dict[str, Any]:
    """Verifies a checkpoint, with little of it in memory at a time. Returns: its metadata.

    Args:
        path: of the checkpoint.
        replay: whether to verify the replay too.
        segments: how its segments are verified.

    Raises:
        CheckpointError: see `load`.
    """
    members = _members(path)
    _, meta = next(members)
    for _ in members:
        pass
    for name, found in replays_of(meta).items() if replay else ():
        with _reading(path):
            segments(_segments(path.parent), found)
        for column in _in_file(meta, name):
            for _ in _array_pieces(path, meta, column):
                pass
    return meta


def inserted_of(name: str) -> str:
    """Names the array with the records ever inserted for each environment into a replay."""
    return f"counters/inserted/{name}" if name else "counters/inserted"


def column_of(name: str, number: int) -> str:
    """Names the array of a column of a replay."""
    return f"{REPLAY}{name}/{number}" if name else f"{REPLAY}{number}"


def meta_of(replays: dict[str, Replay]) -> dict[str, Any]:
    """Returns the metadata that describe kept replays, given by their names."""
    named = {name: asdict(replay) for name, replay in replays.items()}
    own = {"replay": named.pop("")} if "" in named else {}
    return own | ({"named_replays": named} if named else {})


def replays_of(meta: dict[str, Any]) -> dict[str, Replay]:
    """Returns the replays that a checkpoint's metadata describe, by name; "" has none.

    Raises:
        CheckpointError: the description is damaged.
    """
    try:
        found = read(dict[str, Replay], meta.get("named_replays", {}))
        if "replay" in meta:
            found[""] = read(Replay, meta["replay"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint of iteration {meta['iteration']} describes no replay "
            f"({type(error).__name__}: {error}); use one before it"
        ) from error
    if found:
        return found
    for name in dict.fromkeys(map(_replay_in_file, meta["arrays"])):
        if name is not None:
            entries = [meta["arrays"][column] for column in _in_file(meta, name)]
            columns = tuple((dtype, tuple(shape[2:])) for dtype, shape, _ in entries)
            found[name] = Replay(entries[0][1][0], columns)
    return found


def replay_parts(
    path: Path, meta: dict[str, Any], inserted: np.ndarray, name: str = ""
) -> Iterator[tuple[int, slice, np.ndarray, np.ndarray]]:
    """Reads the replay of a checkpoint in pieces.

    Args:
        path: of the checkpoint.
        meta: its metadata.
        inserted: number of records ever inserted for each environment, `[num_envs]`.
        name: of the replay.

    Yields: the number of a column, the environments of a piece, the numbers of its records
        `[rows, environments]` (negative: no record) and the piece `[rows, environments, ...]`, to
        be used before the next one is requested.

    Raises:
        CheckpointError: it is damaged; a checksum is compared only after the last piece.
    """
    replay, folder = replays_of(meta).get(name), _segments(path.parent)
    if replay is None:
        return
    with _reading(path):
        for segment in replay.segments:
            for number, first, piece in replay_segments.pieces(folder, replay, segment):
                records = first + np.arange(len(piece))[:, None]
                records = np.broadcast_to(records, piece.shape[:2])
                yield number, slice(*segment.lanes), records, piece
    for number, column in enumerate(_in_file(meta, name)):
        capacity, num_envs = meta["arrays"][column][1][:2]
        for row, piece in _array_pieces(path, meta, column):
            rows = np.arange(row, row + len(piece))[:, None]
            records = rows + (inserted - 1 - rows) // capacity * capacity
            yield number, slice(0, num_envs), records, piece


def _in_file(meta: dict[str, Any], name: str) -> list[str]:
    """Lists the columns of a replay that are arrays of the file, in order."""
    columns = (column for column in meta["arrays"] if _replay_in_file(column) == name)
    return sorted(columns, key=lambda column: int(column.rpartition("/")[2]))


def _replay_in_file(array: str) -> str | None:
    """Returns the name of the replay of which an array is a column; None: of none."""
    if not array.startswith(REPLAY):
        return None
    return array.removeprefix(REPLAY).rpartition("/")[0]


def _array_pieces(path: Path, meta: dict[str, Any], name: str) -> Iterator[tuple[int, np.ndarray]]:
    """Reads an array of the file in pieces. Yields: a piece's first row, and the piece."""
    with _reading(path):
        dtype, shape, expected = meta["arrays"][name]
        kind, checksum = np.dtype(dtype), 0
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as opened:
            member: Any = opened
            if npz.header(member) != (kind, tuple(shape), "C"):
                raise ValueError(f"{name} is not the array that was saved under this name")
            for row, rows in pieces_of(shape, kind):
                data = bytearray(rows * row_bytes(shape, kind))
                if member.readinto(data) != len(data):
                    raise ValueError(f"{name} ends too early")
                checksum = zlib.crc32(data, checksum)
                yield row, np.frombuffer(data, kind).reshape(rows, *shape[1:])
        if checksum != expected:
            raise ValueError(f"{name} is not the array that was saved under this name")


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields a checkpoint's metadata, then its arrays, each verified before it is yielded.

    Skips the arrays of the replay.
    """
    with _reading(path), zipfile.ZipFile(path) as file:
        meta = json.loads(bytes(npz.read(file, META)))
        if meta["format"] not in FORMATS:
            raise _Refused(f"has format {meta['format']}, expected {FORMAT}")
        _check_numbers(meta)
        if {f"{name}.npy" for name in (META, *meta["arrays"])} != set(file.namelist()):
            raise ValueError("its list of arrays is not whole")
        yield META, meta
        for name, entry in meta["arrays"].items():
            if name.startswith(REPLAY):
                continue
            array = npz.read(file, name)
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


def _segments(folder: Path) -> Path:
    """Returns the folder of the segments beside that of the checkpoints."""
    return folder.absolute().parent / replay_segments.FOLDER


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
