"""Draws from the replays of a fragment's replicas as from one."""

import numpy as np

from mindspore_rl.plan.stages import Stage
from mindspore_rl.replay.across import drawn_across, drawn_whole
from mindspore_rl.replay.kept import KeptReplay
from mindspore_rl.runtime.rank.messenger import RECORDS_TAG
from mindspore_rl.runtime.rank.rank import Rank


class KeptByAll:
    """One replica's part of a replay that is sharded over the replicas of a fragment.

    All replicas draw together, and each computes who sends which records to whom.
    """

    def __init__(self, rank: Rank, kept: KeptReplay) -> None:
        self._rank, self._kept = rank, kept

    def draw(
        self, numbers: np.ndarray, steps: int = 0, distinct: bool = False
    ) -> tuple[np.ndarray, ...]:
        """Draws records of all environments for this replica's rows, see `drawn_across`.

        Args:
            numbers: `[B, 2 k]` of all environments, uniform in [0, 1).
            steps: consecutive records of a window; 0: single records.
            distinct: draws no record twice (windows: no first record twice).

        Returns: columns `[k * B, ...]`, environments innermost; windows `[k * B, steps, ...]`.
        """
        inserted, filled = self._filled()
        rows, holders = drawn_across(numbers, filled - max(steps, 1) + 1, distinct)
        ends = [end for _, end in self._rank.fragment.shares]
        targets = np.searchsorted(ends, np.arange(len(numbers)), "right")
        wanted = np.arange(len(ends))[:, None, None] == np.broadcast_to(targets, rows.shape)
        return self._exchanged((inserted - filled)[holders] + rows, holders, wanted, steps)

    def draw_whole(
        self, numbers: np.ndarray, count: int, by: str, steps: int = 0
    ) -> tuple[np.ndarray, ...]:
        """Draws a batch of any size, the same for every replica, see `drawn_whole`.

        Returns: columns `[count, ...]`, windows `[count, steps, ...]`.
        """
        inserted, filled = self._filled()
        rows, holders = drawn_whole(numbers, filled - max(steps, 1) + 1, count, by)
        wanted = np.ones((len(self._rank.fragment.shares), count), np.bool_)
        return self._exchanged((inserted - filled)[holders] + rows, holders, wanted, steps)

    def _exchanged(
        self, numbers: np.ndarray, holders: np.ndarray, wanted: np.ndarray, steps: int
    ) -> tuple[np.ndarray, ...]:
        """Sends records of this replica to the others, and returns those that it gets, in order.

        Args:
            numbers: of the records, in an array of any shape.
            holders: their environments.
            wanted: which of them each replica gets, `[replicas, *shape]`.
            steps: consecutive records of a window; 0: single records.
        """
        own, here = self._rank.env_indices, self._rank.replica
        rows = numbers % self._kept.capacity
        if len(own) == len(self._kept.began):
            return self._kept.records(rows.reshape(-1), holders.reshape(-1), steps)
        ends = [end for _, end in self._rank.fragment.shares]
        sources = np.searchsorted(ends, holders, "right")
        for target, gets in enumerate(wanted):
            moved = (sources == here) & gets
            if target != here and moved.any():
                self._send(target, rows[moved], holders[moved] - own.start, steps)
        sources, rows, holders = (x[wanted[here]] for x in (sources, rows, holders))
        held = sources == here
        found = self._kept.records(rows[held], holders[held] - own.start, steps)
        columns = tuple(np.empty((len(rows), *x.shape[1:]), x.dtype) for x in found)
        for column, records in zip(columns, found, strict=True):
            column[held] = records
        for source in np.unique(sources[~held]).tolist():
            self._receive(source, np.flatnonzero(sources == source), columns)
        self._rank.stamp(Stage.PYTHON)
        return columns

    def _filled(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of records inserted for and kept of each environment, `[B]`."""
        inserted = self._inserted()
        return inserted, np.minimum(inserted, self._kept.capacity)

    def _inserted(self) -> np.ndarray:
        """Returns the number of records ever inserted for each environment of the job, `[B]`."""
        own, kept = self._rank.env_indices, self._kept
        if len(own) == len(kept.began):
            return kept.inserted
        if self._rank.plan.arrivals is not None:  # not as many for each
            return self._told()
        return kept.began + (kept.inserted[0] - kept.began[own.start])  # as many for each since

    def _told(self) -> np.ndarray:
        """Tells the other replicas the numbers of this one. Returns: those of all, `[B]`."""
        fragment, messenger = self._rank.fragment, self._rank.messenger
        found = np.zeros(len(self._kept.began), np.int64)
        for rank in fragment.ranks:
            if rank != self._rank.number:
                messenger.send(rank, RECORDS_TAG, self._kept.inserted.view(np.uint8))
        for rank, share in zip(fragment.ranks, fragment.shares, strict=True):
            part = found[slice(*share)]
            if rank == self._rank.number:
                part[:] = self._kept.inserted
            else:
                messenger.receive(rank, RECORDS_TAG, part.view(np.uint8), Stage.RECORDS)
        return found

    def _send(self, target: int, rows: np.ndarray, places: np.ndarray, steps: int) -> None:
        found = self._kept.records(rows, places, steps)
        data = np.concatenate([records.reshape(-1).view(np.uint8) for records in found])
        self._rank.messenger.send(self._rank.fragment.first_rank + target, RECORDS_TAG, data)

    def _receive(self, source: int, at: np.ndarray, columns: tuple[np.ndarray, ...]) -> None:
        """Receives records of another replica into some rows of the columns."""
        parts = [np.empty((len(at), *column.shape[1:]), column.dtype) for column in columns]
        data = np.empty(sum(part.nbytes for part in parts), np.uint8)
        first, messenger = self._rank.fragment.first_rank, self._rank.messenger
        messenger.receive(first + source, RECORDS_TAG, data, Stage.RECORDS)
        begin = 0
        for column, part in zip(columns, parts, strict=True):
            part.reshape(-1).view(np.uint8)[:] = data[begin : begin + part.nbytes]
            column[at] = part
            begin += part.nbytes
