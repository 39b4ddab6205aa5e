"""A replay table against a model of it, whatever is called in whatever order.

The model is a ring of records for each lane. It tells ids, totals, draws, what the limits allow and
the messages of what they do not.
"""

import itertools
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import Drawn, Key, Mode, Order, draw, sample, strata
from mindspore_rl.replay.sampler import Sampler
from mindspore_rl.replay.spec import LARGEST, ONE, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import Writer
from tests.replay.tables import COLUMNS, records

PRIORITIES = st.sampled_from([0.0, 0.25, 1.0, 1.0, 4.0, 9.0, 1e14])
"""With exact square roots; the first one has the smallest weight, the last one the largest."""
EXPONENTS = st.sampled_from([0.5, 1.0])
COUNTS = st.lists(st.integers(1, 8), min_size=1, max_size=6)
"""Sizes of batches in turn; the slack of 5 allows the largest."""


def weight_of(priority: float, exponent: float) -> int:
    return int(min(max(round(priority**exponent * ONE), 1), LARGEST))


@dataclass
class Record:
    number: int
    length: int
    weight: int
    order: int
    sampled: int = 0


@dataclass
class Lane:
    """A ring of `capacity` places; `open` are those that are being written, with their steps.

    In a sequential table that is one at most, and what is lost open is written first.
    """

    capacity: int
    sequential: bool
    begun: int = 0
    committed: int = 0
    wanted: bool = False
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    kept: dict[int, Record] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)

    def begin(self) -> int | None:
        """Takes the oldest place that is not open."""
        if self.sequential:
            if self.open:
                return None
            self.begun = self.committed
        for _ in range(self.capacity):
            place = self.begun % self.capacity
            self.begun += 1
            if place not in self.open:
                self.kept.pop(place, None)
                return place
        return None

    def commit(self, place: int, number: int, length: int, weight: int) -> None:
        self.kept[place] = Record(number, length, weight, self.committed)
        self.uses[place] = self.uses.get(place, 0) + 1
        self.committed, self.wanted = self.committed + 1, False

    def ring(self, step: int) -> list[int]:
        """Returns the places that can be drawn, from the oldest on, or from the newest back."""
        start = self.begun if step > 0 else self.begun - 1
        places = [(start + step * i) % self.capacity for i in range(self.capacity)]
        return [p for p in places if p in self.kept and self.kept[p].weight]

    @property
    def total(self) -> int:
        return sum(record.weight for record in self.kept.values())


