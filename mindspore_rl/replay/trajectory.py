"""The on-policy replay buffer of a Python loop: the steps of one iteration, time-major."""

import numpy as np


class TrajectoryBuffer:
    """Columns `[T, B, ...]`; `read` hands them over, so that a program may keep what it read."""

    def __init__(self) -> None:
        self._columns: list[np.ndarray] = []
        self._read: tuple[np.ndarray, ...] = ()
        self._part: tuple[slice, int] | None = None

    def part(self, rows: slice, num_envs: int) -> "TrajectoryBuffer":
        """Returns a view of this buffer for a writer of only some of the environments.

        Args:
            rows: positions of these environments on the axis B.
            num_envs: B.
        """
        part = TrajectoryBuffer()
        part._columns, part._part = self._columns, (rows, num_envs)
        return part

    def write(self, capacity: int, row: int, *values: np.ndarray) -> None:
        """Stores one step (values `[B, ...]`) in a row of a buffer of `capacity` rows."""
        if not self._columns:
            shapes = [v.shape if not self._part else (self._part[1], *v.shape[1:]) for v in values]
            pairs = zip(shapes, values, strict=True)
            self._columns += [np.empty((capacity, *shape), v.dtype) for shape, v in pairs]
        for column, value in zip(self._columns, values, strict=True):
            column[(row, self._part[0]) if self._part else row] = value

    def extend(self, capacity: int, start: int, *stacks: np.ndarray) -> None:
        """Stores steps (values `[rows, B, ...]`) from a row on; a whole buffer is not copied."""
        rows = len(stacks[0])
        if start == 0 and rows == capacity:
            self._columns[:] = stacks
            return
        if not self._columns:
            self._columns += [np.empty((capacity, *s.shape[1:]), s.dtype) for s in stacks]
        for column, stack in zip(self._columns, stacks, strict=True):
            column[start : start + rows] = stack

    def read(self, rows: int) -> tuple[np.ndarray, ...]:
        """Returns the first rows of every column; later writes go to new columns."""
        if self._columns:
            self._read = tuple(self._columns)
            self._columns.clear()  # in the parts too
        return tuple(column[:rows] for column in self._read)
