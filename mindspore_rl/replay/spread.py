"""What a batch is made of that is drawn from a table whose lanes are spread over ranks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mindspore_rl.communication.communicator import Communicator, Waiting
from mindspore_rl.errors import HeldBackError, ReplayError
from mindspore_rl.replay.assignment import assign
from mindspore_rl.replay.held import Draws, to_global
from mindspore_rl.replay.library import functions
from mindspore_rl.replay.limit import SLICE_S, check_samples
from mindspore_rl.replay.selection import Key, Mode, Order, draw
from mindspore_rl.replay.spec import FIRST, TableSpec
from mindspore_rl.replay.table import Table

_NONE, _HEAD = np.empty(0, np.int64), 3


@dataclass(frozen=True)
class _Told:
    """What ranks have told each other.

    Attributes:
        totals: `[lanes] uint64`, of the weights.
        counts: `[2] int64`, inserts and samples of a table that counts them.
        over: whether a rank does not wait any longer.
    """

    totals: np.ndarray
    counts: np.ndarray
    over: bool


class Spread:
    """A rank's end of a table whose lanes are spread over ranks.

    Args:
        spec: of the whole table.
        lanes: how many of them each rank holds, in order.
        tables: of the lanes of each rank that has some: this one, and all others of its host; of
            the whole one's `TableSpec.part`.
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
        self._told: _Told | None = None

    def totals(self) -> np.ndarray:
        """What the weights of every lane are in all, `[lanes] uint64`, as the ranks tell."""
        return self._tell().totals

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While no rank changes what it holds: no word between ranks of one host for a batch.

        Ranks tell each other the totals once, and at the end wait until all have read.

        Raises:
            ReplayError: draws alone change the table, since it counts them.
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

    def draw(self, key: Key, quotas: Sequence[int], mode: Mode, totals: np.ndarray) -> Draws:
        """What a batch will be made of, and what will cross for it; see `sample`.

        Raises:
            HeldBackError: there is not enough to draw from.
        """
        count = sum(quotas)
        lanes, offsets, used = draw(key, totals, count, mode)
        divisors = np.full(len(totals), float(totals.sum()))
        if mode == Mode.STRATIFIED:
            drawn = np.maximum(np.bincount(lanes, minlength=len(totals)), 1)
            divisors = totals * (count / drawn)
        return self._crossing(key, mode, lanes, offsets, used, divisors, quotas)

    def _crossing(
        self,
        key: Key,
        mode: Mode | Order,
        lanes: np.ndarray,
        places: np.ndarray,
        used: int,
        divisors: np.ndarray,
        quotas: Sequence[int],
    ) -> Draws:
        assignment = assign(self._holders[lanes], quotas)
        # Which draw of a record is one too many goes by order: its holder finds all of them.
        hosts = range(len(quotas)) if self.spec.max_times_sampled else self._hosts
        reads: dict[tuple[int, int], np.ndarray] = {}
        messages: dict[tuple[int, int], np.ndarray] = {}
        for pair, positions in assignment.moved.items():
            near = hosts[pair[0]] == hosts[pair[1]]
            (reads if near else messages)[pair] = positions
        if self.spec.weighted and isinstance(mode, Mode):
            getters = [rank for rank, quota in enumerate(quotas) if quota]
            for holder in np.unique(self._holders[lanes]).tolist():
                for getter in getters:
                    if holder != getter:
                        near = hosts[holder] == hosts[getter]
                        (reads if near else messages).setdefault((holder, getter), _NONE)
        messages = dict(sorted(messages.items()))
        return Draws(key, mode, lanes, places, used, divisors, assignment, reads, messages)

    def _first(self, key: Key, quotas: Sequence[int], order: Order) -> Draws:
        """The first records in an order, of what all ranks have."""
        count, whole = sum(quotas), self.spec.lanes * self.spec.capacity
        told = [np.zeros(count if lanes else 0, FIRST) for lanes in self._lanes]
        for one in told:
            one["id"] = -1
        if table := self._tables.get(self._comm.rank):
            first = table.peek(order.value, count)
            first["id"] = to_global(first["id"], self.spec, self._blocks[self._comm.rank])
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
        return self._crossing(key, order, lanes, ids, 0, np.ones(self.spec.lanes), quotas)

    def _draws(self, key: Key, quotas: Sequence[int], mode: Mode | Order, wait_s: float) -> Draws:
        """What a batch is made of, as soon as the table allows it."""
        count, end = sum(quotas), time.monotonic() + wait_s
        table = self._tables.get(self._comm.rank)
        while True:
            seen = functions().table_watch(table.base) if table else 0
            told = self._told or self._tell(time.monotonic() >= end)
            try:
                inserts, samples = told.counts.tolist()
                check_samples(self.spec, inserts, samples, count)
                if isinstance(mode, Order):
                    draws = self._first(key, quotas, mode)
                else:
                    draws = self.draw(key, quotas, mode, told.totals)
            except HeldBackError as error:
                if told.over:
                    raise ReplayError(f"after {wait_s:g} s: {error}") from None
            else:
                if table and self.spec.limited:  # an even share of them, wherever rows were drawn
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

    def _tell(self, over: bool = True) -> _Told:
        """Tells the others about this rank's lanes, and hears about theirs."""
        told = [np.zeros(_HEAD + lanes, np.uint64) for lanes in self._lanes]
        if table := self._tables.get(self._comm.rank):
            told[self._comm.rank][:2] = table.limit["inserts"], table.limit["samples"]
            told[self._comm.rank][_HEAD:] = table.totals()
        told[self._comm.rank][2] = over
        self._told_by_all(told)
        counts = np.stack([one[:_HEAD] for one in told]).sum(0).astype(np.int64)
        totals = np.concatenate([one[_HEAD:] for one in told])
        return _Told(totals, counts[:2], bool(counts[2]))

    def _told_by_all(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Arrays of all ranks, of which each has its own."""
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
