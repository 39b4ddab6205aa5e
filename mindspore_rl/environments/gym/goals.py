"""Goals of gymnasium's and gym's goal environments.

Their observations are a Dict of achieved_goal, desired_goal and observation, and their method
`compute_reward(achieved, desired, info)` gives the reward of other goals than those of an episode.
A compiled learner cannot call it, so it is tried, and taken if it tells only whether a goal is
near.
"""

from typing import Any

import numpy as np

from mindspore_rl.environments.environment import Goal
from mindspore_rl.environments.sync_vector import RAISED

_KEYS = ["achieved_goal", "desired_goal", "observation"]
_TRIALS = 64
_FAR = 1e6


def goal_of(env: Any) -> Goal | None:
    """Returns the goal of an environment, or None if it has none, or no reward of nearness alone.

    Args:
        env: an environment of gymnasium or gym, with any wrappers.
    """
    own = env.unwrapped
    parts = getattr(getattr(own, "observation_space", None), "spaces", None)
    compute = getattr(own, "compute_reward", None)
    if compute is None or not isinstance(parts, dict) or list(parts) != _KEYS:
        return None
    size = int(np.prod(parts[_KEYS[0]].shape))
    try:
        return _tried(own, compute, size)
    except RAISED:  # another `compute_reward` than gymnasium's
        return None


def _tried(own: Any, compute: Any, size: int) -> Goal | None:
    rng = np.random.default_rng(0)
    here = np.zeros(size)

    def reward(place: np.ndarray) -> float:
        return float(compute(place, here, {}))

    reached, missed = reward(here), reward(here + _FAR)
    near, far = 0.0, _FAR
    along = np.eye(size)[0]
    for _ in range(_TRIALS):
        middle = (near + far) / 2
        near, far = (middle, far) if reward(middle * along) == reached else (near, middle)
    if reached == missed or not near:
        return None
    for factor in (0.1, 0.9, 0.999, 1.001, 1.1, 10.0):
        for _ in range(_TRIALS):
            way = rng.standard_normal(size)
            shift = factor * near * way / np.linalg.norm(way)
            start = rng.standard_normal(size)
            found = float(compute(start + shift, start, {}))
            if found != (reached if factor < 1 else missed):
                return None
    ends = getattr(own, "compute_terminated", None)
    return Goal(size, near, reached, missed, bool(ends and ends(here, here, {})))
