"""One replay table whose lanes are spread over the ranks of a job.

    lanes      0  1  2 | 3  4 | 5  6 |          blocks, one a rank; a rank may have none
    batch      position 0 .. B-1, the same draws on every rank, whatever the blocks
    quotas     rows that each rank gets: first those it holds, then what others have too many of

Ranks tell each other their lanes' totals, and that is all that a draw depends on: each computes the
whole of it, finds the records that fall in its own lanes, and sends those that others are to get;
ranks of one host read them in each other's memory. All make the same calls, in the same order.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
        least: the smallest probability in the whole batch, if N > 0.
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
        tables: of the lanes of each rank that has some: this one, and all others of its host. They
            have the same specification but for the number of lanes.
        comm: between the ranks.
        tag: of messages that are this table's alone.
        waiting: called now and then while this rank waits for others; raises to end that.
        hosts: a number of each rank's host, on which ranks open each other's tables; without it
            none do.

    Raises:
        ReplayError: these do not fit together.
    """

    def __init__(
        self,
        spec: TableSpec,
        lanes: Sequence[int],
        tables: Mapping[int, Table],
        comm: Communicator,
        tag: int,
        waiting: Waiting,
        hosts: Sequence[int] | None = None,
    ) -> None:
        if len(lanes) != comm.size or min(lanes) < 0 or sum(lanes) != spec.lanes:
            raise ReplayError(
                f"the {spec.lanes} lanes of a replay table are spread over {comm.size} ranks as "
                f"{list(lanes)}; expected a number for each rank, {spec.lanes} in all"
            )
        self._hosts = range(comm.size) if hosts is None else hosts
        if len(self._hosts) != comm.size:
            raise ReplayError(f"hosts are {list(self._hosts)}, expected one of {comm.size} ranks")
        here = [
            r for r in range(comm.size) if lanes[r] and self._hosts[r] == self._hosts[comm.rank]
        ]
        expected = {rank: dataclasses.replace(spec, lanes=lanes[rank]) for rank in here}
        if (found := {rank: table.spec for rank, table in tables.items()}) != expected:
            raise ReplayError(
                f"rank {comm.rank} has opened tables of ranks as {found}, expected {expected}"
            )
        self.spec, self._tables, self._lanes = spec, tables, lanes
        self._comm, self._tag, self._waiting = comm, tag, waiting
        ends = np.cumsum(lanes).tolist()
        self._blocks = [slice(end - count, end) for end, count in zip(ends, lanes, strict=True)]
        self._holders = np.repeat(np.arange(comm.size), lanes)
        self._memory = np.empty(0, np.uint8)

    def totals(self) -> np.ndarray:
        """What the weights of every lane are in all, `[lanes] uint64`, as the ranks tell."""
        totals, own = np.zeros(self.spec.lanes, np.uint64), self._comm.rank
        if self._lanes[own]:
            totals[self._blocks[own]] = self._tables[own].totals()
            for rank in self._others():
                self._send(rank, totals[self._blocks[own]])
        for rank in self._others():
            if self._lanes[rank]:
                self._receive(rank, totals[self._blocks[rank]])
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
        hosts = self._hosts
        reads: dict[tuple[int, int], np.ndarray] = {}
        messages: dict[tuple[int, int], np.ndarray] = {}
        for pair, positions in assignment.moved.items():
            # Which draw of a record is one too many goes by order: its holder finds all of them.
            near = hosts[pair[0]] == hosts[pair[1]] and not self.spec.max_times_sampled
            (reads if near else messages)[pair] = positions
        if self.spec.weighted:
            finders = {rank for rank, kept in enumerate(assignment.kept) if len(kept)}
            finders |= {holder for holder, _ in messages} | {reader for _, reader in reads}
            getters = [rank for rank, quota in enumerate(quotas) if quota]
            pairs = [(one, other) for one in sorted(finders) for other in getters if one != other]
            messages = {pair: messages.get(pair, _NONE) for pair in pairs}
        return Draws(key, mode, lanes, offsets, used, divisors, assignment, reads, messages)

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
            now (without replacement: one that the same rank has not found for this batch yet).

        Raises:
            ReplayError: there is not enough to draw from, here or on all ranks; the buffers are
                others.
        """
        window = self._check(out, quotas)
        draws = self.draw(key, quotas, mode, totals)
        found = self._find(draws, window)
        least = min((held.least for held in found.values()), default=np.inf)
        self._send_rows(draws, found, least, window)
        filled = _Filled(out, quotas[self._comm.rank])
        self._read_rows(draws, found, filled)
        least = min(least, self._receive_rows(draws, window, filled))
        for holder, reader in draws.reads:
            if holder == self._comm.rank:  # what is here may change from now on
                self._receive(reader, np.empty(1, np.uint8))
        self._comm.flush(self._waiting)
        if not self.spec.weighted:  # known without a word
            least = float(1 / draws.totals[draws.lanes].max())
        return filled.share(least)

    def _find(self, draws: Draws, window: int) -> dict[int, Held]:
        """What this rank finds of a batch, by who holds it: itself first."""
        rank = self._comm.rank
        found = {rank: draws.assignment.kept[rank]}
        sent = [rows for pair, rows in draws.messages.items() if pair[0] == rank]
        found[rank] = np.sort(np.concatenate([found[rank], *sent]))
        found |= {holder: rows for (holder, reader), rows in draws.reads.items() if reader == rank}
        return {
            holder: Held(
                self._tables[holder], self.spec, self._blocks[holder], draws, rows, window,
                self._waiting,
            )
            for holder, rows in found.items()
            if len(rows)
        }  # fmt: skip

    def _send_rows(self, draws: Draws, found: dict[int, Held], least: float, window: int) -> None:
        for (source, target), positions in draws.messages.items():
            if source == self._comm.rank:
                message = self._message(len(positions), window)
                message.least[0] = least
                if len(positions):
                    message.rows[:] = found[source].gather(positions, message.columns)
                self._comm.send(target, self._tag, message.data)

    def _read_rows(self, draws: Draws, found: dict[int, Held], filled: "_Filled") -> None:
        """Copies what is in this host's memory."""
        rank = self._comm.rank
        for holder, held in found.items():
            own = holder == rank
            positions = draws.assignment.kept[rank] if own else draws.reads[holder, rank]
            rows, columns = filled.more(positions)
            rows[:] = held.gather(positions, columns)
            if not own:
                self._send(holder, np.zeros(1, np.uint8))

    def _receive_rows(self, draws: Draws, window: int, filled: "_Filled") -> float:
        """Returns: the smallest probability that other ranks have found."""
        least = np.inf
        for (source, target), positions in draws.messages.items():
            if target == self._comm.rank:
                message = self._message(len(positions), window)
                self._comm.receive(source, self._tag, message.data, self._waiting)
                rows, columns = filled.more(positions)
                rows[:] = message.rows
                for name, column in message.columns.items():
                    columns[name][:] = column
                least = min(least, float(message.least[0]))
        return least

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
        if not self._lanes[self._comm.rank]:
            return
        table, block = self._tables[self._comm.rank], self._blocks[self._comm.rank]
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
        table.update(to_local(ids[last], self.spec, block), values[last], exponent)

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


class _Filled:
    """A rank's buffers, filled from their first row on.

    Args:
        out: the buffers.
        quota: their rows.
    """

    def __init__(self, out: dict[str, np.ndarray], quota: int) -> None:
        self._out, self._rows = out, np.empty(quota, ROW)
        self._positions, self._end = [_NONE], 0

    def more(self, positions: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Where the next rows are to stand, which have these positions in the batch."""
        part = slice(self._end, self._end + len(positions))
        self._positions.append(positions)
        self._end = part.stop
        return self._rows[part], {name: column[part] for name, column in self._out.items()}

    def share(self, least: float) -> Share:
        """What stands there, of a batch with this smallest probability elsewhere."""
        columns = [self._rows[name].copy() for name in ("id", "probability", "length", "first")]
        ids, probabilities, lengths, first = columns
        least = float(probabilities.min(initial=least))
        return Share(np.concatenate(self._positions), ids, probabilities, lengths, first, least)


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
