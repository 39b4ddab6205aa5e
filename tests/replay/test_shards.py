"""Tables sharded over ranks: one batch, for any holders of its records and any receivers."""

import dataclasses
import itertools
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from mindspore_rl.errors import ReplayError
from mindspore_rl.plan.deployment import find_mpiexec
from mindspore_rl.replay.assignment import assign, split
from mindspore_rl.replay.draws import Key, Mode, Order, importance_weights, sample
from mindspore_rl.replay.host_view import HostView
from mindspore_rl.replay.rate_limiter import SLICE_S, Wait
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing
from tests.replay import ranks
from tests.replay.ranks import EACH, LANES, drawn, of, on_ranks, sampling, shard, union, whole_spec
from tests.replay.tables import COLUMNS, records

WAYS = [(mode, weighted) for mode in Mode for weighted in (False, True)]
WAYS.remove((Mode.DISTINCT, True))
PLACES = [  # lanes, quotas and hosts of every rank
    ((4, 3), (12, 12), None),
    ((1, 6), (20, 4), None),
    ((1, 6), (20, 4), (0, 0)),
    ((3, 2, 2), (8, 8, 8), None),
    ((2, 2, 2, 1), (6, 6, 6, 6), None),
    ((1, 1, 3, 2), (7, 9, 4, 4), (0, 1, 1, 1)),
    ((0, 7, 0, 0), (10, 0, 9, 5), None),  # holders and learners are others
    ((0, 7, 0, 0), (10, 0, 9, 5), (0, 1, 1, 0)),
    ((0, 7, 0), (0, 24, 0), None),  # and who has nothing to do with it
]
READ_ONLY = {
    name: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)
    for name, x in whole_spec().buffers(4).items()
}
MIN_P = 1e-4
"""Keys are fixed, so a test that passes once passes always."""


