"""Files: what is said when one of a run cannot be written, and a cache of what is made once."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mindspore_rl.errors import MsrlError, StorageError


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


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """A file in this user's cache.

    Args:
        name: its path there; names what is in it, for a file that is there is not made again.
        make: writes it at a path beside the one that it will have.

    Raises:
        MsrlError: no folder can be written.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    temporary = Path(tempfile.gettempdir(), f"msrl-{os.getuid()}")
    for home in (cache / "mindspore_rl", temporary):
        path = home / name
        made = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            if not home.is_absolute():
                continue  # this user has no home
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if home.stat().st_uid != os.getuid():
                continue  # another user's, who could put anything there
            if not path.exists():
                made.touch()
                try:
                    make(made)
                    made.replace(path)  # two jobs may start at once
                finally:
                    made.unlink(missing_ok=True)
            return path
        except OSError:
            continue
    raise MsrlError(
        f"neither {cache} nor {temporary} can be written; set XDG_CACHE_HOME to a folder that can"
    )
