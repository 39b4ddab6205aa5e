"""Goals of environments: the probes', and those that `compute_reward` of gymnasium gives."""

import gymnasium
import numpy as np
import pytest

from mindspore_rl.environments import registry
from mindspore_rl.environments.environment import Goal
from mindspore_rl.environments.gym.goals import goal_of
from mindspore_rl.environments.spaces import Discrete


@pytest.mark.parametrize("name", ["probe:bits", "probe:reach"])
def test_rewards_follow_from_the_goal(name):
    env, other = (registry.make_vector(name, indices, 3) for indices in (range(4), range(2, 4)))
    goal, rng, successes = env.spec.goal, np.random.default_rng(0), 0
    obs = env.reset()
    np.testing.assert_array_equal(other.reset(), obs[2:])
    for step in range(1, 121):
        wrong = obs[:, : goal.size] - obs[:, goal.size : 2 * goal.size]
        if isinstance(env.spec.action_space, Discrete):
            action = rng.integers(0, 15, 4) if step < 40 else np.abs(wrong).argmax(1)
        else:
            action = np.clip(-10 * wrong, -1, 1)
        action = action.astype(np.int32 if action.ndim == 1 else np.float32)
        obs, final_obs, reward, terminated, truncated = env.step(action)
        np.testing.assert_array_equal(other.step(action[2:])[0], obs[2:])
        achieved, desired = final_obs[:, : goal.size], final_obs[:, goal.size : 2 * goal.size]
        near = np.linalg.norm(achieved - desired, axis=1) <= goal.tolerance
        np.testing.assert_array_equal(reward, np.where(near, goal.reached, goal.missed))
        np.testing.assert_array_equal(terminated, near & goal.ends)
        ended = terminated | truncated
        assert len(env.episode_info) == ended.sum()
        assert [one["is_success"] for one in env.episode_info] == near[ended].tolist()
        successes += near.sum()
    assert successes > 20


class Line(gymnasium.Env):
    """A point on a line and its goal."""

    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, reward, ends=False, parts=("observation", "achieved_goal", "desired_goal")):
        one = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
        self.observation_space = gymnasium.spaces.Dict(dict.fromkeys(parts, one))
        self._reward, self._ends = reward, ends

    def compute_reward(self, achieved_goal, desired_goal, info):
        return self._reward(np.linalg.norm(achieved_goal - desired_goal, axis=-1))

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self._ends and bool(np.allclose(achieved_goal, desired_goal))


def test_a_sparse_reward_gives_a_goal():
    goal = goal_of(Line(lambda distance: np.float32(distance <= 0.3) - 1, ends=True))
    assert (goal.size, goal.reached, goal.missed, goal.ends) == (1, 0.0, -1.0, True)
    assert abs(goal.tolerance - 0.3) < 1e-6


@pytest.mark.parametrize(
    "env",
    [
        Line(lambda distance: -distance),  # no two values
        Line(lambda distance: np.float32(distance < 0.3) - (distance > 0.5)),
        Line(lambda distance: 1 / 0),
        Line(lambda distance: distance <= 0.3, parts=("achieved_goal", "desired_goal", "a")),
    ],
)
def test_other_rewards_and_observations_give_none(env):
    assert goal_of(env) is None
    assert goal_of(gymnasium.make("CartPole-v1")) is None


def test_specs_refuse_goals_that_do_not_fit():
    spec = registry.spec("probe:bits")
    with pytest.raises(ValueError, match="goal"):
        type(spec)("x", (3,), Discrete(2), 5, None, in_graph=False, goal=Goal(2, 0.1))
