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

    def _obs(self):
        return {"weather": self.weather, "room": np.array([self.room - 20.0], np.float32)}


def make_thermostat():
    """The same with a day's end and rewards of about 1: what is made has all its wrappers."""
    env = TransformReward(Thermostat(), lambda reward: 1.0 + 0.1 * reward)
    return TimeLimit(env, 144)
