"""Segments of a replay: ranks write what is new; every checkpoint has all that it lists."""

import itertools
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mindspore_rl.errors import CheckpointError, StorageError
from mindspore_rl.replay.kept import KeptReplay
from mindspore_rl.replay.spec import ONE
from mindspore_rl.runtime import checkpoint, replay_segments
from mindspore_rl.runtime.rank import replay_checkpoint
from mindspore_rl.runtime.rank.background import Background
from mindspore_rl.runtime.rank.replay_checkpoint import ReplaySegments, written

ENVS = 6


class Kept:
    """A replay whose records hold their numbers and those of their environments."""

    def __init__(self, capacity, envs, weighted=False):
        self.dtypes, self.envs, self.inserted = [], envs, np.zeros(len(envs), np.int64)
        self.by_priority = weighted
        self.columns = [np.zeros((capacity, len(envs), 3)), np.zeros((capacity, len(envs)), bool)]
        self.columns += [np.zeros((capacity, len(envs)), np.int64)] if weighted else []

    def insert(self, counts):
        """Inserts so many records of each environment."""
        for lane, env in enumerate(self.envs):
            for _ in range(counts[env]):
                number = self.inserted[lane]
                row = number % len(self.columns[0])
                self.columns[0][row, lane] = (number, env, number * env)
                self.columns[1][row, lane] = number % 2
                self.inserted[lane] += 1
        for weights in self.columns[2:]:
            weights[:] = np.where(self.columns[0][..., 0] > 0, 1 + self.inserted, 0)


def rank_of(run, number, envs):
    plan = SimpleNamespace(num_envs=ENVS, device="CPU")
    fragment = SimpleNamespace(components=("replay",))
    parts = {"run_dir": run, "number": number, "env_indices": envs, "iterations_done": 0}
    quiet = dict.fromkeys(("stamp", "note"), lambda told: None)
    return SimpleNamespace(**parts, **quiet, plan=plan, fragment=fragment, background=Background())


class Job:
    """Some ranks, each with a part of the replay."""

    def __init__(self, run, *shares, capacity=10, weighted=False):
        self.run, self.capacity, self.counts = run, capacity, np.zeros(ENVS, np.int64)
        self.kept = [Kept(capacity, share, weighted) for share in shares]
        self.ranks = [rank_of(run, number, share) for number, share in enumerate(shares)]
        self.start()

    def start(self):
        """Starts processes that have written nothing."""
        self.sides = list(map(ReplaySegments, self.ranks, self.kept))
        for rank in self.ranks:
            rank.background = Background()

    def insert(self, counts):
        self.counts += counts
        for kept in self.kept:
            kept.insert(counts)

    def save_ahead(self, iteration):
        for rank, side, kept in zip(self.ranks, self.sides, self.kept, strict=True):
            rank.iterations_done = iteration
            side.write_ahead(kept.inserted)
            rank.background.wait()

    def save(self, iteration):
        arrays = {}
        for rank, side, kept in zip(self.ranks, self.sides, self.kept, strict=True):
            rank.iterations_done = iteration
            arrays |= {name: array for name, (array, _) in side.write(kept.inserted).items()}
            rank.background.wait()
        about = {"num_envs": ENVS, "steps_per_iteration": ENVS, "env_steps": iteration * ENVS}
        return checkpoint.save(
            self.run / "checkpoints", iteration, {}, {**about, **written(arrays)}
        )

    def columns(self):
        """Returns the columns of all environments."""
        parts = zip(*(kept.columns for kept in self.kept), strict=True)
        return [np.concatenate(columns, 1) for columns in parts]


def taken(path, inserted, envs=range(ENVS), capacity=10, dtypes=(), by_priority=None):
    """Returns the columns that a rank loads for some environments."""
    meta = checkpoint.look(path)
    if by_priority is None:
        by_priority = bool(checkpoint.replays_of(meta)[""].by_priority)
    kept = KeptReplay(len(envs), capacity, by_priority, ENVS)
    kept.dtypes = list(dtypes)
    rank = rank_of(path.parent, 0, envs)
    ReplaySegments(rank, kept).take(path, meta, inserted)
    return kept.columns


def files(run):
    return sorted((run / replay_segments.FOLDER).glob("*"))


