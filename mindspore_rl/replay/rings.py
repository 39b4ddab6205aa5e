"""Draws from kept records by NumPy: in the plain loop, and anywhere without a C++ compiler.

Draws by priority (Schaul et al. 2016, "Prioritized experience replay") are in proportion to
weights, which are integers, so that their sums are exact in any order. `KeptTable` draws the same
records at a cost that does not grow with their number.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_rl.errors import CheckpointError, NumericsError, ReplayError
from mindspore_rl.replay.spec import LARGEST, ONE
from mindspore_rl.rl.random import below


class Rings:
    """Rings of records, drawn by NumPy.

    Args:
        columns: `[capacity, B, ...]` each.
        weights: `[capacity, B]` int64; None: no record is drawn by priority.
        inserted: number of records ever inserted for each environment, `[B]` int64.

    Attributes:
        capacity: records of each environment.
        weighted: whether there are weights.
    """

    def __init__(
        self, columns: Sequence[np.ndarray], weights: np.ndarray | None, inserted: np.ndarray
    ) -> None:
        self.columns, self.inserted = list(columns), inserted
        self.capacity, self.num_envs = columns[0].shape[:2]
        self.weighted, self._weights = weights is not None, weights

    @property
    def weights(self) -> np.ndarray:
        """The weights `[capacity, B]`, if there are any."""
        assert self._weights is not None
        return self._weights

    def restore(self, inserted: np.ndarray) -> None:
        """Counts records `[B]` that were written into the columns and weights."""
        self.inserted[:] = inserted

    def draw(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows uniformly, see `KeptReplay.draw`."""
        filled = np.minimum(self.inserted, self.capacity)
        self._check(bool((filled >= max(steps, 1)).all()), steps)
        rows = below(noise, (filled - max(steps, 1) + 1)[:, None]).swapaxes(-1, -2)
        if steps:
            rows = self.inserted - filled + rows
        found = self.records(rows, np.arange(self.num_envs), steps)
        lead = (*rows.shape[:-2], -1, *(steps,)[:steps])
        pairs = zip(found, self.columns, strict=True)
        return tuple(records.reshape(*lead, *column.shape[2:]) for records, column in pairs)

    def draw_weighted(self, noise: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Draws windows by priority, see `KeptReplay.draw_weighted`."""
        filled = np.minimum(self.inserted, self.capacity)
        self._check(bool((filled >= max(steps, 1)).all()), steps)
        newest = newest_rows(self.inserted, self.capacity, steps)
        rows, odds = weighted_rows(noise, self.weights, filled, newest)
        places = np.tile(np.arange(self.num_envs), len(rows))
        return (*self.records(rows.reshape(-1), places, steps), rows.reshape(-1), odds.reshape(-1))

    def records(self, rows: np.ndarray, places: np.ndarray, steps: int) -> tuple[np.ndarray, ...]:
        """Gathers records, or windows from there on, at rows `[n]` of the environments `places`."""
        if steps:
            rows, places = rows[..., None] + np.arange(steps), places[..., None]
        at = rows % self.capacity, places
        return tuple(column[at] for column in self.columns)

    def write(self, places: slice, values: tuple[np.ndarray, ...]) -> None:
        """Writes a record of each of some environments, values `[b, ...]`."""
        self.extend(places, [value[None] for value in values])

    def extend(self, places: slice, stacks: Sequence[np.ndarray]) -> None:
        """Writes records of some environments, values `[rows, b, ...]`.

        Raises:
            CheckpointError: they are not like those of the checkpoint that the columns come from.
        """
        check_shapes(self.columns, len(self.inserted[places]), stacks)
        own, rows = self.inserted[places], len(stacks[0])
        if (own != own[0]).any():  # after an asynchronous run
            for number, lane in enumerate(range(self.num_envs)[places]):
                stacks_of_lane = [stack[:, number : number + 1] for stack in stacks]
                self.extend(slice(lane, lane + 1), stacks_of_lane)
            return
        if self.weighted:
            largest = self.weights[:, places].max(0)
            at = (own[0] + np.arange(rows)) % self.capacity
            self.weights[:, places][at] = np.where(largest > 0, largest, ONE)  # to be drawn soon
        first = int(own[0]) % self.capacity
        whole = min(rows, self.capacity - first)
        for column, stack in zip(self.columns, stacks, strict=True):
            column[first : first + whole, places] = stack[:whole]
            if whole < rows:
                column[: rows - whole, places] = stack[whole:]
        own += rows

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities of rows, both `[k * B]`, environments innermost."""
        rows, found = (np.reshape(x, (-1, self.num_envs)) for x in (rows, priorities))
        self.weights[rows, np.arange(self.num_envs)] = weights_of(found)

    @staticmethod
    def _check(enough: bool, steps: int) -> None:
        if not enough:
            raise ReplayError(
                f"an environment has fewer records than the {max(steps, 1)} of one draw: insert "
                "more before the first draw"
            )


def check_shapes(columns: Sequence[Any], lanes: int, stacks: Sequence[np.ndarray]) -> None:
    """Checks that records `[rows, lanes, ...]` are like those in columns `[capacity, B, ...]`.

    Raises:
        CheckpointError: they are not; only a checkpoint's columns can be others.
    """
    rows = len(stacks[0])
    if [x.shape for x in stacks] != [(rows, lanes, *x.shape[2:]) for x in columns]:
        come, held = ([list(x.shape[2:]) for x in those] for those in (stacks, columns))
        raise CheckpointError(
            f"the program keeps records of shapes {come}, and the checkpoint's replay holds "
            f"{held}: keep the same values, or save without it (--checkpoint-replay false)"
        )


def weights_of(priorities: np.ndarray) -> np.ndarray:
    """Converts priorities to weights: int64, at least 1.

    Raises:
        NumericsError: a priority is NaN.
        ReplayError: a priority is negative.
    """
    if not (priorities >= 0).all():
        least = priorities.min()
        if np.isnan(least):
            raise NumericsError("a priority is nan: the learner has diverged")
        raise ReplayError(f"a priority is {least:g}, expected 0 or more, such as ops.abs(error)")
    scaled = np.rint(priorities.astype(np.float64) * ONE)
    return np.clip(scaled, 1, LARGEST).astype(np.int64)


def weighted_rows(
    noise: np.ndarray, weights: np.ndarray, filled: np.ndarray, without: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws rows in proportion to weights, for each environment separately.

    Args:
        noise: `[B, 2 k]` uniform in [0, 1), see `random.below`.
        weights: `[rows, B]` int64; 0 behind the records.
        filled: number of records of each environment, `[B]`.
        without: rows that must not be drawn, `[n, B]`.

    Returns: rows `[k, B]` int32, and the ratio of each row's probability to that of a uniform draw,
        `[k, B]` float32.
    """
    weights = weights.copy()
    np.put_along_axis(weights, without, 0, axis=0)
    sums = np.cumsum(weights, axis=0)
    places = below(noise, sums[-1][:, None])
    found = (np.searchsorted(sums[:, b], places[b], "right") for b in range(len(noise)))
    rows = np.stack(list(found), axis=1).astype(np.int32)
    odds = np.take_along_axis(weights, rows, axis=0) * ((filled - len(without)) / sums[-1])
    return rows, odds.astype(np.float32)


def newest_rows(inserted: np.ndarray, capacity: int, steps: int) -> np.ndarray:
    """Returns the rows at which no window of `steps` records begins, `[steps - 1, B]`.

    Args:
        inserted: number of records ever inserted for each environment, `[B]`.
        capacity: rows of the ring.
        steps: records of a window; 0: single records.
    """
    return (inserted - 1 - np.arange(max(steps - 1, 0))[:, None]) % capacity
