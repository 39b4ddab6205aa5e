"""Calls of generated code for the environments of one loop."""

from dataclasses import dataclass
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
    """Objects that all loops of a rank share.

    Attributes:
        trainer: None on a rank without tensors.
        environment: the in-graph environment, if there is one.
        group: the replicas of the fragment, for collectives inside cells.
        metrics: of the current iteration.
        acting: the actor with older parameters, if `agent_act` uses one.
    """

    trainer: Any
    environment: Any
    group: Any
    cells: Cells
    graph: GraphEnvironments
    metrics: dict[str, float]
    acting: Any = None


class ShareRuntime:
    """The `w` of generated code for one loop: a rank's environments, or a chunk of them.

    Attributes:
        noise: returns a call's uniform numbers, see `RandomTables.uniform`.
        noise_of_all: likewise, for all replicas' environments.
    """

    def __init__(self, share: Share, parts: Parts) -> None:
        self.rank, self.share, self._parts = share.rank, share, parts
        self.env_indices, self.agents = share.env_indices, share.rank.agents
        self.seed, self.replay, self.kept = share.rank.plan.seed, share.replay, share.kept
        self.kept_by_all, self.named = KeptByAll(share.rank, share.kept), share.named
        self.named_by_all = {name: KeptByAll(share.rank, it) for name, it in share.named.items()}
        self.environment, self.group = parts.environment, parts.group
        self.trainer = parts.trainer
        self.actor = self.trainer.actor if self.trainer else None
        self.learner = self.trainer.learner if self.trainer else None
        self.acting = parts.acting
        self._tables = RandomTables(self.seed, self.env_indices, self.agents)
        self.noise = self._tables.uniform
        self.noise_of_all = RandomTables(self.seed, range(self.rank.plan.num_envs), None).uniform
        self._stacks: dict[str, np.ndarray] = {}
        self._functions: dict[str, Any] = {}
        self._windows: dict[str, EnvironmentWindows] = {}
        self._stepping, self._steps = -1, 0

    @property
    def env_steps(self) -> int:
        """Environment steps of the whole job, as far as this rank knows."""
        return self.rank.env_steps

    def cell(
        self, cell_class: type, name: str, to_host: tuple[int, ...], obs: tuple[int, ...] = ()
    ) -> Any:
        """Returns a region's cell as a function, cached by name, see `Cells.function`."""
        if name not in self._functions:
            built = cell_class(self)
            self._functions[name] = self._parts.cells.function(built, name, to_host, obs)
        return self._functions[name]

    def env_reset(self) -> np.ndarray:
        """Returns: obs of these environments."""
        self.rank.stamp(Stage.ENVIRONMENT)
        obs = self.share.vector.reset()
        self.rank.stamp(Stage.PYTHON)
        return obs

    def env_step(self, action: Any) -> tuple[np.ndarray, ...]:
        """Steps these environments and counts their episodes."""
        self.rank.stamp(Stage.ENVIRONMENT)
        if self._stepping != self.rank.iteration:
            self._stepping, self._steps = self.rank.iteration, 0
        try:
            outcome = self.share.vector.step(to_host(action))
        except (EnvironmentFailure, NumericsError) as error:
            error.args = (f"step {self._steps}: {error}",)  # the rank names the iteration
            raise
        self._steps += 1
        info = getattr(self.share.vector, "episode_info", ())
        self.share.episodes.count(outcome[2], outcome[3] | outcome[4], info)
        self.rank.stamp(Stage.PYTHON)
        return outcome

    def env_index(self) -> np.ndarray:
        """Returns: the numbers of these environments among those of the job, `[B]` int32."""
        return np.array(self.env_indices, np.int32)

    def agent_index(self) -> np.ndarray:
        """Returns: the numbers of this rank's agents, `[A]` int32."""
        assert self.agents is not None  # the analysis refuses the call in other environments
        return np.array(self.agents.share, np.int32)

    def uniform_of_all(
        self, purpose: str, iteration: int, rows: int, count: int, size: int
    ) -> np.ndarray:
        """Returns one call's uniform numbers `[rows, count, size]`, the same on every replica."""
        each = -(-count // self.rank.plan.num_envs)
        numbers = self.noise_of_all(purpose, iteration, rows, each * size)
        numbers = numbers.reshape(rows, -1, each, size).swapaxes(1, 2)
        return numbers.reshape(rows, -1, size)[:, :count]

    def permutations(self, purpose: str, iteration: Any, rounds: int, steps: int) -> np.ndarray:
        """See `RandomTables.permutations`."""
        # Under a condition, `iteration` counts how often the loop was begun.
        count = int(to_host(iteration))
        return self._tables.permutations(purpose, count, rounds, self.rank.plan.num_steps, steps)

    def dataset_windows(
        self, purpose: str, path: str, iteration: int, rows: int, per_env: int, length: int
    ) -> tuple[np.ndarray, ...]:
        """Returns windows of a data set for an iteration, each `[rows, per_env * B, length, ...]`.

        With the length `TRANSITIONS` its transitions, `[rows, per_env * B, ...]`. They are valid
        until those of the next iteration are requested.
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
        """Stores the value of one turn of a loop. Returns: the values of all turns."""
        value = to_host(value)
        if name not in self._stacks:
            self._stacks[name] = np.zeros((rows, *value.shape), value.dtype)
        self._stacks[name][row] = value
        return self._stacks[name]

    def send(self, name: str, values: tuple) -> None:
        """Sends this replica's part of a message to the replicas that need it."""
        self._parts.graph.look_before_sending()
        self.share.exchange.send(name, values)

    def receive(self, name: str) -> tuple:
        """Receives this replica's part of a message. Returns: its values, without parameters."""
        values = self.share.exchange.receive(name)
        self.rank.stamp(Stage.PYTHON)
        return values

    def report(self, metrics: dict[str, Any]) -> None:
        """Collects metrics for the coordinator; fails the job if one is not finite."""
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
        """Returns a condition on a replicated value as a Python bool."""
        return bool(to_host(value))

    def close(self) -> None:
        """Stops reading ahead in data sets."""
        for windows in self._windows.values():
            windows.close()

    def episode_buffer(self, name: str, rows: tuple[int, ...]) -> Any:
        """See `GraphEnvironments`."""
        return self._parts.graph.episode_buffer(name, rows)

    def keep(self, name: str, buffer: Any) -> None:
        """See `GraphEnvironments`."""
        self._parts.graph.keep(name, buffer)
