"""What a program gives to a replay table: refused in one line, before anything is changed."""

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay import (
    Column,
    Mode,
    NStep,
    Sampler,
    Table,
    TableSpec,
    Wait,
    Writer,
    n_step,
    window_mask,
)
from mindspore_rl.replay.draws import importance_weights
from tests.replay.tables import COLUMNS, records

STEP = {"obs": np.zeros((1, 3), np.float32), "reward": [1.0]}
PLAIN = Table.create(TableSpec(COLUMNS, 8))


class Elsewhere:
    """A tensor that is not in the CPU's memory, or has gradients."""

    dtype = "float32"

    def __array__(self, dtype=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.insert([0.5], STEP), r"lanes are \[0.5\], expected a list of whole numbers"),
        (lambda w: w.insert([1], STEP), "lanes are"),
        (lambda w: w.insert(0, STEP), "lanes are 0, expected a list of whole numbers"),
        (lambda w: w.insert([[0]], STEP), r"lanes are \[\[0\]\], expected a list"),
        (lambda w: w.insert(["a"], STEP), "lanes is a builtins.list that NumPy cannot view"),
        (lambda w: w.insert([0], STEP | {"reward": [2**2000]}), "column reward is a .* too large"),
        (lambda w: w.insert([0], STEP | {"reward": Elsewhere()}), ".*Elsewhere that .*grad.*cpu"),
        (lambda w: w.insert([0], STEP | {"reward": np.zeros(1)}), r"reward is float64 \(1,\), exp"),
        (lambda w: w.insert([0], STEP | {"reward": [[1.0]]}), r"is float32 \(1, 1\), expected"),
        (lambda w: w.insert([0], STEP | {"other": [1]}), "'obs', 'other', 'reward'.*, expected"),
        (lambda w: w.insert([0], STEP, lengths=[2]), "lengths are"),
        (lambda w: Writer(PLAIN).insert([0], STEP, None, [1.0]), "not weighted gets priorities"),
        (lambda w: w.insert([0], STEP, lengths=["a"]), "lengths is a builtins.list"),
        (lambda w: w.insert([0], STEP, lengths=[0.5]), r"lengths are \[0.5\], expected a list"),
        (lambda w: w.insert([0], STEP, priorities=[[1.0]]), r"priorities are float64 \(1, 1\)"),
        (lambda w: w.insert([0], STEP, None, [1.0], np.nan), "an exponent is nan, expected a fin"),
        (lambda w: w.append(w.begin(0), {}), r"columns are \[\], expected"),
        (lambda w: w.append(w.begin(0), {"obs": 1.0, "reward": 1.0}), r"column obs is float.*\(\)"),
        (lambda w: w.commit(0, "a"), "record 0 is not open"),
        (lambda w: w.table.update([0], [[1.0, 2.0]]), r"priorities are float64 \(1, 2\)"),
        (lambda w: w.table.update([0.5], [1.0]), r"ids are \[0.5\], expected a list of whole"),
        (lambda w: w.table.update([0], ["a"]), "priorities is a builtins.list that NumPy cannot"),
        (lambda w: w.table.update([0], [1.0], -1.0), "an exponent is -1.0, expected a finite"),
        (lambda w: w.table.buffers(-1), "arrays for -1 records"),
        (lambda w: Writer(w.table), "lane 0 of the replay table has a writer"),
        (
            lambda w: Sampler(w.table, 2, "uniform"),
            "mode of a draw is 'uniform', expected one such",
        ),
        (
            lambda w: Sampler(w.table, 2, 1),
            "mode of a draw is 1, expected one such as Mode.REPLACE",
        ),
        (lambda w: Sampler(w.table, 2.5), "batch_size is 2.5, expected a whole number"),
        (lambda w: Sampler(w.table, 2, seed=-1), "seed is -1, expected a whole number below"),
        (lambda w: Sampler(w.table, 2, seed=2**40), "seed is 1099511627776, expected a whole"),
        (lambda w: Sampler(w.table, 2, window=0.5), "window is 0.5, expected a whole number"),
        (lambda w: Wait(-1), "a wait of -1 s, expected a number from 0 on"),
        (lambda w: Wait("1"), "a wait of '1' s, expected a number from 0 on"),
        (lambda w: importance_weights(np.ones(1), np.nan), "an exponent is nan"),
        (lambda w: Column("a", 4, "float32"), "a column of a replay table is 'a', 4, 'float32'"),
        (lambda w: TableSpec(("obs",), 8), "columns of a replay table are .*expected `Column`s"),
        (lambda w: TableSpec(1, 8), "columns of a replay table are 1, expected `Column`s"),
        (lambda w: TableSpec(COLUMNS, 8, rate_limiter=1), "rate_limiter is 1, expected a RateL"),
        (
            lambda w: TableSpec(COLUMNS, 8, samples_per_insert="a"),
            "samples_per_insert of a .* is a",
        ),
        (lambda w: Sampler(w.table, 2).sample([1]), "arrays to copy to is of the type list, ex"),
        (lambda w: Sampler("table", 2), "table is of the type str, expected Table"),
        (lambda w: Sampler(w.table, 2, wait=60), "wait is of the type int, expected Wait"),
        (lambda w: Sampler(w.table, True), "batch_size is True, expected a whole number"),
        (lambda w: Writer("table"), "table is of the type str, expected Table"),
        (lambda w: Wait(1, 1), "a wait calls 1, expected a function"),
        (lambda w: w.insert([0], [1]), "of columns is of the type list, expected Mapping"),
        (lambda w: w.append([1], STEP), r"record \[1\] is not open"),
        (lambda w: w.table.gather(["a"], {}), "ids is a builtins.list that NumPy cannot view"),
        (lambda w: w.table.gather([0.5], {}), r"ids are \[0.5\], expected a list of whole numbers"),
        (lambda w: w.table.gather([0], [1]), "arrays to copy to is of the type list, expected"),
        (lambda w: w.table.buffers(1, "a"), "a window of 'a' steps, expected a whole number"),
        (lambda w: w.table.save(1), "the path of a replay table is 1, expected text"),
        (lambda w: Table.create(1), "specification of a .* is of the type int, expected Table"),
        (lambda w: Table.create(w.table.spec, 1), "the path of a replay table is 1, expected text"),
        (lambda w: Table.open(1), "the path of a replay table is 1, expected text"),
        (lambda w: Table.load(1), "the path of a replay table is 1, expected text"),
        (lambda w: NStep("a", 0.9), "steps of n-step transitions is 'a', expected a whole"),
        (lambda w: NStep(1, 0.9, ends="end"), "ends of n-step transitions is 'end', expected a"),
        (lambda w: NStep(1, 0.9, last=(1,)), r"last of n-step transitions is \(1,\), expected a"),
        (lambda w: NStep(1, 0.9, reward=[]), r"reward of n-step transitions is \[\], expected a"),
        (lambda w: n_step(w.table, [0], NStep(1 << 70, 0.9), {}), "steps .stride 1, gamma 0.9. a"),
        (lambda w: n_step(w.table, [0], NStep(1, np.nan), {}), "1 steps .stride 1, gamma nan. are"),
        (lambda w: window_mask([1, 1], [0], 2), "2 lengths and 1 first steps, expected as many"),
        (lambda w: window_mask([1], [0], -1), "a window of -1 steps, expected a whole number"),
        (lambda w: w.insert("0", STEP), "lanes are '0', expected a list of whole numbers"),
        (lambda w: w.insert([0], STEP | {"reward": [1j]}), "column reward is complex128"),
        (lambda w: w.insert([0], STEP, exponent="x"), "an exponent is 'x', expected a finite"),
        (
            lambda w: w.insert(np.arange(99), STEP),
            r"lanes are \[ 0, 1, 2, \.\.\., 96, 97, 98\], ex",
        ),
        (
            lambda w: TableSpec(COLUMNS, 8, length=2, sequential=True),
            "length=2 and .* leave out `seq",
        ),
        (
            lambda w: TableSpec(COLUMNS, 8, max_times_sampled=1, sequential=True),
            "max_times_sampled=1, expected single steps without a limit",
        ),
        (
            lambda w: Writer(Table.within(w.table.spec, lambda n: np.zeros(n, np.uint8))),
            "takes no writer, .*; make it by `Table.create`",
        ),
        (lambda w: TableSpec(COLUMNS, True), "capacity of a replay table is True, expected at"),
        (lambda w: Table.open("a\0b"), r"path of a replay table is 'a\\x00b', expected text with"),
        (lambda w: n_step(w.table, [0], 1, {}), "view is of the type int, expected NStep"),
        (lambda w: window_mask(["a"], [1], 2), "lengths is a builtins.list that NumPy cannot view"),
    ],
)
def test_what_cannot_be_meant_is_told(call, message):
    table = Table.create(TableSpec(COLUMNS, 8, weighted=True))
    with Writer(table) as writer:
        (kept,) = writer.insert([0], STEP)
        with pytest.raises(ReplayError, match=message):
            call(writer)
        assert Sampler(table, 2).sample().ids.tolist() == [kept, kept]


