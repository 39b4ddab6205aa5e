"""Draws in an order: first in first out, last in first out, and the largest weights."""

import time

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.sampler import Key, Mode, Order, sample
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing
from tests.replay.ranks import on_ranks
from tests.replay.tables import COLUMNS, filled, records

KEY = Key(0, 0)


def rewards(table, drawn):
    out = table.buffers(len(drawn.ids))
    assert table.gather(drawn.ids, out).all()
    return out["reward"].reshape(len(drawn.ids), -1)[:, 0].tolist()


@pytest.mark.parametrize("capacity", [5, 16, 40, 300])
def test_first_and_last_follow_the_ring(capacity):
    # Lane 0 gets twice as many as lane 1, and both go round.
    numbers = np.arange(4 * capacity - 1)
    table, _ = filled(numbers, TableSpec(COLUMNS, capacity, lanes=2), np.minimum(numbers % 3, 1))
    lanes = [numbers[numbers % 3 == 0], numbers[numbers % 3 > 0]]
    places = {n: (i, lane) for lane, those in enumerate(lanes) for i, n in enumerate(those)}
    kept = [int(n) for those in lanes for n in those[-capacity:]]
    count = int(capacity * 1.5)
    first = sorted(kept, key=places.__getitem__)[:count]
    assert rewards(table, sample(table, KEY, count, Order.FIFO)) == first
    last = sorted(kept, key=lambda n: (-places[n][0], places[n][1]))[:count]
    assert rewards(table, sample(table, KEY, count, Order.LIFO)) == last


def test_records_that_were_open_long_keep_their_place():
    table = Table.create(TableSpec(COLUMNS, capacity=4, length=4))
    with writing(table, [0]) as writer:
        places = [writer.begin(0) for _ in range(4)]
        for number in (2, 0, 3):
            data = {name: x[0] for name, x in records([number]).items()}
            writer.append(places[number], data)
            writer.commit(places[number])
        assert rewards(table, sample(table, KEY, 3, Order.FIFO)) == [0, 2, 3]
        assert rewards(table, sample(table, KEY, 2, Order.LIFO)) == [3, 2]
        with pytest.raises(ReplayError, match="4 records are to be drawn .fifo. and 3 can be"):
            sample(table, KEY, 4, Order.FIFO)


@pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_ranks_keep_the_places_of_records_that_were_open_long(order, count):
    spec = TableSpec(COLUMNS, capacity=4, lanes=2)
    table = Table.create(spec)
    with writing(table, [0, 1]) as writer:
        places = [writer.begin(lane) for lane in (0, 0, 0, 1, 1)]
        for number in (1, 4, 2, 0, 3):
            writer.append(places[number], records([number], 1))
            writer.commit(places[number])

    def job(sharded, comm):
        return sharded.sample(KEY, [count], spec.buffers(count), order).ids.tolist()

    found = on_ranks((2,), job, spec, lambda *_: table)[0]
    assert found == sample(table, KEY, count, order).ids.tolist()


@pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO])
def test_a_queue_and_a_stack_give_each_record_once(order):
    spec = TableSpec(COLUMNS, capacity=1500, lanes=2, max_times_sampled=1)
    table = Table.create(spec)
    rng, left, got = np.random.default_rng(1), [], []
    with writing(table, [0, 1]) as writer:
        for turn in range(300):
            numbers = np.arange(10 * turn, 10 * turn + 10)
            writer.insert(numbers % 2, records(numbers, 1))
            left += numbers.tolist()
            count = int(rng.integers(1, min(len(left), 18)))
            expected = left[:count] if order is Order.FIFO else _last(left, count)
            found = rewards(table, sample(table, KEY, count, order))
            assert found == expected
            got += found
            left = [n for n in left if n not in set(found)]
    assert len(got) == len(set(got))
    assert table.totals().sum() == len(left)


def _last(numbers, count):
    # Of two records that are as many inserts from the end, the one of lane 0 comes first.
    return sorted(numbers, key=lambda n: (-(n // 2), n % 2))[:count]


@pytest.mark.parametrize("capacity", [7, 16, 100, 3000])
def test_the_largest_are_the_largest(capacity):
    rng = np.random.default_rng(capacity)
    spec = TableSpec(COLUMNS, capacity, lanes=3, weighted=True)
    table, ids = filled(range(3 * capacity), spec)
    weights = np.ones(3 * capacity)
    for _ in range(20):  # up and down, with many equal ones
        some = rng.choice(3 * capacity, capacity, replace=False)
        weights[some] = rng.integers(1, 50, capacity) ** rng.integers(1, 4)
        table.update(ids[some], weights[some])
        count = int(rng.integers(1, 3 * capacity))
        lane, slot = np.arange(3 * capacity) % 3, np.arange(3 * capacity) // 3
        expected = ids[np.lexsort((slot, lane, -weights))[:count]]
        np.testing.assert_array_equal(sample(table, KEY, count, Order.LARGEST).ids, expected)


def test_an_order_costs_the_same_in_a_large_table():
    """A look at all records would take a thousand times as long."""
    times = {}
    for capacity in (1000, 1_000_000):
        table = Table.create(TableSpec(COLUMNS, capacity, weighted=True))
        with writing(table, [0]) as writer:
            numbers, high = np.arange(capacity), np.full(capacity, 1000)
            ids = writer.insert(np.zeros(capacity), records(numbers, 1), priorities=high)
        table.update(ids, numbers % 999 + 1)  # what was the largest is so no more
        for order in Order:
            for _ in range(20):
                start = time.perf_counter()
                sample(table, KEY, 32, order)
                spent = time.perf_counter() - start
                times[order, capacity] = min(times.get((order, capacity), 1e9), spent)
        table.close()
    for order in Order:
        assert times[order, 1_000_000] < 30 * times[order, 1000]


def test_a_way_to_draw_that_a_table_has_not_is_told():
    plain, _ = filled(range(4), TableSpec(COLUMNS, capacity=4))
    weighted, _ = filled(range(4), TableSpec(COLUMNS, capacity=4, weighted=True))
    with pytest.raises(ReplayError, match="drawn by largest .* make it with weighted=True"):
        sample(plain, KEY, 2, Order.LARGEST)
    with pytest.raises(ReplayError, match="drawn by distinct .* make it with weighted=False"):
        sample(weighted, KEY, 2, Mode.DISTINCT)
    with pytest.raises(ReplayError, match="5 records are to be drawn, expected 1 to 4"):
        sample(plain, KEY, 5, Order.FIFO)
    with pytest.raises(ReplayError, match="0 records are to be drawn"):
        sample(plain, KEY, 0)
