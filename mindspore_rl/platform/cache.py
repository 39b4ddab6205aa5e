"""Durable and atomic writing of files, and the cache of compiled things."""

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mindspore_rl.errors import MsrlError, StorageError

LOCKED_S = 2.0
"""Time in which a process has locked its new temporary folder."""
MAKING_S = 300.0
"""Longest wait for another process that makes the same file of the cache."""


@contextlib.contextmanager
def writing(path: Path, flag: str = "--run-dir") -> Iterator[None]:
    """A context for writing a file, which turns errors of the system into StorageError.

    Args:
        path: of the file.
        flag: option by which the user can choose another place, named in the error.

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


def remove_left_temporary() -> None:
    """Removes the temporary folders of processes that were killed.

    Each process holds a lock on its folder. A folder younger than `LOCKED_S` may not be locked yet.
    """
    for left in Path(tempfile.gettempdir()).glob("msrl-*.tmp"):
        with contextlib.suppress(OSError), _locked(left):
            if time.time() - left.stat().st_mtime > LOCKED_S:
                shutil.rmtree(left)


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A context with a temporary folder; removes those of processes that were killed."""
    remove_left_temporary()
    whole = tempfile.TemporaryDirectory(prefix="msrl-", suffix=".tmp")
    with whole as folder, _locked(Path(folder)):
        yield folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """A context that holds the lock of a folder. Raises: OSError: another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes | str, flag: str = "--run-dir") -> None:
    """Writes a file atomically and durably; on failure the old file stays.

    Args:
        path: of the file; its folder exists.
        data: the whole contents; text as UTF-8.
        flag: see `writing`.

    Raises:
        StorageError: see `writing`.
    """
    with writing(path, flag), replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replacing(path: Path, look: Callable[[Path], object] | None = None) -> Iterator[BinaryIO]:
    """A context that writes a temporary file, and renames it to `path` once it is on the disk.

    Whatever happens meanwhile, even a power failure, `path` has its old or its new contents.

    Args:
        path: of the file.
        look: checks the written file, and raises if it cannot be used.

    Raises:
        OSError: the file cannot be written.
    """
    made = path.with_name(f"{path.name}.tmp")
    try:
        made.unlink(missing_ok=True)  # left by a writer that was killed
        with open(made, "xb") as file:
            yield file
        if look is not None:
            look(made)
        commit(made, path)
    finally:
        made.unlink(missing_ok=True)


def commit(made: Path, path: Path) -> None:
    """Renames a written file to its final name; syncs the contents first.

    Raises:
        OSError: it cannot be renamed or synced.
    """
    sync(made)
    os.replace(made, path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Makes a folder and its missing parents, and syncs their names to the disk.

    Raises:
        OSError: the folder cannot be made.
    """
    lacking = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(lacking):
        sync(folder.parent)


def sync(path: Path) -> None:
    """Waits until a file's contents, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # not all file systems sync folders
            raise
    finally:
        os.close(descriptor)


def cached(
    name: str,
    make: Callable[[Path], None],
    anew: bool = False,
    whole: Callable[[Path], bool] = lambda path: True,
) -> Path:
    """Returns a file of this user's cache, made if necessary.

    Args:
        name: path in the cache; it must identify the contents, since an existing file is reused.
        make: writes the file to a temporary path in the same folder.
        anew: whether to make the file even if it exists.
        whole: whether an existing file is intact.

    Raises:
        MsrlError: no cache folder can be written.
    """

    def usable(path: Path) -> bool:
        return path.exists() and _is_own(path) and whole(path)

    homes = _caches()
    for home in homes:
        path = home / name
        try:
            if not _has_room(home, name):
                continue
            if anew:
                _make_file(path, make)
            elif not usable(path):
                with _in_turn(path):
                    if not usable(path):
                        _make_file(path, make)
            return path
        except OSError:
            continue
    raise MsrlError(
        f"none of {', '.join(str(home.parent) for home in homes)} can be written, and by nobody "
        "else; set XDG_CACHE_HOME to a folder that can"
    )


def _make_file(path: Path, make: Callable[[Path], None]) -> None:
    made = path.with_name(f"{path.name}.{os.getpid()}")
    made.touch()
    try:
        make(made)
        made.chmod(0o700)
        commit(made, path)
    finally:
        made.unlink(missing_ok=True)


@contextlib.contextmanager
def in_turn(name: str) -> Iterator[None]:
    """A context in which one process makes files of the cache while the others wait for it.

    Without a cache folder that can be written nobody waits. The lock only saves work, see
    `_in_turn`.

    Args:
        name: what identifies the files, a path in the cache.
    """
    with contextlib.ExitStack() as stack:
        for home in _caches():
            with contextlib.suppress(OSError):
                if _has_room(home, name):
                    stack.enter_context(_in_turn(home / name))
                    break
        yield


@contextlib.contextmanager
def _in_turn(path: Path) -> Iterator[None]:
    """A context in which one process makes a file of the cache while the others wait for it.

    The lock only saves work: a process whose owner dies, hangs for `MAKING_S` or has a file system
    without locks makes the file too, and the last one replaces it.
    """
    lock = path.with_name(f"{path.name}.lock")
    until, owned = time.monotonic() + MAKING_S, False
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not owned and time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                owned = True
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
        yield
    finally:
        if owned:
            with contextlib.suppress(OSError):
                lock.unlink()
        os.close(descriptor)


def keep(name: str, data: bytes) -> None:
    """Writes a file to this user's cache, if a cache folder can be written."""

    def make(path: Path) -> None:
        path.write_bytes(data)

    with contextlib.suppress(MsrlError):
        cached(name, make, anew=True)


