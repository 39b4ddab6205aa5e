"""Episodes, and the columns that a data set keeps of their steps."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.finite_check import all_trainable, untrainable
from mindspore_rl.environments.spaces import Box, Discrete, within
from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.spec import Column

NAMES = ("obs", "action", "reward", "terminated", "truncated", "return_to_go", "step")
"""Names of the columns of every data set."""


def columns_of(
    obs_shape: tuple[int, ...],
    action: Column,
    agent_shape: tuple[int, ...] = (),
    obs_dtype: str = "float32",
) -> tuple[Column, ...]:
    """Returns the columns of a data set.

    Args:
        obs_shape: of one observation.
        action: the column of actions.
        agent_shape: see `EnvironmentSpec`.
        obs_dtype: see `EnvironmentSpec`.
    """
    kinds = [((), "bool"), ((), "bool"), ((), "float32"), ((), "int32")]
    others = [Column(name, *kind) for name, kind in zip(NAMES[3:], kinds, strict=True)]
    return (
        Column("obs", obs_shape, obs_dtype),
        action,
        Column("reward", agent_shape, "float32"),
        *others,
    )


def of_environment(spec: EnvironmentSpec) -> tuple[Column, ...]:
    """Returns the columns of a data set of an environment."""
    agents, space = spec.agent_shape, spec.action_space
    action = Column("action", agents, "int32")
    if isinstance(space, Box):
        action = Column("action", (*agents, len(space.low)), "float32")
    return columns_of(spec.obs_shape, action, agents, spec.obs_dtype)


@dataclass(frozen=True)
class Episode:
    """All steps of an episode, with the dtypes of the columns.

    Args:
        obs: `[T, ...] float32`, before each step.
        action: `[T] int32` or `[T, k] float32`.
        reward: `[T] float32`, or `[T, A]` for several agents.
        terminated: `[T] bool`, True at most at the last step.
        truncated: `[T] bool`, True at most at the last step.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def check(self, where: str, space: Discrete | Box | None) -> None:
        """Checks the numbers of the episode.

        Raises:
            ReplayError: a number cannot be trained on, or an action is outside of the space.
        """
        for name in ("obs", "reward", "action"):
            array = getattr(self, name)
            if not all_trainable(array):
                raise ReplayError(f"{where}: {untrainable(name, array)}")
        if isinstance(space, Discrete) and not ((self.action >= 0) & (self.action < space.n)).all():
            raise ReplayError(
                f"{where}: actions are {self.action.min()} to {self.action.max()}, expected 0 to "
                f"{space.n - 1}"
            )

    @property
    def rewards(self) -> np.ndarray:
        """Rewards `[T] float64`, for several agents their mean."""
        reward = self.reward.astype(np.float64)
        return reward if reward.ndim == 1 else reward.mean(axis=1)

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of the data set, `[T, ...]` each.

        `return_to_go` of a step is the sum of its reward and of all following ones.
        """
        left = np.cumsum(self.rewards[::-1])[::-1]
        steps = np.arange(len(left), dtype=np.int32)
        return {**vars(self), "return_to_go": left.astype(np.float32), "step": steps}


class Bounded:
    """Clips actions of episodes to the bounds of a `Box`, as environments do, and counts them."""

    def __init__(self, space: Discrete | Box | None) -> None:
        self._space = space
        self._outside, self._steps, self._worst, self._beyond = 0, 0, "", 0.0

    def of(self, episodes: Iterable[Episode]) -> Iterator[Episode]:
        """Yields the episodes with clipped actions."""
        for number, episode in enumerate(episodes):
            if not isinstance(self._space, Box):
                yield episode
                continue
            found = within(episode.action, *self._space.limits, whole=False)
            action = found.astype(np.float32, copy=False)
            beyond = np.abs(episode.action - action)
            self._steps += len(action)
            self._outside += int(np.count_nonzero(beyond.any(axis=1)))
            if beyond.max() > self._beyond:
                step, k = np.unravel_index(beyond.argmax(), beyond.shape)
                low, high = self._space.low[k], self._space.high[k]
                self._beyond = float(beyond.max())
                self._worst = (
                    f"{episode.action[step, k]:g} for {low:g} to {high:g}, in episode {number}"
                )
            yield replace(episode, action=action)

    def told(self) -> str:
        """Describes the clipped actions; empty if there were none."""
        if not self._outside:
            return ""
        return (
            f"{self._outside:,} of {self._steps:,} actions are outside the bounds of their space "
            f"(at worst {self._worst}) and were clipped, as an environment does: if they are in "
            "other units, scale them and import them anew"
        )


class Recorder:
    """Records the first episode of each of B environments, step by step.

    It does not record all episodes within some time, since too many of those would be short.

    Args:
        space: of the actions, which are recorded clipped to its bounds, as the environment takes
            them.
    """

    def __init__(self, space: Discrete | Box) -> None:
        self._space = space
        self._rows: dict[int, list[tuple[np.ndarray, ...]]] = {}

    def watch(self, *step: np.ndarray) -> None:
        """Takes obs, action, reward, terminated, truncated, and which episodes are under way."""
        *parts, under_way = step
        if isinstance(self._space, Box):
            found = within(parts[1], *self._space.limits, self._space.whole)
            parts[1] = found.astype(np.float32, copy=False)
        for row in np.flatnonzero(under_way).tolist():
            self._rows.setdefault(row, []).append(tuple(part[row].copy() for part in parts))

    def episodes(self) -> list[Episode]:
        """Returns the recorded episodes; unfinished ones are marked as truncated."""
        found = []
        for rows in self._rows.values():
            episode = Episode(*(np.stack(column) for column in zip(*rows, strict=True)))
            episode.truncated[-1] |= not episode.terminated[-1]
            found.append(episode)
        return found
