"""A replay table whose lanes are sharded over the ranks of a job.

    lanes      0  1  2 | 3  4 | 5  6 |          blocks, one for each rank; a rank may have none
    batch      position 0 .. B-1, the same draws on every rank, whatever the blocks
    quotas     rows that each rank gets: first those it holds, then other ranks' surplus

A draw depends only on the lanes' totals, which the ranks exchange: each rank computes the whole
draw, finds the records in its own lanes, and sends those that other ranks get; ranks of one host
read them in each other's memory. All ranks make the same calls, in the same order. For an `Order`
the ranks exchange their first records.
"""

from collections.abc import Sequence

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import Key, Mode, Order, check_draw
from mindspore_rl.replay.given import check_priorities, shown, whole_numbers
from mindspore_rl.replay.host_view import to_part
from mindspore_rl.replay.records import Buffers
from mindspore_rl.replay.sharded_draws import ShardedDraws
from mindspore_rl.replay.sharded_rows import ShardedRows
from mindspore_rl.replay.wire import ROW, BatchShare, RowsMessage, message_bytes

_NONE = np.empty(0, np.int64)
_NOTHING: list[np.ndarray] = [_NONE, *(np.empty(0, ROW)[name] for name in ROW.names or ())]


class ShardedTable(ShardedDraws):
    """A rank's part of a sharded table; see `ShardedDraws` for its arguments."""

    _memory = np.empty(0, np.uint8)
    _buffers: Buffers | None = None

    def sample(
        self,
        key: Key,
        quotas: Sequence[int],
        out: dict[str, np.ndarray],
        mode: Mode | Order = Mode.REPLACE,
        wait_s: float = 0.0,
    ) -> BatchShare:
        """Draws a batch, and copies this rank's share of it to `out`.

        Args:
            key: of the batch.
            quotas: rows that each rank gets.
            out: arrays as `TableSpec.buffers` makes them, for this rank's quota; a window is drawn
                in each record.
            mode: a random mode, or an order whose first records are taken.
            wait_s: maximum wait for records or for the rate limiter.

        Returns: the rows in `out`. A record that was overwritten after the draw is replaced by one
            drawn from the current records of its lane, or of its holder if the lane has no more
            (without replacement: one that is not in the batch yet; in an order the next).

        Raises:
            ReplayError: there are too few records, here, at a rank whose rows come here, or in
                total; the table never allows such a batch, or did not in time; the buffers do not
                fit. All ranks may continue with the next batch.
        """
        buffers = self._check(out, quotas)
        check_draw(self.spec, sum(quotas), mode)
        if share := self._at_once(key, quotas, mode, buffers):
            return share
        draws = self._draws(key, quotas, mode, wait_s)
        messages = self.messages(draws)
        sends = {to: rows for (source, to), rows in messages.items() if source == self._comm.rank}
        own, least, failed = _NOTHING, np.inf, None
        try:
            if self._near:
                held = ShardedRows(self._near, draws, buffers.window, self._waiting)
                own, least = self._give(held, sends, buffers), held.least
        except ReplayError as error:  # raised at the end, so that all ranks stay in step
            failed = error
            for target, rows in sends.items():
                self._send_rows(target, None, rows, buffers.window)
        parts, done = [own], len(own[0])
        for (source, target), rows in messages.items():
            if target == self._comm.rank:
                message = self._receive_rows(source, len(rows), buffers.window)
                for name, column in message.columns.items():
                    out[name][done : done + len(rows)] = column
                parts.append([rows, *(message.rows[name].copy() for name in ROW.names or ())])
                done += len(rows)
                if np.isnan(message.least[0]):
                    failed = failed or ReplayError(f"rank {source} could not draw its rows")
                least = min(least, float(message.least[0]))
        read_by_others = np.count_nonzero(~draws.far[self._comm.rank]) > 1
        if read_by_others and not self._told:  # what is here may change from now on
            self._tell(meeting=True)
        self._comm.flush(self._waiting)
        if failed:
            raise failed
        columns = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        positions, ids, probabilities, lengths, first = columns
        return BatchShare(positions, ids, probabilities, lengths, first, least)

    def _at_once(
        self, key: Key, quotas: Sequence[int], mode: Mode | Order, buffers: Buffers
    ) -> BatchShare | None:
        """Draws and copies whole records in one call, inside `reading()` on one host."""
        far = self._between_hosts
        if not isinstance(mode, Mode) or mode is Mode.DISTINCT or far.any():
            return None
        if not (self._told and self._near) or buffers.window < self.spec.length:
            return None
        totals, wanted = self._told.totals, np.array(quotas, np.int64)
        if (found := self._near.share(key, mode, totals, wanted, far, buffers)) is None:
            return None
        (positions, ids, probabilities, lengths), least = found
        first = np.zeros(len(ids), np.int32)
        return BatchShare(positions, ids, probabilities, lengths, first, least)

    def _give(
        self, held: ShardedRows, sends: dict[int, np.ndarray], buffers: Buffers
    ) -> list[np.ndarray]:
        """Sends other ranks their rows, and removes from `sends` the ranks that were served.

        Returns: the rows that stay here, which are now in the buffers; see `ShardedRows.rows`.
        """
        kept: slice | np.ndarray = slice(None)
        if sends:
            kept = np.flatnonzero(~np.isin(held.positions, np.concatenate([*sends.values()])))
        for target in list(sends):
            self._send_rows(target, held, sends[target], buffers.window)
            del sends[target]
        held.copy(kept, buffers, 0)
        return held.rows(kept)

    def _send_rows(
        self, target: int, held: ShardedRows | None, positions: np.ndarray, window: int
    ) -> None:
        """Sends rows; without `held` sends the failure to draw them."""
        message = self._message(len(positions), window)
        if held and len(positions):
            part = np.searchsorted(held.positions, positions)
            held.copy(part, Buffers(self.spec, message.columns, len(positions)), 0)
            for name, column in zip(ROW.names or (), held.rows(part)[1:], strict=True):
                message.rows[name] = column
        message.least[0] = held.least if held else np.nan  # after copying, which may draw again
        self._comm.send(target, self._tag, message.data)

    def _receive_rows(self, source: int, count: int, window: int) -> RowsMessage:
        message = self._message(count, window)
        self._comm.receive(source, self._tag, message.data, self._waiting)
        return message

    def message_bytes(self, rows: int, window: int | None = None) -> int:
        """Returns the bytes of a message with so many rows."""
        return message_bytes(self.spec, rows, window or self.spec.length)

    def update(self, ids: np.ndarray, priorities: np.ndarray, exponent: float = 1.0) -> None:
        """Sets the weights of records, on whichever ranks they are; see `Table.update`.

        If a record gets several priorities, from any ranks, the largest counts: a batch may hold a
        record twice.

        Args:
            ids: `[N] int64`; empty on a rank without updates.
            priorities: `[N]`.
            exponent: of the priorities.

        Raises:
            ReplayError: see `Table.update`.
        """
        ids = whole_numbers("ids", ids)
        values = check_priorities(self.spec, priorities, len(ids), exponent)
        if (ids < 0).any():
            raise ReplayError(
                f"ids {shown(ids)} have priorities {shown(values)}, expected one of each id "
                "from 0 on"
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
        table.update(to_part(ids[last], self.spec, block), values[last], exponent)

    def _message(self, count: int, window: int) -> RowsMessage:
        """Makes a message in memory that the next message reuses."""
        size = self.message_bytes(count, window)
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        return RowsMessage(self._memory[:size], count, self.spec, window)

    def _check(self, out: dict[str, np.ndarray], quotas: Sequence[int]) -> Buffers:
        """Checks the buffers, unless `out` has the same arrays as before. Raises: ReplayError."""
        self._check_quotas(quotas)
        quota = quotas[self._comm.rank]
        if self._buffers and self._buffers.are(out, quota):
            return self._buffers
        shape = out.get(self.spec.columns[0].name, _NONE).shape
        window = shape[1] if self.spec.length > 1 and len(shape) > 1 else 1
        for name, like in self.spec.buffers(0, window).items():
            array, shape = out.get(name, _NONE), (quota, *like.shape[1:])
            right = array.flags.c_contiguous and array.flags.writeable
            if (array.shape, array.dtype) != (shape, like.dtype) or not right:
                raise ReplayError(
                    f"the buffer of column {name} is {array.dtype} {array.shape}, expected "
                    f"{like.dtype} {shape}, contiguous and to be written: the specification's "
                    f"`buffers({quota})`"
                )
        self._buffers = Buffers(self.spec, out, quota)
        return self._buffers
