"""What is said when a file of a run cannot be written."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mindspore_rl.errors import StorageError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context that writes a file of a run.

    Raises:
        StorageError: the disk is full, read-only or gone.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}); free some space or choose "
            "another --run-dir"
        ) from error
