"""A schedule from the command line, a YAML file, a policy and an earlier run."""

import argparse
import json

import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.jobs import run_directory
from mindspore_rl.jobs.job import Job
from mindspore_rl.jobs.job import request as asked
from mindspore_rl.policy import Schedule


def schedule_of(*argv):
    args = cli._parser(["train"]).parse_args(["train", "ppo", *argv])
    return asked(Job.of(args)).policy.schedule


def test_a_flag_overrides_a_yaml(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("policy: Central\nschedule: {order: arrival, staleness: 4}\nnum_steps: 16\n")
    assert schedule_of("--config", str(file)) == Schedule("asynchronous", 4)
    assert schedule_of("--config", str(file), "--schedule", "staleness=0,drop_stale=true") == (
        Schedule("asynchronous", 0, drop_stale=True)
    )
    args = cli._parser(["train"]).parse_args(["train", "ppo", "--config", str(file)])
    request = asked(Job.of(args))
    assert request.policy.name == "Central"
    assert request.config.num_steps == 16


def test_a3c_is_a_configuration():
    args = cli._parser(["train"]).parse_args(["train", "--config", "a3c"])
    request = asked(Job.of(args))
    assert (request.algorithm.stem, request.policy.name) == ("a2c", "Central")
    assert request.policy.schedule == Schedule("asynchronous")


def test_an_earlier_run_keeps_its_schedule_under_the_same_policy(tmp_path):
    args = cli._parser(["train"]).parse_args(
        ["train", "ppo", "--policy", "Central", "--schedule", "order=asynchronous"]
    )
    run_directory.write_job(tmp_path, asked(Job.of(args)))
    assert json.loads((tmp_path / "job.json").read_text())["schedule"]["order"] == "asynchronous"
    for flags, expected in (
        ([], Schedule("asynchronous")),
        (["--schedule", "synchronous, lag=1"], Schedule(lag=1)),
        (["--policy", "GPUOnly"], Schedule()),
        (["--policy", "GPUOnly", "--schedule", "asynchronous"], Schedule("asynchronous")),
    ):
        later: argparse.Namespace = cli._parser(["train"]).parse_args(["train", *flags])
        assert asked(Job.of(later), resume_run=tmp_path).policy.schedule == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("order=arival", "order is 'arival', expected 'synchronous' or 'asynchronous'"),
        ("order=asynchronous,staleness=-1", "staleness is -1, expected at least 0 updates"),
        ("staleness=2", "belong to order=asynchronous, and order is synchronous"),
        ("chunks=0", "chunks is 0, expected at least 1"),
        ("lag=-1", "lag is -1, expected at least 0 iterations"),
        ("lag=1000000", "lag is 1000000, and the job has 489 iterations, which would all act with"),
        ("order=asynchronous,lag=1", "lag belongs to order=synchronous, and order is asynchronous"),
        ("stalenes=2", "unknown key stalenes; did you mean staleness"),
        ("staleness=few", "expected int or none, for example `staleness=64`"),
        ("fast", "order is 'fast', expected 'synchronous' or 'asynchronous'"),
    ],
)
def test_mistakes_are_told(text, message, refused):
    assert message in refused("graph", "ppo", "--policy", "Central", "--schedule", text)


def test_a_schedule_in_a_yaml_is_a_mapping(tmp_path, refused):
    file = tmp_path / "job.yaml"
    file.write_text("schedule: arrival\n")
    assert f"{file}: schedule is 'arrival', expected a mapping" in refused(
        "graph", "ppo", "--config", file
    )
