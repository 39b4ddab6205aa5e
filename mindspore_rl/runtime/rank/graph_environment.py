"""Environments in the graph, seen from Python: rewards and ends for the account, and failures."""

from typing import Any, NoReturn

import numpy as np

from mindspore_rl.environments.guarded import describe
from mindspore_rl.errors import EnvironmentFailure, NumericsError
from mindspore_rl.plan.plan import STATE
from mindspore_rl.runtime.rank.arrays import to_host
from mindspore_rl.runtime.rank.rank import Rank
from mindspore_rl.runtime.rank.state import RankState


class GraphEnvironments:
    """What the cells of a rank keep of its environments' steps, and whether it is finite."""

    def __init__(self, rank: Rank, state: RankState) -> None:
        self._rank, self._state = rank, state
        self._buffers: list[Any] = []
        self._steps: list[np.ndarray] = []
        self._kept: dict[str, tuple[Any, int]] = {}
        self._row_axes = 0
        self._sent = -1

    def episode_buffer(self, name: str, rows: tuple[int, ...]) -> Any:
        """Where an environment leaves rewards and ends, `[*rows, 2, B]`."""
        from mindspore_rl.runtime.rank.cell import buffer  # noqa: PLC0415  (imports MindSpore)

        self._row_axes = len(rows)
        count = len(self._rank.env_indices)
        found = buffer((*rows, 2, count), "float32", f"episodes_{name}")
        self._buffers.append(found)
        return found

    def keep(self, name: str, buffer: Any) -> None:
        """Takes note of where an environment's `action` or `final_obs` is, `[*rows, B, ...]`.

        The rows are those of the episode buffer made last, which the same cell fills.
        """
        self._kept[name] = buffer, self._row_axes

    def buffers(self) -> list[Any]:
        """Where the cells built since the last call leave rewards and ends."""
        taken, self._buffers = self._buffers, []
        return taken

    def collect(self, buffers: list[Any]) -> None:
        """Takes the steps of a cell's call, which the next call overwrites.

        Raises: see `look`.
        """
        count = len(self._rank.env_indices)
        for buffer in buffers:
            steps = to_host(buffer).reshape(-1, 2, count).copy()
            self._look_at_steps("reward", steps[:, 0], self._num_steps())
            self._steps.append(steps)

    def take_steps(self) -> list[np.ndarray]:
        """Rewards and ends of all steps since the last call, in blocks of steps `[T, 2, B]`."""
        taken, self._steps = self._steps, []
        return taken

    def _num_steps(self) -> int:
        return sum(map(len, self._steps))

    def look_before_sending(self) -> None:
        """Looks closely, once an iteration: others would fail of what this rank sends them."""
        if self._sent < self._rank.iteration:
            self._sent = self._rank.iteration
            self.look(closely=True)

    def look(self, closely: bool) -> None:
        """Looks for what is not finite in what the environments go on from.

        Args:
            closely: in all observations too, of which a policy makes losses that are not finite.

        Raises:
            EnvironmentFailure: an environment gave it.
            NumericsError: it was given it.
        """
        if not self._steps:
            return
        if closely and (obs := self._of_steps("final_obs")) is not None:
            self._look_at_steps("final_obs", obs, self._num_steps() - len(obs))
        for name, value in self._state.carried().items():
            axis = 0 if name == STATE else self._rank.plan.carried[name].axis
            if axis is not None and not np.isfinite(array := to_host(value)).all():
                row = int(np.argwhere(~np.isfinite(array))[0][axis])
                found = np.moveaxis(array, axis, 0)[row]
                self._fail(f"at its end: {name} is {found}", row, -1)

    def _of_steps(self, name: str) -> np.ndarray | None:
        """What is kept of the steps of the last call, `[T, B, ...]`."""
        if name not in self._kept:
            return None
        kept, row_axes = self._kept[name]
        buffer = to_host(kept)
        return buffer.reshape(-1, *buffer.shape[row_axes:])

    def _look_at_steps(self, name: str, values: np.ndarray, first: int) -> None:
        """Looks at `[T, B, ...]` of a call's steps, of which `first` is the first's number."""
        if not np.isfinite(values).all():
            step, row = np.argwhere(~np.isfinite(values))[0][:2]
            self._fail(f"step {first + step}: {name} is {values[step, row]}", int(row), int(step))

    def _fail(self, what: str, row: int, step: int) -> NoReturn:
        rank, actions = self._rank, self._of_steps("action")
        action = None if actions is None else actions[step]
        text = f"{rank.plan.environment}, iteration {rank.iteration}, {what}"
        text = f"{text}; {describe(rank.env_indices, action, row)}"
        if action is not None and not np.isfinite(action[row]).all():
            raise NumericsError(f"{text}: the policy has diverged; lower the learning rate")
        raise EnvironmentFailure(text)
