"""Example of an environment with Dict observations and an action mask: the orders of a small shop.

Each day it may order goods, as many as its shelf has room for. Goods that are sold earn 1, goods
that are left cost something.
"""

import gymnasium
import numpy as np
from gymnasium import spaces

DAYS, PRICE, COST = 28, 1.0, 0.3


class Shop(gymnasium.Env):
    """Action a orders a goods; an episode is four weeks."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (gymnasium's form)

    def __init__(self, shelf=4, render_mode=None):
        """`shelf` is the number of goods that it has room for."""
        self.shelf, self.render_mode = shelf, render_mode
        self.action_space = spaces.Discrete(shelf + 1)
        self.observation_space = spaces.Dict(
            {
                "asked": spaces.Box(0.0, 1.0, (3,), np.float32),  # shares of the shelf
                "weekday": spaces.Discrete(7),
                "action_mask": spaces.Box(0, 1, (shelf + 1,), np.int8),
            }
        )

    def reset(self, *, seed=None, options=None):
        """Empties the shelf."""
        super().reset(seed=seed)
        self.day, self.stock = 0, 0
        return self._next_day(), {}

    def step(self, action):
        """Orders goods, then sells what customers ask for."""
        if not 0 <= action <= self.shelf - self.stock:
            raise ValueError(f"{action} goods for a shelf of {self.shelf} with {self.stock}")
        goods = self.stock + int(action)
        sold = min(goods, round(float(self.asked.mean()) * self.shelf))
        self.stock, self.day = goods - sold, self.day + 1
        reward = PRICE * sold - COST * self.stock
        return self._next_day(), reward, False, self.day == DAYS, {"left": self.stock}

    def render(self):
        """Draws the shelf."""
        frame = np.full((64, 64, 3), 255, np.uint8)
        frame[64 - 64 * self.stock // self.shelf :] = (200, 60, 60)
        return frame

    def _next_day(self):
        self.asked = self.np_random.random(3, np.float32)
        mask = (np.arange(self.shelf + 1) <= self.shelf - self.stock).astype(np.int8)
        return {"asked": self.asked, "weekday": self.day % 7, "action_mask": mask}
