"""Run directories that cannot be written, and checkpoints that cannot be read, in real runs."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import ended, start, wait_for_training

from mindspore_rl.runtime.checkpoint import list_checkpoints, load

SMALL = ("--policy", "SingleLearnerCoarse", "num_steps=16", "num_envs=4", "update_epochs=1")


@contextlib.contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    """Context: something is mounted at a folder; skips the test if that is not permitted."""
    folder.mkdir(exist_ok=True)
    command = ["mount", *arguments, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not allowed here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["SingleLearnerCoarse", "GPUOnly"])  # two ranks, and one
def test_full_disk_keeps_earlier_checkpoints(tmp_path, policy):
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=4m", "tmpfs"):
        place = ("--run-dir", str(disk / "run"), "--checkpoint-every", "0.3")
        run = start(tmp_path, *SMALL, "--policy", policy, *place)
        checkpoints = disk / "run" / "checkpoints"
        deadline = time.monotonic() + 60
        while len(list_checkpoints(checkpoints)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        left = os.statvfs(disk)
        with contextlib.suppress(OSError), (disk / "filler").open("wb") as file:
            file.write(bytes(left.f_bavail * left.f_bsize - (32 << 10)))
        code, _, err = ended(run, 10.0)
        assert code == 1
        assert "cannot be written (No space left on device)" in err
        assert "Traceback" not in err
        assert all(load(path) for path in list_checkpoints(checkpoints))
        assert {path.suffix for path in checkpoints.iterdir()} == {".npz"}


@pytest.mark.multiprocess
def test_folders_that_cannot_be_written_are_refused_at_once(tmp_path):
    file = tmp_path / "file"
    file.touch()
    code, _, err = ended(start(tmp_path, *SMALL, "--run-dir", str(file)), 30.0)
    assert (code, f"run directory {file} cannot be written (File exists)" in err) == (2, True)
    disk = tmp_path / "disk"
    for options, reason in (
        ("ro", "Read-only file system"),
        ("size=64k", "No space left on device"),
    ):
        with mounted(disk, "-t", "tmpfs", "-o", options, "tmpfs"):
            code, _, err = ended(start(tmp_path, *SMALL, "--run-dir", str(disk / "run")), 30.0)
        assert code == 2
        assert f"run directory {disk / 'run'} cannot be written ({reason})" in err
        assert "Traceback" not in err


@pytest.mark.multiprocess
@pytest.mark.slow
def test_resume_from_damaged_checkpoints_and_as_another_job(tmp_path, cells):
    run = start(
        tmp_path, "--cells", cells, *SMALL, "--total-steps", "640", "--checkpoint-every", "0.01"
    )
    wait_for_training(run, tmp_path)
    assert ended(run, 60.0)[0] == 0
    *_, before, newest = list_checkpoints(tmp_path / "run" / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-1000])

    again = ("--resume", "run", "--run-dir", "again")
    for change, reason in (
        ("hidden=32", "has shape (64, 4) in it and shape (32, 4) here"),
        ("--env=Acrobot-v1", "environment is CartPole-v1 in it and Acrobot-v1 here"),
    ):
        code, _, err = ended(start(tmp_path, *again, "--run-dir", change.lstrip("-"), change), 60.0)
        assert (code, reason in err) == (2, True), err
    code, _, err = ended(start(tmp_path, *again, "--total-steps", "704"), 60.0)
    assert code == 0, err
    assert f"{newest.name} is damaged (BadZipFile: File is not a zip file)" in err
    assert f"using run/checkpoints/{before.name}" in err
    assert load(list_checkpoints(tmp_path / "again" / "checkpoints")[-1])[1]["iteration"] == 11


@pytest.mark.multiprocess
def test_output_that_nobody_reads_ends_nothing(tmp_path):
    run = start(tmp_path, "--policy", "MultipleLearners", "--total-steps", "20480")
    run.stdout.close()
    run.stderr.readline()
    run.stderr.close()
    assert run.wait(120.0) == 0
    assert load(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])[1]["iteration"] == 20
    lines = (tmp_path / "run" / "workers.log").read_text().splitlines()
    told = [line for line in lines if line.startswith("msrl: ")]
    assert [line.split(" is closed")[0] for line in told] == ["msrl: stderr", "msrl: stdout"]


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "what",
    [
        "plan.json",
        pytest.param("metrics.jsonl", marks=pytest.mark.slow),
        pytest.param(".", marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_files_are_gone_does_not_end_well(tmp_path, what):
    run = start(tmp_path, "--policy", "MultipleLearners", "--total-steps", "600000")
    wait_for_training(run, tmp_path)
    gone = tmp_path / "run" / what
    shutil.rmtree(gone) if what == "." else gone.unlink()
    code, _, err = ended(run, 120.0)
    assert code == 1, err
    assert str(tmp_path / "run") in err
