"""Calls of generated code for the environments of one loop."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mindspore_rl.datasets.loader import EnvironmentWindows
from mindspore_rl.errors import EnvironmentFailure, NumericsError
from mindspore_rl.plan.stages import Stage
from mindspore_rl.runtime.rank.arrays import to_host
from mindspore_rl.runtime.rank.cell_cache import Cells
from mindspore_rl.runtime.rank.distributed_replay import KeptByAll
from mindspore_rl.runtime.rank.env_shard import Share
from mindspore_rl.runtime.rank.graph_environment import GraphEnvironments
from mindspore_rl.runtime.rank.noise_tables import RandomTables


@dataclass(frozen=True)
class Parts:
    """What all loops of a rank have in common.

    Attributes:
        trainer: None of a rank without tensors.
        environment: in the graph, if that is where it is.
        group: the replicas of the fragment, for collectives inside cells.
        metrics: of the iteration under way.
    """

    trainer: Any
    environment: Any
    group: Any
    cells: Cells
    graph: GraphEnvironments
    metrics: dict[str, float]


class ShareRuntime:
    """The `w` of a loop."""

    def __init__(self, share: Share, parts: Parts) -> None:
        self.rank, self.share, self._parts = share.rank, share, parts
        self.env_indices, self.agents = share.env_indices, share.rank.agents
        self.seed, self.replay, self.kept = share.rank.plan.seed, share.replay, share.kept
        self.kept_by_all = KeptByAll(share.rank, share.kept)
        self.environment, self.group = parts.environment, parts.group
        self.trainer = parts.trainer
        self.actor = self.trainer.actor if self.trainer else None
        self.learner = self.trainer.learner if self.trainer else None
        self._stacks: dict[str, np.ndarray] = {}
        self._functions: dict[str, Any] = {}
        self._windows: dict[str, EnvironmentWindows] = {}
        self._stepping, self._steps = -1, 0

    @property
    def env_steps(self) -> int:
        """Environment steps of the whole job, as far as this rank knows."""
        return self.rank.env_steps

    def cell(
        self,
        cell_class: type,
        name: str,
        to_host: tuple[int, ...],
        obs: tuple[int, ...] = (),
    ) -> Any:
        """A region's cell as a function, the same each time, see `Cells.function`."""
        if name not in self._functions:
            built = cell_class(self)
            self._functions[name] = self._parts.cells.function(built, name, to_host, obs)
        return self._functions[name]

    @cached_property
    def _tables(self) -> RandomTables:
        return RandomTables(self.seed, self.env_indices, self.agents)

    def env_reset(self) -> np.ndarray:
        """Returns: obs of these environments."""
        self.rank.stamp(Stage.ENVIRONMENT)
        obs = self.share.vector.reset()
        self.rank.stamp(Stage.PYTHON)
        return obs

    def env_step(self, action: Any) -> tuple[np.ndarray, ...]:
        """Steps these environments and keeps account of their episodes."""
        self.rank.stamp(Stage.ENVIRONMENT)
        if self._stepping != self.rank.iteration:
            self._stepping, self._steps = self.rank.iteration, 0
        try:
            outcome = self.share.vector.step(to_host(action))
        except (EnvironmentFailure, NumericsError) as error:
            error.args = (f"step {self._steps}: {error}",)  # the rank names the iteration
            raise
        self._steps += 1
        self.share.episodes.count(outcome[2], outcome[3] | outcome[4])
        self.rank.stamp(Stage.PYTHON)
        return outcome

    def noise(
        self, purpose: str, iteration: int, rows: int, size: int, by_agent: bool = False
    ) -> np.ndarray:
        """Uniform numbers `[rows, B, size]` (`by_agent`: `[rows, B, A, size]`) of one call."""
        return self._tables.uniform(purpose, iteration, rows, size, by_agent)

    @cached_property
    def _tables_of_all(self) -> RandomTables:
        return RandomTables(self.seed, range(self.rank.plan.num_envs), None)

    def noise_of_all(self, purpose: str, iteration: int, rows: int, size: int) -> np.ndarray:
        """Uniform numbers `[rows, B, size]` of one call, of the environments of all replicas."""
        return self._tables_of_all.uniform(purpose, iteration, rows, size, by_agent=False)

    def permutations(self, purpose: str, iteration: Any, rounds: int, steps: int) -> np.ndarray:
        """See `RandomTables.permutations`."""
        # Under a condition, a variable that counts how often the loop was begun.
        count = int(to_host(iteration))
        return self._tables.permutations(purpose, count, rounds, self.rank.plan.num_steps, steps)

    def dataset_windows(
        self, purpose: str, path: str, iteration: int, rows: int, per_env: int, length: int
    ) -> tuple[np.ndarray, ...]:
        """Windows of a data set for an iteration, each `[rows, per_env * B, length, ...]`.

        They may be used until those of the next iteration are asked for.
        """
        self.rank.stamp(Stage.DATASET)
        if purpose not in self._windows:
            num_envs, own = self.rank.plan.num_envs, self.env_indices
            self._windows[purpose] = EnvironmentWindows(
                path, length, per_env, rows, num_envs, own, self.seed, purpose
            )
        windows = self._windows[purpose].of_iteration(int(iteration))
        self.rank.stamp(Stage.PYTHON)
        return windows

    def stack(self, name: str, rows: int, row: int, value: Any) -> np.ndarray:
        """Keeps a value of one turn of a loop; returns those of all turns."""
        value = to_host(value)
        if name not in self._stacks:
            self._stacks[name] = np.zeros((rows, *value.shape), value.dtype)
        self._stacks[name][row] = value
        return self._stacks[name]

    def send(self, name: str, values: tuple) -> None:
        """Sends this replica's part of a message to whom it concerns."""
        self._parts.graph.look_before_sending()
        self.share.exchange.send(name, values)

    def receive(self, name: str) -> tuple:
        """Receives this replica's part of a message. Returns: its values, without parameters."""
        values = self.share.exchange.receive(name)
        self.rank.stamp(Stage.PYTHON)
        return values

    def report(self, metrics: dict[str, Any]) -> None:
        """Keeps metrics for the coordinator; stops the job if one is not a number."""
        for key, value in metrics.items():
            number = float(to_host(value))
            if not np.isfinite(number):
                self._parts.graph.look()
                raise NumericsError(
                    f"iteration {self.rank.iteration}: {key} is {number}; lower the learning rate "
                    "or look at the rewards (the last good checkpoint is kept)"
                )
            self._parts.metrics[key] = number

    def number(self, value: Any) -> bool:
        """A condition on a whole value."""
        return bool(to_host(value))

    def close(self) -> None:
        """Ends what is read ahead."""
        for windows in self._windows.values():
            windows.close()

    def episode_buffer(self, name: str, rows: tuple[int, ...]) -> Any:
        """See `GraphEnvironments`."""
        return self._parts.graph.episode_buffer(name, rows)

    def keep(self, name: str, buffer: Any) -> None:
        """See `GraphEnvironments`."""
        self._parts.graph.keep(name, buffer)
