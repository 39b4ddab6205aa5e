"""An environment of gym, of which the second that is stepped hangs or crashes, as ODD says."""

import os
import time

import gym
import numpy as np


class Odd(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    stepped = 0
    count = 0

    def reset(self, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        if self.count == 0:  # some are made for a look at their spaces, and never stepped
            self.number, Odd.stepped = Odd.stepped, Odd.stepped + 1
        self.count += 1
        if self.count == 100 and self.number == 1:
            time.sleep(1000) if os.environ["ODD"] == "hang" else os.abort()
        return np.zeros(3, np.float32), 1.0, False, False, {}


gym.register("Odd-v0", entry_point=Odd)
