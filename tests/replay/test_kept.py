"""The replay of a Python loop."""

import errno

import numpy as np
import pytest

from mindspore_rl.errors import CheckpointError, NumericsError, ReplayError
from mindspore_rl.replay.kept import WEIGHT_BYTES, KeptReplay
from mindspore_rl.replay.spec import index_header
from mindspore_rl.replay.weights import LARGEST, ONE, newest_rows, weighted_rows, weights_of

ENVS = 3


@pytest.fixture(autouse=True, params=["native", "numpy"])
def _drawn_by(request, monkeypatch):
    """Without a C++ compiler, NumPy does the same."""
    if request.param == "numpy":
        monkeypatch.setattr("mindspore_rl.platform.toolchain.compiler", lambda: None)


def row(number):
    """Returns by environment its number and whether it is even."""
    values = number * 10 + np.arange(ENVS, dtype=np.float32)
    return values, values % 2 == 0


def filled(rows, capacity=8):
    kept = KeptReplay(ENVS)
    for number in range(rows):
        kept.write(capacity, *row(number))
    return kept


def drawn(kept, k, seed=0):
    noise = np.random.default_rng(seed).random((ENVS, 2 * k), np.float32)
    return kept.draw(noise)


@pytest.mark.parametrize("rows", [1, 5, 8, 21])
def test_the_newest_records_are_drawn_alike_of_every_environment(rows):
    values, even = drawn(filled(rows), 3000)
    by_env = values.reshape(3000, ENVS)
    newest = range(max(rows - 8, 0), rows)
    for env in range(ENVS):
        found, counts = np.unique(by_env[:, env], return_counts=True)
        assert found.tolist() == [number * 10 + env for number in newest]
        expected = 3000 / len(newest)
        # Chi-square with at most 7 degrees of freedom: beyond 30 once in 10,000 times.
        assert ((counts - expected) ** 2 / expected).sum() < 30
    assert np.array_equal(even, values % 2 == 0)


