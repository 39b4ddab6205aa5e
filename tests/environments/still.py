"""An environment without state in which nothing happens, on which others of tests build."""

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete


class Still:
    """Observations are 0, rewards 1, and no episode ends before its time."""

    max_episode_steps = 100

    def __init__(self, env_indices, seed):
        self.size = len(env_indices)
        self.spec = EnvironmentSpec("still", (4,), Discrete(2), self.max_episode_steps, None, False)

    def reset(self):
        return np.zeros((self.size, 4), np.float32)

    def step(self, action):
        obs, over = np.zeros((self.size, 4), np.float32), np.zeros(self.size, bool)
        return obs, obs.copy(), np.ones(self.size, np.float32), over, over.copy()

    def get_state(self):
        return None

    def close(self):
        pass
