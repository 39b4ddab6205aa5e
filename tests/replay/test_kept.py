"""The replay of a Python loop: its layout and limits; `test_kept_machine.py` has all else."""

import errno

import numpy as np
import pytest

from mindspore_rl.errors import NumericsError, ReplayError
from mindspore_rl.replay import frames
from mindspore_rl.replay.kept import WEIGHT_BYTES, KeptReplay
from mindspore_rl.replay.spec import index_header
from mindspore_rl.replay.weights import LARGEST, ONE, weights_of

ENVS = 3


@pytest.fixture(autouse=True, params=["native", "numpy"])
def _drawn_by(request, monkeypatch):
    """Without a C++ compiler, NumPy does the same."""
    if request.param == "numpy":
        monkeypatch.setattr("mindspore_rl.platform.toolchain.compiler", lambda: None)


def first_write(**how):
    """Returns a replay with one record of each environment."""
    kept = KeptReplay(ENVS, **how)
    kept.write(8, np.zeros(ENVS, np.float32))
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
    kept = KeptReplay(1)
    kept.restore([np.arange(10**6).reshape(-1, 1), weights])
    kept.inserted[:] = 10**6
    values, rows, odds = kept.draw_weighted(noise)
    np.testing.assert_array_equal(rows, unlikely)
    np.testing.assert_array_equal(values, unlikely)
    np.testing.assert_allclose(odds, 1 / 50.5, rtol=1e-6)


def test_records_lie_side_by_side_and_their_index_is_small():
    kept = KeptReplay(8)
    values = np.zeros((8, 4), np.float32), np.zeros(8, bool), np.zeros(8, np.int32)
    kept.write(100_000, *values, weighted=True)
    first, flag, number, weights = kept.columns
    assert first.strides[:2] == flag.strides == number.strides == (24, 100_000 * 24)
    assert flag.ctypes.data - first.ctypes.data == 20
    assert int(index_header(8, 100_000)["total_bytes"]) < 800_000 * WEIGHT_BYTES
    assert weights.shape == (100_000, 8)


def test_a_record_takes_a_new_frame(monkeypatch):
    """Of eight: one of each record, one of each episode, and those of the oldest records."""
    random, kept, stack, side = np.random.default_rng(2), KeptReplay(ENVS), 4, 16
    monkeypatch.setattr(frames, "BLOCK_BYTES", 1 << 14)

    def new(count):
        return random.integers(0, 255, (ENVS, count, side, side), np.uint8)

    obs = np.repeat(new(1), stack, 1)
    for _ in range(600):
        final_obs = np.concatenate([obs[:, 1:], new(1)], 1)
        kept.write(50, obs, np.zeros(ENVS, np.float32), final_obs)
        ended = random.random(ENVS) < 0.1
        obs = np.where(ended[:, None, None, None], np.repeat(new(1), stack, 1), final_obs)
    obs, _, final_obs, store = *kept.columns, kept.columns[0].store
    assert final_obs.store is store
    assert ENVS * 50 < store.used < ENVS * 50 * 1.3
    assert len(store.blocks) * store.per_block < ENVS * (50 + 8 * 20) * 1.5


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
        KeptReplay(ENVS).write(8, np.zeros((ENVS, 4, 16, 16), np.uint8))
