"""Probe environments: tiny, with a known optimum, to find the faulty part of an algorithm.

| name | what happens | optimum |
|---|---|---|
| probe:constant | one step, obs 1, reward 1 | value 1 |
| probe:bits | an action flips one of 15 bits, reward 0 if they are those of a goal | return -6.5 |
| probe:bandit | one step, obs -1 or +1, reward 1 if action 0 or 1 agrees, else -1 | return 1 |
| probe:choice | three steps, two of four actions are valid in each, reward 1 for one | return 3 |
| probe:delay | two steps, obs 0 then 1, reward 1 at the end | values gamma, then 1 |
| probe:memory | five steps, the first shows -1 or +1, then as the bandit at the end | return 1 |
| probe:pixels | as the bandit; obs a bright square on a dark image, left or right | return 1 |
| probe:reach | a point moves in a square, reward 0 near a goal, else -1 | return about -8 |
| probe:truncated | obs 1, reward 1, truncated after 10 steps | value 1 / (1 - gamma) |
"""

import dataclasses
from typing import ClassVar

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec, Goal
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.errors import EnvironmentFailure


def _spec(name: str, max_episode_steps: int, reward_threshold: float) -> EnvironmentSpec:
    return EnvironmentSpec(
        name, (1,), Discrete(2), max_episode_steps, reward_threshold, in_graph=False
    )


