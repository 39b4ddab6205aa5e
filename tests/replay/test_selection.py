"""Selection: by weight, at random, and the same on every rank."""

import ctypes
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
from scipy import stats

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import Key, Mode, Order, draw, importance_weights, sample, windows
from mindspore_rl.replay.rate_limiter import Wait
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.writer import writing
from mindspore_rl.rl.random import key_schedule, stream, threefry_2x32
from tests.replay.tables import COLUMNS, filled, records

MIN_P = 1e-4
"""Keys are fixed, so a test that passes once passes always."""


def test_random_numbers_are_those_of_the_project():
    lanes, offsets, used = draw(Key(7, 3), np.array([1 << 40], np.uint64), 5, first=2)
    words = threefry_2x32(
        key_schedule(7, stream("replay")), np.uint32(3), np.arange(2, 7, dtype="u4")
    )
    expected = [(int(x) << 32 | int(y)) >> 24 for x, y in zip(*words, strict=True)]
    assert offsets.tolist() == expected
    assert not lanes.any()
    assert used == 5


@pytest.mark.parametrize("mode", [Mode.REPLACE, Mode.DISTINCT])
def test_few_lanes_and_many_are_drawn_alike(mode):
    """Few are compared one by one, also empty ones; many are searched."""
    totals = np.random.default_rng(1).integers(0, 3, 16).astype(np.uint64) * 1000
    assert not totals.all()
    few, many = draw(Key(7, 3), totals, 512, mode), draw(Key(7, 3), np.append(totals, 0), 512, mode)
    ends = np.cumsum(totals)
    found = ends[few[0]] - totals[few[0]] + few[1]
    np.testing.assert_array_equal(few[0], np.searchsorted(ends, found, "right"))
    for one, other in zip(few, many, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_replacement_two_draws_that_fall_on_one_record_are_told_apart(monkeypatch):
    table, _ = filled(range(64), TableSpec(COLUMNS, capacity=64))
    resolve, seen = table.resolve, []

    def once_moved(lanes, offsets):
        moved = np.full_like(offsets, offsets[0]) if not seen else offsets
        seen.append(len(offsets))
        return resolve(lanes, moved)

    monkeypatch.setattr(table, "resolve", once_moved)
    assert len(set(sample(table, Key(1, 0), 8, Mode.DISTINCT).ids.tolist())) == 8
    assert seen[:2] == [8, 7]


def test_without_replacement_a_last_draw_that_is_made_again_has_enough(monkeypatch):
    table, ids = filled(range(10), TableSpec(COLUMNS, capacity=10, max_times_sampled=1))
    resolve, gone = table.resolve, []

    def once_gone(*places):
        found = resolve(*places)
        if not gone:  # its record was overwritten meanwhile
            gone.append(int(found[0][0]))
            found[0][0] = -1
        return found

    monkeypatch.setattr(table, "resolve", once_gone)
    drawn = sample(table, Key(1, 0), 7, Mode.DISTINCT).ids.tolist()
    assert len({*drawn, *gone}) == 8
    assert table.totals().tolist() == [2]


def test_without_replacement_holds_while_records_are_overwritten():
    table, _ = filled(range(64), TableSpec(COLUMNS, capacity=64))
    stop = threading.Event()

    def write():
        with writing(table, [0]) as writer:
            while not stop.is_set():
                writer.insert(np.zeros(64), records(range(64), 1))

    writer = threading.Thread(target=write)
    writer.start()
    drawn = [sample(table, Key(1, step), 48, Mode.DISTINCT, Wait(60)).ids for step in range(1500)]
    stop.set()
    writer.join()
    assert {len(set(ids.tolist())) for ids in drawn} == {48}


def test_a_draw_beside_one_in_order_that_takes_nothing_loses_no_record():
    table, ids = filled(range(2000), TableSpec(COLUMNS, capacity=2000, max_times_sampled=1))
    drawn, stop = sample(table, Key(1, 0), 1).ids.tolist(), threading.Event()

    def ask_for_too_many():
        while not stop.is_set():
            with pytest.raises(ReplayError):
                sample(table, Key(1, 0), 2000, Order.FIFO)

    asking = threading.Thread(target=ask_for_too_many)
    asking.start()
    for step in range(1, 2000):
        if table.totals()[0]:
            drawn += sample(table, Key(1, step), 1).ids.tolist()
    stop.set()
    asking.join()
    assert sorted(drawn) == sorted(ids)


def test_importance_weights_by_hand():
    weights = importance_weights(np.array([0.5, 0.25, 0.125]), 0.5)
    # (4 / 2)^-1/2, 1, (4 / 8)^-1/2, over the largest, which is the square root of 2.
    np.testing.assert_allclose(weights, [0.5, 0.5**0.5, 1.0], rtol=1e-6)


def test_windows_lie_within_their_records():
    lengths = np.repeat([3, 5, 9], 2000)
    first = windows(Key(1, 0), lengths, 5)
    assert not first[:4000].any()
    counts = np.bincount(first[4000:])
    assert len(counts) == 5
    assert stats.chisquare(counts).pvalue > MIN_P


def test_more_records_than_whose_weights_can_be_summed_are_told():
    TableSpec(COLUMNS, capacity=(1 << 23) - 1, lanes=2, weighted=True)
    TableSpec(COLUMNS, capacity=1 << 23, lanes=2)
    with pytest.raises(ReplayError, match="fewer than 16,777,216"):
        TableSpec(COLUMNS, capacity=1 << 23, lanes=2, weighted=True)


def _die_over(table):
    """Ends as an update does that is killed: with the lock, and with sums of what is no more."""
    header = table.spec.header()
    ctypes.CDLL(None).pthread_mutex_lock(ctypes.c_void_p(table.base + int(header["lane_offset"])))
    weights = (ctypes.c_uint64 * 5000).from_address(table.base + int(header["weight_offset"]))
    weights[1:] = [0] * 4999
    os.kill(os.getpid(), signal.SIGKILL)


def test_sums_of_one_who_died_over_them_are_mended_by_who_draws():
    table, ids = filled(range(5000), TableSpec(COLUMNS, capacity=5000, weighted=True))
    assert table.totals().tolist() == [5000 << 20]
    job = multiprocessing.get_context("fork").Process(target=_die_over, args=(table,))
    job.start()
    job.join()
    assert job.exitcode == -signal.SIGKILL
    np.testing.assert_array_equal(sample(table, Key(1, 0), 8).ids, np.full(8, ids[0]))
    assert table.totals().tolist() == [1 << 20]
    np.testing.assert_array_equal(sample(table, Key(1, 0), 1, Order.LARGEST).ids, ids[:1])


def test_a_last_draw_that_died_takes_the_record_along():
    table, ids = filled(range(2), TableSpec(COLUMNS, capacity=2, max_times_sampled=1))
    table.entries["sampled"][0, 0] = 1  # it was killed before the record's weight was 0
    np.testing.assert_array_equal(sample(table, Key(1, 0), 1, Order.FIFO).ids, ids[1:])
    with pytest.raises(ReplayError, match="none can be"):
        sample(table, Key(1, 0), 1)
    assert not table.totals().any()
