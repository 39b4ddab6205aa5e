"""Keeps the checkpoint of the highest mean return: of training, or of evaluations."""

import contextlib
import os
import shutil
from pathlib import Path

from mindspore_rl.errors import CheckpointError
from mindspore_rl.platform.cache import commit
from mindspore_rl.runtime import checkpoint

CHOICES = "best, last or an iteration"


def keep_best(path: Path, mean_return: float, folder: Path | None = None) -> None:
    """Keeps a checkpoint that has just been written, if none before it had a higher mean return.

    Args:
        path: of the checkpoint.
        mean_return: of its policy, reward units.
        folder: where it is kept; None: beside the checkpoint.

    The best checkpoint is a hard link to the file, `best-ITERATION-RETURN.npz`, which takes no disk
    space while that checkpoint exists; a copy where the file system has no hard links.

    Raises:
        OSError: it cannot be written; the previous best checkpoint stays.
    """
    folder = folder or path.parent
    before = _found(folder)
    if before and _return_of(before[-1]) >= mean_return:
        return
    number = path.stem.rpartition("-")[2]
    temporary = folder / "best.npz.tmp"
    temporary.unlink(missing_ok=True)
    try:
        link_or_copy(path, temporary)
        commit(temporary, folder / f"best-{number}-{mean_return:.6g}.npz")
    finally:
        temporary.unlink(missing_ok=True)
    for old in before:
        old.unlink()


def link_or_copy(path: Path, other: Path) -> None:
    """Gives a file another name, or copies it where there are no hard links. Raises: OSError."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def chosen(folder: Path, which: str) -> Path:
    """Finds the checkpoint that a user names.

    Args:
        folder: the run's folder of checkpoints.
        which: `best`, or the number of an iteration.

    Raises:
        CheckpointError: there is no such checkpoint.
    """
    if which == "best":
        if found := _found(folder):
            return found[-1]
        raise CheckpointError(
            f"{folder} has no best checkpoint: none was written after 100 episodes had ended, and "
            "none was evaluated; take the last one, or one by its iteration"
        )
    if not which.isdecimal():
        raise CheckpointError(f"checkpoint {which!r}: expected {CHOICES}")
    return checkpoint.of_iteration(folder, int(which))


def _found(folder: Path) -> list[Path]:
    """Lists best checkpoints, highest return last: two if a writer was killed in between."""
    found = []
    for path in folder.glob("best-*-*.npz"):
        with contextlib.suppress(ValueError):
            found.append((_return_of(path), path))
    return [path for _, path in sorted(found)]


def _return_of(path: Path) -> float:
    return float(path.stem.split("-", 2)[2])
