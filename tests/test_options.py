"""Each option of a job is declared once: a field of `Job` is flag, keyword, key and completion."""

import dataclasses
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import mindspore_rl
from mindspore_rl.cli.job_flags import add_options
from mindspore_rl.cli.parser import Parser
from mindspore_rl.config import REQUIRED
from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs import auto_policy, training
from mindspore_rl.jobs import job as jobs
from mindspore_rl.jobs.job import GROUPS, Job, of_place, of_training
from mindspore_rl.jobs.options import options
from mindspore_rl.trained import run


@dataclasses.dataclass(frozen=True, kw_only=True)
class More(Job):
    """A job with three more options."""

    warm_up: int | None = of_training(
        None, "iterations before the clock", "N", ge=2, otherwise=7, in_file=True
    )
    colour: str = of_place("red", "what it is painted in", choices=("red", "green"))
    loud: bool = of_training(False, "make a noise")


@run._with_fields_of(More)
def keywords(job):
    """Makes that job from `train`'s keywords."""
    return job


def parser_of():
    parser = Parser(prog="msrl train")
    add_options(parser, *GROUPS, job=More)
    return parser


def parsed(*words):
    return More.of(parser_of().parse_args(words))


def completed(words):
    """Returns the completions of the last word, as argcomplete finds them."""
    argcomplete = pytest.importorskip("argcomplete")
    finder = argcomplete.CompletionFinder(parser_of(), always_complete_options=True)
    found = finder._get_completions(["msrl", *words[:-1]], words[-1], "", None)
    return {word.strip() for word in found}


@pytest.mark.parametrize("name", options(More))
def test_every_field_is_a_flag_a_keyword_a_key_and_a_completion(name, tmp_path):
    option = options(More)[name]
    word = name if option.nargs else f"--{name.replace('_', '-')}"
    parser = parser_of()
    assert word in {*parser._option_string_actions, *(a.dest for a in parser._actions)}
    assert option.nargs or word in completed([word[:-1]])
    assert inspect.signature(keywords).parameters[name].default == option.default
    file = tmp_path / "job.yaml"
    value = {"schedule": {"order": "asynchronous"}, "algorithm": "a2c"}.get(name, 3)
    file.write_text(yaml.safe_dump({"algorithm": "a2c", "policy": "Central", name: value}))
    if option.in_file:
        assert getattr(jobs.with_file(More(config=file)), name) is not None
    elif name in REQUIRED:  # the algorithm's own
        assert name in jobs.with_file(More(config=file)).written
    else:
        with pytest.raises(ConfigError, match=f"{name} is no key of a configuration; give it as"):
            jobs.request(More(config=file))


def test_a_field_more_is_an_option_everywhere(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("algorithm: a2c\nwarm_up: 3\n")
    assert parsed("--warm-up", "5", "--colour", "green", "--loud") == keywords(
        warm_up=5, colour="green", loud=True
    )
    assert jobs.with_file(parsed("--config", str(file))).warm_up == 3
    assert jobs.with_file(parsed("--config", str(file), "--warm-up", "5")).warm_up == 5
    assert completed(["--colour", "g"]) == {"green"}
    text = " ".join(parser_of().format_help().split())
    assert "--warm-up N iterations before the clock (default: 7); at least 2" in text
    assert "--colour {red,green} what it is painted in (default: red)" in text
    file.write_text("algorithm: a2c\nwarm_up: 1\n")
    for ask, message in (
        (lambda: parsed("--warm-up", "1"), "argument --warm-up: 1, expected at least 2"),
        (lambda: keywords(warm_up=1), "warm_up is 1, expected at least 2"),
        (lambda: jobs.with_file(More(config=file)), f"{file}: warm_up is 1, expected a whole numb"),
        (lambda: parsed("--colour", "gren"), "argument --colour: 'gren': did you mean green?"),
        (lambda: keywords(colour="gren"), "colour is 'gren', expected one of red, green"),
        (lambda: parsed("--run-dir", ""), "--run-dir is empty (a variable of the shell that has"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            ask()


def test_train_shows_the_options_of_a_job_and_names_the_nearest():
    shown = inspect.signature(mindspore_rl.train).parameters
    assert set(shown) == {*options(Job), "on_iteration"}
    assert (shown["checkpoint_every"].default, shown["workers"].annotation) == (60.0, int | None)
    with pytest.raises(TypeError, match="train: unknown key polcy; did you mean policy?"):
        mindspore_rl.train("ppo", polcy="Central")


@pytest.mark.parametrize("policy", ["Central", "auto"])
def test_a_yaml_file_is_read_once(policy, tmp_path, monkeypatch):
    """The policy, the schedule, the workers and the keys all come from one reading."""
    file, read = tmp_path / "job.yaml", []
    file.write_text(f"algorithm: a2c\npolicy: {policy}\nworkers: 1\nnum_envs: 4\n")
    before = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda p, **how: read.append(p) or before(p, **how))
    monkeypatch.setattr(auto_policy, "predict", lambda *_, **__: SimpleNamespace(steps_per_s=1.0))
    monkeypatch.setattr(auto_policy, "machine_costs", lambda say: None)
    request = jobs.request(training.settled(More(config=file)))
    assert (request.config.num_envs, read.count(file)) == (4, 1)
