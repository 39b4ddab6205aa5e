"""Example of an environment of your own, written for gymnasium, with wrappers around it.

A room cools or warms towards the temperature outside. The heater must keep it at 20 degrees; the
episode ends below 10 and above 30. The observation is a Dict, which msrl flattens.
"""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformReward

WEATHERS = (-10.0, 0.0, 10.0)  # degrees outside


class Thermostat(gymnasium.Env):
    """One room; all random numbers come from `self.np_random`, which `reset` seeds."""

    observation_space = spaces.Dict(
        {"weather": spaces.Discrete(len(WEATHERS)), "room": spaces.Box(-30.0, 30.0, (1,))})
    action_space = spaces.Discrete(2)  # the heater is off or on
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        """Starts a day: draws the weather, and a temperature within 5 degrees of the target."""
        super().reset(seed=seed)
        self.weather = int(self.np_random.integers(len(WEATHERS)))
        self.room = self.np_random.uniform(15.0, 25.0)
        return self._obs(), {}

    def step(self, action):
        """Advances ten minutes."""
        self.room += 0.05 * (WEATHERS[self.weather] - self.room) + 2.0 * action
        terminated = bool(abs(self.room - 20.0) > 10.0)
        return self._obs(), -abs(self.room - 20.0), terminated, False, {}

    def render(self):
        """Draws the room's temperature as a column, red if it is too warm or too cold."""
        picture = np.full((64, 64, 3), 255, np.uint8)
        height = int(np.clip(3.2 * (self.room - 10.0), 1.0, 64.0))
        right = abs(self.room - 20.0) < 2.0
        picture[64 - height :, 24:40] = (60, 120, 60) if right else (200, 60, 40)
        return picture

    def _obs(self):
        return {"weather": self.weather, "room": np.array([self.room - 20.0], np.float32)}


def make_thermostat(render_mode=None):
    """Makes the room with all its wrappers: an episode is a day, and rewards are about 1."""
    env = TransformReward(Thermostat(render_mode), lambda reward: 1.0 + 0.1 * reward)
    return TimeLimit(env, 144)
