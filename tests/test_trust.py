"""Run directories into which another user could have put code."""

import argparse
import grp
import os
import pwd
import stat

import pytest

from mindspore_rl.cli.main import _parser, main
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs.run_directory import check_trusted, new_directory, others
from mindspore_rl.platform.cache import replaceable

FILES = ("job.json", "plan.json", "program/ppo.py", "program/__pycache__/ppo.pyc")
FILES += ("fragments/learner.py",)
DOOR = {
    ("train", "resume"): ["train", "--resume", "RUN"],
    ("train", "run_dir"): ["train", "a2c", "--run-dir", "RUN"],
    ("eval", "run_directory"): ["eval", "RUN"],
    ("sweep", "study"): ["sweep", "a2c", "--space", "SPACE", "--study", "RUN"],
    ("export", "run_directory"): ["export", "RUN"],
    ("replay", "run_directory"): ["replay", "RUN"],
    ("profile", "run_directory"): ["profile", "RUN"],
    ("dataset record", "runs"): ["dataset", "record", "RUN", "DATASET"],
}
"""Commands that take a run, or make one in a folder, by the argument that names it."""
DATA_ALONE = {("plot", "runs"), ("board", "folder")}
DATA_ALONE |= {("train", name) for name in ("replay_dir", "dump_graph")}
"""Commands that run nothing from these."""


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
        (1000, stat.S_IFREG | 0o664, "can be written by others (mode 664)"),  # root's group
        (1000, stat.S_IFDIR | 0o757, "can be written by others (mode 757)"),
        (0, stat.S_IFDIR | 0o1777, "can be written by others (mode 1777)"),
    ],
)
def test_who_else_could_have_written_a_file(owner, mode, why):
    assert others(os.stat_result((mode, 0, 0, 0, owner, 0, 0, 0, 0, 0)), uid=1000) == why


@pytest.mark.parametrize("name", [".", "program", "program/__pycache__", "fragments", *FILES])
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


def test_a_run_of_ones_own_is_used_and_that_of_others_with_trust(run, refused):
    commands = (["eval", str(run)], ["train", "--resume", str(run)])
    for command in commands:
        assert "--trust" not in refused(*command)  # it continues, to an empty plan
    (run / "plan.json").chmod(0o666)
    for command in commands:
        error = refused(*command)
        assert error.startswith(f"msrl: {run / 'plan.json'} can be written by others (mode 666)")
        assert len(error.splitlines()) == 1
        assert "--trust" not in refused(*command, "--trust")


def test_what_is_run_of_a_new_run_is_its_owners_whatever_the_umask(tmp_path):
    run = tmp_path / "run"
    words = ["--total-steps", "1", "--backend", "inproc", "--quiet", "--run-dir", str(run)]
    before = os.umask(0)
    try:
        assert main(["train", "a2c", "num_envs=2", "num_steps=8", *words]) == 0
        assert os.umask(0) == 0  # the process's own is unchanged
    finally:
        os.umask(before)
    check_trusted(run)
    assert not any(path.stat().st_mode & 0o022 for path in run.rglob("*"))


# ---- the commands --------------------------------------------------------------------------------


def directories(parser: argparse.ArgumentParser, words=()):
    """Returns the arguments of all commands that name directories: command and name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from directories(command, (*words, name))
        elif action.metavar in ("RUN", "DIR"):
            yield " ".join(words), action.dest


def test_every_command_that_takes_a_directory_is_known_here():
    assert set(directories(_parser([]))) == {*DOOR, *DATA_ALONE}


@pytest.mark.parametrize("command", DOOR.values(), ids=map(" ".join, DOOR))
def test_they_all_go_through_one_door(run, tmp_path, refused, command):
    space, trap = tmp_path / "space.yaml", tmp_path / "trap"
    space.write_text("gamma: {low: 0.9, high: 0.99}")
    for file in run.rglob("*.py"):
        file.write_text(f"open({str(trap)!r}, 'w').close()")
    places = {"RUN": run, "SPACE": space, "DATASET": tmp_path / "set"}
    (run / "plan.json").chmod(0o666)
    before = sorted(run.rglob("*"))
    assert refused(*[places.get(word, word) for word in command]).endswith(
        f"{run / 'plan.json'} can be written by others (mode 666), and what is in a run directory "
        "is run: use it with --trust if you trust all who could have written it\n"
    )
    assert sorted(run.rglob("*")) == before
    assert not trap.exists()


@pytest.mark.parametrize("trust", [False, True])
def test_no_link_that_somebody_has_put_into_a_new_run_is_followed(tmp_path, trust):
    run, own = tmp_path / "run", tmp_path / "own"
    own.write_text("mine")
    run.mkdir()
    (run / ".writable").symlink_to(own)
    run.chmod(0o777)
    if trust:
        with new_directory(run, "", trust=True):
            pass
    else:
        with pytest.raises(MsrlError, match="run can be written by others"), new_directory(run, ""):
            pass
        run.chmod(0o755)
        with new_directory(run, ""):
            pass
    assert own.read_text() == "mine"


# ---- the folders above ---------------------------------------------------------------------------


def test_who_could_put_another_folder_in_its_place(tmp_path):
    shared = tmp_path / "shared"
    run = shared / "runs" / "run"
    run.mkdir(parents=True)
    assert replaceable(run) == replaceable(run, by_all=True) == ""
    shared.chmod(0o777)
    for found in (replaceable(run), replaceable(run, by_all=True), replaceable(run / "not there")):
        assert found == f"{shared} can be written by others (mode 777)"
    with pytest.raises(MsrlError, match=f"in the place of {run}: use it with --trust"):
        check_trusted(run)
    with pytest.raises(MsrlError, match="--trust"), new_directory(shared / "new", ""):
        pass
    assert not (shared / "new").exists()
    check_trusted(run, trust=True)
    shared.chmod(0o1777)  # as /tmp: everything belongs to its owner
    check_trusted(run)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_the_owners_of_folders_above_it(tmp_path):
    """A folder that nobody else can have put there may be a colleague's, unless it has code."""
    folder = tmp_path / "shared" / "theirs"
    folder.mkdir(parents=True)
    os.chown(folder, 4711, 4711)
    assert replaceable(folder / "run", by_all=True) == ""
    assert replaceable(folder / "cache") == f"{folder} is owned by the user 4711"
    folder.parent.chmod(0o1777)
    assert replaceable(folder / "run", by_all=True) == f"{folder} is owned by the user 4711"


def test_a_group_of_ones_own_is_nobody_else(monkeypatch):
    user, alone = pwd.getpwuid(os.getuid()), []
    file = os.stat_result((0o664, 0, 0, 0, user.pw_uid, user.pw_gid, 0, 0, 0, 0))
    for name, members in [(user.pw_name, alone), (user.pw_name, ["eve"]), ("users", alone)]:
        group = grp.struct_group((name, "x", user.pw_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        assert bool(others(file, user.pw_uid)) == (name == "users" or bool(members))
