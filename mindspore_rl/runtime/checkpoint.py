"""Checkpoints: arrays and JSON in one file, keyed by global environment index, never by rank."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import CheckpointError

KEEP = 3
META = "meta.json"
FORMAT = 1


def save(folder: Path, iteration: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> Path:
    """Writes `checkpoint-<iteration>.npz` atomically and keeps the newest `KEEP`.

    Args:
        folder: created if missing.
        iteration: iterations done.
        arrays: by name; every member carries a checksum.
        meta: anything JSON can hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{iteration:08d}.npz"
    temporary = path.with_suffix(".tmp")
    text = json.dumps({**meta, "iteration": iteration, "format": FORMAT}).encode()
    try:
        with temporary.open("wb") as file:
            np.savez(file, **{META: np.frombuffer(text, np.uint8), **arrays})
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    finally:
        temporary.unlink(missing_ok=True)
    for old in list_checkpoints(folder)[:-KEEP]:
        old.unlink()
    return path


def load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Reads a checkpoint.

    Raises:
        CheckpointError: it is damaged (checksums) or of another format.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = json.loads(bytes(arrays.pop(META)))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"checkpoint {path} is damaged ({error}); use one before it") from (
            error
        )
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
