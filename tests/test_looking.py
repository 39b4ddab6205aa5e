"""Evaluation of a run: the best checkpoint, a JSON line, a video."""

import json
import sys

import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import load, train
from mindspore_rl.api import Actor
from mindspore_rl.cli import main as cli
from mindspore_rl.errors import CheckpointError, ConfigError, EnvironmentFailure
from mindspore_rl.runtime.best_checkpoint import chosen, keep_best
from mindspore_rl.runtime.checkpoint import FOLDER
from mindspore_rl.runtime.checkpoint import load as load_checkpoint
from mindspore_rl.trained import evaluate, hastened

SMALL = {"num_envs": 8, "num_steps": 32}
BLIND = """
import gymnasium
import numpy as np

class Blind(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        return np.zeros(4, np.float32), 1.0, True, False, {}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a checkpoint after every iteration, more than are kept."""
    words = {"policy": "MultipleLearners", "workers": 1, "stop_return": float("nan"), "quiet": True}
    words |= {"total_steps": 16 * 256, "checkpoint_every": 0, "config": SMALL}
    folder = tmp_path_factory.mktemp("looking")
    return train("a2c", env="CartPole-v1", run_dir=folder / "run", **words)


def written(folder, iteration, text):
    path = folder / f"checkpoint-{iteration:08d}.npz"
    path.write_text(text)
    return path


def test_the_best_checkpoint_stays_when_its_own_name_is_gone(tmp_path):
    first = written(tmp_path, 1, "one")
    keep_best(first, -3.5)
    keep_best(written(tmp_path, 2, "two"), 40.25)
    keep_best(written(tmp_path, 3, "three"), 39.0)
    for path in tmp_path.glob("checkpoint-*"):
        path.unlink()
    best = chosen(tmp_path, "best")
    assert best.read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == [best.name]


def test_of_two_best_checkpoints_that_a_kill_left_the_better_one_counts(tmp_path):
    for name in ("best-00000001--2.5.npz", "best-00000002-10.npz", "best-00000003-9.npz"):
        (tmp_path / name).write_text(name)
    assert chosen(tmp_path, "best").name == "best-00000002-10.npz"
    keep_best(written(tmp_path, 4, "four"), 11.0)
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-00000004-11.npz"]


@pytest.mark.slow
def test_a_run_keeps_its_best_checkpoint_and_plays_it(run):
    best = chosen(run.path / FOLDER, "best")
    iteration = load_checkpoint(best)[1]["iteration"]
    lines = {line["iteration"]: line["mean_return"] for line in run.metrics}
    assert float(best.stem.split("-", 2)[2]) == pytest.approx(lines[iteration], rel=0.05)
    assert lines[iteration] > 0.9 * max(lines[i] for i in lines if i > 12)
    chosen_run = load(run.path, checkpoint="best")
    assert chosen_run.evaluate(2).shape == (2,)
    assert chosen_run.policy([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert load(run.path, checkpoint=16).evaluate(2).tolist() == run.evaluate(2).tolist()


def test_eval_prints_one_json_object(run, capsys):
    command = ["eval", str(run.path), "--json", "--episodes", "3", "--checkpoint", "best"]
    assert cli.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["returns"]) == found["episodes"] == 3
    assert found["mean_return"] == pytest.approx(np.mean(found["returns"]))
    assert found["checkpoint"] == "best"


def test_a_long_evaluation_tells_at_a_terminal_how_far_it_is(run, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "TOLD_EVERY_S", 0.0)
    run.evaluate(2)
    assert "episodes are over" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run.evaluate(2)
    assert "msrl: step 1: 0 of 2 episodes are over" in capsys.readouterr().err


def test_an_evaluation_whose_episodes_do_not_end_tells_why(run, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "ENDLESS_S", 0.0)
    monkeypatch.setattr(evaluate, "ENDLESS_STEPS", 1)
    run.evaluate(2)
    told = [line for line in capsys.readouterr().err.splitlines() if "no episode has" in line]
    assert len(told) == 1
    assert "ended in 1 steps, and this goes on for up to 100,000; if the environment" in told[0]


def test_actions_that_take_long_are_compiled(run, capsys, monkeypatch):
    expected = run.evaluate(3), run.evaluate(3, sample=True)
    monkeypatch.setattr(hastened, "LONG_S", 0.0)
    found = run.evaluate(3), run.evaluate(3, sample=True)
    assert "compiling act_greedily, a step of which takes long" in capsys.readouterr().err
    assert np.array_equal(found, expected)


class Summing(Actor):
    def act_greedily(self, obs, scale=1.0):
        return scale * obs.sum(-1)


def test_other_arguments_than_an_action_was_compiled_for_are_as_before(monkeypatch, capsys):
    monkeypatch.setattr(hastened, "LONG_S", 0.0)
    greedily = hastened.Hastened(Summing(), "act_greedily")
    for rows in (3, 3, 3, 5, 3):
        found = greedily(Tensor(np.ones((rows, 4), np.float32)))
        assert found.asnumpy().tolist() == [4.0] * rows
    found = greedily(Tensor(np.ones((3, 4), np.float32)), scale=2.0)
    assert found.asnumpy().tolist() == [8.0] * 3
    assert capsys.readouterr().err.count("compiling act_greedily") == 1


def test_a_video_shows_the_first_episode(run, tmp_path):
    import imageio.v3  # noqa: PLC0415

    file = tmp_path / "episode.mp4"
    returns = run.evaluate(1, video=file, sample=True)
    frames = imageio.v3.imread(file)
    assert frames.shape == (returns[0], 400, 600, 3)  # a picture before each step
    assert not np.array_equal(frames[0], frames[-1])


def test_an_environment_that_draws_nothing_is_told(run, tmp_path, capsys, refused):
    (tmp_path / "blind.py").write_text(BLIND)
    command = ["eval", str(run.path), "--episodes", "1", "--env", f"{tmp_path}/blind.py:Blind"]
    assert cli.main(command) == 0
    assert "over 1 episode\n" in capsys.readouterr().out
    assert "it draws nothing: its class has no render()" in refused(
        *command, "--video", tmp_path / "x.gif"
    )


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"video": "episode.txt"}, ConfigError, r"expected a video, one of .mp4"),
        ({"render": True, "episodes": 2}, ConfigError, "one episode is shown"),
        ({"video": "x.gif", "env": "CartPole-v1,render_mode=ansi"}, EnvironmentFailure, "render"),
    ],
)
def test_what_cannot_be_shown(run, words, error, message):
    with pytest.raises(error, match=message):
        run.evaluate(**{"episodes": 1, **words})


@pytest.mark.parametrize(
    ("which", "message"), [("99", "no checkpoint of iteration 99"), ("newest", "best, last or an")]
)
def test_checkpoints_that_are_none(run, which, message):
    with pytest.raises(CheckpointError, match=message):
        load(run.path, checkpoint=which).evaluate(1)


def test_a_run_without_a_best_checkpoint_says_why(tmp_path):
    with pytest.raises(CheckpointError, match="none was written after 100 episodes"):
        chosen(tmp_path, "best")
