"""A search runs trials, ends poor ones early, continues a study, and reports the best."""

from types import SimpleNamespace

import pytest
import yaml

from mindspore_rl.cli import main as cli
from mindspore_rl.cli.sweep import FIRST_TRIALS
from mindspore_rl.errors import JobFailure
from mindspore_rl.jobs import training

SPACE = "learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}\nhidden: {choices: [[16], [8, 8]]}\n"
JOB = ("--env", "CartPole-v1", "--num-envs", "4", "--total-steps", "400")


def sweep(tmp_path, trials, space=SPACE):
    file = tmp_path / "space.yaml"
    file.write_text(space)
    study = ("--space", str(file), "--study", str(tmp_path / "study"), "--trials", str(trials))
    return cli.main(["sweep", "a2c", *JOB, *study])


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_study_goes_on_and_its_best_configuration_trains(tmp_path, capsys):
    assert sweep(tmp_path, 1) == 0
    assert sweep(tmp_path, 2) == 0
    out = capsys.readouterr().out
    assert [out.count(f"trial {i}: learning_rate=") for i in range(3)] == [1, 1, 0]
    best = tmp_path / "study" / "best.yaml"
    found = yaml.safe_load(best.read_text())
    assert 1e-4 <= found["learning_rate"] <= 1e-2
    assert found["hidden"] in ([16], [8, 8])
    run = ["--run-dir", str(tmp_path / "run"), "--quiet"]
    assert cli.main(["train", "--config", str(best), *run]) == 0


@pytest.fixture
def returns(monkeypatch):
    """Replaces training by given returns; each mean return holds from the start."""
    given = []

    def train(job, values, on_iteration):
        value = given.pop(0)
        if isinstance(value, Exception):
            raise value
        if value is None:
            return SimpleNamespace(outcome=SimpleNamespace(mean_return=1.0, stopped="interrupted"))
        for steps in range(20, 401, 20):
            if on_iteration({"env_steps": steps, "mean_return": value}) is False:
                value = -1.0
                break
        return SimpleNamespace(outcome=SimpleNamespace(mean_return=value, stopped="steps"))

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr("mindspore_rl.cli.sweep._Trials.best", lambda self: None)
    return given


def test_a_trial_below_the_median_ends_early(returns, tmp_path, capsys):
    returns += [*range(10, 10 + FIRST_TRIALS), 1.0, 100.0]
    assert sweep(tmp_path, FIRST_TRIALS + 2) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("trial ")]
    assert ["ended early" in line for line in lines] == [False] * FIRST_TRIALS + [True, False]
    assert not returns


def test_a_trial_that_fails_is_told_and_the_search_goes_on(returns, tmp_path, capsys):
    returns += [JobFailure("a rank died"), 3.0]
    assert sweep(tmp_path, 2) == 0  # only one of the two counts
    assert "a rank died" in capsys.readouterr().out
    returns += [4.0]
    assert sweep(tmp_path, 2) == 0
    assert not returns


def test_a_search_without_any_end_has_failed(returns, tmp_path, capsys):
    returns += [JobFailure("a rank died")]
    assert sweep(tmp_path, 1) == 1
    assert "no trial has come to an end" in capsys.readouterr().err


def test_a_study_of_other_runs_does_not_go_on(returns, tmp_path, refused):
    returns += [3.0]
    assert sweep(tmp_path, 1) == 0
    study = ("--space", str(tmp_path / "space.yaml"), "--study", str(tmp_path / "study"))
    assert "is a study with algorithm a2c, and ppo is asked for" in refused(
        "sweep", "ppo", *JOB, *study
    )
    assert "is a study with total_steps 400, and 800" in refused(
        "sweep", "a2c", *JOB, *study, "--total-steps", "800"
    )


def test_ctrl_c_ends_the_search(returns, tmp_path):
    returns += [None, 3.0]
    assert sweep(tmp_path, 2) == 130
    assert returns == [3.0]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("", "names no key"),
        ("learning_rat: {low: 1, high: 2}", "learning_rat is no key of a2c"),
        ("gamma: 0.9", "gamma is 0.9, expected low and high, or choices"),
        ("gamma: {low: 1}", "expected low and high"),
        ("gamma: {low: 0.9, high: 0.1}", "the lower one first"),
        ("gamma: {low: 0.0, high: 0.1, log: true}", "above 0 for log"),
        ("gamma: {low: 0.0, high: 0.1, lgo: true}", "has lgo"),
        ("gamma: {choices: 3}", "expected a list"),
        ("gamma: {low: 0.9, high: 2}", "gamma is 2.0, expected 0 to 1"),
        ("num_envs: {choices: [4, 0]}", "num_envs is 0, expected at least 1"),
    ],
)
def test_a_space_that_is_wrong(space, message, tmp_path, capsys):
    assert sweep(tmp_path, 1, space) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "space.yaml" in error
