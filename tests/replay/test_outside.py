"""Tables for programs of other libraries: the public names, and arrays that are not NumPy's."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay import (
    Column,
    Mode,
    Order,
    RateLimiter,
    Sampler,
    Table,
    TableSpec,
    Wait,
    Writer,
)
from mindspore_rl.replay.bindings import functions
from mindspore_rl.replay.given import as_array
from mindspore_rl.replay.writer import writing
from tests.replay.tables import COLUMNS, filled, records

ROOT = Path(__file__).resolve().parents[2]
ACTOR = """
import sys
from mindspore_rl.replay import Table, Wait, Writer

with Table.open(sys.argv[1]) as table, Writer(table, wait=Wait(30)) as writer:
    for number in range(40):
        writer.insert([0], {"obs": [[number] * 3], "reward": [number]})
strange = {"mindspore", "mpi4py", "gym", "gymnasium", "torch", "jax", "numpy"} & sys.modules.keys()
print(int(table.spec.capacity), *strange)
"""


class OfArray:
    """An array of another library that NumPy reads by `__array__`."""

    def __init__(self, array):
        self.array, self.dtype = array, array.dtype

    def __array__(self, dtype=None):
        return self.array


class OfDLPack:
    """An array of another library that has nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_another_process_writes_and_imports_numpy_alone(tmp_path):
    """Both sides wait for each other."""
    limit = RateLimiter(min_records=10, samples_per_insert=2, slack=4)
    with Table.create(TableSpec(COLUMNS, 16, rate_limiter=limit), str(tmp_path / "table")) as table:
        command = [sys.executable, "-c", ACTOR, str(tmp_path / "table")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as actor:
            sampler = Sampler(table, 4, wait=Wait(30))
            for _ in range(15):
                batch = sampler.sample()
                np.testing.assert_array_equal(batch["obs"][:, 0], batch["reward"])
            assert actor.communicate()[0].split() == ["16", "numpy"]
        assert (table.limit["inserts"], table.limit["samples"]) == (40, 60)


@pytest.mark.parametrize("kind", [np.asarray, OfArray, OfDLPack, np.ndarray.tolist])
def test_arrays_of_any_library_are_written(kind):
    table, columns = Table.create(TableSpec(COLUMNS, 8, weighted=True)), records(range(4), 1)
    with Writer(table) as writer:
        given = {name: kind(array) for name, array in columns.items()}
        ids = writer.insert([0] * 4, given, priorities=kind(np.arange(4.0)))
    out = table.buffers(4)
    assert table.gather(ids, out).all()
    for name, array in columns.items():
        np.testing.assert_array_equal(out[name], array)
    assert table.update(ids, kind(np.arange(4.0) + 1)) == 4
    batch = Sampler(table, 16).sample()
    np.testing.assert_allclose(batch.probabilities, (batch["reward"] + 1) / 10)


@pytest.mark.parametrize("kind", [np.asarray, OfArray, OfDLPack])
def test_an_array_in_memory_is_viewed_and_not_copied(kind):
    array = np.arange(6, dtype=np.float32)
    assert np.shares_memory(as_array("obs", kind(array), "float32"), array)


def test_numbers_keep_their_values():
    spec = TableSpec((Column("action", (), "uint8"), Column("terminated", (), "bool")), 8)
    table = Table.create(spec)
    with Writer(table) as writer:
        writer.insert([0], {"action": [255], "terminated": [True]})
        with pytest.raises(ReplayError, match="column action is int64"):
            writer.insert([0], {"action": [256], "terminated": [True]})
        with pytest.raises(ReplayError, match="column action is float64"):
            writer.insert([0], {"action": [0.5], "terminated": [True]})
    assert Sampler(table, 1).sample()["action"].tolist() == [255]


def test_a_rate_limiter_is_three_settings_of_the_table():
    limit = RateLimiter(min_records=3, samples_per_insert=4.0, slack=9.0)
    spec = TableSpec(COLUMNS, 8, rate_limiter=limit)
    assert spec == TableSpec(COLUMNS, 8, min_records=3, samples_per_insert=4.0, slack=9.0)
    assert TableSpec.parse(spec.text()) == spec
    assert dataclasses.replace(spec, slack=10.0).slack == 10.0
    with pytest.raises(ReplayError, match="samples_per_insert of a replay table is -1"):
        TableSpec(COLUMNS, 8, rate_limiter=RateLimiter(samples_per_insert=-1))


def test_a_writer_has_its_lanes_until_it_is_closed_or_gone():
    table = Table.create(TableSpec(COLUMNS, 8, lanes=2))
    writer = Writer(table)
    with pytest.raises(ReplayError, match="lane 1 of the replay table has a writer"):
        Writer(table, [1])
    writer.close()
    with pytest.raises(ReplayError, match="a writer is used that was closed"):
        writer.insert([0], records([1], 1))
    second = Writer(table, [0])
    with pytest.raises(ReplayError, match="lane 0"):
        Writer(table)
    third = Writer(table, [1])  # the failed one holds nothing
    del second
    with writing(table, [0]):
        third.close()


def test_arrays_for_batches_begin_at_a_cache_line():
    """JAX copies arrays that do not."""
    spec = TableSpec((*COLUMNS, Column("nothing", (0,), "int8"), Column("one", (), "bool")), 8)
    for array in spec.buffers(3).values():
        assert array.ctypes.data % 64 == 0 or not array.size
        assert array.flags.c_contiguous


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("mode", "weighted"),
    [(mode, False) for mode in (*Mode, Order.FIFO, Order.LIFO)]
    + [(mode, True) for mode in (Mode.REPLACE, Mode.STRATIFIED, Order.FIFO, Order.LARGEST)],
)
def test_records_overwritten_since_their_draw_are_replaced(mode, weighted, at_once, monkeypatch):
    """Whether one call draws and copies them, or one call each."""
    limit = RateLimiter(min_records=8, samples_per_insert=1, slack=100)
    table, _ = filled(range(8), TableSpec(COLUMNS, 4, 2, weighted=weighted, rate_limiter=limit))
    copy, new = Table.copy, iter([range(8, 12), range(12, 16)])
    one_call = functions().table_sample
    with Writer(table) as writer:

        def late(self, *args):
            if numbers := next(new, None):
                writer.insert([0] * 4, records(numbers, 1))
            return copy(self, *args)

        def in_one_call(*args):
            """Those of lane 0 are overwritten while they are copied."""
            if not at_once:
                return -1
            used = one_call(*args)
            writer.insert([0] * 4, records(next(new), 1))
            found = args[-1]
            ids = np.frombuffer(found, np.int64, 6)
            whole = np.frombuffer(found, np.bool_, 6, 28 * 6)
            assert whole.all()
            whole[:] = ids % 8 // 4 == 1
            found[-1] = (~whole).sum()
            return used

        monkeypatch.setattr(Table, "copy", late)
        monkeypatch.setattr(functions(), "table_sample", in_one_call)
        batch = Sampler(table, 6, mode).sample()
    lane, slot = np.divmod(batch.ids % 8, 4)
    newest = np.where(lane == 0, 12 + slot, 2 * slot + 1)
    np.testing.assert_array_equal(batch["reward"], newest)
    assert table.limit["samples"] == 6
    if mode is Mode.DISTINCT or isinstance(mode, Order):
        assert len(set(batch.ids)) == 6


