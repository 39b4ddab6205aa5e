"""Views of records: several steps of transitions as one, and windows with masks."""

import itertools
import threading

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import Key, sample
from mindspore_rl.replay.rate_limiter import Wait
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.views import NStep, n_step
from mindspore_rl.replay.writer import writing

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
@pytest.mark.parametrize("sequential", [False, True])
def test_n_steps_are_those_of_a_plain_loop(n, gamma, sequential):
    data = transitions(130)
    table = Table.create(TableSpec(STEPS, 50, sequential=sequential))  # goes round, ends within
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


@pytest.mark.parametrize("sequential", [False, True])
def test_steps_that_are_overwritten_meanwhile_are_told(sequential):
    """All values of a record are the number of its step, so that a sum tells which they are of."""
    obs = Column("obs", (20_000,), "float32")
    columns = (obs, Column("reward", (), "float32"), Column("next_obs", (20_000,), "float32"))
    table = Table.create(TableSpec(columns, capacity=6, sequential=sequential))
    stop = threading.Event()
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
    for step in range(30_000):
        if step >= 1500 and lost and read:
            break
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
        (NStep(0, 0.9), "0 steps .stride 1, gamma 0.9. are to be viewed in records of 1"),
        (NStep(3, 0.9, reward="obs"), "needs a column obs of type float32"),
        (NStep(3, 0.9, ends=("reward",)), "needs a column reward of type bool"),
        (NStep(3, 0.9, last=("state",)), r"the last step has no \['state'\]"),
    ):
        with pytest.raises(ReplayError, match=message):
            n_step(table, np.zeros(1, np.int64), view, table.buffers(1))
    whole = Table.create(TableSpec(STEPS, capacity=3, length=2))
    with pytest.raises(ReplayError, match="in records of 2; expected 1 to 2.31 - 1 and"):
        n_step(whole, np.zeros(1, np.int64), NStep(3, 0.9), whole.buffers(1))
