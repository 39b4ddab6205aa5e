"""`msrl train` before and between jobs, and other commands."""

import argparse
import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from mindspore_rl import config, programs
from mindspore_rl.cli import commands
from mindspore_rl.cli.main import _parser, main
from mindspore_rl.errors import CheckpointError, JobFailure, MsrlError
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs import registry, run_directory, training
from mindspore_rl.plan.plan import Plan, load_plan, save_plan
from mindspore_rl.runtime import checkpoint, resuming
from mindspore_rl.runtime.coordinator import run as coordinator
from mindspore_rl.runtime.coordinator.failures import Unreached
from mindspore_rl.runtime.coordinator.state_machine import JobOptions, Outcome
from tests.commands import msrl

ROOT = Path(__file__).parents[1]


def taken(chosen, name=""):
    return run_directory.new_directory(chosen, name)


def test_two_runs_that_begin_together_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with taken(None, "run") as first, taken(None, "run") as second:
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
    with taken(chosen):
        with pytest.raises(MsrlError, match="already holds a run"), taken(chosen):
            pass
        assert (chosen / run_directory.JOB_FILE).exists()


def test_a_directory_of_a_run_that_was_killed_before_it_began_is_taken(tmp_path):
    chosen = tmp_path / "run"
    (chosen / run_directory.JOB_FILE).parent.mkdir()
    (chosen / run_directory.JOB_FILE).touch()
    with taken(chosen), pytest.raises(MsrlError, match="already holds a run"), taken(chosen):
        pass
    (chosen / run_directory.JOB_FILE).write_text("{}")
    with pytest.raises(MsrlError, match="already holds a run"), taken(chosen):
        pass


def test_a_flag_whose_value_is_empty_is_refused(refused, tmp_path, monkeypatch):
    """For example `--resume "$RUN"` without a RUN, which would start a new training."""
    monkeypatch.chdir(tmp_path)
    for flag in ("resume", "run-dir", "config", "env"):
        assert f"msrl: --{flag} is empty (a variable" in refused("train", "ppo", f"--{flag}", "")
    assert not list(tmp_path.iterdir())


def test_a_working_folder_that_is_gone_is_told(capsys, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["train", "ppo"]) == main(["envs", "list"]) == 2
    assert capsys.readouterr().err.count("msrl: the working folder has been removed; change") == 2
    with pytest.raises(MsrlError, match="the working folder has been removed"):
        training.train(jobs.Job("ppo"))
    assert main(["doctor"]) == 1
    assert "has been removed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("restarts", "interrupted", "runs"),
    [(2, False, 3), (2, True, 1), (0, False, 1), (-1, False, 1)],
)
def test_what_is_restarted(monkeypatch, tmp_path, restarts, interrupted, runs):
    done = []

    def fails(plan, run_dir, options):
        done.append(plan)
        failure = JobFailure("a rank died")
        failure.interrupted = interrupted
        raise failure

    monkeypatch.setattr(coordinator, "run_job", fails)
    monkeypatch.setattr(training, "_wait", lambda seconds: None)
    plan = argparse.Namespace(resume="")
    with pytest.raises(JobFailure):
        training._run_with_restarts(plan, tmp_path, JobOptions(False, 1), restarts)
    assert len(done) == runs


