"""Replay tables: readers get what was written, and never half of it."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mindspore_rl.errors import ReplayError
from mindspore_rl.platform.resources import free_shared_bytes
from mindspore_rl.replay import table as table_module
from mindspore_rl.replay.bindings import use_threads
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing
from tests.commands import python
from tests.replay.tables import COLUMNS, filled, records


@pytest.mark.parametrize(("threads", "rows"), [(1, 1500), (3, 1500), (3, 300)])
def test_a_large_batch_is_the_same(threads, rows):
    """It is copied by several threads, and if it is larger yet past the caches, line by line."""
    columns = (Column("byte", (7,), "uint8"), Column("obs", (33,), "float32"))
    table = Table.create(TableSpec(columns, capacity=9, length=101))
    generator = np.random.default_rng(3)
    data = {
        "byte": generator.integers(0, 255, (9, 101, 7), np.uint8),
        "obs": generator.random((9, 101, 33), np.float32),
    }
    lengths = np.array([101, 1, 2, 50, 100, 99, 3, 17, 64])
    with writing(table, [0]) as writer:
        ids = writer.insert(np.zeros(9, int), data, lengths=lengths)
    order, first = generator.integers(0, 9, rows), generator.integers(0, 40, rows).astype(np.int32)
    many, few = table.buffers(rows, window=97), table.buffers(10, window=97)
    size = sum(array.nbytes for array in many.values())
    assert size > 1 << 24 if rows == 1500 else 1 << 21 < size < 1 << 24
    use_threads(threads)
    assert table.gather(ids[order], many, first).all()
    use_threads(1)
    for begin in range(0, rows, 10):
        part = slice(begin, begin + 10)
        table.gather(ids[order[part]], few, first[part])
        for name, column in few.items():
            np.testing.assert_array_equal(many[name][part], column)


FEW_THREADS = """
import resource, psutil
import numpy as np
from mindspore_rl.replay.bindings import use_threads
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing

table = Table.create(TableSpec((Column("obs", (1 << 20,), "uint8"),), capacity=8))
with writing(table, [0]) as writer:
    ids = writer.insert(np.zeros(8, int), {"obs": np.full((8, 1 << 20), 7, np.uint8)})
