"""Checkpoints: arrays and JSON in one file, keyed by global environment index, never by rank."""

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mindspore_rl.errors import CheckpointError, StorageError
from mindspore_rl.storage import writing

FOLDER = "checkpoints"
KEEP = 3
META = "meta.json"
FORMAT = 2
NUMBERS = ("iteration", "num_envs", "env_steps", "steps_per_iteration")
"""What every checkpoint must say of itself."""
MOST = 1 << 60
"""No number of them is larger."""


def save(folder: Path, iteration: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Path:
    """Writes `checkpoint-<iteration>.npz` atomically and keeps the newest `KEEP`.

    Args:
        folder: created if missing.
        iteration: iterations done.
        arrays: by name.
        meta: anything JSON can hold, `NUMBERS` among it.

    Raises:
        StorageError: the disk is full, the folder cannot be written, or what was written cannot be
            read again; what was there stays.
    """
    path = folder / f"checkpoint-{iteration:08d}.npz"
    temporary = path.with_suffix(".tmp")
    sums = {name: _checksum(array) for name, array in arrays.items()}
    about = {**meta, "iteration": iteration, "format": FORMAT, "arrays": sums}
    text = json.dumps(about).encode()
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("checkpoint-*.tmp"):  # its writer was killed
            stale.unlink()
        try:
            with temporary.open("wb") as file:
                _write(file, {META: np.frombuffer(text, np.uint8), **arrays})
                file.flush()
                os.fsync(file.fileno())
            try:
                load(temporary)
            except CheckpointError as error:
                raise StorageError(f"what was just written is not what is read: {error}") from error
            temporary.replace(path)
            _sync(folder)
        finally:
            temporary.unlink(missing_ok=True)
        found = list_checkpoints(folder)
        newest = found.index(path) + 1
        # Those with higher numbers are damaged, or this run would have gone on from them.
        for old in [*found[newest:], *found[:newest]][:-KEEP]:
            old.unlink()
    return path


def _write(file: BinaryIO, arrays: dict[str, np.ndarray]) -> None:
    """What `np.savez` writes, but never a pickle, and with no file left open if it fails."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _checksum(array: np.ndarray) -> int:
    """Of an array with its type and shape.

    The archive has one of each member's bytes, but none of which member is which.
    """
    array = np.ascontiguousarray(array)
    return zlib.crc32(array.data, zlib.crc32(f"{array.dtype.str}{array.shape}".encode()))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads a checkpoint; nothing in it is ever executed.

    Raises:
        CheckpointError: it is damaged (checksums) or of another format.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(bytes(arrays.pop(META)))
        if meta["format"] == FORMAT:
            _check(arrays, meta)
    except Exception as error:  # what damage does to an archive has no end
        raise CheckpointError(
            f"checkpoint {path} is damaged ({type(error).__name__}: {error}); use one before it"
        ) from error
    if meta["format"] != FORMAT:
        raise CheckpointError(f"checkpoint {path} has format {meta['format']}, expected {FORMAT}")
    return arrays, meta


def _check(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Looks whether a checkpoint says of itself what can be. Raises: ValueError, KeyError."""
    numbers = [meta[key] for key in NUMBERS]
    if not all(type(number) is int and 0 <= number < MOST for number in numbers):
        raise ValueError(f"{', '.join(NUMBERS)} are {numbers}, expected whole numbers below 2**60")
    iteration, _, env_steps, each = numbers
    if each and env_steps // each != iteration:
        raise ValueError(f"{env_steps} environment steps are not {iteration} iterations of {each}")
    sums = {name: _checksum(array) for name, array in arrays.items()}
    if (listed := meta.pop("arrays")) != sums:
        changed = [name for name in {*sums, *listed} if sums.get(name) != listed.get(name)]
        raise ValueError(f"the arrays {', '.join(sorted(changed))} are not those that were saved")
    for name, array in arrays.items():
        if name.startswith("parameters/") and not np.isfinite(array).all():
            raise ValueError(f"{name} is not finite")


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a folder, oldest first."""
    return sorted(folder.glob("checkpoint-*.npz"))


def load_newest(folder: Path) -> tuple[Path, list[str]]:
    """The newest checkpoint that can be read, and what was wrong with newer ones.

    Raises:
        CheckpointError: there is none.
    """
    damaged = []
    for path in reversed(list_checkpoints(folder)):
        try:
            load(path)
        except CheckpointError as error:
            damaged.append(str(error))
        else:
            return path, damaged
    raise CheckpointError("\n".join([f"no usable checkpoint in {folder}", *damaged]))
