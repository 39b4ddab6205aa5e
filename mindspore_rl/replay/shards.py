"""One replay table whose lanes are spread over the ranks of a job.

    lanes      0  1  2 | 3  4 | 5  6 |          blocks, one a rank; a rank may have none
    batch      position 0 .. B-1, the same draws on every rank, whatever the blocks
    quotas     rows that each rank gets: first those it holds, then what others have too many of

Ranks tell each other their lanes' totals, and that is all that a draw depends on: each computes the
whole of it, finds the records that fall in its own lanes, and sends those that others are to get.
All ranks make the same calls, in the same order.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindspore_rl.communication.communicator import Communicator, Waiting
from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.assignment import assign
from mindspore_rl.replay.held import ROW, Draws, Held, to_local
from mindspore_rl.replay.selection import Key, Mode, draw
from mindspore_rl.replay.spec import TableSpec, check_priorities
from mindspore_rl.replay.table import Table

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Share:
    """The rows of a batch that a rank gets, as they stand in its buffers.

    Attributes:
        positions: `[N] int64`, where in the batch each row stands.
        ids: `[N] int64`, of the records, the same on all ranks.
        probabilities: `[N] float64`, with which each was drawn from the whole table.
        lengths: `[N] int32`, steps of each record.
        first: `[N] int32`, the step at which its window begins.
        least: the smallest probability in the whole batch.
    """

    positions: np.ndarray
    ids: np.ndarray
    probabilities: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    least: float

    def importance_weights(self, exponent: float) -> np.ndarray:
        """See `selection.importance_weights`: over the largest of the whole batch, `[N] float32`.

        The number of records stands in each weight and in the largest, and falls out.
        """
        return ((self.probabilities / self.least) ** -exponent).astype(np.float32)


class ShardedTable:
    """A rank's end of a table whose lanes are spread over ranks.

    Args:
        spec: of the whole table.
        lanes: how many of them each rank holds, in order.
        table: of this rank's lanes, with the same specification but for their number; None if it
            has none.
        comm: between the ranks.
        tag: of messages that are this table's alone.
        waiting: called now and then while this rank waits for others; raises to end that.

    Raises:
        ReplayError: these do not fit together.
    """

    def __init__(
        self,
        spec: TableSpec,
        lanes: Sequence[int],
        table: Table | None,
        comm: Communicator,
        tag: int,
        waiting: Waiting,
    ) -> None:
        if len(lanes) != comm.size or min(lanes) < 0 or sum(lanes) != spec.lanes:
            raise ReplayError(
                f"the {spec.lanes} lanes of a replay table are spread over {comm.size} ranks as "
                f"{list(lanes)}; expected a number for each rank, {spec.lanes} in all"
            )
        own = lanes[comm.rank]
        if (table.spec if table else None) != (
            dataclasses.replace(spec, lanes=own) if own else None
        ):
            raise ReplayError(
                f"rank {comm.rank} holds {own} lanes of a replay table of {spec}, and has "
                f"{table.spec if table else 'no table'}; expected the same with lanes={own}"
            )
        self.spec, self.table = spec, table
        self._comm, self._tag, self._waiting = comm, tag, waiting
        self._own = slice(sum(lanes[: comm.rank]), sum(lanes[: comm.rank + 1]))
        self._lanes = lanes
        self._holders = np.repeat(np.arange(comm.size), lanes)
        self._memory = np.empty(0, np.uint8)

    def totals(self) -> np.ndarray:
        """What the weights of every lane are in all, `[lanes] uint64`, as the ranks tell."""
        totals = np.zeros(self.spec.lanes, np.uint64)
        if self.table:
            totals[self._own] = self.table.totals()
            for rank in self._others():
                self._send(rank, totals[self._own])
        end = 0
        for rank, lanes in enumerate(self._lanes):
            end += lanes
            if lanes and rank != self._comm.rank:
                self._receive(rank, totals[end - lanes : end])
        return totals

    def draw(
        self, key: Key, quotas: Sequence[int], mode: Mode, totals: np.ndarray | None = None
    ) -> Draws:
        """What a batch will be made of, and what will cross for it; see `sample`."""
        self._check_quotas(quotas)
        if mode == Mode.DISTINCT and self.spec.weighted:
            raise ReplayError(
                "records with weights are to be drawn without replacement; make the table with "
                "weighted=False, or draw with replacement"
            )
        totals = self.totals() if totals is None else totals
        count = sum(quotas)
        lanes, offsets, used = draw(key, totals, count, mode)
        divisors = np.full(len(totals), float(totals.sum()))
        if mode == Mode.STRATIFIED:
            drawn = np.maximum(np.bincount(lanes, minlength=len(totals)), 1)
            divisors = totals * (count / drawn)
        holders = self._holders[lanes]
        assignment = assign(holders, quotas)
        messages = assignment.moved
        if self.spec.weighted:
            pairs = [
                (holder, rank)
                for holder in np.unique(holders).tolist()
                for rank, quota in enumerate(quotas)
                if quota and rank != holder
            ]
            messages = {pair: assignment.moved.get(pair, _NONE) for pair in pairs}
        return Draws(key, mode, lanes, offsets, used, divisors, assignment, messages)

    def sample(
        self,
        key: Key,
        quotas: Sequence[int],
        out: dict[str, np.ndarray],
        mode: Mode = Mode.REPLACE,
        totals: np.ndarray | None = None,
    ) -> Share:
        """Draws a batch, of which each rank gets its share.

        Args:
            key: of the batch.
            quotas: rows that each rank gets.
            out: of `TableSpec.buffers`, for this rank's quota; a window is drawn in each record.
            mode: how records are drawn.
            totals: of `totals`, if nothing has changed since; without them ranks ask each other.

        Returns: which rows stand in `out`. A record that was overwritten after the draw is replaced
            by another of its lane, or of its holder's if that has no more, drawn from what is there
            now (without replacement: one that is not in the batch yet).

        Raises:
            ReplayError: there is not enough to draw from, here or on all ranks; the buffers are
                others.
        """
        rank, window = self._comm.rank, self._check(out, quotas)
        draws = self.draw(key, quotas, mode, totals)
        held = Held(self.table, self.spec, self._own, draws, window, self._waiting)
        for (source, target), positions in draws.messages.items():
            if source == rank:
                message = self._message(len(positions), window)
                message.least[0] = held.least
                message.rows[:] = held.gather(positions, message.columns)
                self._comm.send(target, self._tag, message.data)
        parts = [draws.assignment.kept[rank]]
        end, least = len(parts[0]), held.least
        rows = np.empty(quotas[rank], ROW)
        rows[:end] = held.gather(parts[0], {name: x[:end] for name, x in out.items()})
        for (source, target), positions in draws.messages.items():
            if target == rank:
                message = self._message(len(positions), window)
                self._comm.receive(source, self._tag, message.data, self._waiting)
                least = min(least, float(message.least[0]))
                start, end = end, end + len(positions)
                rows[start:end] = message.rows
                for name, column in message.columns.items():
                    out[name][start:end] = column
                parts.append(positions)
        self._comm.flush(self._waiting)
        least = float(rows["probability"].min(initial=least))
        ids, probabilities, lengths, first = (rows[name].copy() for name in ROW.fields or ())
        return Share(np.concatenate(parts), ids, probabilities, lengths, first, least)

    def message_bytes(self, rows: int, window: int | None = None) -> int:
        """What the message of so many rows weighs."""
        steps = window or self.spec.length
        return 8 + rows * (ROW.itemsize + steps * sum(c.step_bytes for c in self.spec.columns))

    def update(self, ids: np.ndarray, priorities: np.ndarray, exponent: float = 1.0) -> None:
        """Gives records weights, whoever holds them; see `Table.update`.

        Of several priorities of one record the largest counts, whichever ranks they come from: a
        batch may have a record twice.

        Args:
            ids: `[N] int64`, none for a rank that has nothing to tell.
            priorities: `[N]`.
            exponent: of the priorities.

        Raises:
            ReplayError: see `Table.update`.
        """
        values = check_priorities(self.spec, priorities)
        ids = np.ascontiguousarray(ids, np.int64)
        if ids.shape != values.shape or ids.ndim != 1 or (ids < 0).any():
            raise ReplayError(
                f"ids {ids} have priorities {values}, expected one of each id from 0 on"
            )
        places = ids % (self.spec.lanes * self.spec.capacity)
        holders = self._holders[places // self.spec.capacity]
        parts = {}
        for rank in np.flatnonzero(self._lanes).tolist():
            some = holders == rank
            parts[rank] = np.stack([ids[some], values[some].view(np.int64)])
            if rank != self._comm.rank:
                self._send(rank, np.array([some.sum()]))
                if some.any():
                    self._send(rank, parts[rank])
        if not self.table:
            return
        told = [parts[self._comm.rank]]
        for rank in self._others():
            self._receive(rank, count := np.zeros(1, np.int64))
            told.append(np.empty((2, int(count[0])), np.int64))
            if count[0]:
                self._receive(rank, told[-1])
        ids, bits = np.concatenate(told, axis=1)
        order = np.lexsort((bits.view(np.float64), ids))
        ids, values = ids[order], bits.view(np.float64)[order]
        last = np.append(ids[1:] != ids[:-1], True)[: len(ids)]
        self.table.update(to_local(ids[last], self.spec, self._own), values[last], exponent)

    def _message(self, count: int, window: int) -> "_Message":
        """In memory that the next message takes again."""
        size = self.message_bytes(count, window)
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        return _Message(self._memory[:size], count, self.spec, window)

    def _others(self) -> list[int]:
        return [rank for rank in range(self._comm.size) if rank != self._comm.rank]

    def _send(self, rank: int, array: np.ndarray) -> None:
        self._comm.send(rank, self._tag, array.reshape(-1).view(np.uint8))

    def _receive(self, rank: int, array: np.ndarray) -> None:
        self._comm.receive(rank, self._tag, array.reshape(-1).view(np.uint8), self._waiting)

    def _check_quotas(self, quotas: Sequence[int]) -> None:
        size = self._comm.size
        if len(quotas) != size or min(quotas) < 0 or not sum(quotas):
            raise ReplayError(
                f"quotas are {list(quotas)}, expected rows of each of {size} ranks, and not none"
            )

    def _check(self, out: dict[str, np.ndarray], quotas: Sequence[int]) -> int:
        """The window of buffers. Raises: ReplayError."""
        self._check_quotas(quotas)
        quota = quotas[self._comm.rank]
        shape = out.get(self.spec.columns[0].name, _NONE).shape
        window = shape[1] if self.spec.length > 1 and len(shape) > 1 else 1
        for name, like in self.spec.buffers(0, window).items():
            array, shape = out.get(name, _NONE), (quota, *like.shape[1:])
            if (array.shape, array.dtype) != (shape, like.dtype) or not array.flags.c_contiguous:
                raise ReplayError(
                    f"the buffer of column {name} is {array.dtype} {array.shape}, expected "
                    f"{like.dtype} {shape} and contiguous: the specification's `buffers({quota})`"
                )
        return window


class _Message:
    """What one rank sends another of a batch.

    Attributes:
        data: all of it.
        least: `[1] float64`, the smallest probability among what the sender holds of the batch.
        rows: `[N] ROW`.
        columns: `[N, T, ...]`, by name.
    """

    def __init__(self, data: np.ndarray, count: int, spec: TableSpec, window: int) -> None:
        self.data, self.least = data, data[:8].view(np.float64)
        end = 8 + count * ROW.itemsize
        self.rows = data[8:end].view(ROW)
        self.columns = {}
        for name, like in spec.buffers(0, window).items():
            shape = (count, *like.shape[1:])
            start, end = end, end + math.prod(shape) * like.itemsize
            self.columns[name] = data[start:end].view(like.dtype).reshape(shape)
