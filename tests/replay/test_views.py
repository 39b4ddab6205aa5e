"""Views of records: several steps of transitions as one, and windows with masks."""

import itertools
import threading

import numpy as np
import pytest
from scipy import stats

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import Key, Mode, sample, windows
from mindspore_rl.replay.rate_limiter import Wait
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.views import NStep, n_step, window_mask
from mindspore_rl.replay.writer import writing
from tests.replay.tables import COLUMNS, records

STEPS = (
    Column("obs", (2,), "float32"),
    Column("reward", (), "float32"),
    Column("next_obs", (2,), "float32"),
    Column("terminated", (), "bool"),
    Column("truncated", (), "bool"),
)


def transitions(count, seed=0, ends=0.1):
    """Steps of one environment; an observation tells the number of its step."""
    rng = np.random.default_rng(seed)
    obs = np.stack([np.arange(count), np.full(count, seed)], 1).astype(np.float32)
    return {
        "obs": obs,
        "reward": rng.normal(size=count).astype(np.float32),
        "next_obs": obs + np.float32(0.5),
        "terminated": rng.random(count) < ends / 2,
        "truncated": rng.random(count) < ends / 2,
    }


def expected_n_step(data, t, n, gamma):
    """A plain loop: the sum, the last step and how many there are."""
    total, k = 0.0, 0
    while True:
        total += gamma**k * data["reward"][t + k]
        ended = data["terminated"][t + k] or data["truncated"][t + k]
        k += 1
        if k == n or ended or t + k == len(data["reward"]):
            return total, t + k - 1, k


def check_n_step(table, ids, data, those, view):
    out = table.buffers(len(ids))
    whole, steps = n_step(table, ids, view, out)
    assert whole.all()
    found = [expected_n_step(data, t, view.steps, view.gamma) for t in those]
    np.testing.assert_allclose(
        out["reward"], [total for total, _, _ in found], rtol=1e-5, atol=1e-6
    )
    last = [t for _, t, _ in found]
    np.testing.assert_array_equal(steps, [k for _, _, k in found])
    np.testing.assert_array_equal(out["obs"], data["obs"][those])
    for name in view.last:
        np.testing.assert_array_equal(out[name], data[name][last])


@pytest.mark.parametrize(("n", "gamma"), [(1, 0.9), (3, 0.99), (7, 0.5), (100, 1.0)])
def test_n_steps_are_those_of_a_plain_loop(n, gamma):
    data = transitions(130)
    table = Table.create(TableSpec(STEPS, capacity=50))  # goes round, and ends within
    with writing(table, [0]) as writer:
        ids = np.concatenate(
            [
                writer.insert(np.zeros(10), {name: x[at : at + 10] for name, x in data.items()})
                for at in range(0, 130, 10)
            ]
        )
    assert not n_step(table, ids[:80], NStep(n, gamma), table.buffers(80))[0].any()
    check_n_step(table, ids[80:], data, np.arange(80, 130), NStep(n, gamma))


def test_environments_of_a_lane_keep_their_steps_apart():
    of_each = [transitions(40, seed) for seed in range(3)]
    table = Table.create(TableSpec(STEPS, capacity=200))
    in_turn = {name: np.stack([d[name] for d in of_each], 1) for name in of_each[0]}
    in_turn = {name: x.reshape(120, *x.shape[2:]) for name, x in in_turn.items()}
    with writing(table, [0]) as writer:
        ids = writer.insert(np.zeros(120), in_turn)
    for env, data in enumerate(of_each):
        check_n_step(table, ids[env::3], data, np.arange(40), NStep(5, 0.9, stride=3))


@pytest.mark.parametrize("dies_within", [False, True])
def test_the_steps_of_another_writer_are_not_those_of_an_episode(dies_within):
    data = transitions(20, ends=0.0)
    parts = [{name: x[:10] for name, x in data.items()}, {name: x[10:] for name, x in data.items()}]
    table, ids = Table.create(TableSpec(STEPS, capacity=30)), []
    for part in parts:
        with writing(table, [0]) as writer:
            ids.append(writer.insert(np.zeros(10), part))
            if dies_within:
                writer.begin(0)
    for part, those in zip(parts, ids, strict=True):
        check_n_step(table, those, part, np.arange(10), NStep(4, 0.9))


