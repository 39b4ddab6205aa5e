"""EnvPool's environments: their own seeds, true successors, spaces."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.environments import registry
from mindspore_rl.environments.environment import VectorEnvironment
from mindspore_rl.environments.spaces import Discrete
from tests.tiers import quick

NAMES = (
    "envpool:CartPole-v1",
    "envpool:HalfCheetah-v4",
    "envpool:Pong-v5,stack_num=2",
    "envpool:FrozenLake-v1",
    "envpool:FetchPushDense-v4",
)


def some_actions(vector: VectorEnvironment, size: int, steps: int) -> list[np.ndarray]:
    chance, space = np.random.default_rng(0), vector.spec.action_space
    if isinstance(space, Discrete):
        return [chance.integers(0, space.n, size).astype(np.int32) for _ in range(steps)]
    shape = (size, len(space.low))
    return [chance.normal(0, 2, shape).astype(np.float32) for _ in range(steps)]


@pytest.mark.parametrize("name", NAMES)
def test_an_environment_does_the_same_in_any_share(name):
    whole, part = (
        registry.make_vector(name, range(4), 7),
        registry.make_vector(name, range(2, 4), 7),
    )
    first = whole.reset()
    assert first.shape == (4, *whole.spec.obs_shape)
    assert first.dtype == whole.spec.obs_dtype
    np.testing.assert_array_equal(part.reset(), first[2:])
    actions = some_actions(whole, 4, 60)
    seen = [whole.step(action) for action in actions]
    for action, outcome in zip(actions, seen, strict=True):
        for rows, own in zip(outcome, part.step(action[2:]), strict=True):
            np.testing.assert_array_equal(own, rows[2:])
    np.testing.assert_array_equal(whole.reset(), first)
    for rows, again in zip(seen[0], whole.step(actions[0]), strict=True):
        np.testing.assert_array_equal(again, rows)
    whole.close()
    part.close()


def test_environments_and_runs_have_seeds_of_their_own():
    first = registry.make_vector("envpool:CartPole-v1", range(4), 1).reset()
    other = registry.make_vector("envpool:CartPole-v1", range(4), 2).reset()
    assert len(np.unique(np.concatenate([first, other])[:, 0])) == 8


def test_an_episode_that_ends_leaves_its_true_successor():
    vector = registry.make_vector("envpool:CartPole-v1", range(8), 3)
    before, ends = vector.reset(), 0
    for _ in range(40):
        next_obs, final_obs, _, terminated, truncated = vector.step(np.ones(8, np.int32))
        assert not truncated.any()
        fallen = np.abs(final_obs[:, 2]) > 0.2095
        np.testing.assert_array_equal(terminated, fallen)
        np.testing.assert_allclose(final_obs[:, 0], before[:, 0] + 0.02 * before[:, 1], atol=1e-6)
        np.testing.assert_array_equal(next_obs[~terminated], final_obs[~terminated])
        assert (np.abs(next_obs[terminated]) <= 0.05).all()
        before, ends = next_obs, ends + terminated.sum()
    assert ends > 20


def test_a_time_limit_truncates():
    vector = registry.make_vector("envpool:CartPole-v1,max_episode_steps=4", range(2), 3)
    vector.reset()
    cuts = [vector.step(np.full(2, t % 2, np.int32))[3:] for t in range(8)]
    assert [bool(truncated.all()) for _, truncated in cuts] == [False, False, False, True] * 2
    assert not any(terminated.any() for terminated, _ in cuts)
    assert "the limit of 4 steps is truncated, also where the task ended" in vector.spec.notes


def test_what_a_pool_says_about_episodes_that_ended_is_taken():
    vector = registry.make_vector("envpool:HalfCheetah-v4,max_episode_steps=2", range(3), 3)
    vector.reset()
    still = np.zeros((3, 6), np.float32)
    vector.step(still)
    assert vector.episode_info == []
    vector.step(still)
    names = {"reward_run", "reward_ctrl", "x_position", "x_velocity"}
    assert [set(info) for info in vector.episode_info] == [names] * 3
    alone = registry.make_vector("envpool:HalfCheetah-v4,max_episode_steps=2", range(1, 2), 3)
    alone.reset()
    for _ in range(2):
        alone.step(still[:1])
    assert alone.episode_info == vector.episode_info[1:2]


def test_an_end_at_the_very_limit_is_truncated_alone_as_is_told():
    """If EnvPool passes the flag on one day, remove the note."""
    vector = registry.make_vector("envpool:CartPole-v1,max_episode_steps=9", range(64), 3)
    vector.reset()
    for _ in range(9):
        _, final_obs, _, terminated, truncated = vector.step(np.ones(64, np.int32))
    fallen = np.abs(final_obs[:, 2]) > 0.2095
    assert fallen[truncated].any() and not terminated[truncated].any()


def test_parts_of_an_observation_stand_behind_one_another():
    assert "16 numbers: one-hot of 16" in registry.spec("envpool:FrozenLake-v1").notes
    vector = registry.make_vector("envpool:FrozenLake-v1", range(2), 1)
    np.testing.assert_array_equal(vector.reset(), np.eye(16)[[0, 0]])
    assert "['observation'] 25 numbers" in registry.spec("envpool:FetchPushDense-v4").notes


def test_notebooks_still_show_figures():
    lines = (
        "import os",
        "from mindspore_rl.environments import registry as by_name",
        "by_name.spec('envpool:CartPole-v1')",
        "assert 'MPLBACKEND' not in os.environ",
    )
    variables = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, env=variables)


def test_it_keeps_its_promises(capfd, recwarn):
    assert cli.main(["envs", "check", "envpool:CartPole-v1"]) == 0
    assert capfd.readouterr().err == ""
    assert not recwarn.list


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("backend", "policy", "order"),
    quick(
        [
            ("inproc", "MultipleLearners", "synchronous"),
            ("inproc", "SingleLearnerCoarse", "asynchronous"),
            ("mpi", "MultipleLearners", "synchronous"),
            ("mpi", "SingleLearnerCoarse", "asynchronous"),
        ],
        0,
    ),
)
def test_ranks_train_on_it(tmp_path, capsys, backend, policy, order):
    """Asynchronously, too, and the plain loop of the log has the same episodes."""
    run = tmp_path / "run"
    command = ["train", "a2c", "--env", "envpool:CartPole-v1", "--policy", policy]
    sizes = ["--workers", "2", "num_envs=4", "num_steps=16", "--total-steps", "192"]
    command += ["--backend", backend, "--schedule", order]
    assert cli.main([*command, *sizes, "--run-dir", str(run), "--quiet"]) == 0
    assert "steps: 192 environment steps" in capsys.readouterr().out
    assert len(list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))) == 3
    if order == "asynchronous":
        assert cli.main(["replay", str(run)]) == 0
