"""Draws in an order: first in first out, last in first out, and the largest weights."""

import time

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import Key, Mode, Order, sample
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import Writer, writing
from tests.replay.ranks import on_ranks
from tests.replay.tables import COLUMNS, filled, records

KEY = Key(0, 0)


def rewards(table, drawn):
    out = table.buffers(len(drawn.ids))
    assert table.gather(drawn.ids, out).all()
    return out["reward"].reshape(len(drawn.ids), -1)[:, 0].tolist()


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


def test_a_record_that_is_written_again_is_not_drawn_from_a_sequential_table():
    table, ids = filled(range(8), TableSpec(COLUMNS, capacity=5, sequential=True))
    writer = Writer(table)
    assert writer.begin(0) == 3  # the oldest
    for order, expected in ((Order.FIFO, ids[4:]), (Order.LIFO, ids[:3:-1])):
        assert sample(table, KEY, 4, order).ids.tolist() == expected.tolist()
    assert sorted(sample(table, KEY, 4, Mode.DISTINCT).ids) == ids[4:].tolist()
    with pytest.raises(ReplayError, match="4 can be"):
        sample(table, KEY, 5, Order.FIFO)
    writer.close()  # what it had begun is lost, and is written first by the next one
    with Writer(table) as writer:
        assert writer.begin(0) == 3
