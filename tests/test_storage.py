"""Files on disks that fail and after power failures, and in folders that others have prepared."""

import contextlib
import ctypes
import errno
import fcntl
import io
import itertools
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import mindspore_rl
from mindspore_rl.errors import JobFailure, MsrlError
from mindspore_rl.jobs.run_directory import earlier_job
from mindspore_rl.plan.plan import JOB_FILE, PLAN_FILE, Plan, load_plan, save_plan
from mindspore_rl.platform import cache, toolchain, user_modules
from mindspore_rl.runtime import arrivals_log, best_checkpoint, checkpoint
from mindspore_rl.runtime.coordinator.cores import pin_cores
from mindspore_rl.runtime.coordinator.metrics_file import METRICS_FILE
from mindspore_rl.runtime.coordinator.verify_run import check_whole
from tests.commands import msrl

NAME = "native/thing.so"


@pytest.fixture
def homes(tmp_path, monkeypatch):
    """Returns the cache's folder, and the folder among the temporary files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "cache" / "mindspore_rl", cache.temporary()


def made() -> bytes:
    return cache.cached(NAME, lambda path: path.write_bytes(b"ours")).read_bytes()


def planted(home):
    file = home / NAME
    file.parent.mkdir(parents=True)
    file.write_bytes(b"theirs")
    return file


def test_temporary_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cache, "LOCKED_S", 0.0)
    code = (
        "import time\nfrom mindspore_rl.platform.cache import temporary_folder\n"
        "with temporary_folder() as folder:\n    print(folder, flush=True)\n    time.sleep(100)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with child, cache.temporary_folder() as own:
        theirs = child.stdout.readline().strip()
        with cache.temporary_folder():
            assert os.path.isdir(theirs)
        child.kill()
        child.wait()
        cache.remove_left_temporary()  # as the end of each training does
        assert not os.path.exists(theirs)
        assert os.path.isdir(own)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["given", "written"])
@pytest.mark.parametrize("what", ["file", "folder", "home"])
def test_what_another_user_put_into_the_cache_is_not_taken(homes, what, how):
    if how == "given" and os.getuid() != 0:
        pytest.skip("only root can give files away")
    file = planted(homes[0])
    path = {"file": file, "folder": file.parent, "home": homes[0]}[what]
    os.chown(path, 4711, 4711) if how == "given" else path.chmod(0o777)
    assert cache.in_cache(NAME) is None
    assert made() == b"ours"
    cache.keep(NAME, b"new")
    assert cache.in_cache(NAME).read_bytes() == b"new"


@pytest.mark.parametrize("how", ["open to all", "a link there"])
def test_nor_is_a_cache_used_that_others_could_replace(homes, tmp_path, monkeypatch, how):
    planted(homes[0])
    above = homes[0].parent
    above.chmod(0o777)
    if how != "open to all":
        (tmp_path / "link").symlink_to(above)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    assert cache.in_cache(NAME) is None
    assert made() == b"ours"
    assert cache.in_cache(NAME).parents[1] == homes[1]
    above.chmod(0o1777)  # as in /tmp: everything belongs to its owner
    assert cache.in_cache(NAME).read_bytes() == b"theirs"  # the file of this user


@pytest.mark.parametrize("owner", ["ends", "is killed", "hangs"])
def test_one_process_makes_a_file_of_the_cache_and_the_others_wait(homes, monkeypatch, owner):
    code = (
        "import sys\nfrom mindspore_rl.platform import cache\n"
        "def make(path):\n    print(flush=True)\n    sys.stdin.read()\n"
        f"    path.write_bytes(b'theirs')\ncache.cached({NAME!r}, make)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        child.stdout.readline()  # it makes the file
        if owner == "hangs":
            monkeypatch.setattr(cache, "MAKING_S", 0.1)
        else:
            threading.Timer(0.3, child.stdin.close if owner == "ends" else child.kill).start()
        assert made() == (b"theirs" if owner == "ends" else b"ours")
        assert bool(list(homes[0].rglob("*.lock"))) == (owner == "hangs")
        child.kill()


def test_a_killed_process_does_not_keep_its_turn(homes):
    code = (
        "import sys\nfrom mindspore_rl.platform import cache\n"
        f"with cache.in_turn({NAME!r}):\n    print(flush=True)\n    sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        child.stdout.readline()  # it is its turn
        (lock,) = homes[0].rglob("*.lock")
        with open(lock) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.kill()
        with cache.in_turn(NAME):  # would wait for MAKING_S
            assert lock.exists()
    assert not lock.exists()


def test_without_a_cache_nobody_waits(homes):
    homes[0].parent.touch()  # files in the places of the folders
    homes[1].touch()
    with cache.in_turn(NAME), cache.in_turn(NAME):
        assert cache.in_cache(NAME) is None


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
        assert cache.in_cache(NAME).parents[1] == homes[0]
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


# ---- disks that fail -----------------------------------------------------------------------------


class Disk:
    """A disk whose n-th write, sync or rename fails, once or from then on.

    Args:
        at: the number of the failing call, from 1.
        wrong: the error; None: a write is partial, and reports it.
        for_ever: True: all later calls fail too.
    """

    def __init__(self, monkeypatch, at, wrong, for_ever):
        self.calls, self.at, self.wrong, self.for_ever = 0, at, wrong, for_ever
        replace = os.replace
        monkeypatch.setattr(os, "fsync", lambda descriptor: self.call())
        monkeypatch.setattr(os, "replace", lambda *names: (self.call(), replace(*names)))
        monkeypatch.setattr(cache, "open", self.open, raising=False)

    def call(self):
        self.calls += 1
        struck = self.calls == self.at or (self.for_ever and self.calls > self.at)
        if struck and self.wrong is not None:
            raise OSError(self.wrong, os.strerror(self.wrong))
        return struck

    def open(self, path, mode):
        class Raw(io.FileIO):
            def write(raw, data):  # noqa: N805
                return super().write(memoryview(data)[:3] if self.call() else data)

        return io.BufferedWriter(Raw(path, mode), 512)


def version(folder: Path, number: int) -> None:
    """Rewrites all kinds of files of a run and of the cache; continues after an error."""
    (folder / "source").mkdir(exist_ok=True)
    (folder / "source" / "program.py").write_text(f"NUMBER = {number}\n" * 20)
    arrays = {"parameters/w": np.full(100, number, np.float32)}
    meta = {"num_envs": 1, "steps_per_iteration": 1, "env_steps": number}
    plan = Plan({"name": "a"}, "p", {}, "e", False, number, 1, 1, 1, 0, {}, (), ())
    run = folder / "run"
    for write in (
        lambda: user_modules.keep(folder / "source" / "program.py", run / "program"),
        lambda: save_plan(plan, run),
        lambda: cache.write_file(run / JOB_FILE, f"{number}" * 200),
        lambda: checkpoint.save(run / "checkpoints", number, arrays, meta),
        lambda: best_checkpoint.keep_best(
            checkpoint.list_checkpoints(run / "checkpoints")[-1], number
        ),
        lambda: cache.keep(NAME, f"{number}".encode() * 200),
    ):
        with contextlib.suppress(MsrlError, OSError):
            write()


def versions(folder: Path) -> dict[str, float]:
    """Returns the version of each file. Raises: the error that a torn file causes in its reader."""
    run = folder / "run"
    program = (run / "program" / "program.py").read_text()
    job, kept = (run / JOB_FILE).read_text(), cache.in_cache(NAME).read_text()
    assert (program, job, kept) == (program[:11] * 20, job[0] * 200, kept[0] * 200)
    newest, about, damaged = checkpoint.load_newest(run / "checkpoints")
    assert damaged == []
    highest = checkpoint.load(best_checkpoint.chosen(run / "checkpoints", "best"))[1]
    found = {"program": program[9], "job": job[0], "cache": kept[0]}
    found |= {"plan": load_plan(run).num_envs, "best": highest["iteration"]}
    return {name: int(number) for name, number in found.items()} | {"newest": about["iteration"]}


@pytest.mark.parametrize(
    ("wrong", "for_ever"), [(errno.ENOSPC, True), (errno.EIO, False), (None, True)]
)
def test_a_write_that_fails_leaves_each_file_as_it_was_or_as_it_was_to_be(
    homes, tmp_path, wrong, for_ever
):
    for at in itertools.count(1):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, 0, None, False)  # correct, and not waited for
            version(folder, 1)
        assert set(versions(folder).values()) == {1}
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, at, wrong, for_ever)
            version(folder, 2)
        found = versions(folder)
        assert set(found.values()) <= {1, 2}
        assert list(folder.rglob("*.tmp")) == []
        assert [path.name for path in homes[0].rglob("*") if path.is_file()] == ["thing.so"]
        if disk.calls < at or wrong is None:
            assert set(found.values()) == {2}, found
        if disk.calls < at:
            break
    assert at > 20


# ---- power that goes -----------------------------------------------------------------------------


class Power:
    """Knows at each moment the state after a power failure: files have synced contents or none.

    Names in a folder may be those of its last sync or the current ones: a file system may write
    them to the disk at any time.
    """

    def __init__(self, monkeypatch, root: Path) -> None:
        self.root, self._lock, self._held = root, threading.Lock(), []
        self._synced = {root.stat().st_ino: {}}
        self.folders: set[int] = set()
        self.moments: list[tuple[dict, dict]] = []
        replace = os.replace
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, "replace", lambda *names: (replace(*names), self._look()))

    def _sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            content = {entry.name: entry.inode() for entry in os.scandir(descriptor)}
        else:
            content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        with self._lock:
            self._held.append(os.dup(descriptor))  # no other file gets its number
            self._synced = {**self._synced, found.st_ino: content}
        self._look()

    def _look(self) -> None:
        with self._lock:
            names = {}
            for folder, _, _ in os.walk(self.root):
                number = os.stat(folder).st_ino
                names[number] = {entry.name: entry.inode() for entry in os.scandir(folder)}
            self.folders |= names.keys()
            self.moments.append((self._synced, names))

    def left(self, moment: int, eager: bool, to: Path) -> Path:
        """Writes the state after a failure at a moment."""
        synced, names = self.moments[moment]

        def restore(number: int, place: Path) -> None:
            place.mkdir()
            for name, below in (names if eager else synced).get(number, {}).items():
                if below in self.folders:
                    restore(below, place / name)
                else:
                    (place / name).write_bytes(synced.get(below, b""))

        restore(self.root.stat().st_ino, to)
        return to

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


def test_what_a_run_that_is_done_lacks_is_told(small_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    newest, about, _ = checkpoint.load_newest(run / checkpoint.FOLDER)
    check_whole(run, about["iteration"], str(newest))
    with pytest.raises(JobFailure, match="all 7 iterations were done, but .*metrics.jsonl"):
        check_whole(run, 7, str(newest))
    for path in (newest, run / METRICS_FILE, run / PLAN_FILE, run / JOB_FILE):
        path.unlink()
        with pytest.raises(JobFailure, match=f"{path.name} is not as it should be: "):
            check_whole(run, about["iteration"], str(newest))


def test_what_a_power_failure_leaves_of_a_run_can_be_gone_on_from(tmp_path, monkeypatch):
    root = tmp_path / "disk"
    root.mkdir()
    program = Path(mindspore_rl.__file__).parents[1] / "algorithms" / "a2c.py"
    own = tmp_path / "own.py"
    own.write_text(program.read_text())
    with monkeypatch.context() as patch:
        power = Power(patch, root)
        config = {"env": "CartPole-v1", "num_envs": 2, "num_steps": 4}
        words = {"config": config, "total_steps": 32, "run_dir": root / "deep" / "run"}
        words |= {"backend": "inproc", "quiet": True, "checkpoint_every": 0, "trust": True}
        words |= {"workers": 2, "schedule": {"order": "asynchronous"}}
        run = mindspore_rl.train(own, policy="SingleLearnerCoarse", **words)
    files = [JOB_FILE, PLAN_FILE, "program/own.py"]
    files += [str(path.relative_to(run.path)) for path in run.path.glob("fragments/*.py")]
    counted = 0
    for moment, eager in itertools.product(range(len(power.moments)), (False, True)):
        place = power.left(moment, eager, tmp_path / f"{moment}-{eager}") / "deep" / "run"
        if not checkpoint.list_checkpoints(place / checkpoint.FOLDER):
            continue
        counted += 1
        _, about, damaged = checkpoint.load_newest(place / checkpoint.FOLDER)
        assert damaged == []
        for name in files:
            assert (place / name).read_bytes() == (run.path / name).read_bytes(), name
        assert earlier_job(place)["workers"] == 2
        assert load_plan(place).policy == "SingleLearnerCoarse"
        ((plan, log),) = arrivals_log.starts(place)
        updates = about["env_steps"] // plan.steps_per_update
        assert len(log.until(about["env_steps"], plan).rows) == updates
    assert counted > 3
    for eager in (False, True):
        place = tmp_path / f"{len(power.moments) - 1}-{eager}" / "deep" / "run"
        newest, about, _ = checkpoint.load_newest(place / checkpoint.FOLDER)
        assert about["iteration"] == run.metrics[-1]["iteration"]
        check_whole(place, about["iteration"], str(newest))
    power.close()


def test_nor_is_a_file_of_the_cache_ever_half_there_after_one(homes, tmp_path, monkeypatch):
    homes[0].mkdir(parents=True, mode=0o700)
    with monkeypatch.context() as patch:
        power = Power(patch, homes[0])
        made()
        cache.keep(NAME, b"others")
    found = set()
    for moment, eager in itertools.product(range(len(power.moments)), (False, True)):
        file = power.left(moment, eager, tmp_path / f"{moment}-{eager}") / NAME
        found.add(file.read_bytes() if file.exists() else None)
    assert found == {None, b"ours", b"others"}
    power.close()


FILLS = """
import resource
import gymnasium
from gymnasium.spaces import Box, Discrete

class Fills(gymnasium.Env):
    observation_space, action_space, steps = Box(-1, 1, (2,)), Discrete(2), 0

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 100:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        return self.observation_space.sample(), 1.0, False, self.steps % 10 == 0, {}
"""


@pytest.mark.slow
def test_a_job_whose_disk_is_full_says_so_and_keeps_its_checkpoint(tmp_path):
    """Half a minute; `chaos/test_chaos.py` fills a real disk."""
    (tmp_path / "fills.py").write_text(FILLS)
    run = tmp_path / "run"
    words = ["train", "a2c", "num_envs=2", "num_steps=5", "--env", f"{tmp_path}/fills.py:Fills"]
    words += ["--policy", "MultipleLearners", "--workers", "1", "--backend", "inproc"]
    words += ["--total-steps", "4000", "--checkpoint-every", "0", "--stop-return", "nan"]
    done = msrl(*words, "--run-dir", run, timeout=600)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot be written (File too large); free some" in done.stderr.splitlines()[-1]
    newest = checkpoint.list_checkpoints(run / checkpoint.FOLDER)[-1]
    assert 0 < checkpoint.load(newest)[1]["env_steps"] < 400
