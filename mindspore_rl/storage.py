"""Files: how they are written so that none is ever half there, and a cache of what is made once."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mindspore_rl.errors import MsrlError, StorageError


@contextlib.contextmanager
def writing(path: Path, flag: str = "--run-dir") -> Iterator[None]:
    """A context that writes a file.

    Args:
        path: of it.
        flag: by which another place can be chosen.

    Raises:
        StorageError: the disk is full, read-only or gone.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror or error}); free some space or choose "
            f"another {flag}"
        ) from error


def write_file(path: Path, data: bytes | str, flag: str = "--run-dir") -> None:
    """Writes a file: whole and on the disk when this returns, else what was there stays.

    Args:
        path: of it; its folder is there.
        data: all of it; text as UTF-8.
        flag: see `writing`.

    Raises:
        StorageError: see `writing`.
    """
    with writing(path, flag), replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replacing(path: Path, look: Callable[[Path], object] | None = None) -> Iterator[BinaryIO]:
    """A file to be written that takes the place of another once it is whole and on the disk.

    Whatever happens meanwhile, a power failure too, `path` is what it was or what was written.

    Args:
        path: of it.
        look: reads what was written, and raises if it cannot be used.

    Raises:
        OSError: it cannot be written.
    """
    made = path.with_name(f"{path.name}.tmp")
    try:
        made.unlink(missing_ok=True)  # its writer was killed
        with open(made, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if look is not None:
            look(made)
        os.replace(made, path)
        _sync(path.parent)
    finally:
        made.unlink(missing_ok=True)


def settle(made: Path, path: Path) -> None:
    """Gives a file that is written the name that it will have; its contents are on the disk first.

    Raises:
        OSError: it cannot be.
    """
    _sync(made)
    os.replace(made, path)
    _sync(path.parent)


def make_folder(path: Path) -> None:
    """Makes a folder, and those on the way to it, whose names are on the disk then.

    Raises:
        OSError: it cannot be made.
    """
    lacking = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(lacking):
        _sync(folder.parent)


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some file systems sync no folder
            raise
    finally:
        os.close(descriptor)


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
            home.parent.mkdir(parents=True, exist_ok=True)
            if not all(map(own_folder, _folders(home, name))):
                continue
            if anew or not (path.exists() and _is_own(path)):
                made.touch()
                try:
                    make(made)
                    made.chmod(0o700)
                    settle(made, path)  # two jobs may start at once
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
            if all(map(_is_own, [*_folders(home, name), home / name])):
                return home / name
    return None


def temporary() -> Path:
    """This user's folder among the temporary files; it may not be there, or not be his."""
    return Path(tempfile.gettempdir(), f"msrl-{os.getuid()}")


def own_folder(path: Path) -> bool:
    """Makes a folder that only this user can enter, if there is none.

    Returns: whether the one that is there is his, and nobody else can put anything into it.

    Raises:
        OSError: something else is there, or it cannot be made.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    return _is_own(path)


def _caches() -> list[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    # A user may have no home.
    return [home for home in (cache / "mindspore_rl", temporary()) if home.is_absolute()]


def _folders(home: Path, name: str) -> list[Path]:
    """Those on the way to a file, the outermost first."""
    return [home / part for part in reversed(Path(name).parents)]


def _is_own(path: Path) -> bool:
    """Whether a file or folder, and a link to it, are this user's and writable for him alone.

    What is read from the cache is run: anybody else could put anything into it.
    """
    link, found = path.lstat(), path.stat()
    return link.st_uid == found.st_uid == os.getuid() and not found.st_mode & 0o022
