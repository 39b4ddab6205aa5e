"""What `msrl train` does before and between jobs."""

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mindspore_rl import commands, config, programs, registry, run_directory
from mindspore_rl.cli import main
from mindspore_rl.errors import CheckpointError, JobFailure, MsrlError
from mindspore_rl.runtime.coordinator import run as coordinator
from mindspore_rl.runtime.coordinator.monitor import JobOptions, Unreached


def taken(chosen, name=""):
    return run_directory.new_directory(chosen, name)


def test_two_runs_that_begin_together_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        run_directory.new_directory(None, "run") as first,
        run_directory.new_directory(None, "run") as second,
    ):
        assert (first.name, second.name) == ("run", "run-2")


def test_a_directory_is_taken_only_once_and_given_back(tmp_path):
    chosen = tmp_path / "run"
    with pytest.raises(ZeroDivisionError), taken(chosen):
        raise ZeroDivisionError
    assert not chosen.exists()
    chosen.mkdir()
    (chosen / "mine").write_text("")
    with pytest.raises(ZeroDivisionError), taken(chosen):
        raise ZeroDivisionError
    assert [path.name for path in chosen.iterdir()] == ["mine"]
    with run_directory.new_directory(chosen, ""):
        with (
            pytest.raises(MsrlError, match="already holds a run"),
            run_directory.new_directory(chosen, ""),
        ):
            pass
        assert (chosen / run_directory.JOB_FILE).exists()


@pytest.mark.parametrize(
    ("restarts", "interrupted", "runs"),
    [(2, False, 3), (2, True, 1), (0, False, 1), (-1, False, 1)],
)
def test_what_is_restarted(monkeypatch, tmp_path, restarts, interrupted, runs):
    done = []
    monkeypatch.setattr(commands, "BACK_OFF_S", 0.0)

    def fails(plan, run_dir, options):
        done.append(plan)
        failure = JobFailure("a rank died")
        failure.interrupted = interrupted
        raise failure

    monkeypatch.setattr(coordinator, "run_job", fails)
    plan = argparse.Namespace(resume="")
    with pytest.raises(JobFailure):
        commands._run_with_restarts(plan, tmp_path, JobOptions(False, 1), restarts)
    assert len(done) == runs


@pytest.mark.parametrize(("start_timeout_s", "runs"), [(100.0, 5), (0.0, 2)])
def test_a_restart_waits_for_a_lost_host(monkeypatch, tmp_path, start_timeout_s, runs):
    """A first start does not, and waiting costs no restart."""
    done = []

    def run_job(plan, run_dir, options):
        done.append(plan)
        if len(done) == 5:
            return "outcome"
        raise JobFailure("it was cut off") if len(done) == 1 else Unreached("no rank has started")

    monkeypatch.setattr(coordinator, "run_job", run_job)
    monkeypatch.setattr(commands, "RETRY_S", 0.0)
    plan = argparse.Namespace(resume="")
    options = JobOptions(False, 1, start_timeout_s=start_timeout_s)
    with pytest.raises(Unreached) if runs < 5 else contextlib.nullcontext():
        assert commands._run_with_restarts(plan, tmp_path, options, 1) == "outcome"
    assert len(done) == runs


def test_a_continued_run_goes_by_what_was_given_last(tmp_path):
    """Over the earlier run's configuration: the YAML, then flags, then assignments."""
    cls = programs.trainer_class(registry.find_algorithm("ppo"))
    earlier = cls.Config(learning_rate=0.5, gamma=0.5, seed=5, ent_coef=0.5)
    (tmp_path / run_directory.JOB_FILE).write_text(
        json.dumps({"algorithm": "ppo", "config": config.to_dict(earlier)})
    )
    file = tmp_path / "new.yaml"
    file.write_text(yaml.safe_dump({"learning_rate": 0.25, "gamma": 0.25, "seed": 2}))
    args = argparse.Namespace(
        algorithm=None,
        cells=None,
        assignments=["gamma=0.75"],
        config=str(file),
        deployment=None,
        env=None,
        num_envs=None,
        policy=None,
        schedule=None,
        seed=7,
        total_steps=None,
        workers=None,
    )
    found = commands._request(args, device="CPU", resume_run=tmp_path).config
    assert found == dataclasses.replace(earlier, learning_rate=0.25, gamma=0.75, seed=7)


