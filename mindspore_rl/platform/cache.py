"""Durable and atomic writing of files, and the cache of compiled things."""

import contextlib
import errno
import grp
import os
import pwd
import stat
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


def cached(
    name: str,
    make: Callable[[Path], None],
    anew: bool = False,
    whole: Callable[[Path], bool] = lambda path: True,
) -> Path:
    """A file in this user's cache.

    Args:
        name: its path there; names what is in it, for a file that is there is not made again.
        make: writes it at a path beside the one that it will have.
        anew: whether it is made even if it is there.
        whole: whether one that is there is still as it was made.

    Raises:
        MsrlError: no folder can be written.
    """
    homes = _caches()
    for home in homes:
        path = home / name
        made = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            if not _make_way(home) or not all(map(own_folder, _folders(home, name))):
                continue
            if anew or not (path.exists() and _is_own(path) and whole(path)):
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
        f"none of {', '.join(str(home.parent) for home in homes)} can be written, and by nobody "
        "else; set XDG_CACHE_HOME to a folder that can"
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
            own = all(map(_is_own, [*_folders(home, name), home / name]))
            if own and not replaceable(home):
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


def others(found: os.stat_result, uid: int) -> str:
    """Who else than a user can write a file; empty if nobody.

    Root is nobody else: he can change what this user runs in any case. A group is: it may be that
    of all users; but not one of the user's name, in which he is alone.
    """
    if found.st_uid not in (uid, 0):
        return f"is owned by {_user(found.st_uid)}"
    if _is_open(found, uid):
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):03o})"
    return ""


def replaceable(path: Path, by_all: bool = False) -> str:
    """Who else could put something in a path's place, by a folder above it; empty if nobody.

    Args:
        path: it need not be there.
        by_all: looks for what any user could do, rather than a folder's owner or group.
    """
    uid = os.getuid()
    owners = (uid, 0, *_unknown_users())
    for folder in dict.fromkeys([*path.absolute().parents, *path.resolve().parents]):
        try:
            found, above = folder.stat(), folder.parent.stat()
        except OSError:  # it will be made
            continue
        is_others = found.st_uid not in owners
        if by_all:
            is_others = is_others and bool(above.st_mode & 0o002)
            is_open = bool(found.st_mode & 0o002)
        else:
            is_open = _is_open(found, uid)
        if is_others or is_open and not found.st_mode & stat.S_ISVTX:  # as in /tmp
            return f"{folder} {others(found, uid)}"
    return ""


def _is_open(found: os.stat_result, uid: int) -> bool:
    """Whether the mode of a user's file lets others write it."""
    if stat.S_ISLNK(found.st_mode):  # whose mode means nothing
        return False
    return bool(found.st_mode & 0o002 or found.st_mode & 0o020 and not _alone(uid, found.st_gid))


def _alone(uid: int, gid: int) -> bool:
    """Whether a group is a user's own, as systems make it that let files be written by groups."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    members = {user.pw_name, *group.gr_mem}
    return user.pw_gid == gid and members == {group.gr_name}


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"the user {uid}"


def _unknown_users() -> list[int]:
    """Who all those are here, root too, that a container does not know."""
    if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
        return []
    return [int(Path("/proc/sys/kernel/overflowuid").read_text())]


def _caches() -> list[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    # A user may have no home.
    return [home for home in (cache / "mindspore_rl", temporary()) if home.is_absolute()]


def _make_way(home: Path) -> bool:
    """Makes the folders above one of the cache's. Returns: whether nobody else can replace it."""
    for folder in reversed(home.parents):
        if not folder.exists():
            folder.mkdir(0o700, exist_ok=True)
    return not replaceable(home)


def _folders(home: Path, name: str) -> list[Path]:
    """Those on the way to a file, the outermost first."""
    return [home / part for part in reversed(Path(name).parents)]


def _is_own(path: Path) -> bool:
    """Whether a file or folder, and a link to it, are this user's and writable for him alone.

    What is read from the cache is run: anybody else could put anything into it.
    """
    link, found = path.lstat(), path.stat()
    return link.st_uid == found.st_uid == os.getuid() and not found.st_mode & 0o022