def test_restarts_without_progress_come_ever_later(monkeypatch, tmp_path, capsys):
    """A new checkpoint is progress; the first failure finds that of the start."""
    newest = [*["0"] * 4, "1", *["1"] * 8]
    waited = []

    def fails(plan, run_dir, options):
        raise JobFailure("a rank died")

    def restarted(plan, options, run_dir):
        return argparse.Namespace(resume=newest.pop(0)), options

    monkeypatch.setattr(coordinator, "run_job", fails)
    monkeypatch.setattr(training, "_restarted", restarted)
    monkeypatch.setattr(training, "_wait", waited.append)
    with pytest.raises(JobFailure):
        training._run_with_restarts(
            argparse.Namespace(resume=""), tmp_path, JobOptions(False, 1), len(newest)
        )
    assert waited == [0, 1, 2, 4, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    told = [line for line in capsys.readouterr().err.splitlines() if "restarting" in line]
    assert told[0] == "msrl: restarting from 0, 12 restarts left"
    assert told[3] == "msrl: restarting from 0 in 4 s, 9 restarts left"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_the_wait_for_a_restart(number):
    before = signal.getsignal(number)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        training._wait(100.0)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(("start_timeout_s", "runs"), [(100.0, 5), (0.0, 2)])
def test_a_restart_waits_for_a_lost_host(monkeypatch, tmp_path, start_timeout_s, runs):
    """A first start does not wait, and waiting does not count as a restart."""
    done = []

    def run_job(plan, run_dir, options):
        done.append(plan)
        if len(done) == 5:
            return "outcome"
        raise JobFailure("it was cut off") if len(done) == 1 else Unreached("no rank has started")

    monkeypatch.setattr(coordinator, "run_job", run_job)
    monkeypatch.setattr(training, "RETRY_S", 0.0)
    plan = argparse.Namespace(resume="")
    options = JobOptions(False, 1, start_timeout_s=start_timeout_s)
    with pytest.raises(Unreached) if runs < 5 else contextlib.nullcontext():
        assert training._run_with_restarts(plan, tmp_path, options, 1) == "outcome"
    assert len(done) == runs


def test_a_continued_run_goes_by_what_was_given_last(tmp_path):
    """Over the earlier run's configuration: the YAML, then flags, then assignments."""
    cls = programs.trainer_class(registry.find_algorithm("ppo"))
    earlier = cls.Config(learning_rate=0.5, gamma=0.5, seed=5, ent_coef=0.5)
    (tmp_path / run_directory.JOB_FILE).write_text(
        json.dumps({"algorithm": "ppo", "policy": "Central", "config": config.to_dict(earlier)})
    )
    file = tmp_path / "new.yaml"
    file.write_text(yaml.safe_dump({"learning_rate": 0.25, "gamma": 0.25, "seed": 2}))
    args = jobs.Job(assignments=("gamma=0.75",), config=str(file), seed="7")
    found = jobs.request(args, device="CPU", resume_run=tmp_path).config
    assert found == dataclasses.replace(earlier, learning_rate=0.25, gamma=0.75, seed=7)


def test_a_file_of_keys_may_have_the_jobs(tmp_path, capsys, refused):
    file = tmp_path / "job.yaml"
    file.write_text("algorithm: a2c\npolicy: MultipleLearners\nworkers: 2\nnum_envs: 4\n")
    assert main(["graph", "--config", str(file)]) == 0
    assert "environments 2..3" in capsys.readouterr().out
    assert main(["graph", "--config", str(file), "--workers", "1"]) == 0
    assert "environments 0..3" in capsys.readouterr().out
    file.write_text("algorithm: a2c\npolcy: GPUOnly\n")
    assert "unknown key polcy; did you mean policy?" in refused("graph", "--config", file)
    file.write_text("algorithm: a2c\ndevice: gpu\n")
    assert f"{file}: device is no key of a configuration; give it as --device" in refused(
        "graph", "--config", file
    )
    for wrong in ("two", 0, True):
        file.write_text(f"algorithm: a2c\nworkers: {wrong}\n")
        told = f"workers is {wrong!r}, expected a whole number, at least 1"
        assert told in refused("graph", "--config", file)
    file.write_text("algorithm: a2c\nnum_envs: 1\nenv: Acrobot-v1\n")
    assert main(["graph", "--config", str(file)]) == 0
    assert "[1e, 6]" in capsys.readouterr().out


def test_help_ends_with_the_keys_of_the_algorithm(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--policy", "GPUOnly", "a2c", "--help"])
    text = capsys.readouterr().out
    assert "keys of a2c" in text
    assert "discount per step, 0 to 1" in text
    assert "time between checkpoints (default: 60); at least 0" in " ".join(text.split())


def test_every_command_and_argument_is_explained():
    def parsers(parser):
        yield parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    yield from parsers(below)

    for parser in parsers(_parser([])):
        assert parser.description, parser.prog
        for action in parser._actions:
            if not isinstance(action, argparse._SubParsersAction):
                assert re.search("[a-z]{3}", action.help or ""), (parser.prog, action.dest)


def test_names_are_read_and_printed_in_any_locale(tmp_path):
    run = tmp_path / "später 日本"
    run.mkdir()
    (run / "plan.json").write_text("{}")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = msrl("eval", run, text=False, env=locale)
    assert (done.returncode, str(run) in done.stderr.decode()) == (2, True), done.stderr


@pytest.mark.parametrize("words", ["--workers 3 2 {}", "--policy Central --workers 3 2 {} --all"])
@pytest.mark.parametrize("algorithm", ["ppo", "mine.py"])
def test_an_algorithm_may_follow_a_flag_of_several_values(words, algorithm):
    argv = ["check", *words.format(algorithm).split(), "num_envs=4"]
    args = _parser(argv).parse_args(argv)
    assert (args.algorithm, args.numbers, args.assignments) == (algorithm, [3, 2], ["num_envs=4"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train ppo --polcy GPUOnly", "msrl train does not know --polcy; did you mean --policy?"),
        ("train ppo --num_envs 8", "does not know --num_envs; did you mean --num-envs?"),
        ("train ppo --gama 0.5", "does not know --gama; did you mean gamma=VALUE?"),
        ("train ppo --learning_rate=1", "did you mean learning_rate=VALUE?"),
        ("train ppo --qqq 1", "msrl train does not know --qqq; see msrl train --help"),
        ("train ppo --lr 1", "msrl train does not know --lr; did you mean learning_rate=VALUE?"),
        ("train ppo --total-timesteps 1", "did you mean --total-steps?"),
        ("train ppo lr=1", "argument lr=1: unknown key lr; did you mean learning_rate?"),
        ("train dqn buffer_size=9", "unknown key buffer_size; did you mean replay_size?"),
        ("train --config rainbo", "unknown configuration 'rainbo': did you mean rainbow"),
        ("train --config none.yaml", "configuration none.yaml: no such file"),
        ("eval", "the following arguments are required: RUN; see msrl eval --help"),
        ("envs check docs/examples/nim.py", "as in 'docs/examples/nim.py:Nim'"),
        ("train ppo num_env=8", "argument num_env=8: unknown key num_env; did you mean num_envs?"),
        ("eval run --episods 1", "does not know --episods; did you mean --episodes?"),
        ("train ppo --eval-episodes 5", "--eval-episodes 5 without --eval-every"),
        ("train docs/examples/shop.py", "an environment is named by --env FILE.py:CLASS"),
        ("train ppo --timeout 0", "--timeout: 0, expected more than 0; see msrl train --help"),
        ("train ppo --checkpoint-every -1", "--checkpoint-every: -1, expected at least 0"),
        ("train dqn --checkpoint-replay no", "--checkpoint-replay: 'no', expected true or false"),
        ("train ppo --max-restarts x", "--max-restarts: 'x', expected a whole number"),
        ("train ppo gamma=2", "gamma is 2.0, expected 0 to 1"),
        ("train ppo seed=-5", "argument seed=-5: seed is -5, expected 0 to 4294967295"),
        ("train ppo --num-envs 0", "flag --num-envs: num_envs is 0, expected at least 1"),
        ("train docs/examples/reinforce.py num_steps=0", "num_steps is 0, expected at least 1"),
        ("train ppo --profile -1", "--profile: -1, expected at least 1"),
        ("eval runs/none --seed 4294967296", "--seed: 4294967296, expected 0 to 4294967295"),
        ("eval runs/none --episodes 0", "--episodes: 0, expected at least 1"),
        ("train ppo --workers 0", "--workers: 0, expected at least 1"),
        ("train ppo --schedule lag=1,lag=2", "lag=1 and lag=2, expected each key once"),
        ("trian ppo", "argument COMMAND: 'trian': did you mean train?"),
        ("dataset shwo d", "argument COMMAND: 'shwo': did you mean show?"),
        ("dataset foo", "'foo': expected one of import, record, show; see msrl dataset --help"),
        ("train ppo --device gup", "--device: 'gup': did you mean gpu?"),
        ("plan ppo --env CartPol-v1", "there is no environment 'CartPol-v1'; did you mean 'CartP"),
        ("train --resume runs/none", "runs/none is not a run directory; expected one that `msrl"),
        ("check --workers 2 0", "--workers: 0, expected at least 1"),
        ("check --workers 2 ppo gama=1", "argument gama=1: unknown key gama; did you mean gamma?"),
        ("check --policy ppo", "--policy: 'ppo' is an algorithm, expected a policy"),
        ("doctor a=1", "msrl doctor does not know a=1; see msrl doctor --help"),
    ],
)
def test_a_wrong_word_is_told_in_a_line(words, message, refused, monkeypatch):
    monkeypatch.chdir(ROOT)
    err = refused(*words.split())
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("env", "stopped", "code", "following"),
    [
        ("Any-v0", "steps", 0, "eval RUN --video episode.mp4"),
        ("probe:x", "steps", 0, "eval RUN"),
        ("Any-v0", "interrupted", 130, "train --resume RUN"),
    ],
)
def test_a_training_ends_with_the_command_that_comes_next(
    env, stopped, code, following, tmp_path, monkeypatch, capsys
):
    plan = SimpleNamespace(environment=env, profile=0)
    outcome = Outcome(1, 8, 1.0, 8, stopped, "one")
    trained = training.Trained(tmp_path, plan, outcome)
    monkeypatch.setattr(training, "train", lambda *_, **__: trained)
    assert commands.train(argparse.Namespace(algorithm="ppo")) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"next: msrl {following.replace('RUN', str(tmp_path))}"


def test_a_folder_that_cannot_be_made_is_told(tmp_path, capsys):
    (tmp_path / "file").touch()
    words = ["--run-dir", str(tmp_path / "run"), "--dump-graph", str(tmp_path / "file" / "graph")]
    assert main(["train", "a2c", *words]) == 1
    assert "free some space or choose another --dump-graph" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_resumed_is_told(small_run, tmp_path, refused):
    resumed, choice = tmp_path / "resumed", f"{ROOT}/tests/environments/choices.py:GraphChoice"
    for more, message in (
        (["ppo"], "the run to be resumed is one of a2c, and ppo is asked for"),
        ([f"--env={choice}"], "graph:CartPole-v1 in it and choices.py:GraphChoice here; a run"),
        (["hidden=32"], "of another job: hidden is [64, 64] in it and [32] here; a run goes on"),
        ([], "is done: it has trained for 640 steps, and 640 are asked for; raise --total-steps"),
    ):
        given = ["train", *more, "--resume", str(small_run), "--run-dir", str(resumed)]
        assert message in refused(*given)
        assert not resumed.exists()


def test_less_than_an_iteration_is_told(tmp_path, capsys):
    words = ["--total-steps", "10", "--backend", "inproc", "--run-dir", str(tmp_path / "run")]
    assert main(["train", "a2c", "num_envs=2", "num_steps=8", *words]) == 0
    told = "total_steps is 10, less than an iteration has: 16 steps are trained"
    assert told in capsys.readouterr().err
    enough = SimpleNamespace(config=SimpleNamespace(total_steps=16), workers=1)
    training._tell(load_plan(tmp_path / "run"), enough, "CPU")
    assert "total_steps" not in capsys.readouterr().err


def test_a_run_is_where_it_says_wherever_an_environment_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import os\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Moves(CartPoleEnv):\n"
        "    def reset(self, **given):\n"
        "        os.makedirs('inner', exist_ok=True)\n"
        "        os.chdir('inner')\n"
        "        return super().reset(**given)\n"
    )
    words = ["--env", "own.py:Moves", "--total-steps", "16", "--backend", "inproc"]
    assert main(["train", "a2c", "num_envs=2", "num_steps=8", *words, "--run-dir", "run"]) == 0
    files = {"plan.json", "job.json", "metrics.jsonl", "outcome.json", "checkpoints"}
    assert files <= {path.name for path in (tmp_path / "run").iterdir()}
    assert Path.cwd() == tmp_path


