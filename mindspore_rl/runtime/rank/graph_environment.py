"""In-graph environments seen from Python: episodes and failures."""

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from mindspore_rl.environments.error_context import describe
from mindspore_rl.environments.finite_check import (
    LARGEST,
    all_trainable,
    first_untrainable,
    untrainable,
)
from mindspore_rl.errors import EnvironmentFailure, NumericsError
from mindspore_rl.plan.plan import STATE
from mindspore_rl.runtime.rank.arrays import to_host
from mindspore_rl.runtime.rank.rank import Rank
from mindspore_rl.runtime.rank.state import RankState

ACTION = "action"


@dataclass
class Kept:
    """The buffers of a cell, into which its environments write one row for each step.

    Attributes:
        episodes: rewards and ends of episodes `[*rows, 2, B]`.
        row_axes: number of axes in `rows`.
        others: `action`, `next_obs` or `final_obs`, `[*rows, B, ...]`, if the cell records them.
    """

    episodes: Any
    row_axes: int
    others: dict[str, Any] = field(default_factory=dict)

    def steps(self, name: str) -> np.ndarray:
        """Returns one of `others`, `[T, B, ...]`."""
        buffer = to_host(self.others[name])
        return buffer.reshape(-1, *buffer.shape[self.row_axes :])


class GraphEnvironments:
    """Records the steps of in-graph environments, and rejects numbers that cannot be trained on.

    The numbers are checked as soon as a cell has run: later errors would hide the cause.
    """

    def __init__(self, rank: Rank, state: RankState) -> None:
        self._rank, self._state = rank, state
        self._kept: list[Kept] = []
        self._steps: list[np.ndarray] = []
        self._sent = -1

    def episode_buffer(self, name: str, rows: tuple[int, ...]) -> Any:
        """Makes the buffer for rewards and ends of episodes, `[*rows, 2, B]`."""
        from mindspore_rl.runtime.rank.cell_parts import buffer  # noqa: PLC0415  (imports MindSpore)

        found = buffer((*rows, 2, len(self._rank.env_indices)), "float32", f"episodes_{name}")
        self._kept.append(Kept(found, len(rows)))
        return found

    def keep(self, name: str, buffer: Any) -> None:
        """Registers another buffer for the environment of the last episode buffer."""
        self._kept[-1].others[name] = buffer

    def kept(self) -> list[Kept]:
        """Returns the buffers of the cells built since the last call."""
        taken, self._kept = self._kept, []
        return taken

    def collect(self, kept: list[Kept], obs: tuple[Any, ...]) -> None:
        """Copies the steps of a cell's call, before the next call overwrites them.

        Args:
            kept: the cell's buffers.
            obs: observations `[B, ...]` that it returned.

        Raises:
            EnvironmentFailure: a number cannot be trained on, e.g. NaN.
            NumericsError: the policy's action was not finite.
        """
        for found in kept:
            steps = to_host(found.episodes).reshape(-1, 2, len(self._rank.env_indices)).copy()
            suspects = {
                name: found.steps(name)
                for name, buffer in found.others.items()
                if name != ACTION and not self._fine(buffer)
            }
            suspects["reward"] = steps[:, 0]
            wrong = {name: x for name, x in suspects.items() if not all_trainable(x)}
            if wrong:
                self._blame(wrong, found)
            self._steps.append(steps)
        for value in obs:
            if not self._fine(value) and not all_trainable(array := to_host(value)):
                row = first_untrainable(array)[0]
                last = f"step {self._num_steps() - 1}" if self._steps else "reset"
                self._fail(f"{last}: {untrainable('obs', array[row])}", row)

    def take_steps(self) -> list[np.ndarray]:
        """Returns rewards and ends of the steps since the last call, in blocks `[T, 2, B]`."""
        taken, self._steps = self._steps, []
        return taken

    def _num_steps(self) -> int:
        return sum(map(len, self._steps))

    def look_before_sending(self) -> None:
        """Checks before sending, once an iteration: else the receivers would fail first."""
        if self._sent < self._rank.iteration:
            self._sent = self._rank.iteration
            self.look()

    def look(self) -> None:
        """Checks that the carried values of environments are finite. Raises: EnvironmentFailure."""
        if not self._steps:
            return
        for name, value in self._state.carried().items():
            axis = 0 if name == STATE else self._rank.plan.carried[name].axis
            if axis is not None and not np.isfinite(array := to_host(value)).all():
                row = int(np.argwhere(~np.isfinite(array))[0][axis])
                found = np.moveaxis(array, axis, 0)[row]
                self._fail(f"at its end: {name} is {found}", row)

    def _fine(self, value: Any) -> bool:
        """Returns whether all numbers can be trained on; tests GPU tensors in place."""
        if self._rank.plan.device == "GPU" and hasattr(value, "asnumpy"):
            return bool((value.abs() <= float(LARGEST)).all().asnumpy())
        return all_trainable(to_host(value))

    def _blame(self, wrong: dict[str, np.ndarray], kept: Kept) -> NoReturn:
        """Fails with the first step at which one of the arrays `[T, B, ...]` is wrong."""
        places = {name: first_untrainable(array)[:2] for name, array in wrong.items()}
        name = min(places, key=lambda name: places[name][0])
        step, row = places[name]
        text = f"step {self._num_steps() + step}: {untrainable(name, wrong[name][step, row])}"
        self._fail(text, row, kept.steps(ACTION)[step] if ACTION in kept.others else None)

    def _fail(self, what: str, row: int, action: np.ndarray | None = None) -> NoReturn:
        rank = self._rank
        text = f"{rank.plan.environment}, iteration {rank.iteration}, {what}"
        text = f"{text}; {describe(rank.env_indices, action, row)}"
        if action is not None and not np.isfinite(action[row]).all():
            raise NumericsError(f"{text}: the policy has diverged; lower the learning rate")
        raise EnvironmentFailure(text)