@pytest.mark.parametrize("rows", [3, 8, 9, 21])
@pytest.mark.parametrize("by", ["uniform", "priority"])
def test_windows_are_whole_and_drawn_alike(rows, by):
    """Windows of 3 consecutive records, also over the ring's end; none extends past the newest."""
    noise = np.random.default_rng(3).random((ENVS, 4000), np.float32)
    if by == "uniform":
        values, even = filled(rows).draw(noise, 3)
    else:
        values, even, ids, odds = weighted(rows).draw_weighted(noise, 3)
        assert np.array_equal(ids, values[:, 0] // 10 % 8)
        assert np.allclose(odds, 1.0)
    assert values.shape == (2000 * ENVS, 3)
    assert np.array_equal(even, values % 2 == 0)
    assert np.array_equal(np.diff(values), np.full((len(values), 2), 10.0))
    starts = list(range(max(rows - 8, 0), rows - 2))
    for env in range(ENVS):
        found, counts = np.unique(values[env::ENVS, 0], return_counts=True)
        assert found.tolist() == [number * 10 + env for number in starts]
        assert ((counts - 2000 / len(starts)) ** 2 / (2000 / len(starts))).sum() < 28


@pytest.mark.parametrize("steps", [0, 3])
def test_several_draws_at_once_are_those_one_by_one(steps):
    noise = np.random.default_rng(4).random((5, ENVS, 14), np.float32)
    kept = filled(21)
    for turn, column in enumerate(zip(*kept.draw(noise, steps), strict=True)):
        for found, expected in zip(column, kept.draw(noise[turn], steps), strict=True):
            assert np.array_equal(found, expected)


def test_a_number_just_below_one_is_the_last_record_there_is():
    noise = np.full((ENVS, 2), np.nextafter(np.float32(1), np.float32(0)))
    for rows in (1, 3, 7):
        values, _ = filled(rows).draw(noise)
        assert values.tolist() == row(rows - 1)[0].tolist()


def test_many_rows_at_once_go_round_the_end():
    kept, other = filled(6), filled(11)
    stacks = [np.stack(column) for column in zip(*(row(n) for n in range(6, 11)), strict=True)]
    kept.extend(8, *stacks)
    for column, expected in zip(kept.columns, other.columns, strict=True):
        assert np.array_equal(column, expected)


def test_parts_write_their_own_environments():
    kept, other = KeptReplay(ENVS), filled(2)
    for places in (slice(0, None, 2), slice(1, None, 2)):
        part = kept.part(places)
        for number in range(2):
            part.write(8, *(column[places] for column in row(number)))
    for column, expected in zip(kept.columns, other.columns, strict=True):
        assert np.array_equal(column, expected)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("by", ["uniform", "priority"])
def test_lanes_with_different_numbers_of_records_draw_from_their_own(by, steps):
    """Rows of messages of an asynchronous run, in the order of their arrival."""
    kept = KeptReplay(ENVS)
    messages = [(0, 1, 2)] * 3 + [(0, 1, 0), (0, 0, 0), (0, 0, 0), (0, 1, 2)]
    counts = [0] * ENVS
    for envs in messages:
        columns = []
        for env in envs:
            columns.append([value[env] for value in row(counts[env])])
            counts[env] += 1
        together = envs == (0, 1, 2)  # as after a resumption under a synchronous schedule
        kept.sources = [] if together else [slice(env, env + 1) for env in envs]
        kept.write(8, *map(np.array, zip(*columns, strict=True)), weighted=by == "priority")
    assert kept.inserted.tolist() == counts == [12, 5, 4]
    noise = np.random.default_rng(3).random((ENVS, 6000), np.float32)
    draw = kept.draw if by == "uniform" else kept.draw_weighted
    values, _, *told = draw(noise, steps)
    first = values[:, 0] if steps else values
    for env in range(ENVS):
        starts = range(max(counts[env] - 8, 0), counts[env] - max(steps - 1, 0))
        found, often = np.unique(first[env::ENVS], return_counts=True)
        assert found.tolist() == [number * 10 + env for number in starts]
        expected = 3000 / len(starts)
        assert ((often - expected) ** 2 / expected).sum() < 30
    if steps:
        assert np.array_equal(np.diff(values), np.full((len(values), 2), 10.0))
    if told:
        assert np.allclose(told[1], 1.0)


def weighted(rows, capacity=8):
    kept = KeptReplay(ENVS)
    for number in range(rows):
        kept.write(capacity, *row(number), weighted=True)
    return kept


def weighted_draw(kept, k):
    noise = np.random.default_rng(1).random((ENVS, 2 * k), np.float32)
    values, _, ids, odds = kept.draw_weighted(noise)
    return (found.reshape(k, ENVS) for found in (values, ids, odds))


def test_records_are_drawn_in_proportion_to_their_priorities():
    kept, priorities = weighted(11), np.arange(8)[:, None] + np.array([1.0, 2.0, 0.5])
    kept.update(np.repeat(np.arange(8), ENVS), priorities.reshape(-1))
    _, ids, odds = weighted_draw(kept, 20_000)
    for env in range(ENVS):
        share = priorities[:, env] / priorities[:, env].sum()
        counts = np.bincount(ids[:, env], minlength=8)
        # Chi-square with 7 degrees of freedom: beyond 30 once in 10,000 times.
        assert ((counts - 20_000 * share) ** 2 / (20_000 * share)).sum() < 30
        assert np.allclose(odds[:, env], 8 * share[ids[:, env]], rtol=1e-5)


def test_a_new_record_is_as_likely_as_the_likeliest_of_its_environment():
    kept = weighted(3)
    kept.update(np.repeat([0, 1, 2], ENVS), np.array([1.0, 2, 3, 4, 2, 3, 1, 2, 9]))
    kept.write(8, *row(3), weighted=True)
    assert (kept.columns[-1][3] == weights_of(np.array([4.0, 2, 9]))).all()
    kept.extend(8, *(np.stack([x, x]) for x in row(4)), weighted=True)
    assert (kept.columns[-1][[4, 5]] == kept.columns[-1][3]).all()


@pytest.mark.parametrize("capacity", [5, 256, 700])
def test_draws_from_sums_are_those_from_all_weights(capacity):
    generator = np.random.default_rng(6)
    kept, inserted = KeptReplay(ENVS), 0
    whole = np.zeros((capacity, ENVS), np.int64)
    for rows in (min(n, capacity) for n in (1, 3, 200, 4, 500, 90)):
        at = (inserted + np.arange(rows)) % capacity
        largest = whole.max(0)
        whole[at] = np.where(largest > 0, largest, ONE)
        stacks = (np.stack(column) for column in zip(*map(row, range(rows)), strict=True))
        kept.extend(capacity, *stacks, weighted=True)
        inserted += rows
        noise = generator.random((ENVS, 18), np.float32)
        newest = [(inserted - 1) % capacity] if inserted > 1 else []
        *_, ids, odds = kept.draw_weighted(noise, 1 + len(newest))
        filled, hidden = np.full(ENVS, min(inserted, capacity)), np.array(newest, int)
        hidden = np.broadcast_to(hidden[:, None], (len(newest), ENVS))
        expected = weighted_rows(noise, whole, filled, hidden)
        np.testing.assert_array_equal(ids, expected[0].reshape(-1))
        np.testing.assert_array_equal(odds, expected[1].reshape(-1))
        priorities = generator.random(len(ids)) * 3.0
        kept.update(ids, priorities)
        for place, (number, weight) in enumerate(zip(ids, weights_of(priorities), strict=True)):
            whole[number, place % ENVS] = weight
        np.testing.assert_array_equal(kept.columns[-1], whole)
    kept.restore(kept.columns)
    *_, ids, _ = kept.draw_weighted(noise)
    np.testing.assert_array_equal(
        ids, weighted_rows(noise, whole, filled, hidden[:0])[0].reshape(-1)
    )


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


@pytest.mark.parametrize("steps", [0, 1, 4, 7])
@pytest.mark.parametrize("capacity", [7, 16, 17, 300])
def test_windows_by_priority_are_those_of_the_reference(capacity, steps):
    """Wherever the newest records are in the ring, which begin no window."""
    generator = np.random.default_rng(8)
    kept = KeptReplay(ENVS)
    kept.write(capacity, np.zeros(ENVS), weighted=True)
    kept.columns[0][:] = np.arange(capacity * ENVS).reshape(capacity, ENVS)
    for inserted in (7, 8, 15, capacity, capacity + 1, 2 * capacity + 3, 3 * capacity - 2):
        kept.inserted[:] = [inserted, 7, inserted + 5]
        filled = np.minimum(kept.inserted, capacity)
        weights = generator.integers(1, 9, (capacity, ENVS))
        weights[np.arange(capacity)[:, None] >= filled] = 0
        kept.restore([kept.columns[0], weights])
        noise = generator.random((ENVS, 80), np.float32)
        *values, rows, odds = kept.draw_weighted(noise, steps)
        newest = newest_rows(kept.inserted, capacity, steps)
        expected = weighted_rows(noise, weights, filled, newest)
        np.testing.assert_array_equal(rows, expected[0].reshape(-1))
        np.testing.assert_array_equal(odds, expected[1].reshape(-1))
        at = (rows[:, None] + np.arange(max(steps, 1))) % capacity
        at = at * ENVS + np.tile(np.arange(ENVS), 40)[:, None]
        np.testing.assert_array_equal(values[0].reshape(at.shape), at)


def test_of_several_priorities_for_a_record_the_last_one_counts():
    kept = weighted(3)
    kept.update(np.array([1, 1, 1, 1, 2, 1], np.int32), np.array([5.0, 6, 7, 8, 9, 3], np.float32))
    expected = np.array([[1, 1, 1], [8, 6, 3], [1, 9, 1]]) * ONE
    np.testing.assert_array_equal(kept.columns[-1][:3], expected)


def test_a_refused_update_changes_nothing():
    kept = weighted(5)
    for rows, priorities, error in (
        ([0, 1, 2], [1.0, -1.0, 2.0], ReplayError),
        ([0, 1, 2], [1.0, 2.0, np.nan], NumericsError),
        ([0, 1, 8], [2.0, 2.0, 2.0], IndexError),
    ):
        with pytest.raises(error):
            kept.update(np.array(rows), np.array(priorities))
    assert (kept.columns[-1][:5] == ONE).all()
    *_, odds = kept.draw_weighted(np.full((ENVS, 4), 0.5, np.float32))
    assert (odds == 1).all()


def test_records_may_come_as_other_numbers_and_in_parts_of_arrays():
    kept, other = filled(1), filled(1)
    values, even = row(1)
    kept.write(8, values.astype(np.float64), np.repeat(even, 2)[::2])
    other.write(8, values, even)
    for column, expected in zip(kept.columns, other.columns, strict=True):
        assert np.array_equal(column, expected)


def test_records_lie_side_by_side_and_their_index_is_small():
    kept = KeptReplay(8)
    values = np.zeros((8, 4), np.float32), np.zeros(8, bool), np.zeros(8, np.int32)
    kept.write(100_000, *values, weighted=True)
    first, flag, number, weights = kept.columns
    assert first.strides[:2] == flag.strides == number.strides == (24, 100_000 * 24)
    assert flag.ctypes.data - first.ctypes.data == 20
    assert int(index_header(8, 100_000)["total_bytes"]) < 800_000 * WEIGHT_BYTES
    assert weights.shape == (100_000, 8)


def test_too_few_records_for_a_window_are_told():
    kept, noise = weighted(2), np.zeros((ENVS, 2), np.float32)
    for draw in (kept.draw, kept.draw_weighted):
        with pytest.raises(ReplayError, match="fewer records than the 3 of one draw"):
            draw(noise, 3)


def test_any_priority_is_a_weight():
    found = weights_of(np.array([0.0, 1.0, 1e30, np.inf, -0.0]))
    assert found.tolist() == [1, ONE, LARGEST, LARGEST, 1]


def test_a_priority_that_is_negative_or_no_number_is_refused():
    with pytest.raises(ReplayError, match="a priority is -0.5, expected 0 or more"):
        weights_of(np.array([1.0, -0.5], np.float32))
    with pytest.raises(NumericsError, match="a priority is nan"):
        weights_of(np.array([-1.0, np.nan], np.float32))


def test_more_than_fits_memory_is_refused(monkeypatch):
    monkeypatch.setattr("mindspore_rl.replay.kept.available_memory", lambda: 100)
    with pytest.raises(ReplayError, match="8 records of each environment .* keep fewer"):
        filled(1)


def test_records_may_be_in_a_file_without_a_name(tmp_path, monkeypatch):
    """Also a file that does not fit memory, of which the system is told what is read."""
    kept, other = KeptReplay(ENVS, folder=str(tmp_path)), weighted(11)
    monkeypatch.setattr("mindspore_rl.replay.kept.available_memory", lambda: 0)
    for number in range(11):
        kept.write(8, *row(number), weighted=True)
    noise = np.random.default_rng(2).random((ENVS, 40), np.float32)
    found, expected = (each.draw_weighted(noise, 3) for each in (kept, other))
    for columns in ((kept.columns, other.columns), (found, expected)):
        for column, right in zip(*columns, strict=True):
            assert np.array_equal(column, right)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_room_is_told(tmp_path, monkeypatch):
    with pytest.raises(ReplayError, match="cannot be kept in .*nowhere .*--replay-dir"):
        KeptReplay(ENVS, folder=str(tmp_path / "nowhere")).write(8, *row(0))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ReplayError, match="No space left on device"):
        KeptReplay(ENVS, folder=str(tmp_path)).write(8, *row(0))


def test_what_was_restored_is_drawn_and_another_capacity_refused():
    kept = KeptReplay(ENVS)
    kept.restore(filled(8).columns)
    kept.inserted[:] = 8
    assert np.array_equal(drawn(kept, 5), drawn(filled(8), 5))
    with pytest.raises(CheckpointError, match="holds 8 records of each .* and 9 here"):
        kept.write(9, *row(8))