@pytest.mark.parametrize("lanes", [[2], [-1], [0, 7]])
def test_a_writer_of_lanes_that_a_table_has_not(lanes):
    """They would be written behind the table's lanes."""
    table = Table.create(TableSpec(COLUMNS, 8, lanes=2))
    before = table.lanes.tobytes(), table.entries.tobytes()
    with pytest.raises(ReplayError, match=r"lanes of a writer are .*, expected some of \[0, 1\]"):
        Writer(table, lanes)
    assert (table.lanes.tobytes(), table.entries.tobytes()) == before
    Writer(table, {1}).insert([1], records([1], 1))


def test_a_table_that_was_closed_is_told(tmp_path):
    table = Table.create(TableSpec(COLUMNS, 8))
    writer, sampler = Writer(table), Sampler(table, 1)
    writer.insert([0], STEP)
    table.save(str(tmp_path / "copy"))
    table.close()
    for call in (
        lambda: Writer(table),
        lambda: writer.insert([0], STEP),
        lambda: writer.begin(0),
        sampler.sample,
        table.totals,
        table.read_at_random,
        lambda: table.save(tmp_path / "other"),
    ):
        with pytest.raises(ReplayError, match="a replay table is used that was closed"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    loaded = Table.load(str(tmp_path / "copy"), str(tmp_path / "table"))
    assert Sampler(loaded, 1, Mode.DISTINCT).sample()["reward"] == [1.0]
