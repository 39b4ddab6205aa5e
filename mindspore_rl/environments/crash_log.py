"""Crash log: a rank's last actions, in a file that survives the rank's hang or death."""

from pathlib import Path

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.error_context import describe
from mindspore_rl.environments.spaces import Box
from mindspore_rl.platform.cache import writing

FOLDER = "actions"


class LastActions:
    """A rank's memory-mapped file, `[1 + B, k]`: the running environment, then the actions."""

    def __init__(self, run_dir: Path, rank: int, spec: EnvironmentSpec, count: int) -> None:
        space = spec.action_space
        width = int(np.prod(spec.agent_shape + (space.shape if isinstance(space, Box) else ())))
        path = run_dir / FOLDER / f"{rank:04d}.npy"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            # Written before it is mapped: a mapped page without room on the disk kills the process.
            np.save(path, np.full((1 + count, width), -1.0))
        self._rows = np.asarray(np.load(path, mmap_mode="r+", allow_pickle=False))
        self.at_work = self._rows[0]
        """First number: the row of the environment that is being stepped; -1: unknown."""

    def write(self, action: np.ndarray, rows: slice = slice(None)) -> None:
        """Writes the actions, `[B]` or `[B, ...]`, that some environments are about to take."""
        self.at_work[0] = -1.0
        self._rows[1:][rows] = action.reshape(len(action), -1)


def last_action(run_dir: Path, rank: int, env_indices: range) -> str:
    """Describes a rank's environments and their last actions; empty if the rank left no file."""
    try:
        rows = np.load(run_dir / FOLDER / f"{rank:04d}.npy", allow_pickle=False)
    except (OSError, ValueError):
        return ""
    row = int(rows[0, 0])
    actions = rows[1:, 0] if rows.shape[1] == 1 else rows[1:]
    if not (actions % 1).any():
        actions = actions.astype(np.int64)
    return describe(env_indices, actions, row if row >= 0 else None)
