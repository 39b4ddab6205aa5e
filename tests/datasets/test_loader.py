"""Batches of windows: their contents, and that they are gathered while the learner works."""

import ctypes
import gc
import itertools
import mmap
import os
import threading
import time

import numpy as np
import pytest

from mindspore_rl.datasets.dataset import Dataset
from mindspore_rl.datasets.epochs import Epochs
from mindspore_rl.datasets.loader import Loader
from mindspore_rl.datasets.windows import COLD, TRANSITIONS, Batches, Windows
from mindspore_rl.errors import ReplayError
from tests.datasets.files import episode, made

LENGTHS = [6, 2, 4, 1, 9, 5]


@pytest.fixture(name="dataset")
def opened(tmp_path):
    with made(tmp_path / "set", LENGTHS) as dataset:
        yield dataset


def windows(lengths, window):
    """Returns (record, first step) of each, in order."""
    return [(r, first) for r, n in enumerate(lengths) for first in range(max(n - window + 1, 1))]


@pytest.mark.parametrize("window", [1, 2, 4, 20])
def test_windows_are_all_that_lie_within_records(window):
    found = Windows(np.array(LENGTHS, np.int32), window)
    expected = windows(LENGTHS, window)
    assert len(found) == len(expected)
    records, first = found.find(np.arange(len(found)))
    assert list(zip(records.tolist(), first.tolist(), strict=True)) == expected


