"""The cache and the locks of a user, in folders that others may have prepared."""

import ctypes
import os
import tempfile

import pytest

from mindspore_rl import storage, toolchain
from mindspore_rl.runtime.coordinator.launch import pin_cores

NAME = "native/thing.so"


@pytest.fixture
def homes(tmp_path, monkeypatch):
    """The cache's folder, and the one among the temporary files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "cache" / "mindspore_rl", storage.temporary()


def made() -> bytes:
    return storage.cached(NAME, lambda path: path.write_bytes(b"ours")).read_bytes()


def planted(home, owner=None):
    file = home / NAME
    file.parent.mkdir(parents=True)
    file.write_bytes(b"theirs")
    if owner is not None:
        os.chown(file, owner, owner)
    return file


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("whose", ["file", "folder", "home"])
def test_what_another_user_put_into_the_cache_is_not_taken(homes, whose):
    file = planted(homes[0], owner=4711)
    if whose != "file":
        os.chown(file.parent if whose == "folder" else homes[0], 4711, 4711)
    assert storage.in_cache(NAME) is None
    assert made() == b"ours"
    storage.keep(NAME, b"new")
    assert storage.in_cache(NAME).read_bytes() == b"new"


@pytest.mark.parametrize("what", ["file", "folder"])
def test_nor_what_others_can_write(homes, what):
    file = planted(homes[0])
    (file if what == "file" else file.parent).chmod(0o777)
    assert storage.in_cache(NAME) is None
    assert made() == b"ours"


@pytest.mark.parametrize("how", ["open to all", "a link there"])
def test_nor_is_a_cache_used_that_others_could_replace(homes, tmp_path, monkeypatch, how):
    planted(homes[0])
    above = homes[0].parent
    above.chmod(0o777)
    if how != "open to all":
        (tmp_path / "link").symlink_to(above)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    assert storage.in_cache(NAME) is None
    assert made() == b"ours"
    assert storage.in_cache(NAME).parents[1] == homes[1]
    above.chmod(0o1777)  # as in /tmp everything stays its owner's
    assert storage.in_cache(NAME).read_bytes() == b"theirs"  # of this user's, here


@pytest.mark.parametrize("damage", ["a bit", "the end", "the checksum", "all"])
def test_compiled_code_that_is_not_as_it_was_is_compiled_again(homes, damage):
    text = 'extern "C" int one() { return 1; }\n'
    file = toolchain.cell_library(text, 0)
    code = file.read_bytes()
    wrong = bytearray(code)
    wrong[len(code) // 2] ^= 1
    cut = {"the end": len(code) - 1, "the checksum": code.rindex(b"\n//"), "all": 0}
    file.write_bytes(wrong if damage == "a bit" else code[: cut[damage]])
    assert toolchain.cell_library(text, 0) == file
    assert file.read_bytes() == code
    assert ctypes.CDLL(str(file)).one() == 1
    before = file.stat().st_ino
    assert toolchain.cell_library(text, 0).stat().st_ino == before


def test_a_careless_umask_harms_nothing(homes):
    before = os.umask(0)
    try:
        made()
        assert storage.in_cache(NAME).parents[1] == homes[0]
    finally:
        os.umask(before)
    file = homes[0] / NAME
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent, homes[0])] == [0o700] * 3


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["fifo", "dangling link", "link to a folder", "file"])
def test_a_trap_in_the_place_of_a_lock_or_its_folder_is_passed_by(homes, tmp_path, kind):
    if kind == "link to a folder" and os.getuid() != 0:
        pytest.skip("only root can give links away")
    elsewhere = tmp_path / "elsewhere"
    for path in (homes[1], homes[1] / f"core-{min(os.sched_getaffinity(0))}.lock"):
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "file":
            path.touch()
        else:
            path.symlink_to(elsewhere)
        if kind == "link to a folder":
            elsewhere.mkdir(exist_ok=True)
            os.chown(path, 4711, 4711, follow_symlinks=False)
        with pin_cores(1, pytest.fail):
            pass
        assert not elsewhere.exists() or list(elsewhere.iterdir()) == []
        path.unlink()
        homes[1].mkdir(mode=0o700, exist_ok=True)
