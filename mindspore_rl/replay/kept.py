"""The replay of a Python loop: the newest records of each environment, in rings side by side."""

from typing import Any

import numpy as np

from mindspore_rl.errors import CheckpointError


class KeptReplay:
    """Columns `[capacity, B, ...]`; records of all environments stand at the same rows.

    Attributes:
        columns: arrays, or buffers of a cell that does the rest itself.
        dtypes: of what such buffers stand for.
    """

    def __init__(self) -> None:
        self.columns: list[Any] = []
        self.dtypes: list[str] = []
        self._part: tuple[slice, int] | None = None

    def part(self, places: slice, num_envs: int) -> "KeptReplay":
        """The same replay for those who write some of the environments alone.

        Args:
            places: of theirs on the axis B.
            num_envs: B.
        """
        part = KeptReplay()
        part.columns, part._part = self.columns, (places, num_envs)
        return part

    def write(self, capacity: int, row: int, *values: np.ndarray) -> None:
        """Keeps a record of each environment, values `[B, ...]`."""
        self._make(capacity, values)
        for column, value in zip(self.columns, values, strict=True):
            column[(row, self._part[0]) if self._part else row] = value

    def extend(self, capacity: int, row: int, *stacks: np.ndarray) -> None:
        """Keeps several records of each environment from a row on, values `[rows, B, ...]`."""
        self._make(capacity, [stack[0] for stack in stacks])
        first = min(len(stacks[0]), capacity - row)
        for column, stack in zip(self.columns, stacks, strict=True):
            column[row : row + first] = stack[:first]
            column[: len(stack) - first] = stack[first:]

    def draw(self, noise: np.ndarray, inserted: int, capacity: int) -> tuple[np.ndarray, ...]:
        """Records that random numbers choose, as many of each environment, see `drawn_rows`.

        Args:
            noise: `[B, k]` uniform in [0, 1).
            inserted: how many records of each environment ever were.
            capacity: how many are kept.

        Returns: columns `[k * B, ...]`, environments innermost.
        """
        filled = min(inserted, capacity)
        rows = np.minimum((noise.T * np.float32(filled)).astype(np.int32), filled - 1)
        places = np.arange(len(noise))
        taken = (column[rows, places] for column in self.columns)
        return tuple(found.reshape(-1, *found.shape[2:]) for found in taken)

    def add(self, buffer: Any, dtype: str) -> None:
        """Takes note of a column that a cell writes and reads itself, perhaps in another type."""
        self.columns.append(buffer)
        self.dtypes.append(dtype)

    def restore(self, columns: list[np.ndarray]) -> None:
        """Takes the columns of these environments from a checkpoint."""
        self.columns[:] = [column.copy() for column in columns]

    def _make(self, capacity: int, values: Any) -> None:
        for value in () if self.columns else values:
            shape = value.shape[1:] if self._part else value.shape
            extent = (capacity, self._part[1]) if self._part else (capacity,)
            self.columns.append(np.zeros((*extent, *shape), value.dtype))
        if (found := len(self.columns[0])) != capacity:
            raise CheckpointError(
                f"the replay holds {found} records of each environment in the checkpoint and "
                f"{capacity} here: leave what is kept as it was"
            )
