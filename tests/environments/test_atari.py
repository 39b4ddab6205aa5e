"""Atari's games through ale-py and gymnasium."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from ale_py import env as ale_env

from mindspore_rl.cli import main as cli
from mindspore_rl.environments import registry

PONG = "atari:Pong-v5"
EXAMPLE = f"{Path(__file__).resolve().parents[2] / 'docs' / 'examples' / 'pong.py'}:make_pong"


def test_a_bare_game_is_known_by_its_id(capfd):
    spec = registry.spec("ALE/Pong-v5")
    assert (spec.obs_shape, spec.obs_dtype, spec.action_space.n) == ((3, 210, 160), "uint8", 6)
    assert capfd.readouterr().err == ""


def test_options_go_to_the_game_and_to_its_images():
    name = "atari:Breakout-v5,screen_size=42,terminal_on_life_loss=true,difficulty=1"
    assert registry.spec(name).obs_shape == (4, 42, 42)


def test_frames_are_stacked():
    vector = registry.make_vector(PONG, range(2), 1)
    assert vector.reset().shape == (2, 4, 84, 84)
    seen = [vector.step(np.full(2, t % 6, np.int32)) for t in range(60)]
    for (_, before, *_), (_, after, *_) in zip(seen[:-1], seen[1:], strict=True):
        np.testing.assert_array_equal(after[:, :3], before[:, 1:])
    assert (seen[-1][0][0] != seen[-1][0][1]).any()
    example = registry.make_vector(EXAMPLE, range(2), 1)
    example.reset()
    for t, of_name in enumerate(seen):
        for one, other in zip(of_name, example.step(np.full(2, t % 6, np.int32)), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_game_loads_its_rom_once_and_does_the_same_in_any_share(tmp_path, monkeypatch):
    (tmp_path / "short.py").write_text(
        "import ale_py, gymnasium\n"
        "gymnasium.register_envs(ale_py)\n"
        "def make(): return gymnasium.make('ALE/Pong-v5', max_episode_steps=4)\n"
    )
    name = f"{tmp_path / 'short.py'}:make"
    both, second = (registry.make_vector(name, rows, 1) for rows in (range(2), range(1, 2)))
    load = ale_env.AtariEnv.load_game
    loads = []
    monkeypatch.setattr(ale_env.AtariEnv, "load_game", lambda game: (loads.append(0), load(game)))
    for t in range(10):  # its actions stick at random, so that a seed shows
        action = np.array([1, 2 + t % 2], np.int32)
        for all_rows, row in zip(both.step(action), second.step(action[1:]), strict=True):
            np.testing.assert_array_equal(all_rows[1:], row)
    assert not loads
    begun = both.reset()
    assert len(loads) >= 2
    np.testing.assert_array_equal(begun, registry.make_vector(name, range(2), 1).reset())
    for vector in (both, second):
        vector.close()


def test_threads_change_no_step():
    alone, threaded = (registry.make_vector(PONG, range(3), 1) for _ in range(2))
    threaded.threads = threaded._concurrent = 2  # always, not only if it is faster
    for t in range(30):
        action = np.arange(t, t + 3, dtype=np.int32) % 6
        for one, other in zip(alone.step(action), threaded.step(action), strict=True):
            np.testing.assert_array_equal(one, other)
    assert any(one.name.startswith("environments") for one in threading.enumerate())
    threaded.close()


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("policy", ["MultipleLearners", "SingleLearnerFine"])
def test_pong_is_trained_for_an_iteration(policy, tmp_path, capsys):
    run = tmp_path / "run"
    command = ["train", "--config", "ppo_atari", "--env", PONG, "--policy", policy]
    sizes = ["--workers", "2", "num_envs=4", "num_steps=8", "--total-steps", "32"]
    assert cli.main([*command, *sizes, "--run-dir", str(run), "--quiet"]) == 0
    assert "steps: 32 environment steps" in capsys.readouterr().out
    (line,) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert np.isfinite(list(line["values"].values())).all()