@pytest.fixture
def small(monkeypatch):
    """Segments of any size are kept, in pieces of few rows."""
    monkeypatch.setattr(replay_checkpoint, "SMALL_BYTES", 1)
    monkeypatch.setattr(replay_segments, "PIECE_BYTES", 100)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shares", [[range(6)], [range(4), range(4, 6)]])
def test_a_checkpoint_has_all_records_whatever_each_environment_got(
    tmp_path, small, monkeypatch, shares, weighted, ahead
):
    if ahead:
        monkeypatch.setattr(replay_checkpoint, "AHEAD_BYTES", 100)
    job, draws = Job(tmp_path, *shares, weighted=weighted), np.random.default_rng(1)
    for iteration in range(1, 12):
        counts = draws.integers(0, 9, ENVS) if iteration % 3 else np.full(ENVS, 4)
        job.insert(np.minimum(counts, 4) if iteration % 2 else np.where(counts > 5, 0, counts))
        job.save_ahead(iteration)
        if ahead and iteration % 4:  # a checkpoint after some iterations
            continue
        path = job.save(iteration)
        arrays, _ = checkpoint.load(path)
        expected = job.columns()
        found = taken(path, job.counts)
        other = taken(path, job.counts, range(1, 5))
        for number, column in enumerate(expected):
            np.testing.assert_array_equal(arrays[f"replay/{number}"], column)
            np.testing.assert_array_equal(found[number], column)
            np.testing.assert_array_equal(other[number], column[:, 1:5])
    assert (job.counts > 10).all()
    assert all(len(replay.segments) < 40 for replay in replays(tmp_path))


def replays(run):
    paths = checkpoint.list_checkpoints(run / "checkpoints")
    return [checkpoint.replays_of(checkpoint.look(path)).get("") for path in paths]


def assert_only_listed(run):
    """Checks that all files are segments of checkpoints."""
    listed = {segment.file for replay in replays(run) for segment in replay.segments}
    assert {path.name for path in files(run)} == listed


def test_only_new_records_are_written_and_only_listed_segments_stay(tmp_path, small):
    job = Job(tmp_path, range(6))
    sizes = []
    for iteration in range(1, 9):
        job.insert([3] * ENVS)
        before = files(tmp_path)
        job.save(iteration)
        (new,) = set(files(tmp_path)) - set(before)
        sizes.append(new.stat().st_size)
        assert_only_listed(tmp_path)
    assert sizes == [3 * ENVS * (3 * 8 + 1)] * 8
    assert len(files(tmp_path)) == 6  # 4 of each checkpoint
    (tmp_path / replay_segments.FOLDER / "00000003-0001-left.segment.tmp").touch()
    job.save(9)
    assert len(files(tmp_path)) == 5


def test_a_small_segment_is_written_again_with_what_follows(tmp_path):
    job = Job(tmp_path, range(6), capacity=100)
    for iteration in range(1, 6):
        job.insert([3] * ENVS)
        job.save(iteration)
    records = [replay.segments[0].records for replay in replays(tmp_path)]
    assert records == [(0, 9), (0, 12), (0, 15)]
    assert len(files(tmp_path)) == 3


def test_a_replay_goes_on_with_another_capacity(tmp_path, small):
    job = Job(tmp_path, range(6))
    for iteration in (1, 2, 3):
        job.insert([3] * ENVS)
        path = job.save(iteration)
    numbers = job.columns()[0][..., 0]
    larger, fewer = (taken(path, job.counts, capacity=size)[0][..., 0] for size in (20, 4))
    np.testing.assert_array_equal(larger[:9], numbers[:9])
    np.testing.assert_array_equal(fewer[:, 0], [8, 5, 6, 7])
    job.insert([3] * ENVS)
    path = job.save(4)
    grown = taken(path, job.counts, capacity=20)[0][..., 0]
    np.testing.assert_array_equal(grown[:, 0], [*range(2, 12), *[0] * 10])  # counted from 0 on
    with pytest.raises(
        CheckpointError, match="holds the newest 10 records of each environment, of"
    ):
        taken(path, job.counts, capacity=20, dtypes=["float64", "bool"])
    assert sorted(taken(path, job.counts, capacity=4)[0][:, 0, 0]) == [8, 9, 10, 11]


