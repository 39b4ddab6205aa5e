"""The on-policy replay buffer of a Python loop: the steps of one iteration, time-major."""

import numpy as np


class TrajectoryBuffer:
    """Columns `[T, B, ...]`, allocated once and overwritten every iteration."""

    def __init__(self) -> None:
        self._columns: list[np.ndarray] = []

    def write(self, capacity: int, row: int, *values: np.ndarray) -> None:
        """Stores one step (values `[B, ...]`) in a row of a buffer of `capacity` rows."""
        if not self._columns:
            self._columns = [np.empty((capacity, *v.shape), v.dtype) for v in values]
        for column, value in zip(self._columns, values, strict=True):
            column[row] = value

    def extend(self, capacity: int, start: int, *stacks: np.ndarray) -> None:
        """Stores many steps (values `[rows, B, ...]`) from a row on; all of them are kept as is."""
        rows = len(stacks[0])
        if start == 0 and rows == capacity:
            self._columns = list(stacks)
            return
        if not self._columns:
            self._columns = [np.empty((capacity, *s.shape[1:]), s.dtype) for s in stacks]
        for column, stack in zip(self._columns, stacks, strict=True):
            column[start : start + rows] = stack

    def read(self, rows: int) -> tuple[np.ndarray, ...]:
        """The first rows of every column: views, valid until the next write."""
        return tuple(column[:rows] for column in self._columns)
