"""Run directories that somebody else could have put code into."""

import os
import stat

import pytest

from mindspore_rl.cli import main
from mindspore_rl.errors import MsrlError
from mindspore_rl.run_directory import check_trusted, others

FILES = ("job.json", "plan.json", "program/ppo.py", "program/__pycache__/ppo.pyc")


@pytest.fixture(name="run")
def made(tmp_path):
    run = tmp_path / "run"
    for name in FILES:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("{}")
    for path in (run, *run.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return run


@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (1000, stat.S_IFREG | 0o644, ""),
        (1000, stat.S_IFDIR | 0o700, ""),
        (0, stat.S_IFREG | 0o644, ""),
        (1000, stat.S_IFLNK | 0o777, ""),
        (4711, stat.S_IFLNK | 0o777, "is owned by the user 4711"),
        (4711, stat.S_IFREG | 0o600, "is owned by the user 4711"),
        (1000, stat.S_IFREG | 0o664, "can be written by others (mode 664)"),
        (1000, stat.S_IFDIR | 0o757, "can be written by others (mode 757)"),
        (0, stat.S_IFDIR | 0o1777, "can be written by others (mode 1777)"),
    ],
)
def test_who_else_could_have_written_a_file(owner, mode, why):
    assert others(os.stat_result((mode, 0, 0, 0, owner, 0, 0, 0, 0, 0)), uid=1000) == why


@pytest.mark.parametrize("name", [".", "program", "program/__pycache__", *FILES])
@pytest.mark.parametrize("how", ["written", "given", "linked"])
def test_what_others_could_have_written_is_refused(run, tmp_path, name, how):
    path = run / name
    if how == "written":
        path.chmod(path.stat().st_mode | 0o002)
    elif os.getuid() != 0:
        pytest.skip("only root can give files away")
    elif how == "given":
        os.chown(path, 4711, 4711)
    else:
        os.rename(path, tmp_path / "there")
        os.chown(tmp_path / "there", 4711, 4711)
        path.symlink_to(tmp_path / "there")
    with pytest.raises(MsrlError, match="--trust") as raised:
        check_trusted(run)
    assert str(path) in str(raised.value)


def test_a_run_of_ones_own_is_used_and_that_of_others_with_trust(run, capsys):
    commands = (["eval", str(run)], ["train", "--resume", str(run)])
    for command in commands:
        assert main(command) == 2
        assert "--trust" not in capsys.readouterr().err  # it comes further, to a plan of nothing
    (run / "plan.json").chmod(0o666)
    for command in commands:
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"msrl: {run / 'plan.json'} can be written by others (mode 666)")
        assert len(error.splitlines()) == 1
        assert main([*command, "--trust"]) == 2
        assert "--trust" not in capsys.readouterr().err


def test_what_is_run_of_a_new_run_is_its_owners_whatever_the_umask(tmp_path):
    run = tmp_path / "run"
    words = ["--total-steps", "1", "--backend", "inproc", "--quiet", "--run-dir", str(run)]
    before = os.umask(0)
    try:
        assert main(["train", "a2c", "num_envs=1", *words]) == 0
        assert os.umask(0) == 0  # this process's own is left as it was
    finally:
        os.umask(before)
    check_trusted(run)
    assert not any(path.stat().st_mode & 0o022 for path in run.rglob("*"))
