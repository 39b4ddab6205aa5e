"""Hindsight of windows, against a loop over steps."""

import dataclasses

import numpy as np
import pytest

from mindspore_rl.environments.environment import EnvironmentSpec, Goal
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.rl.goals import Hindsight

GOAL = Goal(2, 0.5, reached=3.0, missed=-2.0)
SPEC = EnvironmentSpec("goals", (5,), Discrete(2), 10, None, in_graph=False, goal=GOAL)


@dataclasses.dataclass(frozen=True)
class Config:
    her: int = 4
    num_steps: int = 4
    her_fraction: float = 0.6


def windows(count=300, steps=4):
    """Draws windows whose goals are often near each other, and whose episodes often end."""
    rng = np.random.default_rng(1)
    obs = rng.integers(0, 2, (count, steps + 1, 5)).astype(np.float32)
    obs[..., 2:4] = obs[:, :1, 2:4]
    terminated, truncated = rng.random((2, count, steps)) < 0.2
    noise = rng.random((count, 2)).astype(np.float32)
    reward = rng.standard_normal((count, steps)).astype(np.float32)
    return noise, obs[:, :-1], reward, terminated, truncated & ~terminated, obs[:, 1:]


def by_hand(goal, steps, noise, obs, reward, terminated, truncated, final_obs):
    obs, reward, final_obs = obs.copy(), reward.copy(), final_obs.copy()
    terminated, truncated = terminated.copy(), truncated.copy()
    for i, (chance, place) in enumerate(noise):
        if chance >= 0.6:
            continue
        ends = [t for t in range(4) if terminated[i, t] or truncated[i, t]]
        last = ends[0] if ends else 3
        other = final_obs[i, int(np.floor(place * np.float32(last + 1))), :2].copy()
        for t in range(steps):
            near = np.linalg.norm(final_obs[i, t, :2] - other) <= goal.tolerance
            was_near = np.linalg.norm(final_obs[i, t, :2] - final_obs[i, t, 2:4]) <= goal.tolerance
            obs[i, t, 2:4] = final_obs[i, t, 2:4] = other
            reward[i, t] = goal.reached if near else goal.missed
            if goal.ends:
                ended = terminated[i, t] or truncated[i, t]
                terminated[i, t] = near or (terminated[i, t] and not was_near)
                truncated[i, t] = ended and not terminated[i, t]
    return [part[:, :steps] for part in (obs, reward, terminated, truncated, final_obs)]


@pytest.mark.parametrize(("ends", "steps"), [(False, 1), (True, 3)])
def test_goals_come_from_later_in_the_same_episode(run, ends, steps):
    goal, data = dataclasses.replace(GOAL, ends=ends), windows()
    hindsight = Hindsight(dataclasses.replace(SPEC, goal=goal), Config(), steps)
    found = run(hindsight, *data)
    for one, expected in zip(found, by_hand(goal, steps, *data), strict=True):
        np.testing.assert_array_equal(one.reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("spec", "config", "text"),
    [
        (dataclasses.replace(SPEC, goal=None), Config(), "goals has no goal"),
        (SPEC, Config(num_steps=3), "num_steps=3"),
        (SPEC, Config(her=1), "at least 2"),
    ],
)
def test_windows_without_goals_and_of_a_wrong_length_are_refused(spec, config, text):
    with pytest.raises(ConfigError, match=text):
        Hindsight(spec, config, 2)