def test_help_ends_with_the_keys_of_the_algorithm(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--policy", "GPUOnly", "a2c", "--help"])
    text = capsys.readouterr().out
    assert "keys of a2c" in text
    assert "learning_rate" in text


def test_names_of_files_are_utf8():
    plain = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    for mode, code in (("0", 2), ("1", 0)):
        done = subprocess.run(
            [sys.executable, "-m", "mindspore_rl.cli", "envs", "list"],
            env={**plain, "PYTHONUTF8": mode},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("for ascii" in done.stderr and "set PYTHONUTF8=1" in done.stderr) == bool(code)


def test_the_command_line_starts_without_mindspore():
    """Whose import takes more than a second."""
    code = "import sys, mindspore_rl.cli; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "a2c"}, "are of the algorithm a2c, this job's is ppo"),
        ({"environment": "Acrobot-v1"}, "are of the environment Acrobot-v1, this job's is Cart"),
        ({"num_envs": 8}, "num_envs=4, but runs/one was run with num_envs=8"),
        ({"steps_per_iteration": 32}, "but runs/one was run with steps_per_iteration=32"),
    ],
)
def test_a_checkpoint_of_other_work_is_refused(change, message):
    about = {"environment": "CartPole-v1", "num_envs": 4, "steps_per_iteration": 64}
    plan = argparse.Namespace(algorithm={"name": "ppo"}, **about)
    same = {"algorithm": "ppo", **about}
    commands._check_same(plan, same, Path("runs/one"))
    commands._check_same(plan, {}, None)
    with pytest.raises(CheckpointError, match=message):
        commands._check_same(plan, {**same, **change}, Path("runs/one"))


def test_restarts_from_the_same_checkpoint_take_their_time(monkeypatch, tmp_path, capsys):
    """The third and the sixth attempt leave a checkpoint."""
    done, waits = [], []

    def fails(plan, run_dir, options):
        done.append(plan)
        raise JobFailure("a rank died")

    def restarted(plan, options, run_dir):
        return argparse.Namespace(resume=f"checkpoint {len(done) // 3}"), options

    monkeypatch.setattr(coordinator, "run_job", fails)
    monkeypatch.setattr(commands, "_restarted", restarted)
    monkeypatch.setattr(commands.time, "sleep", waits.append)
    monkeypatch.setattr(commands, "LONGEST_WAIT_S", 4.0)
    plan = argparse.Namespace(resume="checkpoint 0")
    with pytest.raises(JobFailure):
        commands._run_with_restarts(plan, tmp_path, JobOptions(False, 1), 8)
    assert waits == [1, 2, 0, 1, 2, 0, 1, 2]
    assert "restarting from checkpoint 0 in 2 s, 6 restarts left" in capsys.readouterr().err


@pytest.mark.parametrize("file", [".", "job.json", "program/parts.py", "fragments/actor.py"])
def test_what_others_can_have_written_is_run_only_if_they_are_trusted(tmp_path, capsys, file):
    """Seen with `eval` and `--resume`, which end at the checkpoint that is not there."""
    for name in ("job.json", "plan.json", "program/parts.py", "fragments/actor.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    tmp_path.chmod(0o755)
    kept = tmp_path / file
    run_directory.check_trust(tmp_path)
    kept.chmod(0o777)
    calls = (["eval", str(tmp_path)], ["train", "--resume", str(tmp_path)])
    for call in calls:
        assert main(call) == 2
        assert f"{kept} can be written by everybody" in capsys.readouterr().err
    kept.chmod(0o755)
    if os.getuid() == 0:
        os.chown(kept, 12345, -1)
        for call in calls:
            assert main(call) == 2
            assert f"{kept} belongs to user 12345" in capsys.readouterr().err
    for call in calls:
        assert main([*call, "--trust"]) == 2
        assert "--trust" not in capsys.readouterr().err
