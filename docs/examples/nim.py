"""Example of an environment with an action mask: take the last stone of three heaps.

A move takes any number of stones from one heap, and most moves are invalid most of the time. The
opponent moves at random. A player who knows the game's theory always wins.
"""

import gymnasium
import numpy as np
from gymnasium import spaces

HEAPS, STONES = 3, 5


class Nim(gymnasium.Env):
    """Action a takes `a % STONES + 1` stones from heap `a // STONES`."""

    observation_space = spaces.MultiDiscrete([STONES + 1] * HEAPS)
    action_space = spaces.Discrete(HEAPS * STONES)

    def reset(self, *, seed=None, options=None):
        """Draws the heaps, one to five stones each."""
        super().reset(seed=seed)
        self.heaps = self.np_random.integers(1, STONES + 1, HEAPS)
        return self.heaps.copy(), {}

    def action_masks(self):
        """Returns which moves are valid: those that take no more stones than the heap has."""
        return (np.arange(1, STONES + 1) <= self.heaps[:, None]).ravel()

    def step(self, action):
        """Makes a move, then one of the opponent; who takes the last stone wins."""
        self._take(action)
        if not self.heaps.any():
            return self.heaps.copy(), 1.0, True, False, {"won": True}
        self._take(self.np_random.choice(np.flatnonzero(self.action_masks())))
        lost = not self.heaps.any()
        return self.heaps.copy(), -1.0 * lost, lost, False, {"won": False}

    def _take(self, action):
        heap, count = divmod(int(action), STONES)
        if not self.action_masks()[action]:
            raise ValueError(f"heap {heap} has {self.heaps[heap]} stones, not {count + 1}")
        self.heaps[heap] -= count + 1