out = table.buffers(8)
use_threads(500)
limits = resource.getrlimit(resource.RLIMIT_AS)
most = psutil.Process().memory_info().vms + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
assert table.gather(ids, out).all()
resource.setrlimit(resource.RLIMIT_AS, limits)
assert (out["obs"] == 7).all()
threads = psutil.Process().num_threads()
assert 1 < threads < 500, threads
"""


def test_no_more_threads_than_memory_allows():
    python("-c", FEW_THREADS, check=True, timeout=60)


def test_a_file_is_opened_with_what_is_in_it(tmp_path):
    path, spec = tmp_path / "table", TableSpec(COLUMNS, capacity=40, lanes=2, weighted=True)
    with Table.create(spec, path) as table, writing(table, [0, 1]) as writer:
        ids = writer.insert(np.arange(60) % 2, records(range(60), 1), priorities=np.arange(60))
        with Table.open(path) as other:
            assert other.spec == spec
            np.testing.assert_array_equal(other.totals(), table.totals())
            other.update(ids, np.ones(60))
            assert table.totals().tolist() == [30 << 20, 30 << 20]
            with pytest.raises(ReplayError, match="lane 1 of the replay table has a writer"):
                writing(other, [1]).__enter__()
            out = other.buffers(60)
            assert other.gather(ids, out).all()
            np.testing.assert_array_equal(out["reward"], np.arange(60))


def test_a_damaged_copy_is_told_and_leaves_nothing(tmp_path):
    spec = TableSpec(COLUMNS, capacity=5, lanes=2, length=4, weighted=True)
    table, _ = filled(range(13), spec)
    path = tmp_path / "saved"
    table.save(path)
    Table.load(path, tmp_path / "table").close()
    intact = path.read_bytes()
    for position in np.random.default_rng(1).integers(0, len(intact), 50):
        damaged = bytearray(intact)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ReplayError, match="is not a saved replay table, or damaged"):
            Table.load(path, tmp_path / "other")
    path.write_bytes(intact[:-9])
    with pytest.raises(ReplayError, match="do not agree"):
        Table.load(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["saved", "table"]


def test_buffers_that_would_not_hold_a_batch_are_told():
    table, ids = filled(range(4), TableSpec(COLUMNS, capacity=4, length=4))
    good = table.buffers(4, window=3)
    for change in (
        {"reward": np.empty((3, 3), np.float32)},
        {"reward": np.empty((4, 4), np.float32)},
        {"reward": np.empty((4, 3))},
        {"obs": np.empty((4, 3, 6), np.float32)[..., ::2]},
    ):
        name = next(iter(change))
        with pytest.raises(ReplayError, match=f"column {name} is to be copied to"):
            table.gather(ids, {**good, **change})
    with pytest.raises(ReplayError, match="column obs is to be copied to"):
        table.gather(ids, {"reward": good["reward"]})
    with pytest.raises(ReplayError, match="windows begin at .* expected 4 from 0 on"):
        table.gather(ids, good, np.array([0, 0, 0, -1]))


def test_what_is_no_table_is_told(tmp_path):
    path = tmp_path / "table"
    with pytest.raises(ReplayError, match="cannot be opened: No such file"):
        Table.open(path)
    for content in (b"", b"something else" * 100):
        path.write_bytes(content)
        with pytest.raises(ReplayError, match="is not a replay table, or damaged"):
            Table.open(path)
    path.unlink()
    Table.create(TableSpec(COLUMNS, capacity=9), path).close()
    with pytest.raises(ReplayError, match="cannot be made: File exists"):
        Table.create(TableSpec(COLUMNS, capacity=9), path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ReplayError, match="do not agree"):
        Table.open(path)
    Table.create(TableSpec(COLUMNS, capacity=9), tmp_path / "other").close()
    content = (tmp_path / "other").read_bytes()
    for spec_bytes in (-1, 1 << 62, (1 << 63) - 1):
        path.write_bytes(content[:8] + spec_bytes.to_bytes(8, "little", signed=True) + content[16:])
        with pytest.raises(ReplayError, match="do not agree"):
            Table.open(path)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["length", "weight", "weight_behind", "begun"])
def test_an_index_that_points_out_of_a_table_is_refused(tmp_path, name, weighted):
    sequential = name == "begun"
    length = 1 if sequential else 4
    spec = TableSpec(COLUMNS, 5, lanes=2, length=length, weighted=weighted, sequential=sequential)
    table, _ = filled(range(8), spec)
    message = "it has a record of 5 steps|it has weights|written one after the other"
    if name == "length":
        table.entries["length"][1, 2] = 5
    elif sequential:
        table.lanes["begun"][1] += 2
    else:
        weights = table._view(np.dtype("u8"), "weight_offset", (2, 16))
        weights[0, 2 if name == "weight" else 5] = 1 if name == "weight_behind" else (2**40 + 1)
    table.save(tmp_path / "saved")
    with pytest.raises(ReplayError, match=message):
        Table.load(tmp_path / "saved", tmp_path / "table")
    content = (tmp_path / "saved").read_bytes()[:-8]  # without its checksum, a table
    (tmp_path / "opened").write_bytes(content)
    with pytest.raises(ReplayError, match=message):
        Table.open(tmp_path / "opened")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["opened", "saved"]


@pytest.mark.parametrize("folder", [None, Path("/dev/shm"), "disk"])
def test_what_does_not_fit_is_told_and_leaves_nothing(tmp_path, folder):
    image = (Column("image", (1 << 20,), "float32"),)
    path = folder and (tmp_path if folder == "disk" else folder) / "msrl-test-too-large"
    message = "memory of .* MB does not fit .* MB of memory are free"
    if path:
        message = f"{path} of .* MB does not fit"
    with pytest.raises(ReplayError, match=f"{message}.*lower its capacity"):
        Table.create(TableSpec(image, capacity=1 << 30), path)
    assert not path or not path.exists()


def test_a_small_shared_memory_is_told_before_it_is_full(monkeypatch):
    monkeypatch.setattr(table_module, "available_memory", lambda: 1 << 60)
    path = Path("/dev/shm/msrl-test-too-large")
    rows = int(free_shared_bytes()) // (1 << 20) + 1000
    with pytest.raises(ReplayError, match="does not fit .* MB of /dev/shm are free"):
        Table.create(TableSpec((Column("image", (1 << 18,), "float32"),), capacity=rows), path)
    assert not path.exists()


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    """A limit on the size of files stands for the disk: as there, it is the kernel that refuses."""
    job = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
Table.create(TableSpec((Column("x", (1 << 20,), "float32"),), 9), Path(sys.argv[1]))
"""
    done = python("-c", job, tmp_path / "table")
    assert "of 38 MB does not fit ([Errno 27] File too large); lower its capacity" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_specification_is_told(tmp_path):
    path, spec = tmp_path / "table", TableSpec(COLUMNS, capacity=9, lanes=2)
    Table.create(spec, path).close()
    Table.open(path, spec=TableSpec(COLUMNS, capacity=9, lanes=2)).close()
    other = TableSpec((*COLUMNS, Column("action", (), "int32")), capacity=10, lanes=2)
    with pytest.raises(ReplayError, match="another specification: columns .*'action'.*; capacity"):
        Table.open(path, spec=other)
    with pytest.raises(ReplayError, match="capacity 9, expected 10; give another file"):
        Table.open(path, spec=TableSpec(COLUMNS, capacity=10, lanes=2))
    content = path.read_bytes()
    path.write_bytes(b"MSRLTBL2" + content[8:])
    with pytest.raises(ReplayError, match="begins with b'MSRLTBL2', expected b'MSRLTBL3'"):
        Table.open(path)


def test_a_closed_table_is_unmapped(tmp_path):
    path = tmp_path / "table"
    maps = Path("/proc/self/maps")
    table = Table.create(TableSpec(COLUMNS, capacity=9), path)
    assert str(path) in maps.read_text()
    table.close()
    table.close()
    assert str(path) not in maps.read_text()
    table = Table.open(path)
    kept = table.entries
    table.close()
    assert kept["generation"].sum() == 0  # still there for who has kept it
    assert str(path) in maps.read_text()
    del kept
    assert str(path) not in maps.read_text()


def test_all_who_open_a_table_at_once_get_it(tmp_path):
    """Nobody has it open, so one of them makes the locks anew while the others wait."""
    path = tmp_path / "table"
    Table.create(TableSpec(COLUMNS, capacity=20, lanes=1000), path).close()
    start = threading.Barrier(8, timeout=30)

    def use(_):
        start.wait()
        with Table.open(path) as table:
            start.wait()
            return table.totals().sum()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, range(400))) == [0] * 400
