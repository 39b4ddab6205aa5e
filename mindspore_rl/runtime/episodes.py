"""Returns and lengths of episodes, counted while they are played."""

import numpy as np


def team_reward(reward: np.ndarray) -> np.ndarray:
    """The mean over agents `[B]` of rewards `[B, A]`; rewards `[B]` as they are."""
    return reward if reward.ndim == 1 else reward.mean(axis=1)


class EpisodeCounter:
    """Running account of some environments.

    Attributes:
        returns: of the episodes under way `[B]` float64, reward units.
        lengths: of the episodes under way `[B]`, steps.
    """

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, int)
        self._finished: list[tuple[float, int]] = []

    def count(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """Adds one step.

        Args:
            reward: `[B]`, or `[B, A]` of several agents, whose mean counts.
            ended: which episodes ended with it, `[B]` bool.
        """
        self.returns += team_reward(reward)
        self.lengths += 1
        if ended.any():
            for index in np.flatnonzero(ended):
                self._finished.append((float(self.returns[index]), int(self.lengths[index])))
            self.returns[ended] = 0.0
            self.lengths[ended] = 0

    def take_finished(self) -> list[tuple[float, int]]:
        """Return and length of the episodes that ended since the last call."""
        finished = list(self._finished)
        self._finished.clear()
        return finished

    def part(self, rows: slice) -> "EpisodeCounter":
        """A counter of some of the environments that counts for this one too."""
        part = EpisodeCounter(0)
        part.returns, part.lengths = self.returns[rows], self.lengths[rows]
        part._finished = self._finished
        return part
