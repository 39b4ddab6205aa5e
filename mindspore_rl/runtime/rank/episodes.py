"""Counts returns and lengths of episodes."""

from collections import deque
from collections.abc import Sequence

import numpy as np

Episode = tuple[float, int] | tuple[float, int, dict[str, float]]
"""Return and length of an episode, and numbers from its environment's `info` if it has any."""
MEAN_EPISODES = 100
"""Number of the last episodes whose mean return is a metric."""


def team_reward(reward: np.ndarray) -> np.ndarray:
    """Averages rewards `[B, A]` over agents to `[B]`; returns rewards `[B]` unchanged."""
    return reward if reward.ndim == 1 else reward.mean(axis=1)


class EpisodeCounter:
    """Running returns and lengths of the episodes of some environments.

    Attributes:
        returns: of the current episodes `[B]` float64, reward units.
        lengths: of the current episodes `[B]`, steps.
    """

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, int)
        self._finished: list[Episode] = []

    def count(
        self, reward: np.ndarray, ended: np.ndarray, info: Sequence[dict[str, float]] = ()
    ) -> None:
        """Adds one step.

        Args:
            reward: `[B]`, or `[B, A]` of several agents, which is averaged.
            ended: which episodes ended with this step, `[B]` bool.
            info: numbers of each of these, by name; empty: there are none.
        """
        self.returns += team_reward(reward)
        self.lengths += 1
        if np.count_nonzero(ended):  # four times as fast as `any`
            self._finish(ended, info)

    def count_all(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """Adds many steps at once; only steps at which episodes end are handled one by one.

        Keeps the last `MEAN_EPISODES` only: thousands of environments end hundreds of thousands of
        episodes in an iteration.

        Args:
            reward: `[T, B]`.
            ended: `[T, B]` bool.
        """
        start = 0
        for row in np.flatnonzero(ended.any(axis=1)).tolist():
            self._add(reward[start : row + 1])
            self._finish(ended[row])
            start = row + 1
        self._add(reward[start:])
        del self._finished[:-MEAN_EPISODES]

    def _add(self, reward: np.ndarray) -> None:
        self.returns += reward.sum(axis=0, dtype=np.float64)
        self.lengths += len(reward)

    def _finish(self, ended: np.ndarray, info: Sequence[dict[str, float]] = ()) -> None:
        places = np.flatnonzero(ended)
        for place, index in enumerate(places if info else places[-MEAN_EPISODES:]):
            more = (info[place],) if info and info[place] else ()
            self._finished.append((float(self.returns[index]), int(self.lengths[index]), *more))
        self.returns[ended] = 0.0
        self.lengths[ended] = 0

    def take_finished(self) -> list[Episode]:
        """Returns the episodes that ended since the last call.

        Episodes without `info` may be missing if they cannot change a metric.
        """
        finished = list(self._finished)
        self._finished.clear()
        return finished

    def part(self, rows: slice) -> "EpisodeCounter":
        """Returns a counter of some environments, which also adds to this counter."""
        part = EpisodeCounter(0)
        part.returns, part.lengths = self.returns[rows], self.lengths[rows]
        part._finished = self._finished
        return part


class RecentEpisodes:
    """Mean return and length of the last `MEAN_EPISODES` episodes."""

    def __init__(self) -> None:
        self._returns: deque[float] = deque(maxlen=MEAN_EPISODES)
        self._lengths: deque[int] = deque(maxlen=MEAN_EPISODES)

    def add(self, episodes: Sequence[Episode]) -> None:
        """Adds episodes, the latest last."""
        for episode_return, length, *_ in episodes:
            self._returns.append(float(episode_return))
            self._lengths.append(int(length))

    @property
    def mean_return(self) -> float | None:
        """Reward units; None before the first episode."""
        return _mean(self._returns)

    @property
    def mean_length(self) -> float | None:
        """Steps; None before the first episode."""
        return _mean(self._lengths)

    @property
    def settled_return(self) -> float | None:
        """The mean return once there are `MEAN_EPISODES` episodes; None before."""
        return self.mean_return if len(self._returns) == MEAN_EPISODES else None


def _mean(numbers: deque[float] | deque[int]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


class Goal:
    """Whether the mean return of the last episodes has reached the one at which a job ends.

    Args:
        mean_return: reward units; NaN: it is never reached.
    """

    def __init__(self, mean_return: float) -> None:
        self._goal = mean_return
        self._recent = RecentEpisodes()

    def reached(self, episodes: Sequence[Episode]) -> bool:
        """Adds the episodes of an iteration. Returns: whether the mean is as high after it."""
        self._recent.add(episodes)
        mean = self._recent.settled_return
        return mean is not None and mean >= self._goal