def in_cache(name: str) -> Path | None:
    """Returns a file of the cache, or None."""
    for home in _caches():
        with contextlib.suppress(OSError):
            own = all(map(_is_own, [*_folders(home, name), home / name]))
            if own and not replaceable(home):
                return home / name
    return None


def temporary() -> Path:
    """Returns this user's folder for temporary files; it may be absent or another user's."""
    return Path(tempfile.gettempdir(), f"msrl-{os.getuid()}")


def own_folder(path: Path) -> bool:
    """Makes a folder that only this user can enter, if it does not exist.

    Returns: whether the folder is this user's, and nobody else can write to it.

    Raises:
        OSError: the path is no folder, or it cannot be made.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    return _is_own(path)


def others(found: os.stat_result, uid: int) -> str:
    """Describes who other than a user can write a file; empty if nobody can.

    Root does not count: root can change what this user runs anyway. A group counts, since it may
    contain all users; but not the user's private group, of the user's own name, without other
    members.
    """
    if found.st_uid not in (uid, 0):
        return f"is owned by {_user(found.st_uid)}"
    if _is_open(found, uid):
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):03o})"
    return ""


def replaceable(path: Path, by_all: bool = False) -> str:
    """Describes who else could replace a path, through a folder above it; empty if nobody could.

    Args:
        path: need not exist.
        by_all: asks what any user could do, rather than a folder's owner or group.
    """
    uid = os.getuid()
    owners = (uid, 0, *_unknown_users())
    for folder in dict.fromkeys([*path.absolute().parents, *path.resolve().parents]):
        try:
            found, above = folder.stat(), folder.parent.stat()
        except OSError:  # it does not exist yet
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
    """Returns whether the mode of a user's file lets others write it."""
    if stat.S_ISLNK(found.st_mode):  # the mode of a link means nothing
        return False
    return bool(found.st_mode & 0o002 or found.st_mode & 0o020 and not _alone(uid, found.st_gid))


def _alone(uid: int, gid: int) -> bool:
    """Returns whether a group is a user's private group, as some systems make one for each user."""
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
    """Returns the user that a container shows for all unmapped users, root among them, if any."""
    if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
        return []
    return [int(Path("/proc/sys/kernel/overflowuid").read_text())]


def _caches() -> list[Path]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    # A user may have no home.
    return [home for home in (cache / "mindspore_rl", temporary()) if home.is_absolute()]


def _make_way(home: Path) -> bool:
    """Makes the parents of a cache folder. Returns: whether nobody else can replace the folder."""
    for folder in reversed(home.parents):
        if not folder.exists():
            folder.mkdir(0o700, exist_ok=True)
    return not replaceable(home)


def _has_room(home: Path, name: str) -> bool:
    """Makes the folders of a file of the cache. Returns: whether only this user can write them."""
    return _make_way(home) and all(map(own_folder, _folders(home, name)))


def _folders(home: Path, name: str) -> list[Path]:
    """Lists the folders on the path to a file, the outermost first."""
    return [home / part for part in reversed(Path(name).parents)]


def _is_own(path: Path) -> bool:
    """Returns whether a path, and the target of a link, are this user's and writable for no other.

    Files of the cache are executed: another writer could inject code.
    """
    link, found = path.lstat(), path.stat()
    return link.st_uid == found.st_uid == os.getuid() and not found.st_mode & 0o022
