"""Waits for records, and a table's limit of samples per insert, shared by all its users."""

import multiprocessing
import threading
import time

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay import rate_limiter
from mindspore_rl.replay.assignment import split
from mindspore_rl.replay.draws import Key, Mode, Order, sample
from mindspore_rl.replay.rate_limiter import Wait
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing
from tests.replay.ranks import on_ranks
from tests.replay.tables import COLUMNS, filled, records

KEY = Key(1, 0)
LONG = Wait(timeout_s=60)
LIMITED = TableSpec(COLUMNS, 100, min_records=10, samples_per_insert=4, slack=20)


def insert(writer, count, lane=0):
    return writer.insert(np.full(count, lane), records(np.arange(count), 1))


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (Mode.REPLACE, "4 records are to be drawn .replace. and none can be"),
        (Mode.DISTINCT, "4 records are to be drawn .distinct. and 3 can be"),
        (Mode.STRATIFIED, r"4 records are to be drawn .stratified. and lanes \[1\] have none"),
        (Order.LIFO, "4 records are to be drawn .lifo. and 3 can be"),
    ],
)
def test_what_is_lacking_is_told_at_the_deadline(mode, message):
    numbers = range(0 if mode is Mode.REPLACE else 3)
    table, _ = filled(numbers, TableSpec(COLUMNS, 9, lanes=2), np.zeros(len(numbers), int))
    start = time.monotonic()
    with pytest.raises(ReplayError, match=f"after 0.3 s: {message}"):
        sample(table, KEY, 4, mode, Wait(0.3))
    assert time.monotonic() - start >= 0.3
    with pytest.raises(ReplayError, match=f"after 0 s: {message}"):
        sample(table, KEY, 4, mode)


def test_a_batch_that_would_wait_for_ever_is_told():
    table = Table.create(LIMITED)
    with pytest.raises(ReplayError, match="batch of 37 .* make the slack at least 20.5"):
        sample(table, KEY, 37)
    with pytest.raises(ReplayError, match="slack of a replay table is 2, expected at least 2.5"):
        TableSpec(COLUMNS, 100, samples_per_insert=4, slack=2)
    with pytest.raises(ReplayError, match="min_records of a replay table is 11, expected at most"):
        TableSpec(COLUMNS, 10, min_records=11)


@pytest.mark.parametrize("most", [0, 1])
def test_a_writer_that_comes_late_is_let_in_where_a_draw_waits_for_its_lane(most):
    """The first one has inserted all that the limit allows before the second one begins."""
    spec = TableSpec(COLUMNS, 100, 2, max_times_sampled=most, samples_per_insert=1, slack=8)
    table, drawn = Table.create(spec), []

    def learn():
        drawn.extend(sample(table, Key(1, step), 8, Mode.STRATIFIED, LONG) for step in range(2))

    with writing(table, [0], Wait(0.05)) as early, writing(table, [1], Wait(0.05)) as late:
        with pytest.raises(ReplayError, match="inserts are held back"):
            insert(early, 50)
        with pytest.raises(ReplayError, match="inserts are held back"):
            insert(late, 1, lane=1)
        learner = threading.Thread(target=learn)
        learner.start()
        late.wait = LONG
        insert(late, 8, lane=1)
        learner.join()
    assert [len(batch.ids) for batch in drawn] == [8, 8]
    assert (int(table.limit["inserts"]), int(table.limit["samples"])) == (17, 16)
    assert not table.totals()[1] or not most


def test_a_wait_ends_with_what_it_waits_for_and_is_no_busy_loop():
    table, looks = Table.create(TableSpec(COLUMNS, 10)), []
    later = threading.Timer(1.0, lambda: filling(table, 3))
    later.start()
    drawn = sample(table, KEY, 3, Order.FIFO, Wait(60, lambda: looks.append(1)))
    later.join()
    assert len(drawn.ids) == 3
    assert 1 <= len(looks) < 100


def filling(table, count):
    with writing(table, [0]) as writer:
        insert(writer, count)


def test_a_wait_can_be_ended():
    calls = []

    def waiting():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    table = Table.create(LIMITED)
    with pytest.raises(KeyboardInterrupt):
        sample(table, KEY, 3, wait=Wait(1000, waiting))
    with pytest.raises(KeyboardInterrupt), writing(table, [0], Wait(1000, waiting)) as writer:
        calls.clear()
        insert(writer, 50)
    assert table.limit["inserts"] == 15


def _insert(path, lane, count):
    with Table.open(path) as table, writing(table, [lane], LONG) as writer:
        for _ in range(count):
            insert(writer, 1, lane)


def _draw(path, count):
    with Table.open(path) as table:
        for step in range(count):
            sample(table, Key(2, step), 4, wait=LONG)


def test_processes_obey_one_limit(tmp_path, monkeypatch):
    """Each change wakes who waits for it: of thousands of waits none may sleep to its end."""
    monkeypatch.setattr(rate_limiter, "SLICE_S", 30.0)
    spec = TableSpec(COLUMNS, 100, lanes=2, min_records=1, samples_per_insert=4, slack=4)
    context = multiprocessing.get_context("fork")
    with Table.create(spec, tmp_path / "table") as table:
        jobs = [context.Process(target=_insert, args=(tmp_path / "table", i, 1000)) for i in (0, 1)]
        jobs += [context.Process(target=_draw, args=(tmp_path / "table", 999)) for _ in range(2)]
        for job in jobs:
            job.start()
        ahead = 0.0
        while any(job.is_alive() for job in jobs):
            inserts, samples = int(table.limit["inserts"]), int(table.limit["samples"])
            again = int(table.limit["inserts"])
            if inserts == again and inserts:  # both of one moment, or samples a bit later
                ahead = max(ahead, samples - 4 * (inserts - 1))
            time.sleep(0.001)
        assert [job.exitcode for job in jobs] == [0] * 4
        assert ahead <= 4
        assert int(table.limit["inserts"]) == 2000
        assert int(table.limit["samples"]) == 7992


def _wait_for(path):
    with Table.open(path) as table:
        sample(table, KEY, 1, wait=LONG)


def test_a_killed_waiter_holds_nobody_up(tmp_path):
    path = tmp_path / "table"
    context = multiprocessing.get_context("fork")
    with Table.create(LIMITED, path) as table:
        for _ in range(5):
            job = context.Process(target=_wait_for, args=(path,))
            job.start()
            while not table.limit["sleeping"]:
                time.sleep(0.001)
            job.kill()
            job.join()
        job = context.Process(target=_wait_for, args=(path,))
        job.start()
        with writing(table, [0]) as writer:
            insert(writer, 10)
        job.join(60)
        assert job.exitcode == 0


@pytest.mark.parametrize("lanes", [(4,), (2, 2), (1, 1, 1, 1)])
def test_a_batch_that_a_table_allows_its_parts_allow(lanes):
    spec = TableSpec(COLUMNS, 50, lanes=4, min_records=4, samples_per_insert=10, slack=22)
    tables, quotas = [Table.create(spec.part(count)) for count in lanes], split(34, len(lanes))

    def job(sharded, comm):
        out, own = spec.buffers(quotas[comm.rank]), tables[comm.rank]
        for step in range(4):
            with (
                writing(own, range(lanes[comm.rank])) as writer,
                pytest.raises(ReplayError, match="inserts are held back"),
            ):
                insert(writer, 50)
            sharded.sample(Key(1, step), quotas, out)
        return True

    assert all(on_ranks(lanes, job, spec, lambda _, __, rank: tables[rank]))