def test_a_tensor_is_no_array_for_a_batch():
    table, _ = filled(range(4), TableSpec(COLUMNS, 4))
    arrays = table.buffers(2) | {"obs": OfArray(np.zeros(3))}
    with pytest.raises(ReplayError, match="column obs is to be copied to a OfArray, expected a Nu"):
        Sampler(table, 2).sample(arrays)


def test_a_column_that_a_batch_lacks_is_told_with_those_it_has():
    table, _ = filled(range(4), TableSpec(COLUMNS, 4))
    with pytest.raises(ReplayError, match="no column 'nothing', expected one of obs, "):
        Sampler(table, 2).sample()["nothing"]


def interpreter(library: str) -> str:
    """Returns a Python that has a library and gymnasium: this one, or one under .peers/."""
    for python in (sys.executable, *sorted(ROOT.glob(".peers/*/bin/python"))):
        code = f"import {library}, gymnasium"
        if not subprocess.run([python, "-c", code], capture_output=True, check=False).returncode:
            return str(python)
    pytest.skip(f"no Python has {library} and gymnasium; scripts/setup_peers.sh sb3 installs them")


VALUES = {"torch": "torch.ones(1, 3)", "jax": "jax.numpy.ones((1, 3))"}
ADDRESSES = {
    "torch": "torch.from_numpy(x).data_ptr()",
    "jax": "jax.dlpack.from_dlpack(x).unsafe_buffer_pointer()",
}
"""The address of an array of a batch, as another library sees it."""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_batches_are_not_copied_by(library):
    code = f"""
import {library}, numpy as np
from mindspore_rl.replay import Column, Sampler, Table, TableSpec, Writer
from mindspore_rl.replay.given import as_array
table = Table.create(TableSpec((Column("obs", (3,), "float32"), Column("end", (), "bool")), 8))
value = {VALUES[library]}
assert np.shares_memory(as_array("obs", value, "float32"), as_array("obs", value, "float32"))
Writer(table).insert([0], {{"obs": value, "end": [True]}})
for x in Sampler(table, 5).sample().columns.values():
    assert {ADDRESSES[library]} == x.ctypes.data
    assert (x == 1).all()
"""
    subprocess.run([interpreter(library), "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_example_learns_with(library):
    """Random actions get about 20, and always the same about 9."""
    example = ROOT / "docs" / "examples" / f"replay_{library}.py"
    done = subprocess.run(
        [interpreter(library), example],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found = re.search(r"mean return of 10 episodes: ([\d.]+)", done.stdout)
    assert found and float(found[1]) > 60