@pytest.mark.parametrize("window", [1, 4, 12, None])
@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_are_windows_of_the_episodes(dataset, window, ranks):
    steps = window or max(LENGTHS)
    expected = windows(LENGTHS, steps)
    for rank in range(ranks):
        places = np.arange(rank, 8, ranks)
        epochs = Epochs(5, len(expected), 8, places)
        with Loader(Batches(dataset, window, 8, 5, places)) as loader:
            for number, batch in zip(range(20), loader, strict=False):
                assert batch.mask.shape == (8 // ranks, steps)
                for row, index in enumerate(epochs.part(number)):
                    record, first = expected[index]
                    there = min(LENGTHS[record] - first, steps)
                    assert batch.mask[row].tolist() == [True] * there + [False] * (steps - there)
                    whole = episode(record, LENGTHS[record]).columns()
                    for name, column in batch.columns.items():
                        part = whole[name][first : first + steps]
                        np.testing.assert_array_equal(column[row, :there], part)
                        assert not column[row, there:].any()


def test_transitions_are_all_steps_with_a_successor(dataset):
    """And those that terminated an episode; steps that were truncated are left out."""
    expected = []
    for record, steps in enumerate(LENGTHS):
        one = episode(record, steps)
        for step in range(steps):
            if step < steps - 1 or one.terminated[step]:
                following = one.obs[step + 1] if step < steps - 1 else [0, 0]
                found = one.obs[step], one.action[step], one.reward[step], one.terminated[step]
                expected.append(np.hstack([*found, following]).tolist())
    batches = Batches(dataset, TRANSITIONS, len(expected), seed=5)
    batches.gather(0, batch := batches.buffer())
    rows = zip(*batch.transitions(), strict=True)
    assert sorted(np.hstack(row).tolist() for row in rows) == sorted(expected)


def test_it_goes_on_from_any_batch(dataset):
    with Loader(Batches(dataset, 3, 4, 1)) as whole, Loader(Batches(dataset, 3, 4, 1), 9) as later:
        for _ in range(9):
            next(whole)
        for _ in range(9):
            np.testing.assert_array_equal(next(whole).columns["obs"], next(later).columns["obs"])


def test_batches_are_gathered_ahead_into_the_same_memory(dataset):
    """The next two are ready before they are requested, and the one in use stays unchanged."""
    with Loader(Batches(dataset, 3, 4, 1), buffers=3) as loader:
        places = []
        for _ in range(12):
            batch = next(loader)
            before = {name: column.copy() for name, column in batch.columns.items()}
            until = time.monotonic() + 60
            while loader._ready.qsize() < 2:
                assert time.monotonic() < until
                time.sleep(0.001)
            for name, column in batch.columns.items():
                np.testing.assert_array_equal(column, before[name])
            assert loader._free.empty()
            places.append(batch.columns["obs"].ctypes.data)
        assert len(set(places)) == 3
        assert places[:3] == places[3:6]


def resident(path):
    """Returns which pages of a file are in memory."""
    libc = ctypes.CDLL(None)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as whole:
        pages = np.zeros(-(-len(whole) // mmap.PAGESIZE), np.uint8)
        begin = np.frombuffer(whole, np.uint8)
        assert not libc.mincore(
            ctypes.c_void_p(begin.ctypes.data), ctypes.c_size_t(len(whole)),
            ctypes.c_void_p(pages.ctypes.data),
        )  # fmt: skip
        del begin
    return pages & 1 > 0


def test_of_a_cold_data_set_windows_are_read_and_nothing_else(tmp_path):
    """The kernel alone would read 32 pages for each window of this batch and the next."""
    made(path := tmp_path / "set", [2000] * 50, length=2000).table.close()
    gc.collect()
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path).any():
        pytest.skip("this file system keeps its pages in memory")
    with Dataset(path) as dataset:
        data, before = int(dataset.table.spec.header()["data_offset"]), resident(path)
        batches, spec, needed = Batches(dataset, 20, 4, seed=1), dataset.table.spec, []
        batches.gather(0, batches.buffer())
        windows = Windows(dataset.lengths, 20)
        for places in (Epochs(1, len(windows), 4).part(step) for step in (0, 1)):
            for record, first in zip(*windows.find(places), strict=True):
                for column, start in zip(spec.columns, spec.starts[:-1], strict=True):
                    at = data + record * spec.starts[-1] + start + first * column.step_bytes
                    pages = at + np.arange(20 * column.step_bytes)
                    needed.extend(np.unique(pages // mmap.PAGESIZE).tolist())
        expected, end = np.unique(needed), time.monotonic() + 20
        while not resident(path)[expected].all():
            assert time.monotonic() < end, "the next batch is not read ahead"
            time.sleep(0.01)
        read = np.count_nonzero(resident(path) & ~before)
        assert read <= 2 * len(expected) < len(before) / 4


def test_what_is_in_memory_is_not_asked_for_again_and_again(dataset, monkeypatch):
    batches, asked = Batches(dataset, 2, 3, seed=1), []
    monkeypatch.setattr(dataset.table, "will_need", lambda *given: asked.append(given))
    faults = itertools.repeat(0)
    monkeypatch.setattr("mindspore_rl.datasets.windows._faults", lambda: next(faults))
    for step in range(150):
        batches.gather(step, batches.buffer())
    assert len(asked) == COLD + 1
    faults = itertools.count()  # a page fault waits for the disk
    for step in range(150, 153):
        batches.gather(step, batches.buffer())
    assert len(asked) == COLD + 1 + 3


def test_what_fails_beside_the_learner_is_raised_to_it(dataset, monkeypatch):
    with Loader(Batches(dataset, 3, 4, 1)) as loader:
        next(loader)
        monkeypatch.setattr(Epochs, "part", lambda self, step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            for _ in range(9):
                next(loader)
        with pytest.raises(ZeroDivisionError):
            next(loader)


def test_its_thread_ends(dataset):
    before = threading.active_count()
    with Loader(Batches(dataset, 3, 4, 1)) as loader:
        next(loader)
    assert threading.active_count() == before
    with pytest.raises(ReplayError, match="the loader is closed"):
        for _ in range(9):
            next(loader)


def test_numbers_are_looked_at(dataset):
    with pytest.raises(ReplayError, match="a window of -1 steps"):
        Batches(dataset, -1, 4, 1)
    with pytest.raises(ReplayError, match="1 buffers"):
        Loader(Batches(dataset, 3, 4, 1), buffers=1)
