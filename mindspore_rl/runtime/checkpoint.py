"""Checkpoints: arrays and JSON in one file, keyed by global environment index, never by rank."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mindspore_rl.errors import CheckpointError
from mindspore_rl.storage import writing

FOLDER = "checkpoints"
KEEP = 3
META = "meta.json"
FORMAT = 1
NUMBERS = ("iteration", "num_envs", "env_steps")
"""What every checkpoint must say of itself."""


def save(folder: Path, iteration: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Path:
    """Writes `checkpoint-<iteration>.npz` atomically and keeps the newest `KEEP`.

    Args:
        folder: created if missing.
        iteration: iterations done.
        arrays: by name; every member carries a checksum.
        meta: anything JSON can hold, `num_envs` and `env_steps` among it.

    Raises:
        StorageError: the disk is full or the folder cannot be written; what was there stays.
    """
    path = folder / f"checkpoint-{iteration:08d}.npz"
    temporary = path.with_suffix(".tmp")
    about = {**meta, "iteration": iteration, "format": FORMAT, "arrays": sorted(arrays)}
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
            numbers = [meta[key] for key in NUMBERS]
            if not all(type(number) is int for number in numbers):
                raise ValueError(f"{', '.join(NUMBERS)} are {numbers}, expected whole numbers")
            if meta.pop("arrays") != sorted(arrays):  # checksums are of what is listed
                raise ValueError("its list of arrays is not whole")
    except Exception as error:  # what damage does to an archive has no end
        raise CheckpointError(
            f"checkpoint {path} is damaged ({type(error).__name__}: {error}); use one before it"
        ) from error
    if meta["format"] != FORMAT:
        raise CheckpointError(f"checkpoint {path} has format {meta['format']}, expected {FORMAT}")
    return arrays, meta


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