class ReplayTable(RuleBasedStateMachine):
    @initialize(
        capacity=st.sampled_from([1, 2, 5, 16, 17, 20, 300, 5000]),  # up to three levels of sums
        lanes=st.integers(1, 3),
        length=st.sampled_from([1, 4]),
        weighted=st.booleans(),
        limits=st.sampled_from(
            [*({"max_times_sampled": n} for n in (0, 0, 1, 2, 3)), {"r": 2}, {"r": 0.5}]
        ),
        wait_for=st.booleans(),
        begin_with=st.sampled_from([0, 12, 30]),
        sequential=st.booleans(),
    )
    def make(self, capacity, lanes, length, weighted, limits, wait_for, begin_with, sequential):
        limits = dict(limits)
        if sequential:
            length, limits = 1, {"sequential": True} | limits
            limits.pop("max_times_sampled", 0)
        if ratio := limits.pop("r", 0):
            limits |= {"samples_per_insert": float(ratio), "slack": 5.0}
        limits["min_records"] = min(4, capacity) if wait_for else 1
        self.spec = TableSpec(COLUMNS, capacity, lanes, length, weighted, **limits)
        self.folder = tempfile.TemporaryDirectory()
        self.names = (Path(self.folder.name) / f"{n}" for n in itertools.count())
        self.path = next(self.names)
        self.table = Table.create(self.spec, self.path)
        self.writer = Writer(self.table)
        self.lanes = [Lane(capacity, sequential) for _ in range(lanes)]
        self.full = "all {} records of lane {} are open".format
        if sequential:
            self.full = "the record of lane {1} is open".format
        self.inserts = self.samples = self.number = self.step = 0
        self.ids: list[int] = []
        self.last: list[int] = []  # drawn last
        self.put(0, begin_with, False, True, 0.5)

    def teardown(self):
        if hasattr(self, "table"):
            self.writer.close()
            self.table.close()
            self.folder.cleanup()

    # ---- the model ---------------------------------------------------------------------------

    def id_of(self, lane: int, place: int) -> int:
        records, own = self.spec.lanes * self.spec.capacity, lane * self.spec.capacity
        return self.lanes[lane].uses[place] * records + own + place

    def found(self, one: int) -> tuple[int, int]:
        """Returns lane and place of an id."""
        return divmod(one % (self.spec.lanes * self.spec.capacity), self.spec.capacity)

    def record(self, one: int) -> Record | None:
        """Returns the record of an id, if it is still there."""
        lane, place = self.found(one)
        there = place in self.lanes[lane].kept and self.id_of(lane, place) == one
        return self.lanes[lane].kept[place] if there else None

    def held_insert(self, lane: Lane, left: int) -> str:
        """Counts an insert. Returns: the message, if it is held back."""
        spec = self.spec
        late = self.inserts + 1 > spec.min_records
        due = spec.samples_per_insert * (self.inserts + 1 - spec.min_records) - self.samples
        if spec.samples_per_insert and late and due > spec.slack and not lane.wanted:
            lacking = math.ceil(due - spec.slack)
            return f"{left} inserts are held back: .* {lacking} more samples are lacking"
        self.inserts += spec.limited
        return ""

    def held_samples(self, count: int) -> str:
        """Counts samples. Returns: the message, if they are held back."""
        spec, ratio = self.spec, self.spec.samples_per_insert
        lacking = spec.min_records - self.inserts
        if spec.limited and lacking > 0:
            return f"{count} samples are held back: .* {lacking} more inserts are lacking"
        due = self.samples + count - spec.slack
        if ratio and ratio * (self.inserts - spec.min_records) < due:
            lacking = math.ceil(due / ratio + spec.min_records - self.inserts)
            return f"{count} samples are held back: .* {lacking} more inserts are lacking"
        self.samples += count * spec.limited
        return ""

    def drawn(self, ids: list[int]) -> None:
        """Counts draws; a record's last draw takes it out."""
        most, self.last = self.spec.max_times_sampled, ids
        self.read(np.array(ids), self.spec.length)
        for one in ids:
            record = self.record(one)
            record.sampled += 1
            assert not most or record.sampled <= most, "drawn more often than the table allows"
            if record.sampled == most:
                record.weight = 0

    # ---- writing -----------------------------------------------------------------------------

    @rule(
        seed=st.integers(0, 99),
        rows=st.integers(1, 40),
        rounds=st.integers(0, 1),
        whole=st.booleans(),
        given=st.booleans(),
        exponent=EXPONENTS,
    )
    def insert(self, seed, rows, rounds, whole, given, exponent):
        self.put(seed, rows + rounds * self.spec.capacity, whole, given, exponent)

    def put(self, seed, rows, whole, given, exponent):
        """The limit, or a lane that is open altogether, ends it: what came before is inserted."""
        spec, rng = self.spec, np.random.default_rng(seed)
        lanes = rng.integers(0, spec.lanes, rows)
        numbers = np.arange(self.number, self.number + rows)
        self.number += rows
        lengths = np.full(rows, spec.length) if whole else rng.integers(1, spec.length + 1, rows)
        priorities = [0.0, 0.25, 1.0, 4.0, 9.0, 1e14]
        given = rng.choice(priorities, rows) if given and spec.weighted else None
        expected, message = [], ""
        for row, at in enumerate(lanes.tolist()):
            lane = self.lanes[at]
            if message := self.held_insert(lane, rows - row):
                break
            if (place := lane.begin()) is None:
                self.inserts -= spec.limited
                message = self.full(spec.capacity, at)
                break
            weight = (
                (ONE if given is None else weight_of(given[row], exponent)) if spec.weighted else 1
            )
            lane.commit(place, int(numbers[row]), int(lengths[row]), weight)
            expected.append(self.id_of(at, place))
        self.ids += expected
        values = records(numbers, spec.length)
        if message:
            with pytest.raises(ReplayError, match=message):
                self.writer.insert(lanes, values, lengths, given, exponent)
        else:
            ids = self.writer.insert(lanes, values, lengths, given, exponent)
            assert ids.tolist() == expected

    @rule(lane=st.integers(0, 2))
    def begin(self, lane):
        """A record that is begun takes the oldest place, and cannot be drawn."""
        lane %= self.spec.lanes
        place = self.lanes[lane].begin()
        if place is None:
            with pytest.raises(ReplayError, match=self.full(self.spec.capacity, lane)):
                self.writer.begin(lane)
            return
        assert self.writer.begin(lane) == lane * self.spec.capacity + place
        self.lanes[lane].open[place] = self.number, 0
        self.number += 1

    def opened(self):
        return [(lane, place) for lane in range(self.spec.lanes) for place in self.lanes[lane].open]

    @precondition(lambda self: self.opened())
    @rule(
        data=st.data(),
        priority=PRIORITIES,
        exponent=EXPONENTS,
        pieces=st.lists(st.integers(1, 3), max_size=3),
        more=st.booleans(),
    )
    def append_and_commit(self, data, priority, exponent, pieces, more):
        """Without a step it stays open; held back too."""
        lane, place = data.draw(st.sampled_from(self.opened()))
        number, done = self.lanes[lane].open[place]
        record = lane * self.spec.capacity + place
        values = records([number], self.spec.length).items()
        values = {n: (x[0] if self.spec.length > 1 else x) for n, x in values}
        for steps in pieces:
            if done + steps <= self.spec.length:
                self.writer.append(record, {n: x[done : done + steps] for n, x in values.items()})
                done += steps
        self.lanes[lane].open[place] = number, done
        if more:
            return
        if not done:
            with pytest.raises(ReplayError, match="a record without a step"):
                self.writer.commit(record)
        elif message := self.held_insert(self.lanes[lane], 1):
            with pytest.raises(ReplayError, match=message):
                self.writer.commit(record, priority, exponent)
        else:
            del self.lanes[lane].open[place]
            weight = weight_of(priority, exponent) if self.spec.weighted else 1
            self.lanes[lane].commit(place, number, done, weight)
            self.ids.append(self.id_of(lane, place))
            assert self.writer.commit(record, priority, exponent) == self.ids[-1]
            with pytest.raises(ReplayError, match="is not open"):
                self.writer.commit(record)

    @precondition(lambda self: self.spec.weighted and self.ids)
    @rule(data=st.data(), exponent=EXPONENTS, rows=st.integers(1, 20))
    def update(self, data, exponent, rows):
        """Of records that are gone, or drawn for the last time, it is ignored."""
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        chosen = self.last if self.last and data.draw(st.booleans()) else self.ids
        ids = rng.choice(chosen[-3 * self.spec.lanes * self.spec.capacity :], rows)
        given, done = rng.choice([0.0, 0.25, 1.0, 4.0, 9.0, 1e14], rows), 0
        for one, priority in zip(ids.tolist(), given, strict=True):
            record = self.record(one)
            if record and record.weight:
                record.weight = weight_of(priority, exponent)
                done += 1
        assert self.table.update(ids, given, exponent) == done

    # ---- drawing -----------------------------------------------------------------------------

    def refused(self, message: str, count: int, mode: Mode | Order) -> None:
        with pytest.raises(ReplayError, match=message):
            sample(self.table, Key(3, self.step), count, mode)

    def sampled(self, count: int, mode: Mode | Order) -> Drawn:
        """Draws records, or draws and copies them in one call, also windows of them."""
        if self.step % 2:
            return sample(self.table, Key(3, self.step), count, mode)
        window = self.step // 2 % self.spec.length + 1
        sampler, given = Sampler(self.table, count, mode, 3, window), None
        sampler.step = self.step
        if self.step % 4:
            given = self.table.buffers(count, window)
        batch = sampler.sample(given)
        assert given is None or batch.columns is given
        assert sampler.step == self.step + 1
        self.same(batch.columns, batch.ids, window, batch.first)
        assert (batch.first >= 0).all()
        assert (batch.first <= np.maximum(batch.lengths - window, 0)).all()
        shares = batch.probabilities / batch.probabilities.min()
        np.testing.assert_allclose(batch.importance_weights(0.5), shares**-0.5, rtol=1e-6)
        return batch

    @rule(counts=COUNTS, mode=st.sampled_from([*Mode, *Order]))
    def take(self, counts, mode):
        needed = {Mode.DISTINCT: False, Order.LARGEST: True}.get(mode, self.spec.weighted)
        for count in counts if needed == self.spec.weighted else ():
            if mode is Mode.DISTINCT or isinstance(mode, Order):
                count = min(count, self.spec.lanes * self.spec.capacity)  # noqa: PLW2901
            self.step += 1
            (self.in_order if isinstance(mode, Order) else self.at_random)(count, mode)

    def in_order(self, count, order):
        """Exactly those that come first; where there are too few, none."""
        rings = [lane.ring(1 if order is Order.FIFO else -1) for lane in self.lanes]
        there = sum(map(len, rings))
        if there < count:
            message = (
                rf"{count} records are to be drawn \({order.name.lower()}\) and {there} can be"
            )
            return self.refused(message, count, order)
        if message := self.held_samples(count):
            return self.refused(message, count, order)
        if order is Order.LARGEST:
            every = [(at, place) for at, ring in enumerate(rings) for place in sorted(ring)]
            chosen = sorted(every, key=lambda one: -self.lanes[one[0]].kept[one[1]].weight)[:count]
        else:
            chosen, sign = [], 1 if order is Order.FIFO else -1
            for _ in range(count):  # of the lanes' first ones the oldest, or the newest
                heads = {at: self.lanes[at].kept[ring[0]] for at, ring in enumerate(rings) if ring}
                at = min(heads, key=lambda at: sign * heads[at].order)
                chosen.append((at, rings[at].pop(0)))
        drawn = self.sampled(count, order)
        expected = [self.id_of(at, place) for at, place in chosen]
        assert drawn.ids.tolist() == expected
        assert (drawn.probabilities == 1).all()
        self.drawn(expected)
        return None

    def at_random(self, count, mode):
        """In proportion to weights, with what the key gives; where too few are left, none."""
        spec = self.spec
        most, lanes = spec.max_times_sampled, strata(count, spec.lanes)
        left = [
            [(most - r.sampled if most else count) for r in lane.kept.values() if r.weight]
            for lane in self.lanes
        ]
        totals = np.array([lane.total for lane in self.lanes], np.uint64)
        message = rf"{count} records are to be drawn \({mode.name.lower()}\) and"
        if mode is Mode.STRATIFIED:
            rows = np.bincount(lanes, minlength=spec.lanes)
            few = any(sum(own) < asked for own, asked in zip(left, rows, strict=True))
            at_once = not totals[lanes].all()
            for at in set(lanes.tolist()):  # else draws and writers might wait for each other
                self.lanes[at].wanted |= at_once and not totals[at]
        elif mode is Mode.DISTINCT:
            few = at_once = sum(map(len, left)) < count
        else:
            few, at_once = sum(map(sum, left)) < count, not totals.any()
        if not at_once and (held := self.held_samples(count)):
            return self.refused(held, count, mode)
        if few:
            self.samples -= count * spec.limited * (not at_once)  # it gives back what it has drawn
            return self.refused(message, count, mode)
        drawn, key = self.sampled(count, mode), Key(3, self.step)
        ids = drawn.ids.tolist()
        if mode is Mode.STRATIFIED:
            assert [self.found(one)[0] for one in ids] == lanes.tolist()
        if mode is Mode.DISTINCT:
            assert len(set(ids)) == count
        if not most:
            at, offsets, _ = draw(key, totals, count, mode, 0, lanes)
            rows = [self.lanes[lane].kept for lane in at.tolist()]
            draws = zip(ids, at.tolist(), rows, offsets.tolist(), strict=True)
            for one, lane, kept, offset in draws:
                places = sorted(kept)
                ends = list(itertools.accumulate(kept[place].weight for place in places))
                place = next(p for p, end in zip(places, ends, strict=True) if offset < end)
                assert one == self.id_of(lane, place)
            weights = np.array([self.record(one).weight for one in ids], float)
            share = weights / float(totals.sum())
            if mode is Mode.STRATIFIED:
                share = weights / totals[at] * np.bincount(lanes)[at] / count
            np.testing.assert_allclose(drawn.probabilities, share, rtol=1e-12)
        assert drawn.lengths.tolist() == [self.record(one).length for one in ids]
        self.drawn(ids)
        return None

    # ---- reading -----------------------------------------------------------------------------

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), rows=st.integers(1, 30))
    def gather(self, data, rows):
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        ids = rng.choice(self.ids[-3 * self.spec.lanes * self.spec.capacity :], rows)
        window = data.draw(st.integers(1, self.spec.length))
        first = rng.integers(0, self.spec.length - window + 1, rows).astype(np.int32)
        self.read(ids, window, first)

    def read(self, ids: np.ndarray, window: int, first: np.ndarray | None = None) -> None:
        """What was written; what was overwritten is told."""
        out, there = self.table.buffers(len(ids), window), list(map(self.record, ids.tolist()))
        whole = self.table.gather(ids, out, first)
        assert whole.tolist() == [record is not None for record in there]
        self.same(out, ids, window, first)

    def same(self, columns, ids: np.ndarray, window: int, first: np.ndarray | None) -> None:
        """Compares what was copied with what was written, and zeros behind its end."""
        for row, record in enumerate(map(self.record, ids.tolist())):
            steps = np.arange(window) + (0 if first is None else first[row])
            if record:
                written = steps < record.length
                reward = np.where(written, record.number + steps / 8, 0).astype(np.float32)
                obs = np.where(written, reward + np.float32(200), 0)
                np.testing.assert_array_equal(np.ravel(columns["reward"][row]), reward)
                np.testing.assert_array_equal(np.ravel(columns["obs"][row, ..., 2]), obs)

    @rule(saved=st.booleans())
    def open_again(self, saved):
        """From its file, or from a copy; what was open is lost, and all else goes on."""
        self.writer.close()
        if saved:
            copy, self.path = next(self.names), next(self.names)
            self.table.save(copy)
            entries = self.table.entries.copy()
            self.table.close()
            self.table = Table.load(copy, self.path)
            np.testing.assert_array_equal(self.table.entries, entries)
        else:
            self.table.close()
            self.table = Table.open(self.path, spec=self.spec)
        assert self.table.spec == self.spec
        self.writer = Writer(self.table)
        for lane in self.lanes:
            lane.open.clear()

    @invariant()
    def totals_and_counts_are_those_of_the_model(self):
        if hasattr(self, "table"):
            assert self.table.totals().tolist() == [lane.total for lane in self.lanes]
            counts = int(self.table.limit["inserts"]), int(self.table.limit["samples"])
            assert counts == (self.inserts, self.samples)
            for at, lane in enumerate(self.lanes):
                some = [] if self.spec.sequential else itertools.islice(lane.kept.items(), 40)
                for place, record in some:
                    assert self.table.entries["sampled"][at, place] == record.sampled


TestReplayTable = ReplayTable.TestCase
TestReplayTable.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
