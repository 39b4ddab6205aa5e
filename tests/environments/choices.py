"""probe:choice in MindSpore operators: an invalid action gives a reward that ends the run."""

from typing import ClassVar

import numpy as np
from mindspore import Tensor, float32, int32, nn, ops

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.probe import Choice
from mindspore_rl.environments.spaces import Discrete

STEPS = 3


class GraphChoice(nn.Cell):
    """State: a random number, from which the mask and the wanted action follow; steps taken."""

    spec: ClassVar[EnvironmentSpec] = EnvironmentSpec(
        "GraphChoice", (5,), Discrete(4), STEPS, 3.0, in_graph=True, action_mask=True
    )
    noise_size, state_size = 1, 2

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.masks = Tensor(Choice.pairs, float32)
        self.places = Tensor(np.arange(4), float32)

    def reset(self, noise):
        state = ops.concat((noise, ops.zeros_like(noise)), 1)
        return state, self._obs(state)

    def step(self, state, action, noise):
        obs = self._obs(state)
        mask, place = obs[:, 1:], action.astype(float32)
        last = ops.amax(mask * self.places, 1)
        first = 3.0 - ops.amax(mask * (3.0 - self.places), 1)
        right = place == ops.where(obs[:, 0] > 0, last, first)
        invalid = (mask * (self.places == place.expand_dims(1)).astype(float32)).sum(1) < 0.5
        reward = ops.where(right, 1.0, -1.0 * ops.ones_like(place))
        reward = ops.where(invalid, np.inf, reward)
        moved = ops.concat((noise, state[:, 1:] + 1.0), 1)
        terminated = moved[:, 1] >= STEPS
        started = ops.concat((1.0 - noise, ops.zeros_like(noise)), 1)
        state = ops.where(terminated.expand_dims(1), started, moved)
        never = ops.zeros_like(place) > 1.0
        return state, self._obs(state), self._obs(moved), reward, terminated, never

    def _obs(self, state):
        number = state[:, :1] * len(Choice.pairs)
        whole = ops.floor(number)
        sign = ops.where(number - whole < 0.5, -1.0, 1.0 * ops.ones_like(number))
        mask = ops.gather(self.masks, whole[:, 0].astype(int32), 0)
        return ops.concat((sign, mask), 1)
