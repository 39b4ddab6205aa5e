"""Random numbers for generated Python code, drawn for some iterations at once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mindspore_rl.rl import random

SIZE = 2**14
"""Random numbers drawn at once, if an iteration needs fewer."""


class RandomTables:
    """Random numbers of some environments, drawn in tables.

    Args:
        seed: of the job.
        env_indices: global indices of the B environments.
        agents: whose numbers these are; None: a single agent.
    """

    def __init__(self, seed: int, env_indices: range, agents: random.Agents | None) -> None:
        self._seed, self._env_indices, self._agents = seed, np.array(env_indices), agents
        self._tables: dict[tuple[str, int], tuple[int, np.ndarray]] = {}

    def uniform(
        self, purpose: str, iteration: int, rows: int, size: int, by_agent: bool = False
    ) -> np.ndarray:
        """Returns uniform numbers in [0, 1): `[rows, B, size]`, by agent `[rows, B, A, size]`.

        Args:
            purpose: names the random stream: each purpose has its own.
            iteration: of the call.
            rows: turns of an iteration.
            size: numbers for one turn of an environment.
            by_agent: whether each agent has its own numbers.
        """
        agents = self._agents if by_agent else None
        stream = random.stream(purpose)

        def draw(steps: np.ndarray) -> np.ndarray:
            return random.uniform(self._seed, stream, steps, self._env_indices, size, agents)

        return self._drawn((purpose, size), iteration, rows, draw)

    def permutations(
        self, purpose: str, iteration: int, rounds: int, num_steps: int, steps: int
    ) -> np.ndarray:
        """Returns permuted positions in the flattened local batch, `[rounds, T / steps, B]` int32.

        Args:
            purpose: see `uniform`.
            iteration: see `uniform`.
            rounds: permutations of an iteration.
            num_steps: T of the batch.
            steps: length of a segment; a position is that of its first step.
        """
        count, stream = len(self._env_indices), random.stream(purpose)
        segments = num_steps // steps

        def draw(turns: np.ndarray) -> np.ndarray:
            order = random.permutations(self._seed, stream, turns, self._env_indices, segments)
            return (order * (steps * count) + np.arange(count)).astype(np.int32)

        return self._drawn((purpose, segments), iteration, rounds, draw)

    def _drawn(
        self, key: tuple[str, int], iteration: int, rows: int, draw: Callable[[np.ndarray], Any]
    ) -> np.ndarray:
        """Returns an iteration's rows of a table, which is drawn for some iterations in advance.

        A call in an unrolled loop may have several tables, of other sizes, for one purpose.

        A draw takes 130 us even for few numbers, as long as an iteration of a small program.
        """
        first, table = self._tables.get(key, (0, None))
        at = (iteration - first) * rows
        if table is None or not 0 <= at < len(table):
            table = draw(np.arange(iteration * rows, (iteration + 1) * rows))
            ahead = SIZE // table.size
            if ahead > 1 and key in self._tables:  # not for what is drawn only once
                table = draw(np.arange(iteration * rows, (iteration + ahead) * rows))
            self._tables[key], at = (iteration, table), 0
        return table[at : at + rows]
