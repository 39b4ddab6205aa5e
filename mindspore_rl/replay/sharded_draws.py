"""Draws from a table whose lanes are sharded over ranks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mindspore_rl.communication.communicator import HostCommunicator, Waiting
from mindspore_rl.errors import HeldBackError, ReplayError
from mindspore_rl.replay.assignment import assign
from mindspore_rl.replay.bindings import functions
from mindspore_rl.replay.draws import Key, Mode, Order, draw, strata
from mindspore_rl.replay.host_view import HostView, to_whole
from mindspore_rl.replay.rate_limiter import SLICE_S, check_samples
from mindspore_rl.replay.sharded_rows import BatchDraws
from mindspore_rl.replay.spec import FIRST, TableSpec
from mindspore_rl.replay.table import Table

_NONE = np.empty(0, np.int64)
_INSERTS, _SAMPLES, _OVER, _LANES = range(4)
"""Layout of a rank's status vector: these three counts, then the totals of its lanes.

In the first exchange the number of posts in the rank's table follows, see `barrier.h`.
"""


@dataclass(frozen=True)
class _Told:
    """The merged status of all ranks.

    Attributes:
        totals: `[lanes] uint64`, of the weights.
        counts: inserts and samples, for the rate limiter.
        over: whether a rank's wait has ended.
    """

    totals: np.ndarray
    counts: tuple[int, int]
    over: bool


class ShardedDraws:
    """A rank's part of a table whose lanes are sharded over ranks.

    Args:
        spec: of the whole table.
        lanes: number of lanes of each rank, in order.
        tables: by rank: this rank's table and those of the other ranks of its host, as far as they
            hold lanes; each has the `TableSpec.part` of the whole specification, and no other user
            that posts in it (`barrier.h`).
        comm: communicator of the ranks.
        tag: of messages, used by this table only.
        waiting: called repeatedly while this rank waits for others; raises to end the wait.
        hosts: number of each rank's host; ranks of a host open each other's tables. None: each rank
            has its own.

    Raises:
        ReplayError: the arguments do not fit together.
    """

    def __init__(
        self,
        spec: TableSpec,
        lanes: Sequence[int],
        tables: Mapping[int, Table],
        comm: HostCommunicator,
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
        expected = {rank: spec.part(lanes[rank]) for rank in here}
        if (found := {rank: table.spec for rank, table in tables.items()}) != expected:
            raise ReplayError(
                f"rank {comm.rank} has opened tables of ranks as {found}, expected {expected}"
            )
        self.spec, self._tables, self._lanes = spec, tables, lanes
        self._comm, self._tag, self._waiting = comm, tag, waiting
        ends = np.cumsum(lanes).tolist()
        self._blocks = [slice(end - count, end) for end, count in zip(ends, lanes, strict=True)]
        self._holders = np.repeat(np.arange(comm.size), lanes)
        by_host, by_rank = np.array(self._hosts), np.arange(comm.size)
        self._between_hosts = by_host[:, None] != by_host
        self._between_ranks = by_rank[:, None] != by_rank
        self._near = HostView(spec, tables, self._blocks, comm.rank) if tables else None
        self._lane_places = np.arange(max(lanes) + 1) < np.array(lanes)[:, None]  # in what is told
        self._told: _Told | None = None
        self._posts: dict[int, int] | None = None  # of other ranks, once exchanged

    def totals(self) -> np.ndarray:
        """Exchanges and returns the total weight of every lane, `[lanes] uint64`."""
        return self._tell().totals

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A context in which no rank writes: batches need no exchange between ranks of one host.

        Ranks exchange the totals once at the start, and wait at the end until all have read.

        Raises:
            ReplayError: draws change the table, since it counts them.
        """
        if self.spec.limited or self.spec.max_times_sampled:
            raise ReplayError(
                "draws change a table with a limit of samples, so that it cannot be read without "
                "a word between ranks; call sample without reading()"
            )
        self._told = self._tell()
        try:
            yield
        finally:
            self._told = None
        self._tell()

    def draw(self, key: Key, quotas: Sequence[int], mode: Mode, totals: np.ndarray) -> BatchDraws:
        """Draws a batch from known totals; see `ShardedTable.sample`.

        Raises:
            HeldBackError: there are too few records to draw from.
        """
        count = sum(quotas)
        lanes, offsets, used = draw(key, totals, count, mode)
        divisors = np.full(len(totals), float(totals.sum()))
        if mode == Mode.STRATIFIED:
            drawn = np.maximum(np.bincount(lanes, minlength=len(totals)), 1)
            divisors = totals * (count / drawn)
        return BatchDraws(
            key, mode, lanes, offsets, used, divisors, np.array(quotas, np.int64), self._far(mode)
        )

    def _far(self, mode: Mode | Order) -> np.ndarray:
        """Returns `[ranks, ranks] bool`: whether the second gets rows of the first by message.

        Ranks of one host read the rows themselves, except where the choice depends on other rows of
        the batch: which of two draws of a record is the duplicate, or which record is not drawn
        yet. Then the holder finds all of them.
        """
        once = isinstance(mode, Order) or mode is Mode.DISTINCT
        holder_finds = self.spec.max_times_sampled or (once and not self._told)
        return self._between_ranks if holder_finds else self._between_hosts

    def messages(self, draws: BatchDraws) -> dict[tuple[int, int], np.ndarray]:
        """Plans the messages of a batch: for pairs (sender, receiver) the positions that are sent.

        Returns: positions by pair. A message may have no rows: in a weighted table all receivers of
            rows need the smallest probability of all senders.
        """
        far = draws.far
        if not far.any():
            return {}
        found: dict[tuple[int, int], np.ndarray] = {}
        holders, getters = assign(draws.lanes, self._holders, draws.quotas)
        if self.spec.weighted and isinstance(draws.mode, Mode):
            those = np.unique(getters)
            for holder in np.unique(holders).tolist():
                found |= {(holder, g): _NONE for g in those[far[holder, those]].tolist()}
        moved = np.flatnonzero(far[holders, getters])
        pairs = holders[moved] * self._comm.size + getters[moved]
        for pair in np.unique(pairs).tolist():
            found[divmod(pair, self._comm.size)] = moved[pairs == pair]
        return dict(sorted(found.items()))

    def _first(self, key: Key, quotas: Sequence[int], order: Order) -> BatchDraws:
        """Finds the first records in an order, over all ranks."""
        count, whole = sum(quotas), self.spec.lanes * self.spec.capacity
        told = [np.zeros(count if lanes else 0, FIRST) for lanes in self._lanes]
        for one in told:
            one["id"] = -1
        if table := self._tables.get(self._comm.rank):
            first = table.peek(order.value, count)
            first["id"] = to_whole(first["id"], self.spec, self._blocks[self._comm.rank])
            told[self._comm.rank][: len(first)] = first
        found = self._told_by_all(told)
        found = found[found["id"] >= 0]
        if len(found) < count:
            raise HeldBackError(
                f"{count} records are to be drawn ({order.name.lower()}) and {len(found)} can be; "
                "insert more first"
            )
        lanes = (found["id"] % whole // self.spec.capacity).astype(np.int32)
        first = np.lexsort((lanes, ~found["key"]))[:count]
        ids, lanes = found["id"][first], lanes[first]
        wanted, totals = np.array(quotas, np.int64), np.ones(self.spec.lanes)
        return BatchDraws(key, order, lanes, ids, 0, totals, wanted, self._far(order))

    def _draws(
        self, key: Key, quotas: Sequence[int], mode: Mode | Order, wait_s: float
    ) -> BatchDraws:
        """Draws a batch as soon as the table allows it."""
        count, end = sum(quotas), time.monotonic() + wait_s
        table = self._tables.get(self._comm.rank)
        while True:
            seen = functions().table_watch(table.base) if table and not self._told else 0
            told = self._told or self._tell(time.monotonic() >= end)
            try:
                inserts, samples = told.counts
                check_samples(self.spec, inserts, samples, count)
                if isinstance(mode, Order):
                    draws = self._first(key, quotas, mode)
                else:
                    draws = self.draw(key, quotas, mode, told.totals)
            except HeldBackError as error:
                if told.over:
                    raise ReplayError(f"after {wait_s:g} s: {error}") from None
                if table and mode is Mode.STRATIFIED:
                    own, rows = self._blocks[self._comm.rank], strata(count, self.spec.lanes)
                    table.want(rows[(rows >= own.start) & (rows < own.stop)] - own.start)
            else:
                if table and self.spec.limited:  # this rank's share, wherever rows were drawn
                    own, lanes = self._blocks[self._comm.rank], self.spec.lanes
                    upto, before = (
                        (samples + count) * lane // lanes - samples * lane // lanes
                        for lane in (own.stop, own.start)
                    )
                    functions().table_count(table.base, upto - before)
                return draws
            self._waiting()
            if table:
                functions().table_sleep(table.base, seen, SLICE_S)

    def _tell(self, over: bool = True, meeting: bool = False) -> _Told:
        """Exchanges the status of this rank's lanes with the other ranks.

        Ranks of one host post it in shared memory, in their tables.

        Args:
            over: whether this rank's wait has ended.
            meeting: exchanges only among this host's ranks, as a barrier.
        """
        rank, table, known = self._comm.rank, self._tables.get(self._comm.rank), self._posts or {}
        told = np.zeros((self._comm.size, _LANES + max(self._lanes) + 1), np.uint64)
        told[rank, _OVER] = over
        if table:
            posts = functions().table_post(table.base, over)
            functions().table_posted(table.base, posts, 0.0, told[rank].ctypes.data)
            told[rank, -1] = posts
        there = self._others()
        if meeting:
            there = [other for other in there if self._hosts[other] == self._hosts[rank]]
        for other in there:
            mapped = table and self._hosts[other] == self._hosts[rank]
            if self._posts is None or not mapped:
                self._send(other, told[rank])
        for other in there:
            if other in known:
                known[other] += 1
                self._read_post(other, known[other], told[other])
            else:
                self._receive(other, told[other])
        if self._posts is None:
            self._posts = {other: int(told[other, -1]) for other in self._tables}
        inserts, samples, waited = told[:, :_LANES].sum(0).tolist()
        return _Told(told[:, _LANES:][self._lane_places], (inserts, samples), bool(waited))

    def _read_post(self, rank: int, posts: int, told: np.ndarray) -> None:
        base, place = self._tables[rank].base, told.ctypes.data
        posted = functions().table_posted
        self._comm.until(lambda seconds: posted(base, posts, seconds, place), self._waiting)

    def _told_by_all(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Exchanges one array per rank, and returns them concatenated."""
        own = arrays[self._comm.rank]
        for rank in self._others():
            if len(own):
                self._send(rank, own)
        for rank in self._others():
            if len(arrays[rank]):
                self._receive(rank, arrays[rank])
        return np.concatenate(arrays)

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