@pytest.mark.slow
def test_a_run_has_copies_of_the_files_that_it_was_made_of(tmp_path, monkeypatch, capsys):
    """The run is moved, two files are deleted and one is changed."""
    monkeypatch.chdir(tmp_path)
    files = {"reinforce": "my", "split_learners": "own", "corridor": "env"}
    for example, name in files.items():
        shutil.copyfile(ROOT / "docs" / "examples" / f"{example}.py", tmp_path / f"{name}.py")
    words = ["--total-steps", "512", "--backend", "inproc", "--stop-return", "nan", "--quiet"]
    given = ["my.py", "--policy", "own.py", "--env", "env.py:Corridor", "--workers", "2"]
    assert main(["train", *given, "num_envs=4", "num_steps=32", *words, "--run-dir", "run"]) == 0
    run = (tmp_path / "run").rename(tmp_path / "moved")
    assert main(["eval", "moved", "--episodes", "1"]) == 0
    assert "the run's copy" not in capsys.readouterr().err
    (tmp_path / "own.py").unlink()
    (tmp_path / "env.py").unlink()
    with (tmp_path / "my.py").open("a") as file:
        file.write("# changed")
    words[1] = "1024"
    assert main(["train", "--resume", "moved", *words, "--run-dir", "resumed"]) == 0
    told = capsys.readouterr().err
    for name in ("program/my.py", "policy/own.py", "environment/env.py:Corridor"):
        assert f"msrl: {run / name} is used, the run's copy: the file that it was made of" in told
    assert main(["eval", "resumed", "--episodes", "1"]) == 0
    assert main(["train", "my.py", "--resume", "moved", *words, "--run-dir", "named"]) == 0
    assert "program/my.py is used" not in capsys.readouterr().err


