"""The replay of a Python loop: its layout and limits; `test_kept_machine.py` has all else."""

import errno

import numpy as np
import pytest

from mindspore_rl.errors import NumericsError, ReplayError
from mindspore_rl.platform import toolchain
from mindspore_rl.replay import Order, Sampler, frames
from mindspore_rl.replay.kept import WEIGHT_BYTES, KeptReplay
from mindspore_rl.replay.rings import weights_of
from mindspore_rl.replay.spec import LARGEST, ONE

ENVS = 3


@pytest.fixture(autouse=True, params=["native", "numpy"])
def _drawn_by(request, monkeypatch):
    """Without a C++ compiler, NumPy does the same."""
    if request.param == "numpy":
        monkeypatch.setattr("mindspore_rl.platform.toolchain.compiler", lambda: None)


def first_write(**how):
    """Returns a replay with one record of each environment."""
    kept = KeptReplay(ENVS, 8, **how)
    kept.write(np.zeros(ENVS, np.float32))
    return kept


def test_every_one_of_a_million_records_can_be_drawn():
    """Even a very unlikely one, by the numbers that hit the middle of its weight."""
    weights = np.full((10**6, 1), 100 * ONE, np.int64)
    weights[::2] = ONE
    unlikely = np.random.default_rng(5).integers(0, 500_000, 1000) * 2
    middles = (np.cumsum(weights)[unlikely] - ONE // 2).tolist()
    numbers = [(place << 48) // int(weights.sum()) for place in middles]
    noise = np.array([[n >> 24 for n in numbers], [n & 2**24 - 1 for n in numbers]])
    noise = (noise.reshape(1, -1) / 2**24).astype(np.float32)
    kept = KeptReplay(1, 10**6, by_priority=True)
    column, own = kept.allocate([(np.dtype(int), ())])
    column[:], own[:] = np.arange(10**6).reshape(-1, 1), weights
    kept.inserted = [10**6]
    values, rows, odds = kept.draw_weighted(noise)
    np.testing.assert_array_equal(rows, unlikely)
    np.testing.assert_array_equal(values, unlikely)
    np.testing.assert_allclose(odds, 1 / 50.5, rtol=1e-6)


@pytest.mark.parametrize("by_priority", [False, True])
def test_records_lie_side_by_side_in_a_table_and_their_index_is_small(by_priority):
    if toolchain.compiler() is None:
        return
    kept = KeptReplay(8, 100_000, by_priority)
    kept.write(np.zeros((8, 4), np.float32), np.zeros(8, bool), np.zeros(8, np.int32))
    first, flag, number = kept.columns[:3]
    assert first.strides[:2] == flag.strides == number.strides == (24, 100_000 * 24)
    assert flag.ctypes.data - first.ctypes.data == 20
    assert flag.flags.aligned
    index = int(kept._rings.table.spec.header()["total_bytes"]) - 800_000 * 24
    assert index < 800_000 * WEIGHT_BYTES * by_priority + 30_000
    assert [weights.shape for weights in kept.columns[3:]] == [(100_000, 8)] * by_priority


@pytest.mark.parametrize("by_priority", [False, True])
def test_what_a_program_keeps_can_be_drawn_and_read_as_any_table(by_priority):
    """It is a table: the functions of `Table` find the same records in it."""
    if toolchain.compiler() is None:
        return
    kept = KeptReplay(ENVS, 8, by_priority)
    for step in range(11):
        kept.write(np.arange(ENVS, dtype=np.float32) + 100 * step)
    table = kept._rings.table
    drawn = Sampler(table, 8 * ENVS, Order.FIFO).sample()
    expected = [100 * step + lane for step in range(3, 11) for lane in range(ENVS)]
    assert drawn["0"].tolist() == expected
    if by_priority:
        assert table.update(drawn.ids, np.full(len(drawn.ids), 0.5)) == len(drawn.ids)
        assert (kept.columns[1] == ONE / 2).all()


def test_a_record_takes_a_new_frame(monkeypatch):
    """Of eight: one of each record, one of each episode, and those of the oldest records."""
    random, kept, stack, side = np.random.default_rng(2), KeptReplay(ENVS, 50), 4, 16
    monkeypatch.setattr(frames, "BLOCK_BYTES", 1 << 14)

    def new(count):
        return random.integers(0, 255, (ENVS, count, side, side), np.uint8)

    obs = np.repeat(new(1), stack, 1)
    for _ in range(600):
        final_obs = np.concatenate([obs[:, 1:], new(1)], 1)
        kept.write(obs, np.zeros(ENVS, np.float32), final_obs)
        ended = random.random(ENVS) < 0.1
        obs = np.where(ended[:, None, None, None], np.repeat(new(1), stack, 1), final_obs)
    obs, _, final_obs, store = *kept.columns, kept.columns[0].store
    assert final_obs.store is store
    assert ENVS * 50 < store.used < ENVS * 50 * 1.3
    assert len(store.blocks) * store.per_block < ENVS * (50 + 8 * 20) * 1.5


def test_more_priorities_than_can_be_summed_are_told():
    with pytest.raises(ReplayError, match="8,388,608 records of each of 2 .* than 16,777,216 tog"):
        KeptReplay(2, 1 << 23, by_priority=True).allocate([(np.dtype(int), ())])


def test_any_priority_is_a_weight():
    found = weights_of(np.array([0.0, 1.0, 1e30, np.inf, -0.0]))
    assert found.tolist() == [1, ONE, LARGEST, LARGEST, 1]
    with pytest.raises(ReplayError, match="a priority is -0.5, expected 0 or more"):
        weights_of(np.array([1.0, -0.5], np.float32))
    with pytest.raises(NumericsError, match="a priority is nan"):
        weights_of(np.array([-1.0, np.nan], np.float32))


def test_more_than_fits_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ReplayError, match="cannot be kept in .*nowhere .*--replay-dir"):
        first_write(folder=str(tmp_path / "nowhere"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ReplayError, match="No space left on device"):
        first_write(folder=str(tmp_path))
    monkeypatch.setattr("mindspore_rl.replay.kept.available_memory", lambda: 10)
    with pytest.raises(ReplayError, match="8 records of each environment .* keep fewer"):
        first_write()
    monkeypatch.setattr("mindspore_rl.replay.kept.available_memory", lambda: 20_000)
    with pytest.raises(ReplayError, match="more frames of kept records take .* MB are free: keep"):
        KeptReplay(ENVS, 8).write(np.zeros((ENVS, 4, 16, 16), np.uint8))