def test_a_replay_goes_on_with_priorities_or_without(tmp_path, small):
    """Records that had none are as likely as new ones."""
    for weighted in (False, True):
        job = Job(tmp_path / str(weighted), range(6), weighted=weighted)
        job.insert(np.arange(2, 8))
        path = job.save(1)
        *found, weights = taken(path, job.counts, range(1, 5), by_priority=True)
        there = np.arange(10)[:, None] < np.arange(3, 7)
        expected = job.columns()[2][:, 1:5] if weighted else np.where(there, ONE, 0)
        np.testing.assert_array_equal(weights, expected)
        for columns in (found, taken(path, job.counts, range(1, 5), by_priority=False)):
            for column, whole in zip(columns, job.columns()[:2], strict=True):
                np.testing.assert_array_equal(column, whole[:, 1:5])


def test_the_replay_in_a_file_of_an_earlier_version_is_taken(tmp_path):
    job = Job(tmp_path, range(6))
    job.insert([23] * ENVS)
    about = {"num_envs": ENVS, "steps_per_iteration": ENVS, "env_steps": ENVS}
    arrays = {f"replay/{number}": column for number, column in enumerate(job.columns())}
    path = checkpoint.save(tmp_path / "checkpoints", 1, arrays, about)
    for found, expected in zip(taken(path, job.counts), job.columns(), strict=True):
        np.testing.assert_array_equal(found, expected)
    fewer = taken(path, job.counts, range(2, 4), capacity=4)[0]
    np.testing.assert_array_equal(fewer[:, 0, :2], [[20, 2], [21, 2], [22, 2], [19, 2]])


class Killed(BaseException):
    """Ends a writer at any moment."""


def test_a_writer_that_is_killed_at_any_moment_leaves_a_checkpoint(tmp_path, small, monkeypatch):
    """What it has not removed by then stays until the next checkpoint."""
    monkeypatch.setattr(replay_checkpoint, "AHEAD_BYTES", 100)
    calls = [(os, "replace"), (os, "fsync"), (Path, "unlink")]
    for at in itertools.count(1, 2):
        job, left = Job(tmp_path / f"{at}", range(4), range(4, 6)), itertools.count(1)
        for iteration in range(1, 5):
            job.insert([3] * ENVS)
            job.save(iteration)
        before = job.columns()
        with monkeypatch.context() as patch:

            def struck(*given, call, at=at, left=left, **named):
                if next(left) >= at:
                    raise Killed
                return call(*given, **named)

            for owner, name in calls:
                call = getattr(owner, name)
                patch.setattr(owner, name, lambda *a, call=call, **k: struck(*a, call=call, **k))
            try:
                job.insert([2] * ENVS)
                job.save_ahead(5)
                job.insert([1] * ENVS)
                job.save(5)
                done = True
            except Killed:
                done = False
                job.start()
        path, meta, damaged = checkpoint.load_newest(job.run / "checkpoints")
        assert damaged == []
        arrays = checkpoint.load(path)[0]
        expected = job.columns() if meta["iteration"] == 5 else before
        np.testing.assert_array_equal(arrays["replay/0"], expected[0])
        job.save(6)
        job.save(7)
        assert_only_listed(job.run)
        if done:
            break
    assert at > 15  # every second moment


def test_many_new_records_are_written_before_the_checkpoint(tmp_path, small, monkeypatch):
    """A checkpoint writes the rest; what is overwritten before it comes is removed."""
    each = 3 * 8 + 1
    monkeypatch.setattr(replay_checkpoint, "AHEAD_BYTES", 4 * ENVS * each - 1)
    job = Job(tmp_path, range(6))
    for iteration, many in enumerate([0, 1, 1], 1):
        job.insert([2] * ENVS)
        job.save_ahead(iteration)
        assert [path.suffix for path in files(tmp_path)] == [".tmp"] * many
    job.save(4)
    assert [path.stat().st_size for path in files(tmp_path)] == [s * ENVS * each for s in (4, 2)]
    for iteration in range(5, 10):
        job.insert([4] * ENVS)
        job.save_ahead(iteration)
    assert len([path for path in files(tmp_path) if path.suffix == ".tmp"]) == 3
    found = taken(job.save(10), job.counts)
    for column, expected in zip(found, job.columns(), strict=False):
        np.testing.assert_array_equal(column, expected)
    assert_only_listed(tmp_path)