def test_what_is_the_projects_is_stored_by_name(tmp_path):
    """It is found again if the project has been installed elsewhere."""
    (tmp_path / "hosts.yaml").write_text("workers: 2")
    job = jobs.Job("a2c", policy="central", workers=1, deployment=str(tmp_path / "hosts.yaml"))
    run_directory.write_job(tmp_path, jobs.request(job, device="CPU"))
    job = json.loads((tmp_path / run_directory.JOB_FILE).read_text())
    assert (job["algorithm"], job["policy"]) == ("a2c", "Central")
    (tmp_path / "hosts.yaml").unlink()
    found = run_directory.earlier_job(tmp_path)
    assert Path(found["deployment"]).read_text() == "workers: 2"
    assert found["algorithm"] == str(registry.find_algorithm("a2c"))
    assert found["policy"] == str(registry.find_policy("Central"))
    (tmp_path / "policy" / "central.py").write_text("# of another version")
    assert run_directory.earlier_job(tmp_path)["policy"] == str(tmp_path / "policy" / "central.py")


def test_a_deployment_that_has_been_changed_since_is_told(tmp_path, capsys):
    hosts, run = tmp_path / "hosts.yaml", tmp_path / "run"
    run.mkdir()
    hosts.write_text("workers: 2\n")
    (run / run_directory.DEPLOYMENT_FILE).write_text("workers: 2\n")
    job = {"algorithm": "ppo", "policy": "Central", "config": {"env": "CartPole-v1"}}
    (run / run_directory.JOB_FILE).write_text(json.dumps({**job, "deployment": str(hosts)}))
    jobs.request(jobs.Job(), resume_run=run)
    assert capsys.readouterr().err == ""
    hosts.write_text("workers: 3\n")
    jobs.request(jobs.Job(), resume_run=run)
    told = f"msrl: {hosts} is used as it is now: it has been changed since the run began"
    assert told in capsys.readouterr().err
    jobs.request(jobs.Job(deployment=str(hosts)), resume_run=run)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "odd",
    [
        b"\xff\xfe\x00\xd8", b"[" * 100_000, b"[]", b"{}", b'{"algorithm": 7, "environment": "e"}',
        b'{"algorithm": {}, "environment": 7}', b'{"algorithm": {"file": 7}, "environment": "e"}',
    ],
)  # fmt: skip
def test_an_odd_plan_or_job_is_told(tmp_path, odd):
    (tmp_path / "plan.json").write_bytes(odd)
    (tmp_path / "job.json").write_bytes(odd)
    with pytest.raises(MsrlError, match=r"plan.json was not written by this version"):
        load_plan(tmp_path)
    with pytest.raises(MsrlError, match="is not a run directory"):
        run_directory.earlier_job(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("num_envs", "8"), ("compiled", 1), ("timeout_s", None), ("policy", [])]
)
def test_a_plan_with_values_of_other_kinds_is_told(tmp_path, key, value):
    plan = Plan({"name": "a"}, "p", {}, "e", False, 8, 1, 1, 1, 0, {}, (), ())
    save_plan(plan, tmp_path)
    assert load_plan(tmp_path) == plan
    data = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**data, key: value}))
    with pytest.raises(MsrlError, match=r"plan.json was not written by this version.*is expected"):
        load_plan(tmp_path)


