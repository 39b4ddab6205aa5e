"""One replay table whose lanes are spread over the ranks of a job.

    lanes      0  1  2 | 3  4 | 5  6 |          blocks, one a rank; a rank may have none
    batch      position 0 .. B-1, the same draws on every rank, whatever the blocks
    quotas     rows that each rank gets: first those it holds, then what others have too many of

Ranks tell each other their lanes' totals, and that is all that a draw depends on: each computes the
whole of it, finds the records that fall in its own lanes, and sends those that others are to get;
ranks of one host read them in each other's memory. All make the same calls, in the same order.
For an order each tells the others which of its own records are the first in it.
"""

from collections.abc import Sequence

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.held import Draws, Held, to_local
from mindspore_rl.replay.selection import Key, Mode, Order, check_draw
from mindspore_rl.replay.share import Filled, Message, Share, message_bytes
from mindspore_rl.replay.spec import check_priorities
from mindspore_rl.replay.spread import Spread

_NONE = np.empty(0, np.int64)


class ShardedTable(Spread):
    """A rank's end of it; see `Spread` for its arguments."""

    _memory = np.empty(0, np.uint8)

    def sample(
        self,
        key: Key,
        quotas: Sequence[int],
        out: dict[str, np.ndarray],
        mode: Mode | Order = Mode.REPLACE,
        wait_s: float = 0.0,
    ) -> Share:
        """Draws a batch, of which each rank gets its share.

        Args:
            key: of the batch.
            quotas: rows that each rank gets.
            out: of `TableSpec.buffers`, for this rank's quota; a window is drawn in each record.
            mode: how records are drawn, or the first in an order are.
            wait_s: for what the table lacks, or for its limit to allow the batch.

        Returns: which rows stand in `out`. A record that was overwritten after the draw is replaced
            by another of its lane, or of its holder's if that has no more, drawn from what is there
            now (without replacement: one that the same rank has not found for this batch yet; in an
            order the next).

        Raises:
            ReplayError: there is not enough to draw from, here or on all ranks; the table never
                allows such a batch, or did not in time; the buffers are others.
        """
        window = self._check(out, quotas)
        check_draw(self.spec, sum(quotas), mode)
        draws = self._draws(key, quotas, mode, wait_s)
        found = self._find(draws, window)
        least = min([self._look(draws), *(held.least for held in found.values())])
        self._send_rows(draws, found, least, window)
        filled = Filled(out, quotas[self._comm.rank])
        self._read_rows(draws, found, filled)
        least = min(least, self._receive_rows(draws, window, filled))
        for holder, reader in draws.reads:
            if not self._told:
                if reader == self._comm.rank:
                    self._send(holder, np.zeros(1, np.uint8))
                if holder == self._comm.rank:  # what is here may change from now on
                    self._receive(reader, np.empty(1, np.uint8))
        self._comm.flush(self._waiting)
        if not self.spec.weighted or isinstance(mode, Order):  # known without a word
            least = float(1 / draws.totals[draws.lanes].max())
        return filled.share(least)

    def _look(self, draws: Draws) -> float:
        """The smallest probability of what others find in this rank's lanes, or it in theirs.

        On this host: what crosses to others is told with it.
        """
        least = np.inf
        if not self.spec.weighted or isinstance(draws.mode, Order):
            return least
        for holder in {pair[0] for pair in draws.reads if self._comm.rank in pair}:
            rows = np.flatnonzero(self._holders[draws.lanes] == holder)
            lanes = draws.lanes[rows]
            own = lanes - np.int32(self._blocks[holder].start)
            ids, weights, _ = self._tables[holder].resolve(own, draws.places[rows], False)
            there = ids >= 0
            found = weights[there] / draws.totals[lanes[there]]
            least = min(least, float(found.min(initial=np.inf)))
        return least

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

    def _read_rows(self, draws: Draws, found: dict[int, Held], filled: Filled) -> None:
        """Copies what is in this host's memory."""
        rank = self._comm.rank
        for holder, held in found.items():
            own = holder == rank
            positions = draws.assignment.kept[rank] if own else draws.reads[holder, rank]
            rows, columns = filled.more(positions)
            rows[:] = held.gather(positions, columns)

    def _receive_rows(self, draws: Draws, window: int, filled: Filled) -> float:
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
        return message_bytes(self.spec, rows, window or self.spec.length)

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

    def _message(self, count: int, window: int) -> Message:
        """In memory that the next message takes again."""
        size = self.message_bytes(count, window)
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        return Message(self._memory[:size], count, self.spec, window)

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