def prepared(run):
    return sorted(path.stat().st_size for path in files(run) if path.suffix == ".tmp")


def test_environments_with_other_numbers_of_records_have_files_of_their_own(
    tmp_path, small, monkeypatch
):
    """Asynchronous actors: what one of them has made is written once it is no small file."""
    each = 3 * 8 + 1
    monkeypatch.setattr(replay_checkpoint, "AHEAD_BYTES", 18 * each - 1)
    monkeypatch.setattr(replay_checkpoint, "SMALL_BYTES", 5 * each)
    job = Job(tmp_path, range(6), capacity=100)
    for iteration, (fast, sizes) in enumerate([(2, []), (3, [20]), (1, [20]), (4, [8, 20, 20])]):
        job.insert([1, 1, fast, fast, fast, fast])
        job.save_ahead(iteration)
        assert prepared(tmp_path) == [size * each for size in sizes]
    with monkeypatch.context() as patch:
        patch.setattr(replay_segments, "prepare", lambda *given: pytest.fail("nothing is new"))
        path = job.save(5)
    for column, expected in zip(taken(path, job.counts, capacity=100), job.columns(), strict=True):
        np.testing.assert_array_equal(column, expected)


@pytest.mark.parametrize(("device", "sizes"), [("CPU", [18]), ("GPU", [])])
def test_buffers_of_a_cell_are_written_ahead_where_the_host_reads_them(
    tmp_path, small, monkeypatch, device, sizes
):
    each = 3 * 8 + 1
    monkeypatch.setattr(replay_checkpoint, "AHEAD_BYTES", 18 * each - 1)
    job = Job(tmp_path, range(6))
    (kept,), (rank,) = job.kept, job.ranks
    kept.columns[1] = kept.columns[1].astype(np.int8)
    kept.dtypes, rank.plan.device = ["float64", "bool"], device
    job.insert([3] * ENVS)
    job.save_ahead(1)
    assert prepared(tmp_path) == [size * each for size in sizes]
    job.insert([3] * ENVS)
    arrays, _ = checkpoint.load(job.save(2))
    np.testing.assert_array_equal(arrays["replay/0"], kept.columns[0])
    np.testing.assert_array_equal(arrays["replay/1"], kept.columns[1])
    assert arrays["replay/1"].dtype == bool  # its own type, not that of the cell


def test_what_ranks_have_prepared_is_removed_at_their_end(tmp_path):
    folder = tmp_path / replay_segments.FOLDER
    kept, _ = replay_segments.write(folder, 1, 0, [np.zeros(4)])
    replay_segments.prepare(folder, 2, 0, [np.zeros(4)])
    (tmp_path / checkpoint.FOLDER).mkdir()
    for name in ("checkpoint-00000002.npz", "checkpoint-00000003.npz.tmp", "own.tmp"):
        (tmp_path / checkpoint.FOLDER / name).touch()
    checkpoint.remove_unfinished(tmp_path)
    assert [file.name for file in folder.iterdir()] == [kept]
    found = {file.name for file in (tmp_path / checkpoint.FOLDER).iterdir()}
    assert found == {"checkpoint-00000002.npz", "own.tmp"}
    checkpoint.remove_unfinished(tmp_path / "none")


