"""CartPole whose steps take unequal times, as those of a real simulator do."""

import random
import time

import gymnasium

USUAL_S, SELDOM_S = 0.001, 0.050
"""Times of a step; one step in `SELDOM` takes the longer one."""
SELDOM = 50
TOGETHER = 4


class Uneven(gymnasium.Wrapper):
    """Waits in each step; the waits are random and do not change what the environment does.

    A rank waits for its environments together, as for simulators that are processes of their own.
    """

    def __init__(self, env):
        super().__init__(env)
        self.metadata = {**env.metadata, "concurrent": TOGETHER}
        self._draw = random.Random()

    def step(self, action):
        """Waits, then steps."""
        time.sleep(SELDOM_S if self._draw.randrange(SELDOM) == 0 else USUAL_S)
        return self.env.step(action)


def make_uneven():
    """Makes one environment."""
    return Uneven(gymnasium.make("CartPole-v1"))