class Probe:
    """Counts steps; the subclasses define observations and rewards."""

    spec: ClassVar[EnvironmentSpec]
    terminates: ClassVar[bool] = True

    def __init__(self, env_indices: range, seed: int) -> None:
        self._indices = np.array(env_indices, np.uint64)
        self._seed = np.array([seed], np.uint64)
        self.reset()

    def reset(self) -> np.ndarray:
        """Returns to the initial state, always the same. Returns: obs `[B, ...]`."""
        self._elapsed = np.zeros(len(self._indices), np.int64)
        self._total = np.zeros(len(self._indices), np.int64)
        return self._observe()

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes one step of every environment; see `VectorEnvironment.step`."""
        reward = self._reward(action)
        self._elapsed += 1
        self._total += 1
        final_obs = self._observe()
        ended = self._elapsed >= self.spec.max_episode_steps
        self._elapsed[ended] = 0
        never = np.zeros_like(ended)
        terminated, truncated = (ended, never) if self.terminates else (never, ended)
        next_obs = final_obs.copy()
        next_obs[ended] = self._observe()[ended]
        return next_obs, final_obs, reward, terminated, truncated

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns the step counts `[B] int64`; all other state follows from them and the seed."""
        return {"elapsed": self._elapsed.copy(), "total": self._total.copy()}

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restores a state from `get_state()`. Returns: the current obs `[B, ...]`."""
        self._elapsed, self._total = state["elapsed"].copy(), state["total"].copy()
        return self._observe()

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _observe(self) -> np.ndarray:
        return np.ones((len(self._indices), 1), np.float32)

    def _reward(self, action: np.ndarray) -> np.ndarray:
        return np.ones(len(action), np.float32)


class Constant(Probe):
    """One step with reward 1: tests the value function alone."""

    spec = _spec("probe:constant", 1, 1.0)


class Bandit(Probe):
    """The action must match the observation: tests the policy alone."""

    spec = _spec("probe:bandit", 1, 1.0)

    def _observe(self) -> np.ndarray:
        return (2.0 * self._wanted()[:, None] - 1.0).astype(np.float32)

    def _reward(self, action: np.ndarray) -> np.ndarray:
        return np.where(np.asarray(action) == self._wanted(), 1.0, -1.0).astype(np.float32)

    def _wanted(self) -> np.ndarray:
        return (self._random() >> np.uint64(63)).astype(np.int64)

    def _random(self) -> np.ndarray:
        began = self._total - self._elapsed
        return _hash(self._seed, self._indices, (began + (self._elapsed << 32)).astype(np.uint64))


class Pixels(Bandit):
    """The action must match the side of an image on which a square appears, at any place there."""

    spec = dataclasses.replace(
        _spec("probe:pixels", 1, 1.0), obs_shape=(1, 36, 36), obs_dtype="uint8"
    )

    def _observe(self) -> np.ndarray:
        images = np.full((len(self._indices), 1, 36, 36), 40, np.uint8)
        for image, random, right in zip(images[:, 0], self._random(), self._wanted(), strict=True):
            top, left = int(random) % 28, int(random) // 28 % 10 + 18 * right
            image[top : top + 8, left : left + 8] = 200
        return images


class Delay(Probe):
    """Two steps with the reward at the end: tests discounting and bootstrapping."""

    spec = _spec("probe:delay", 2, 1.0)

    def _observe(self) -> np.ndarray:
        return np.minimum(self._elapsed, 1).astype(np.float32)[:, None]

    def _reward(self, action: np.ndarray) -> np.ndarray:
        return (self._elapsed == 1).astype(np.float32)


class Choice(Bandit):
    """Two of four actions are valid in a step, and the last of them is wanted if obs is 1.

    Raises:
        EnvironmentFailure: an action is invalid, so that a mask that is lost or late is found.
    """

    spec = dataclasses.replace(
        _spec("probe:choice", 3, 3.0), obs_shape=(5,), action_space=Discrete(4), action_mask=True
    )
    pairs = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1]])

    def _observe(self) -> np.ndarray:
        return np.concatenate([super()._observe(), self._mask()], 1).astype(np.float32)

    def _mask(self) -> np.ndarray:
        return self.pairs[self._random() % np.uint64(len(self.pairs))]

    def _reward(self, action: np.ndarray) -> np.ndarray:
        mask, action = self._mask(), np.asarray(action)
        for index, valid, one in zip(self._indices, mask, action, strict=True):
            if not valid[one]:
                raise EnvironmentFailure(
                    f"probe:choice, environment {index}: action {one} is invalid, the mask is "
                    f"{valid.tolist()}"
                )
        last = 3 - mask[:, ::-1].argmax(1)
        wanted = np.where(self._wanted(), last, mask.argmax(1))
        return np.where(action == wanted, 1.0, -1.0).astype(np.float32)


class Memory(Bandit):
    """The last of five actions must match the observation of the first step.

    Observations: [the value to remember, or 0; 1 in the last step].
    """

    spec = dataclasses.replace(_spec("probe:memory", 5, 1.0), obs_shape=(2,))

    def _observe(self) -> np.ndarray:
        shown = np.where(self._elapsed == 0, super()._observe()[:, 0], 0.0)
        return np.stack([shown, self._elapsed == 4], 1).astype(np.float32)

    def _reward(self, action: np.ndarray) -> np.ndarray:
        return np.where(self._elapsed == 4, super()._reward(action), 0.0).astype(np.float32)

    def _random(self) -> np.ndarray:
        began = (self._total - self._elapsed).astype(np.uint64)
        return _hash(self._seed, self._indices, began)


class Truncated(Probe):
    """Ends only by the time limit: the value is 1 / (1 - gamma) if truncation is bootstrapped."""

    spec = _spec("probe:truncated", 10, 10.0)
    terminates = False


class Bits(Probe):
    """Bit flipping: reward -1 until all bits are those of the goal, then the episode terminates.

    Section 3.1 of Andrychowicz et al. 2017, arXiv 1707.01495. Without hindsight, hardly an episode
    sees a reward: there are 2^15 states.
    """

    goal = Goal(15, 0.5, ends=True)
    spec = dataclasses.replace(
        _spec("probe:bits", 15, -8.0), obs_shape=(30,), action_space=Discrete(15), goal=goal
    )

    def reset(self) -> np.ndarray:
        """See `Probe.reset`."""
        size = len(self._indices)
        self._elapsed, self._total = np.zeros((2, size), np.int64)
        self._place, self._desired = np.zeros((2, size, self.goal.size), np.float32)
        self._begin(np.full(size, True))
        return self._observe()

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes one step of every environment; see `VectorEnvironment.step`."""
        goal = self.goal
        self._place = self._moved(np.asarray(action))
        self._elapsed += 1
        self._total += 1
        final_obs = self._observe()
        there = np.square(self._place - self._desired).sum(1) <= goal.tolerance**2
        terminated = there & goal.ends
        truncated = (self._elapsed >= self.spec.max_episode_steps) & ~terminated
        ended = terminated | truncated
        self.episode_info = [{"is_success": float(one)} for one in there[ended]]
        self._begin(ended)
        reward = np.where(there, goal.reached, goal.missed).astype(np.float32)
        return self._observe(), final_obs, reward, terminated, truncated

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns the step counts `[B] int64`, and the places and goals `[B, size] float32`."""
        places = {"place": self._place.copy(), "desired": self._desired.copy()}
        return {**super().get_state(), **places}

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restores a state from `get_state()`. Returns: the current obs `[B, ...]`."""
        self._place, self._desired = state["place"].copy(), state["desired"].copy()
        return super().set_state(state)

    def _begin(self, ended: np.ndarray) -> None:
        """Draws places and goals where an episode begins."""
        self._elapsed[ended] = 0
        number = self._total.astype(np.uint64)[:, None] << np.uint64(32)
        number = number + np.arange(2 * self.goal.size, dtype=np.uint64)
        drawn = _hash(self._seed, self._indices[:, None], number) >> np.uint64(40)
        drawn = self._scaled(drawn.astype(np.float32) / 2**24)
        self._place[ended] = drawn[ended, : self.goal.size]
        self._desired[ended] = drawn[ended, self.goal.size :]

    def _observe(self) -> np.ndarray:
        return np.concatenate([self._place, self._desired], 1)

    def _scaled(self, uniform: np.ndarray) -> np.ndarray:
        return np.floor(2 * uniform)

    def _moved(self, action: np.ndarray) -> np.ndarray:
        flipped = np.arange(self.goal.size) == action[:, None]
        return np.where(flipped, 1 - self._place, self._place)


class Reach(Bits):
    """A point moves by up to 0.1 along each axis, in a square of side 2, and should stay at a goal.

    Goals are 0.05 wide, so that hardly a random walk meets one.
    """

    goal = Goal(2, 0.05)
    spec = dataclasses.replace(
        _spec("probe:reach", 50, -12.0),
        obs_shape=(4,),
        action_space=Box((2,), (-1.0, -1.0), (1.0, 1.0)),
        goal=goal,
    )

    def _scaled(self, uniform: np.ndarray) -> np.ndarray:
        return 2 * uniform - 1

    def _moved(self, action: np.ndarray) -> np.ndarray:
        return np.clip(self._place + 0.1 * np.clip(action, -1, 1), -1, 1).astype(np.float32)


_ALL = (Constant, Bandit, Bits, Choice, Delay, Memory, Pixels, Reach, Truncated)
PROBES = {probe.spec.name: probe for probe in _ALL}


def _hash(*words: np.ndarray) -> np.ndarray:
    """Mixes uint64 words into one (splitmix64; Steele, Lea and Flood, 2014); broadcasts."""
    mixed = np.zeros(1, np.uint64)
    for word in words:
        mixed = (mixed ^ word) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