def test_steps_that_are_overwritten_meanwhile_are_told():
    """All values of a record are the number of its step, so that a sum tells which they are of."""
    obs = Column("obs", (20_000,), "float32")
    columns = (obs, Column("reward", (), "float32"), Column("next_obs", (20_000,), "float32"))
    table, stop = Table.create(TableSpec(columns, capacity=6)), threading.Event()
    view = NStep(3, 1.0, ends=(), last=("next_obs",))

    def write():
        with writing(table, [0]) as writer:
            data = {c.name: np.empty((1, *c.shape), np.float32) for c in columns}
            for number in itertools.count():
                for column in data.values():
                    column[:] = number
                writer.insert(np.zeros(1), data)
                if stop.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    out, read, lost = table.buffers(2), 0, 0
    for step in range(1500):
        whole, steps = n_step(table, sample(table, Key(1, step), 2, wait=Wait(60)).ids, view, out)
        first, last = out["obs"], out["next_obs"]
        right = (first == first[:, :1]).all(1) & (last == first[:, :1] + steps[:, None] - 1).all(1)
        right &= out["reward"] == steps * first[:, 0] + steps * (steps - 1) / 2
        assert right[whole].all()
        read, lost = read + whole.sum(), lost + (~whole).sum()
    stop.set()
    writer.join()
    assert read
    assert lost


def test_what_an_n_step_view_needs_is_told():
    table = Table.create(TableSpec(STEPS, capacity=3))
    for view, message in (
        (NStep(0, 0.9), "0 steps .stride 1. are to be viewed in records of 1"),
        (NStep(3, 0.9, reward="obs"), "needs a column obs of type float32"),
        (NStep(3, 0.9, ends=("reward",)), "needs a column reward of type bool"),
        (NStep(3, 0.9, last=("state",)), r"the last step has no \['state'\]"),
    ):
        with pytest.raises(ReplayError, match=message):
            n_step(table, np.zeros(1, np.int64), view, table.buffers(1))
    whole = Table.create(TableSpec(STEPS, capacity=3, length=2))
    with pytest.raises(ReplayError, match="in records of 2; expected at least 1, in records of 1"):
        n_step(whole, np.zeros(1, np.int64), NStep(3, 0.9), whole.buffers(1))


@pytest.mark.parametrize("mode", list(Mode))
def test_n_steps_begin_equally_often_everywhere(mode):
    data = transitions(60)
    table = Table.create(TableSpec(STEPS, capacity=15, lanes=4))
    with writing(table, range(4)) as writer:
        writer.insert(np.arange(60) // 15, data)
    out, counts = table.buffers(12), np.zeros(60)
    for step in range(400):
        whole, _ = n_step(table, sample(table, Key(3, step), 12, mode).ids, NStep(3, 0.9), out)
        assert whole.all()
        np.add.at(counts, out["obs"][:, 0].astype(int), 1)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("mode", list(Mode))
def test_windows_begin_equally_often_everywhere(mode):
    """Records are drawn equally often, and so is each place of a window in its record."""
    lengths = np.array([8, 8, 5, 6, 2, 3, 8, 7])
    table = Table.create(TableSpec(COLUMNS, capacity=4, lanes=2, length=8))
    with writing(table, [0, 1]) as writer:
        writer.insert(np.arange(8) % 2, records(np.arange(8), 8), lengths)
    out, counts = table.buffers(6, window=4), np.zeros((8, 8))
    for step in range(400):
        drawn = sample(table, Key(4, step), 6, mode)
        first = windows(Key(4, step), drawn.lengths, 4)
        assert table.gather(drawn.ids, out, first).all()
        number, place = np.divmod(out["reward"][:, 0] * 8, 8)
        np.add.at(counts, (number.astype(int), place.astype(int)), 1)
        # What is no padding is the record's own steps, and the padding is 0.
        mask = window_mask(drawn.lengths, first, 4)
        np.testing.assert_array_equal(mask.sum(1), np.minimum(lengths[number.astype(int)], 4))
        expected = number[:, None] + (place[:, None] + np.arange(4)) / 8
        np.testing.assert_array_equal(out["reward"], np.where(mask, expected, 0))
        assert not out["obs"][~mask].any()
    places = np.maximum(lengths - 3, 1)
    chances = (np.arange(8) < places[:, None]) / places[:, None] / 8
    assert not counts[chances == 0].any()
    found = stats.chisquare(counts[chances > 0], chances[chances > 0] * counts.sum())
    assert found.pvalue > 1e-4
