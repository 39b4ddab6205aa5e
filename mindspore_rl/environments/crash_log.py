"""Crash log: a rank's last actions, in a file that survives a rank that hangs or dies."""

from pathlib import Path

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.error_context import describe
from mindspore_rl.environments.spaces import Box
from mindspore_rl.platform.cache import writing

FOLDER = "actions"


class LastActions:
    """The memory-mapped file of one rank: `[1 + B, k]`, actions below the row that is at work.

    Args:
        run_dir: the run's.
        rank: whose environments they are.
        spec: of the environments.
        count: of the environments.
    """

    def __init__(self, run_dir: Path, rank: int, spec: EnvironmentSpec, count: int) -> None:
        space = spec.action_space
        width = int(np.prod(spec.agent_shape + (space.shape if isinstance(space, Box) else ())))
        path = run_dir / FOLDER / f"{rank:04d}.npy"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            # Written before it is mapped: a page for which the disk has no room kills a process.
            np.save(path, np.full((1 + count, width), -1.0))
        self._rows = np.asarray(np.load(path, mmap_mode="r+", allow_pickle=False))
        self.at_work = self._rows[0]
        """In its first number the row of the environment that is being stepped; -1: not known."""

    def write(self, action: np.ndarray, rows: slice = slice(None)) -> None:
        """Keeps the actions, `[B]` or `[B, ...]`, that are about to be taken in some rows."""
        self.at_work[0] = -1.0
        self._rows[1:][rows] = action.reshape(len(action), -1)


def last_action(run_dir: Path, rank: int, env_indices: range) -> str:
    """What a rank's environments were doing, in words; nothing if it left no word of it."""
    try:
        rows = np.load(run_dir / FOLDER / f"{rank:04d}.npy", allow_pickle=False)
    except (OSError, ValueError):
        return ""
    row = int(rows[0, 0])
    actions = rows[1:, 0] if rows.shape[1] == 1 else rows[1:]
    if not (actions % 1).any():
        actions = actions.astype(np.int64)
    return describe(env_indices, actions, row if row >= 0 else None)
