"""Example of an environment of your own: a corridor in NumPy, and in MindSpore operators.

A walker starts at a random place in a corridor from -1 to 1 and must leave it on the right: reward
+1 for that, -1 for leaving on the left, -0.01 per step, at most 50 steps.
"""

from typing import ClassVar

import numpy as np
from mindspore import nn, ops

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.rl import random

LIMIT = 50
STRIDE = 0.1


def _spec(name: str, in_graph: bool) -> EnvironmentSpec:
    return EnvironmentSpec(name, (1,), Discrete(2), LIMIT, 0.85, in_graph)


class Corridor:
    """The corridor in NumPy: one call steps all environments of a worker."""

    spec: ClassVar[EnvironmentSpec] = _spec("Corridor", in_graph=False)

    def __init__(self, env_indices: range, seed: int) -> None:
        self.env_indices, self.seed = np.array(env_indices), seed
        self.reset()

    def reset(self) -> np.ndarray:
        """Returns to the initial state, with the same places each time."""
        self.elapsed = np.zeros(len(self.env_indices), np.int64)
        self.total = np.zeros(len(self.env_indices), np.int64)
        self.place = self._start()
        return self._obs()

    def step(self, action):
        """Moves every walker; the episodes that end start again."""
        self.place = self.place + np.float32(STRIDE) * (2 * np.asarray(action) - 1)
        self.place = self.place.astype(np.float32)
        self.elapsed += 1
        self.total += 1
        terminated = np.abs(self.place) > 1
        truncated = (self.elapsed >= LIMIT) & ~terminated
        reward = np.where(terminated, np.sign(self.place), -0.01).astype(np.float32)
        final_obs = self._obs()
        ended = terminated | truncated
        self.place = np.where(ended, self._start(), self.place)
        self.elapsed[ended] = 0
        return self._obs(), final_obs, reward, terminated, truncated

    def get_state(self):
        """Returns the whole state, by environment."""
        return {"place": self.place.copy(), "elapsed": self.elapsed.copy(),
                "total": self.total.copy()}

    def set_state(self, state):
        """Restores a state from `get_state()`."""
        self.place, self.elapsed, self.total = (
            state[name].copy() for name in ("place", "elapsed", "total"))
        return self._obs()

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _obs(self) -> np.ndarray:
        return self.place[:, None].copy()

    def _start(self) -> np.ndarray:
        """Draws places from (seed, environment, steps taken): the same ones on every worker."""
        places = [random.uniform(self.seed, random.stream("start"), [total], [index], 1).item()
                  for index, total in zip(self.env_indices, self.total, strict=True)]
        return np.array(places, np.float32) - np.float32(0.5)


class GraphCorridor(nn.Cell):
    """The corridor in MindSpore operators: state in, state out, so it can be compiled."""

    spec: ClassVar[EnvironmentSpec] = _spec("GraphCorridor", in_graph=True)
    noise_size = 1
    state_size = 2

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def reset(self, noise):
        """Returns: state `[B, 2]`, place and steps taken; obs `[B, 1]`."""
        state = self._start(noise)
        return state, state[:, 0:1]

    def step(self, state, action, noise):
        """Moves every walker; `noise` is for the episodes that start again."""
        place = state[:, 0] + STRIDE * (2.0 * action.astype("float32") - 1.0)
        elapsed = state[:, 1] + 1.0
        moved = ops.stack((place, elapsed), 1)
        terminated = ops.abs(place) > 1.0
        truncated = ops.logical_and(elapsed >= LIMIT, ops.logical_not(terminated))
        reward = ops.where(terminated, ops.sign(place), -0.01 * ops.ones_like(place))
        ended = ops.expand_dims(ops.logical_or(terminated, truncated), 1)
        state = ops.where(ended, self._start(noise), moved)
        return state, state[:, 0:1], moved[:, 0:1], reward, terminated, truncated

    def _start(self, noise):
        return ops.concat((noise - 0.5, ops.zeros_like(noise)), 1)


class NativeCorridor(GraphCorridor):
    """The same corridor with its step in C++: one operator instead of twenty."""

    spec: ClassVar[EnvironmentSpec] = _spec("NativeCorridor", in_graph=True)
    native = "corridor.cpp"