@pytest.mark.parametrize(
    ("mode", "weighted", "most", "steps"),
    [
        *((mode, weighted, 0, 3) for mode, weighted in WAYS),
        (Mode.REPLACE, False, 1, 2),
        *((order, order is Order.LARGEST, 2, 4) for order in Order),
    ],
)
def test_the_rows_of_all_ranks_are_the_same_on_any_ranks(mode, weighted, most, steps):
    """And those that one process with all lanes draws."""
    spec, how = whole_spec(weighted, max_times_sampled=most), {"steps": steps, "window": 2}
    expected = drawn(spec, (LANES,), (24,), mode, **how)
    for lanes, quotas, hosts in PLACES:
        found = drawn(spec, lanes, quotas, mode, hosts, **how)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{name} of {lanes}")
    table = shard(spec, (LANES,), 0)
    if most == 1:  # one process draws anew in another order
        assert len(set(expected["ids"].reshape(-1).tolist())) == 48
    elif mode != Mode.STRATIFIED:
        for step in range(1 if weighted and isinstance(mode, Mode) else steps):
            alone = sample(table, Key(3, step), 24, mode)
            np.testing.assert_array_equal(expected["ids"][step], alone.ids)
            np.testing.assert_array_equal(expected["probabilities"][step], alone.probabilities)
            if weighted:  # as `batches` does
                table.update(alone.ids, np.arange(24) % 7 + 0.5, 0.6)
    else:  # as many rows of each lane as fall in its stratum, in proportion to their weights
        lane = expected["ids"][0] % (LANES * EACH) // EACH
        rows = np.bincount(np.arange(24) * LANES // 24)
        own = ranks.skewed(77) if weighted else np.ones(77)
        record = np.rint(expected["obs"][0, :, 0, 0] - expected["first"][0] / 8).astype(int)
        sums = [own[np.flatnonzero(ranks.lane_of(77) == one)[2:]].sum() for one in range(LANES)]
        share = own[record] / np.array(sums)[lane] * rows[lane] / 24
        np.testing.assert_allclose(expected["probabilities"][0], share, rtol=1e-4)
    weights = importance_weights(expected["probabilities"][0], 0.5)
    np.testing.assert_allclose(expected["weights"][0], weights, rtol=1e-6)
    out = table.buffers(24, window=2)
    table.gather(expected["ids"][0], out, expected["first"][0])
    for name, column in out.items():
        np.testing.assert_array_equal(expected[name][0], column)


@pytest.mark.parametrize("mode", [Mode.REPLACE, Mode.STRATIFIED])
def test_a_records_last_draw_is_known_to_the_next_in_a_large_batch(mode):
    spec = dataclasses.replace(whole_spec(max_times_sampled=3), capacity=40)

    def make(spec, lanes, rank):
        table = Table.create(spec.part(lanes[rank]))
        lane = np.arange(280) % LANES
        first = sum(lanes[:rank])
        own = np.flatnonzero((lane >= first) & (lane < first + lanes[rank]))
        with writing(table, range(lanes[rank])) as writer:
            writer.insert(lane[own] - first, records(own, spec.length))
        return table

    expected = drawn(spec, (LANES,), (140,), mode, make=make, steps=1)["ids"]
    assert np.bincount(expected[0] % (LANES * 40)).max() <= 3
    for lanes, quotas in (((3, 4), (70, 70)), ((1, 4, 2), (100, 0, 40))):
        found = drawn(spec, lanes, quotas, mode, make=make, steps=1)["ids"]
        np.testing.assert_array_equal(found, expected)


def test_the_smallest_probability_is_of_what_was_drawn_again_too(monkeypatch):
    lanes, quotas, spec = (0, 7), (12, 0), whole_spec(weighted=True)
    copy, late = HostView.copy, []

    def overwritten(near, ids, *rest):
        if not late:
            late.append(True)
            with writing(near.table_of(0)[0], range(LANES)) as writer:
                fresh = records(range(63), spec.length)
                writer.insert(np.arange(63) % 7, fresh, priorities=np.full(63, 1e-4))
        return copy(near, ids, *rest)

    monkeypatch.setattr(HostView, "copy", overwritten)
    share, _ = on_ranks(lanes, sampling(quotas, Key(3, 0)), spec)[0][0]
    assert share.least <= share.probabilities.min()
    assert share.importance_weights(1.0).max() <= 1


@pytest.mark.parametrize(("mode", "weighted"), WAYS)
@pytest.mark.parametrize(
    ("lanes", "sequential"), [((7,), True), ((1, 6), False), ((1, 3, 2, 1), True)]
)
def test_records_are_drawn_as_often_as_they_should(mode, weighted, lanes, sequential):
    quotas, spec = split(35, len(lanes)), whole_spec(weighted, length=1, sequential=sequential)

    def job(sharded, comm):
        out = sharded.spec.buffers(quotas[comm.rank])
        with sharded.reading():
            return [
                sharded.sample(Key(5, step), quotas, out, mode).ids % (LANES * EACH)
                for step in range(300)
            ]

    counts = np.bincount(np.concatenate([x for own in on_ranks(lanes, job, spec) for x in own]))
    assert counts.sum() == 300 * 35
    kept = np.concatenate([np.flatnonzero(ranks.lane_of(77) == lane)[2:] for lane in range(LANES)])
    place = ranks.lane_of(77)[kept] * EACH + (kept % (EACH + 2)) % EACH
    share = np.ones(LANES * EACH)
    if weighted:
        share[place] = ranks.skewed(77)[kept]
    if mode == Mode.STRATIFIED:
        share = (share.reshape(LANES, EACH) / share.reshape(LANES, EACH).sum(1)[:, None]).reshape(
            -1
        )
    assert stats.chisquare(counts, share / share.sum() * counts.sum()).pvalue > MIN_P


def test_rows_stay_where_they_are_as_far_as_quotas_go():
    rng = np.random.default_rng(1)
    for size in (1, 2, 3, 5):
        for _ in range(40):
            lanes, holders = rng.integers(0, 7, 20, np.int32), np.sort(rng.integers(0, size, 7))
            quotas = rng.multinomial(20, rng.dirichlet(np.full(size, 0.5)))
            held_by, got_by = assign(lanes, holders, quotas)
            np.testing.assert_array_equal(held_by, holders[lanes])
            held = np.bincount(held_by, minlength=size)
            np.testing.assert_array_equal(np.bincount(got_by, minlength=size), quotas)
            kept = np.bincount(got_by[held_by == got_by], minlength=size)
            np.testing.assert_array_equal(kept, np.minimum(held, quotas))
            moved = held_by != got_by
            assert len(set(zip(held_by[moved], got_by[moved], strict=True))) < size


@pytest.mark.parametrize("weighted", [False, True])
def test_what_crosses_is_what_was_predicted(weighted):
    lanes, quotas, spec = (3, 1, 0, 3), (5, 9, 6, 4), whole_spec(weighted)

    def job(sharded, comm):
        out = sharded.spec.buffers(quotas[comm.rank], 3)
        totals, found = sharded.totals(), []
        with sharded.reading():
            for step in range(10):
                comm.sent.clear()
                draws = sharded.draw(Key(2, step), quotas, Mode.REPLACE, totals)
                sharded.sample(Key(2, step), quotas, out)
                predicted = [
                    (target, sharded.message_bytes(len(rows), 3))
                    for (source, target), rows in sharded.messages(draws).items()
                    if source == comm.rank
                ]
                pairs = assign(draws.lanes, np.repeat(range(4), lanes), draws.quotas)
                found.append((predicted, comm.sent.copy(), pairs))
        return found

    row = 8 + 8 + 4 + 4 + 3 * (3 * 4 + 4)  # id, probability, length, first step, three steps
    crossed = 0
    for rank, found in enumerate(on_ranks(lanes, job, spec)):
        for predicted, sent, (holders, getters) in found:
            assert sent == predicted
            told = dict(sent)
            assert len(told) == len(sent), "two messages for a pair of ranks"
            for target in range(4):
                rows = np.sum((holders == rank) & (getters == target))
                if target != rank and (rows or target in told):
                    assert told[target] == 8 + rows * row
                    crossed += rows
                    assert rows or weighted
    assert crossed


@pytest.mark.parametrize("mode", [Mode.REPLACE, Mode.STRATIFIED])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_a_host_has_is_read_in_place(weighted, mode):
    lanes, quotas, spec = (2, 0, 4, 1), (2, 12, 3, 7), whole_spec(weighted)

    def job(sharded, comm):
        out, key = spec.buffers(quotas[comm.rank]), Key(2, 0)
        sharded.totals()
        comm.sent.clear()
        share = vars(sharded.sample(key, quotas, out, mode))
        before = share | {name: column.copy() for name, column in out.items()}
        with sharded.reading():
            share = vars(sharded.sample(key, quotas, out, mode))
            return before, share | out, comm.sent.copy()

    for rank, found in enumerate(on_ranks(lanes, job, spec, hosts=(5, 5, 5, 5))):
        share, quiet_share, sent = found
        # A rank without lanes has no table to post in: before a batch, behind it, for `reading`.
        told = 3 * [(other, 8 * (4 + 4)) for other in range(4) if other != rank]
        assert sent == ([] if lanes[rank] else told)
        for name, value in share.items():
            np.testing.assert_array_equal(quiet_share[name], value)


def test_a_look_at_another_ranks_records_is_no_draw():
    lanes, quotas, spec = (3, 4), (12, 12), whole_spec(weighted=True)
    tables = [shard(spec, lanes, rank) for rank in range(2)]
    found = on_ranks(lanes, sampling(quotas, Key(2, 0)), spec, of(tables), hosts=(0, 0))
    ids = np.concatenate([share.ids for ((share, _),) in found])
    counted = np.concatenate([table.entries["sampled"].reshape(-1) for table in tables])
    np.testing.assert_array_equal(counted, np.bincount(ids % (LANES * EACH), minlength=63))


def test_a_record_that_is_gone_is_replaced_by_the_next_in_its_order(monkeypatch):
    lanes, spec, job = (3, 4), whole_spec(), sampling((12, 12), Key(1, 0), Order.FIFO)
    claim = HostView.claim

    def late(near, ids):
        with suppress(KeyError):  # of the other rank
            table, _ = near.table_of(3)
            if len(ids) > 1:
                with writing(table, [0]) as writer:
                    writer.insert(np.zeros(2, np.int64), records(range(900, 902), spec.length))
        return claim(near, ids)

    quiet = np.concatenate([share.ids for ((share, _),) in on_ranks(lanes, job, spec)])
    monkeypatch.setattr(HostView, "claim", late)
    found = np.concatenate([share.ids for ((share, _),) in on_ranks(lanes, job, spec)])
    gone = quiet[~np.isin(quiet, found)]
    fresh = found[~np.isin(found, quiet)]
    assert (gone % 63 // EACH == 3).all()
    assert len(set(found.tolist())) == 24
    assert len(gone) == len(fresh) == 2


def test_a_limit_counts_what_all_ranks_insert_and_draw():
    lanes, quotas = (3, 0, 4), (4, 4, 6)
    spec = whole_spec(min_records=20, samples_per_insert=2.0, slack=20.0)
    tables = [Table.create(spec.part(n)) if n else None for n in lanes]

    def insert(rank, count):
        with writing(tables[rank], range(lanes[rank])) as writer:
            writer.insert(np.arange(count) % lanes[rank], records(range(count), spec.length))

    def job(sharded, comm):
        out, told = spec.buffers(quotas[comm.rank]), []
        for step, (one, other) in enumerate([(9, 10), (0, 1), (0, 0), (6, 6), (0, 0)]):
            if lanes[comm.rank]:
                insert(comm.rank, other if comm.rank else one)
            try:
                sharded.sample(Key(1, step), quotas, out)
                told.append("")
            except ReplayError as error:
                told.append(str(error))
        return told

    first, *others = on_ranks(lanes, job, spec, of(tables))
    assert others == [first, first]
    assert "of 20 records (min_records) 19 were inserted, 1 more inserts are lacking" in first[0]
    assert first[1] == ""
    assert "14 samples were drawn of 20 inserts" in first[2]
    assert first[3:] == ["", ""]
    assert sum(int(table.limit["samples"]) for table in tables if table) == 42
    assert int(tables[0].limit["samples"]) == 42 * 3 // 7


def test_a_batch_is_waited_for_on_all_ranks():
    spec = whole_spec(min_records=LANES * 2)
    tables = [Table.create(spec.part(n)) for n in (3, 4)]
    started = threading.Barrier(2)

    def write():
        started.wait()
        for table, lanes in zip(tables, (3, 4), strict=True):
            with writing(table, range(lanes)) as writer:
                writer.insert(np.arange(2 * lanes) % lanes, records(range(2 * lanes), spec.length))

    def job(sharded, comm):
        out = spec.buffers(7)
        with pytest.raises(ReplayError, match="after 0.02 s: 14 samples are held back"):
            sharded.sample(Key(1, 0), (7, 7), out, wait_s=0.02)
        if comm.rank == 0:
            started.wait()
        return sharded.sample(Key(1, 1), (7, 7), out, wait_s=60.0).ids

    writer = threading.Thread(target=write)
    writer.start()
    assert sum(len(ids) for ids in on_ranks((3, 4), job, spec, of(tables))) == 14
    writer.join()


def test_few_records_are_waited_for_that_no_part_waits_for():
    """Shares of `min_records` are 1 record each, which no table counts for itself."""
    spec = whole_spec(min_records=2)
    tables = [shard(spec.part(lanes), (lanes,), 0) for lanes in (3, 3, 1)]
    found = on_ranks((3, 3, 1), sampling((4, 4, 4), Key(1, 0)), spec, of(tables))
    assert [len(share.ids) for ((share, _),) in found] == [4, 4, 4]


@pytest.mark.parametrize("hosts", [None, (0, 0)])
def test_who_waits_for_records_sleeps(hosts):
    def job(sharded, comm):
        tell, told = sharded._tell, []
        sharded._tell = lambda *over: told.append(over) or tell(*over)
        with pytest.raises(ReplayError, match="after 0.5 s"):
            sharded.sample(Key(1, 0), (7, 7), sharded.spec.buffers(7), wait_s=0.5)
        return len(told)

    spec = whole_spec(min_records=LANES * EACH)
    empty = lambda spec, lanes, rank: Table.create(spec.part(lanes[rank]))  # noqa: E731
    for told in on_ranks((3, 4), job, spec, empty, hosts=hosts):
        assert 1 < told <= 0.5 / SLICE_S + 2


def test_a_table_that_draws_change_is_not_read_without_a_word():
    def job(sharded, comm):
        with pytest.raises(ReplayError, match="draws change a table"), sharded.reading():
            pass

    on_ranks((LANES,), job, whole_spec(max_times_sampled=1))
    on_ranks((LANES,), job, whole_spec(min_records=2))


def test_who_holds_rows_changes_them_after_others_have_read_them():
    lanes, quotas, spec = (0, LANES), (12, 0), whole_spec()

    def job(changes):
        def run(sharded, comm):
            out = spec.buffers(quotas[comm.rank])
            share = sharded.sample(Key(2, 0), quotas, out)
            if comm.rank == 1 and changes:
                with writing(tables[0], range(LANES)) as writer:
                    writer.insert(np.arange(LANES * EACH) % LANES, records(range(LANES * EACH)))
            return share.ids, out["obs"]

        return run

    found = []
    for changes in (False, True):
        tables = [shard(spec, (LANES,), 0)]
        found.append(on_ranks(lanes, job(changes), spec, of(tables * 2), hosts=(0, 0))[0])
    for quiet, busy in zip(*found, strict=True):
        np.testing.assert_array_equal(quiet, busy)


def test_priorities_go_to_who_holds_the_records():
    lanes, quotas, spec = (2, 0, 4, 1), (0, 8, 8, 8), whole_spec(weighted=True)

    def job(sharded, comm):
        share = sharded.sample(Key(1, 0), quotas, sharded.spec.buffers(quotas[comm.rank]))
        priorities = 1.0 + share.positions * 5 % 24
        sharded.update(share.ids, priorities)
        return share.ids, priorities, sharded.totals()

    found = on_ranks(lanes, job, spec)
    table = shard(spec, (LANES,), 0)
    largest = {}
    for ids, priorities, _ in found:
        for one, priority in zip(ids.tolist(), priorities, strict=True):
            largest[one] = max(priority, largest.get(one, 0))
    assert len(largest) < 24, "no record was drawn twice"
    table.update(np.array(list(largest)), np.array(list(largest.values())))
    for _, _, totals in found:
        np.testing.assert_array_equal(totals, table.totals())


def overwriting(lane):
    """A `HostView.copy` that a writer of a lane is faster than, now and then."""
    copy, copies = HostView.copy, 0

    def slow(near, ids, first, buffers, row):
        nonlocal copies
        with suppress(KeyError):  # of another rank
            table, block = near.table_of(lane)
            copies += 1
            if copies <= 3:
                own = lane - block.start
                with writing(table, [own]) as writer:
                    fresh = np.arange(4) + 500 * copies
                    writer.insert(np.full(4, own), records(fresh, near.spec.length))
        return copy(near, ids, first, buffers, row)

    return slow


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_overwritten_after_its_draw_is_drawn_again(mode, monkeypatch):
    lanes, quotas, spec = (3, 4), (30, 26), whole_spec()

    def job(sharded, comm):
        out = sharded.spec.buffers(quotas[comm.rank])
        share = sharded.sample(Key(4, 3), quotas, out, mode)
        return {**{name: x[None] for name, x in (vars(share) | out).items() if name != "least"}}

    quiet = union(on_ranks(lanes, job, spec))
    monkeypatch.setattr(HostView, "copy", overwriting(1))
    found = union(on_ranks(lanes, job, spec))
    same = quiet["ids"] == found["ids"]
    own = np.isin(quiet["ids"] % (LANES * EACH) // EACH, [1])
    assert same[~own].all()
    assert not same[own].all()
    assert (found["ids"] % (LANES * EACH) // EACH == 1)[own].all(), "another lane"
    # Which record and which step stands in every value.
    number = found["obs"][0, :, 0, 0]
    assert (number[~same[0]] >= 500).any()
    step = np.where(found["reward"][0] == 0, 0, np.arange(4) / 8)
    there = np.arange(4) < found["lengths"][0][:, None]
    np.testing.assert_array_equal(found["reward"][0][there], (number[:, None] + step)[there])
    if mode == Mode.DISTINCT:
        assert len(set(found["ids"][0].tolist())) == 56


@pytest.mark.parametrize("mode", [Mode.DISTINCT, Order.LARGEST])
def test_no_two_ranks_of_a_host_get_one_record(mode, monkeypatch):
    """A writer is faster in these lanes than both, and most rows are another rank's."""
    lanes, quotas, spec = (1, 6), (2, 46), whole_spec(weighted=mode is Order.LARGEST)
    copy, lock, written = HostView.copy, threading.Lock(), []

    def overwritten(near, *rest):
        with lock:
            if len(written) < 6:
                written.append(len(written))
                with writing(near.table_of(0)[0], [0]) as writer:
                    given = {"priorities": np.full(7, 9.0)} if spec.weighted else {}
                    fresh = records(np.arange(7) + 500 * len(written), spec.length)
                    writer.insert(np.zeros(7, int), fresh, **given)
        return copy(near, *rest)

    monkeypatch.setattr(HostView, "copy", overwritten)
    found = on_ranks(lanes, sampling(quotas, Key(4, 0), mode, steps=4), spec, hosts=(0, 0))
    for of_ranks in zip(*found, strict=True):
        assert len({one for share, _ in of_ranks for one in share.ids.tolist()}) == sum(quotas)


@pytest.mark.parametrize("hosts", [None, (0, 0)])
@pytest.mark.parametrize("lanes", [(LANES, 0), (1, 6), (4, 3)])
def test_draws_count_that_some_rank_gets(lanes, hosts):
    spec, job = whole_spec(max_times_sampled=2), sampling((7, 7), Key(4, 0), Mode.DISTINCT, steps=6)
    tables = [shard(spec, lanes, rank) if lanes[rank] else None for rank in range(2)]
    found = itertools.chain(*on_ranks(lanes, job, spec, of(tables), hosts=hosts))
    ids = np.concatenate([share.ids for share, _ in found])
    assert np.unique(ids, return_counts=True)[1].max() == 2
    assert sum(int(table.entries["sampled"].sum()) for table in tables if table) == len(ids) == 84


def test_a_late_writer_of_a_share_is_let_in_where_a_draw_waits_for_its_lane():
    spec = TableSpec(COLUMNS, 100, lanes=2, samples_per_insert=1, slack=8)
    tables = {}

    def job(sharded, comm):
        with writing(tables[0], [0, 1], Wait(60)) as writer:
            late = threading.Thread(
                target=lambda: [writer.insert([1], records([i], 1)) for i in range(4)]
            )
            late.start()
            for step in range(2):
                ids = sharded.sample(Key(1, step), (8,), spec.buffers(8), Mode.STRATIFIED, 60).ids
                assert (ids % 200 // 100).tolist() == [0] * 4 + [1] * 4
            late.join()

    def make(spec, lanes, rank):
        tables[0] = table = Table.create(spec.part(2))
        with writing(table, [0]) as writer, pytest.raises(ReplayError, match="held back"):
            writer.insert(np.zeros(50), records(range(50), 1))
        return table

    on_ranks((2,), job, spec, make)


@pytest.mark.parametrize("hosts", [None, (0, 0)])
def test_ranks_stay_in_step_where_one_has_no_more(hosts):
    """Records are drawn once, and in the last batch that finds any there are too few."""
    lanes, quotas, spec = (1, 6), (1, 9), whole_spec(max_times_sampled=1)

    def job(sharded, comm):
        found = []
        for step in range(8):
            try:
                out = spec.buffers(quotas[comm.rank])
                found.append(sharded.sample(Key(4, step), quotas, out).ids)
            except ReplayError as error:
                found.append(str(error))
        return found, sharded.totals()

    (first, totals), (second, same) = on_ranks(lanes, job, spec, hosts=hosts)
    np.testing.assert_array_equal(totals, same)
    assert first[6] == "rank 1 could not draw its rows"
    assert "drawn as often as the table allows, and lanes 1 to 6 gave no other" in second[6]
    assert "insert more first" in first[7]
    assert first[7] == second[7]
    ids = np.concatenate([*first[:6], *second[:6]]).tolist()
    assert len(set(ids)) == 60


@pytest.mark.multiprocess
@pytest.mark.parametrize("hosts", ["01", "0011", "000"])
def test_processes_get_what_threads_get(hosts, tmp_path):
    size = len(hosts)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "UCX_TLS": "self,sysv", "PYTHONPATH": str(root)}
    command = [find_mpiexec(), "-launcher", "fork", "-iface", "lo", "-n", str(size)]
    program = [sys.executable, "-m", "tests.replay.ranks", str(tmp_path), hosts]
    subprocess.run([*command, *program], env=environment, check=True, timeout=200)
    files = [np.load(tmp_path / f"{rank}.npz") for rank in range(size)]
    for mode, weighted in WAYS:
        start = f"{mode.name}-{weighted}-"
        found = union([
            {name[len(start) :]: file[name] for name in file.files if name.startswith(start)}
            for file in files
        ])  # fmt: skip
        expected = drawn(whole_spec(weighted), (LANES,), (24,), mode, window=2)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("hosts", [None, (0, 0)])
def test_who_waits_for_a_rank_that_does_not_come_is_ended(hosts):
    def job(sharded, comm):
        sharded.totals()
        if comm.rank == 1:
            sharded.sample(Key(1, 0), (4, 4), sharded.spec.buffers(4))

    with pytest.raises(TimeoutError, match="the others are not coming"):
        on_ranks((4, 3), job, whole_spec(), seconds=0.3, hosts=hosts)


@pytest.mark.parametrize(
    ("lanes", "own", "message"),
    [
        ((4, 4), (4, 4), r"spread over 2 ranks as \[4, 4\]; expected a number for each rank, 7"),
        ((7,), (7,), r"spread over 2 ranks as \[7\]"),
        ((8, -1), (8, 1), r"spread over 2 ranks as \[8, -1\]"),
        ((4, 3), (3, 3), r"rank 0 has opened tables of ranks as {0: .*lanes=3.*expected {0: .*=4"),
        ((7, 0), (7, 1), r"rank 1 has opened tables of ranks as {1: .*expected {}"),
    ],
)
def test_lanes_that_do_not_fit_are_told(lanes, own, message):
    hub = ranks.InprocHub(2)
    with pytest.raises(ReplayError, match=message):
        for rank in range(2):
            table = Table.create(dataclasses.replace(whole_spec(), lanes=own[rank]))
            comm = hub.communicator(rank)
            ranks.ShardedTable(whole_spec(), lanes, {rank: table}, comm, 1, ranks.Deadline())


def test_hosts_that_do_not_fit_are_told():
    with pytest.raises(ReplayError, match=r"hosts are \[0\], expected one of 2 ranks"):
        on_ranks((4, 3), lambda sharded, comm: None, whole_spec(), hosts=(0,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quotas": (4, 4)}, r"quotas are \[4, 4\], expected rows of each of 1 ranks"),
        ({"quotas": (-1,)}, r"quotas are \[-1\]"),
        ({"out": whole_spec().buffers(3)}, r"the buffer of column obs is float32 \(3, 4, 3\)"),
        ({"out": {}}, "the buffer of column obs is"),
        ({"out": READ_ONLY}, "the buffer of column obs is .* to be written"),
        ({"mode": Mode.DISTINCT}, "drawn by distinct from a table with weighted=True"),
    ],
)
def test_wrong_batches_are_told(change, message):
    def job(sharded, comm):
        with pytest.raises(ReplayError, match=message):
            given = {"quotas": (4,), "out": sharded.spec.buffers(4), **change}
            sharded.sample(Key(1, 0), **given)

    on_ranks((LANES,), job, whole_spec(weighted=True))


def test_buffers_that_were_good_once_are_looked_at_again():
    def job(sharded, comm):
        out = sharded.spec.buffers(24)
        sharded.sample(Key(1, 0), (24,), out)
        out["obs"].shape = (12, 8, 3)
        with pytest.raises(ReplayError, match=r"the buffer of column obs is float32 \(12, 8, 3\)"):
            sharded.sample(Key(1, 1), (24,), out)

    on_ranks((LANES,), job, whole_spec())


def test_wrong_priorities_are_told():
    def job(sharded, comm):
        for ids, priorities, message in (
            ([1, 2], [1.0], "one of each record"),
            ([-1], [1.0], "expected one of each id"),
            ([1], [np.nan], "priorities are"),
        ):
            with pytest.raises(ReplayError, match=message):
                sharded.update(np.array(ids), np.array(priorities))

    on_ranks((LANES,), job, whole_spec(weighted=True))
