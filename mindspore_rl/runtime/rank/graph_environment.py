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
    """The buffers of a cell that its environment's steps fill, one row a step.

    Attributes:
        episodes: rewards and ends `[*rows, 2, B]`.
        row_axes: how many axes the rows have.
        others: `action`, `next_obs` or `final_obs`, `[*rows, B, ...]`, where the cell keeps them.
    """

    episodes: Any
    row_axes: int
    others: dict[str, Any] = field(default_factory=dict)

    def steps(self, name: str) -> np.ndarray:
        """One of the others, `[T, B, ...]`."""
        buffer = to_host(self.others[name])
        return buffer.reshape(-1, *buffer.shape[self.row_axes :])


class GraphEnvironments:
    """What the cells of a rank keep of its environments' steps, and whether it can be trained on.

    It is looked at as soon as a cell has run: before others fail of it, and lose the cause.
    """

    def __init__(self, rank: Rank, state: RankState) -> None:
        self._rank, self._state = rank, state
        self._kept: list[Kept] = []
        self._steps: list[np.ndarray] = []
        self._sent = -1

    def episode_buffer(self, name: str, rows: tuple[int, ...]) -> Any:
        """Where an environment leaves rewards and ends, `[*rows, 2, B]`."""
        from mindspore_rl.runtime.rank.cell_parts import buffer  # noqa: PLC0415  (imports MindSpore)

        found = buffer((*rows, 2, len(self._rank.env_indices)), "float32", f"episodes_{name}")
        self._kept.append(Kept(found, len(rows)))
        return found

    def keep(self, name: str, buffer: Any) -> None:
        """Takes note of where the environment of the episode buffer made last leaves others."""
        self._kept[-1].others[name] = buffer

    def kept(self) -> list[Kept]:
        """What the cells built since the last call keep."""
        taken, self._kept = self._kept, []
        return taken

    def collect(self, kept: list[Kept], obs: tuple[Any, ...]) -> None:
        """Takes the steps of a cell's call, which the next call overwrites.

        Args:
            kept: of the cell.
            obs: observations `[B, ...]` that it gave.

        Raises:
            EnvironmentFailure: there is a number that cannot be trained on.
            NumericsError: the policy's action was no number.
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
        """Rewards and ends of all steps since the last call, in blocks of steps `[T, 2, B]`."""
        taken, self._steps = self._steps, []
        return taken

    def _num_steps(self) -> int:
        return sum(map(len, self._steps))

    def look_before_sending(self) -> None:
        """Looks once an iteration: others would fail of what this rank sends them."""
        if self._sent < self._rank.iteration:
            self._sent = self._rank.iteration
            self.look()

    def look(self) -> None:
        """Looks at what the environments go on from. Raises: EnvironmentFailure."""
        if not self._steps:
            return
        for name, value in self._state.carried().items():
            axis = 0 if name == STATE else self._rank.plan.carried[name].axis
            if axis is not None and not np.isfinite(array := to_host(value)).all():
                row = int(np.argwhere(~np.isfinite(array))[0][axis])
                found = np.moveaxis(array, axis, 0)[row]
                self._fail(f"at its end: {name} is {found}", row)

    def _fine(self, value: Any) -> bool:
        """Whether all its numbers can be trained on; a GPU is asked, to save a copy."""
        if self._rank.plan.device == "GPU" and hasattr(value, "asnumpy"):
            return bool((value.abs() <= float(LARGEST)).all().asnumpy())
        return all_trainable(to_host(value))

    def _blame(self, wrong: dict[str, np.ndarray], kept: Kept) -> NoReturn:
        """Fails of the first step of a call in which one of `[T, B, ...]` is wrong."""
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
