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


def cached(name: str, make: Callable[[Path], None], anew: bool = False) -> Path:
    """A file in this user's cache.

    Args:
        name: its path there; names what is in it, for a file that is there is not made again.
        make: writes it at a path beside the one that it will have.
        anew: whether it is made even if it is there.

    Raises:
        MsrlError: no folder can be written.
    """
    homes = _caches()
    for home in homes:
        path = home / name
        made = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_own(home):
                continue
            if anew or not path.exists():
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
        f"none of {', '.join(str(home.parent) for home in homes)} can be written; set "
        "XDG_CACHE_HOME to a folder that can"
    )


def keep(name: str, data: bytes) -> None:
    """Puts a file into this user's cache, if there is a folder to write."""

    def make(path: Path) -> None:
        path.write_bytes(data)

    with contextlib.suppress(MsrlError):
        cached(name, make, anew=True)


def in_cache(name: str) -> Path | None:
    """A file of the cache, if it is there."""
    for home in _caches():
        with contextlib.suppress(OSError):
            if (home / name).exists() and _is_own(home):
                return home / name
    return None


def _caches() -> list[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    homes = [cache / "mindspore_rl", Path(tempfile.gettempdir(), f"msrl-{os.getuid()}")]
    return [home for home in homes if home.is_absolute()]  # a user may have no home


def _is_own(home: Path) -> bool:
    """Another user could put anything into a folder of his."""
    return home.stat().st_uid == os.getuid()
