"""Columns of images keep each frame once, and give what was written."""

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay import frames
from mindspore_rl.replay.frames import FrameColumn
from mindspore_rl.replay.kept import KeptReplay

ENVS, STACK, SIDE = 3, 4, 16


@pytest.fixture(autouse=True, params=["native", "numpy"])
def _stored_by(request, monkeypatch):
    """Without a C++ compiler, NumPy does the same."""
    if request.param == "numpy":
        monkeypatch.setattr("mindspore_rl.platform.toolchain.compiler", lambda: None)


class Screens:
    """Steps of environments with stacked frames, whose episodes have random lengths."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.obs = np.stack([self.first() for _ in range(ENVS)])

    def frame(self):
        return self.random.integers(0, 255, (SIDE, SIDE), np.uint8)

    def first(self):
        return np.repeat(self.frame()[None], STACK, 0)

    def step(self):
        """Returns a record of each environment: obs, reward, final_obs."""
        obs = self.obs
        final = np.stack([np.concatenate([one[1:], self.frame()[None]]) for one in obs])
        ended = self.random.random(ENVS) < 0.1
        self.obs = np.stack([self.first() if e else f for e, f in zip(ended, final, strict=True)])
        return obs, self.random.random(ENVS).astype(np.float32), final

    def steps(self, count):
        """Returns records `[count, ENVS, ...]`."""
        return [
            np.stack(column) for column in zip(*(self.step() for _ in range(count)), strict=True)
        ]


def plain(monkeypatch, capacity, stacks, weighted=False):
    """A replay with the same records, whose columns are arrays."""
    kept = KeptReplay(ENVS)
    with monkeypatch.context() as patch:
        patch.setattr(frames, "LEAST_BYTES", 1 << 40)
        kept.extend(capacity, *stacks, weighted=weighted)
    assert not any(isinstance(column, FrameColumn) for column in kept.columns)
    return kept


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("weighted", [False, True])
def test_draws_are_those_from_whole_images(weighted, monkeypatch):
    screens, kept = Screens(1), KeptReplay(ENVS)
    stacks = screens.steps(1)
    kept.extend(20, *stacks, weighted=weighted)
    other = plain(monkeypatch, 20, stacks, weighted)
    for rows in (1, 7, 1, 20, 13, 1, 1, 19):
        stacks = screens.steps(rows)
        other.extend(20, *stacks, weighted=weighted)
        if rows > 1:
            kept.extend(20, *stacks, weighted=weighted)
        else:
            kept.write(20, *(stack[0] for stack in stacks), weighted=weighted)
        noise = np.random.default_rng(rows).random((2, ENVS, 10), np.float32)
        same(kept.columns, other.columns)
        for steps in range(2):
            same(kept.draw(noise, steps), other.draw(noise, steps))
            if weighted:
                same(kept.draw_weighted(noise[0], steps), other.draw_weighted(noise[0], steps))
        same(*(each.records(np.arange(2), np.arange(2), 2) for each in (kept, other)))
    assert isinstance(kept.columns[0], FrameColumn)


def test_a_record_takes_a_new_frame(monkeypatch):
    """Of eight: one of each record, one of each episode, and those of the oldest records."""
    screens, kept = Screens(2), KeptReplay(ENVS)
    monkeypatch.setattr(frames, "BLOCK_BYTES", 1 << 14)
    for _ in range(30):
        kept.extend(50, *screens.steps(20))
    obs, _, final_obs, store = *kept.columns, kept.columns[0].store
    assert final_obs.store is store
    held = np.unique(np.concatenate([obs.index, final_obs.index], -1))
    assert store.used == len(held)
    assert ENVS * 50 < store.used < ENVS * 50 * 1.3
    assert len(store.blocks) * store.per_block < ENVS * (50 + 8 * 20) * 1.5


@pytest.mark.parametrize("seed", range(5))
def test_any_frames_may_repeat(seed, monkeypatch):
    """Constant planes, the same frame twice in a record or in neighbours, in any order."""
    random, kept = np.random.default_rng(seed), KeptReplay(ENVS)
    some = random.integers(0, 2, (6, SIDE, SIDE), np.uint8)
    some[0] = 0
    other = None
    for _ in range(12):
        rows = random.integers(1, 5)
        stacks = [some[random.integers(0, 6, (rows, ENVS, 2, 3))] for _ in range(2)]
        kept.extend(5, *stacks)
        if other is None:
            other = plain(monkeypatch, 5, stacks)
        else:
            other.extend(5, *stacks)
        same(kept.columns, other.columns)
        held = np.unique(np.concatenate([column.index for column in kept.columns], -1))
        assert kept.columns[0].store.used == len(held[held > 0])


def test_parts_and_other_types_of_numbers_are_written_too(monkeypatch):
    screens, kept = Screens(3), KeptReplay(ENVS)
    stacks = screens.steps(3)
    other = plain(monkeypatch, 8, stacks)
    parts = [(places, kept.part(places)) for places in (slice(0, None, 2), slice(1, None, 2))]
    for turn in range(3):
        for places, part in parts:
            part.write(8, *(stack[turn, places] for stack in stacks))
    same(kept.columns, other.columns)
    stacks = screens.steps(2)
    kept.extend(8, stacks[0].astype(np.int64), *stacks[1:])
    other.extend(8, *stacks)
    same(kept.columns, other.columns)
    kept.sources = [slice(1, 2), slice(1, 2), slice(2, 3)]  # of messages in an asynchronous run
    other.sources = kept.sources
    stacks = screens.steps(2)
    kept.extend(8, *stacks)
    other.extend(8, *stacks)
    assert kept.inserted.tolist() == [5, 9, 7]
    same(kept.columns, other.columns)


def test_columns_that_are_written_piece_by_piece_share_their_frames(monkeypatch):
    """As from a checkpoint: one column after the other, some lanes at a time."""
    screens = Screens(4)
    stacks = screens.steps(20)
    other = plain(monkeypatch, 20, stacks)
    kept = KeptReplay(ENVS)
    columns = kept.allocate(20, [(stack.dtype, stack.shape[2:]) for stack in stacks])
    for lanes in (slice(0, 2), slice(2, 3)):
        for column, stack in zip(columns, stacks, strict=True):
            rows, places = (x.reshape(-1) for x in np.indices(stack[:, lanes].shape[:2]))
            column[:, lanes][rows, places] = stack[rows, np.arange(ENVS)[lanes][places]]
    kept.restore(columns)
    kept.inserted[:] = 20
    same(kept.columns, other.columns)
    stacks = screens.steps(7)
    for each in (kept, other):
        each.extend(20, *stacks)
    same(kept.columns, other.columns)
    assert kept.columns[0].store.used < ENVS * 20 * 1.5


def test_frames_may_be_in_files_and_must_have_room(tmp_path, monkeypatch):
    """Of files that do not fit memory the system is told which frames are read."""
    screens, kept = Screens(5), KeptReplay(ENVS, folder=str(tmp_path))
    stacks = screens.steps(5)
    monkeypatch.setattr("mindspore_rl.replay.frames.available_memory", lambda: 0)
    kept.extend(8, *stacks)
    same(kept.columns, [np.concatenate([s, 0 * s[:3]]) for s in stacks])
    monkeypatch.setattr("mindspore_rl.replay.kept.available_memory", lambda: 20_000)
    with pytest.raises(ReplayError, match="more frames of kept records take .* MB are free: keep"):
        KeptReplay(ENVS).extend(8, *stacks)