def test_what_is_written_ahead_are_the_records_of_that_moment(tmp_path, small, monkeypatch):
    """The disk takes them while newer records overwrite them."""
    go, prepare = threading.Event(), replay_segments.prepare
    monkeypatch.setattr(replay_checkpoint, "AHEAD_BYTES", 100)
    monkeypatch.setattr(replay_segments, "prepare", lambda *a: go.wait(30) and prepare(*a))
    job = Job(tmp_path, range(6))
    job.insert([4] * ENVS)
    (side,), (kept,) = job.sides, job.kept
    side.write_ahead(kept.inserted)
    expected = kept.columns[0][:4].copy()
    kept.columns[0][:] = -1
    go.set()
    job.ranks[0].background.wait()
    found = np.concatenate([np.fromfile(file, np.uint8) for file in files(tmp_path)])
    assert found.tobytes().startswith(expected[: len(found) // (25 * ENVS)].tobytes())


def test_segments_of_a_checkpoint_that_failed_are_removed_at_the_end(tmp_path, small):
    job = Job(tmp_path, range(6))
    job.insert([2] * ENVS)
    job.save(1)
    job.insert([2] * ENVS)
    job.sides[0].write(job.kept[0].inserted)
    job.ranks[0].background.wait()
    assert len(files(tmp_path)) == 2
    checkpoint.remove_unfinished(tmp_path)
    assert_only_listed(tmp_path)


def test_a_full_disk_leaves_nothing_of_a_segment(tmp_path):
    def pieces():
        yield np.zeros(9)
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left on device"):
        replay_segments.write(tmp_path, 1, 0, pieces())
    assert list(tmp_path.iterdir()) == []


def test_a_segment_that_the_disk_does_not_give_back_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(replay_segments, "_checksum", lambda path: 0)
    with pytest.raises(StorageError, match="does not hold what was written"):
        replay_segments.write(tmp_path, 1, 0, [np.ones(9)])
    assert list(tmp_path.iterdir()) == []


class Images(Job):
    """Ranks whose records have images of two stacked frames, before and after a step."""

    def __init__(self, run, *shares, capacity=10):
        super().__init__(run, *shares, capacity=capacity)
        self.random = np.random.default_rng(3)
        self.kept = [KeptReplay(len(s), capacity, True) for s in shares]
        self.sides = list(map(ReplaySegments, self.ranks, self.kept))
        self.frames = self.random.integers(0, 255, (2, ENVS, 20, 16), np.uint8)

    def insert(self, counts):
        self.counts += counts
        for turn in range(max(counts)):
            obs = self.frames[-2:].swapaxes(0, 1)
            new = self.random.integers(0, 255, (1, ENVS, 20, 16), np.uint8)
            self.frames = np.concatenate([self.frames[-1:], new])
            after = self.frames.swapaxes(0, 1)
            for rank, kept in zip(self.ranks, self.kept, strict=True):
                envs = np.array(rank.env_indices)
                kept.sources = [slice(n, n + 1) for n in np.flatnonzero(turn < counts[envs])]
                if kept.sources:
                    own = envs[turn < counts[envs]]
                    kept.write(obs[own], self.counts[own], after[own])

    def columns(self):
        parts = zip(*([np.asarray(c) for c in kept.columns] for kept in self.kept), strict=True)
        return [np.concatenate(columns, 1) for columns in parts]


@pytest.mark.parametrize("shares", [[range(6)], [range(4), range(4, 6)]])
def test_a_segment_has_each_frame_once(tmp_path, small, monkeypatch, shares):
    monkeypatch.setattr(replay_checkpoint, "AHEAD_BYTES", 100)
    job, draws = Images(tmp_path, *shares), np.random.default_rng(1)
    for iteration in range(1, 6):
        before, counts = files(tmp_path), np.full(ENVS, 4)
        job.insert(counts if iteration < 4 else draws.integers(1, 5, ENVS))
        if iteration == 4:
            job.save_ahead(iteration)
            job.insert(counts)
        path = job.save(iteration)
        if iteration < 4:
            new = [file.stat().st_size for file in files(tmp_path) if file not in before]
            of_records = ENVS * 4 * (2 * 2 * 4 + 8)  # numbers of frames, and integers
            of_weights = ENVS * min(4 * iteration, 10) * 8
            assert sum(new) == ENVS * (4 + 2) * 320 + of_records + of_weights
        arrays, _ = checkpoint.load(path)
        for envs in (range(6), range(1, 5)):
            found = KeptReplay(len(envs), 10, True, ENVS)
            rank = rank_of(path.parent, 0, envs)
            ReplaySegments(rank, found).take(path, checkpoint.look(path), job.counts)
            if iteration < 4:
                used = found.columns[2].store.used
                assert used == len(envs) * (2 + min(job.counts[0], 10))
            for number, column in enumerate(job.columns()):
                np.testing.assert_array_equal(arrays[f"replay/{number}"], column)
                own = column[:, envs.start : envs.stop]
                np.testing.assert_array_equal(np.asarray(found.columns[number]), own)