@pytest.mark.parametrize("key", ["schedule", "workers", "config", "cells", "deployment"])
def test_a_job_with_values_of_other_kinds_is_told(tmp_path, key):
    job = {"algorithm": "ppo", "policy": "GPUOnly", "config": {"env": "CartPole-v1"}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert run_directory.earlier_job(tmp_path)["config"] == job["config"]
    (tmp_path / "job.json").write_text(json.dumps({**job, key: ["odd"]}))
    with pytest.raises(MsrlError, match=rf"is not a run directory \({key} is "):
        run_directory.earlier_job(tmp_path)


def test_a_checkpoint_that_does_not_say_of_what_it_is_is_told(tmp_path):
    plan = Plan({"name": "a"}, "p", {}, "e", False, 8, 1, 1, 1, 0, {}, (), ())
    numbers = {"num_envs": 8, "steps_per_iteration": 8, "env_steps": 8}
    path = checkpoint.save(tmp_path, 1, {}, {**numbers, "config": [], "environment": "e"})
    with pytest.raises(CheckpointError, match="does not say of which algorithm, config it is"):
        resuming.check_job(path, checkpoint.look(path), plan)


@pytest.mark.parametrize(
    "words",
    [
        "train ppo --quiet --run-dir", "train --resume", "train ppo --config", "eval", "plot",
        "profile",
    ],
)  # fmt: skip
def test_a_path_that_cannot_be_one_is_told_in_a_line(words, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for path, text in (("x" * 300 + "/run", "cannot be used: File name too long"), ("a\0b", "NUL")):
        (line,) = refused(*words.split(), path).splitlines()
        assert text in line or "File name too long" in line


def test_a_run_directory_that_cannot_be_looked_at_is_told(refused, monkeypatch, tmp_path):
    def exists(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", exists)
    assert "plan.json cannot be used: Permission denied" in refused("plot", tmp_path)


def test_the_directory_of_a_run_is_told_before_anything_is_written_there(tmp_path, monkeypatch):
    """So the supervisor of a job that is killed meanwhile removes a half-written job.json."""
    told = []

    def prepare(request, run_dir, see):
        assert told == [("run", str(tmp_path / "run"))]
        raise MsrlError("enough")

    monkeypatch.setattr(training.pipeline, "prepare", prepare)
    job = jobs.Job("ppo", run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(MsrlError, match="enough"):
        training.train(job, tell=lambda *pair: told.append(pair) or True)
