"""A single environment of one's own, written for gymnasium, with wrappers around it.

A room cools or warms towards the weather outside; the heater is to keep it at 20 degrees, between
10 and 30: outside of them the episode is over. What is observed is a Dict, and msrl flattens it.
"""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformReward

WEATHERS = (-10.0, 0.0, 10.0)  # degrees outside


class Thermostat(gymnasium.Env):
    """One room; everything random comes from `self.np_random`, which `reset` seeds."""

    observation_space = spaces.Dict(
        {"weather": spaces.Discrete(len(WEATHERS)), "room": spaces.Box(-30.0, 30.0, (1,))})
    action_space = spaces.Discrete(2)  # the heater is off or on
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        """Starts a day: the weather, and a room within 5 degrees of the aim."""
        super().reset(seed=seed)
        self.weather = int(self.np_random.integers(len(WEATHERS)))
        self.room = self.np_random.uniform(15.0, 25.0)
        return self._obs(), {}

    def step(self, action):
        """Ten minutes pass."""
        self.room += 0.05 * (WEATHERS[self.weather] - self.room) + 2.0 * action
        terminated = bool(abs(self.room - 20.0) > 10.0)
        return self._obs(), -abs(self.room - 20.0), terminated, False, {}

    def render(self):
        """The room's temperature as a column, red where it is too warm or too cold."""
        picture = np.full((64, 64, 3), 255, np.uint8)
        height = int(np.clip(3.2 * (self.room - 10.0), 1.0, 64.0))
        right = abs(self.room - 20.0) < 2.0
        picture[64 - height :, 24:40] = (60, 120, 60) if right else (200, 60, 40)
        return picture

    def _obs(self):
        return {"weather": self.weather, "room": np.array([self.room - 20.0], np.float32)}


def make_thermostat(render_mode=None):
    """The same with a day's end and rewards of about 1: what is made has all its wrappers."""
    env = TransformReward(Thermostat(render_mode), lambda reward: 1.0 + 0.1 * reward)
    return TimeLimit(env, 144)
