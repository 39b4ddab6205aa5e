"""The gather as an operator of compiled cells, and its kernel for a GPU."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, nn

from mindspore_rl.errors import MsrlError, ReplayError
from mindspore_rl.platform import toolchain
from mindspore_rl.replay.operator import FLAGS, INCLUDES, SOURCE, TableGather, macros_of
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing
from tests.codegen.units import both, graph_mode
from tests.commands import python
from tests.tiers import quick

COLUMNS = (
    Column("obs", (4,), "float32"),
    Column("picture", (3, 5), "uint8"),
    Column("ended", (), "bool"),
    Column("reward", (), "float32"),
)
SPECS = [
    (TableSpec(COLUMNS, 6, lanes=2, length=5), 3),
    (TableSpec(COLUMNS, 6, lanes=2, length=5), 5),
    (TableSpec(COLUMNS, 9), 1),
    (TableSpec(COLUMNS, 3, lanes=3, sequential=True), 1),
]


def filled(spec, path=None):
    """A table with some overwritten records, and the ids of all records ever inserted."""
    rng, count = np.random.default_rng(0), 20
    table = Table.create(spec, path)
    steps = (spec.length,) if spec.length > 1 else ()
    columns = {
        c.name: (100 * rng.random((count, *steps, *c.shape))).astype(c.dtype) for c in COLUMNS
    }
    lengths = rng.integers(1, spec.length + 1, count)
    with writing(table, range(spec.lanes)) as writer:
        more = {"lengths": lengths} if steps else {}
        ids = writer.insert(np.arange(count) % spec.lanes, columns, **more)
    return table, ids


def asked(ids, spec, window):
    """Returns all ids, some of them twice, and one that never existed; and first steps."""
    rng = np.random.default_rng(1)
    found = np.concatenate([ids, rng.permutation(ids), [-1]]).astype(np.int64)
    return found, rng.integers(0, spec.length - window + 1, len(found)).astype(np.int32)


def gathered(table, ids, first, window):
    """Returns the result of `Table.gather`, with 0 for records that no longer exist."""
    out = table.buffers(len(ids), window)
    whole = table.gather(ids, out, first)
    for column in out.values():
        column[~whole] = 0
    assert 0 < whole.sum() < len(whole)
    return [*(out[c.name] for c in COLUMNS), whole]


class Cell(nn.Cell):
    def __init__(self, gather):
        super().__init__()
        self.gather = gather

    def construct(self, ids, first):
        obs, picture, ended, reward, whole = self.gather(ids, first)
        return obs, picture, ended, reward * 2.0, whole


@pytest.mark.parametrize(("spec", "window"), quick(SPECS, 0, 1))
def test_cells_of_mindspores_and_native_ones_gather_as_the_table_does(spec, window):
    table, ids = filled(spec)
    ids, first = asked(ids, spec, window)
    *expected, reward, whole = gathered(table, ids, first, window)
    cell = Cell(TableGather(table, window))
    (mindspores, _), (native, _) = both(cell, (Tensor(ids), Tensor(first)))
    for found in (mindspores, native):
        for got, wanted in zip(found, (*expected, reward * 2, whole), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_a_cell_sees_what_was_written_since_it_was_compiled():
    table, ids = filled(SPECS[0][0])
    blank = {name: np.zeros_like(array) for name, array in table.buffers(12).items()}
    with graph_mode():
        cell = Cell(TableGather(table, 3))
        some = Tensor(ids[-2:]), Tensor(np.zeros(2, np.int32))
        before = cell(*some)
        with writing(table, range(2)) as writer:
            writer.insert([0, 1] * 6, blank)
        after = cell(*some)
        assert before[-1].asnumpy().all()
        assert before[0].asnumpy().any()
        assert not after[-1].asnumpy().any()
        assert not after[0].asnumpy().any()


def test_what_does_not_fit_is_told():
    table, ids = filled(SPECS[0][0])
    with pytest.raises(ReplayError, match="a window of 6 steps, expected 1 to 5"):
        TableGather(table, 6)
    with graph_mode(), pytest.raises(ReplayError, match=r"ids are .20. and first steps .3."):
        Cell(TableGather(table))(Tensor(ids), Tensor(np.zeros(3, np.int32)))


@pytest.mark.parametrize("architecture", [60, 90])
def test_nvrtc_makes_the_kernel(architecture):
    text = toolchain.kernel(SOURCE, macros_of(*SPECS[0]), (), architecture).read_text()
    assert f".target sm_{architecture}" in text
    assert ".visible .entry gather(" in text


CALL = """
import ctypes, sys
import numpy as np
from mindspore_rl.replay.table import Table
from pathlib import Path
folder, operator = sys.argv[1:]
table = Table.open(Path(folder, "table"))
with np.load(f"{folder}/in.npz") as file:
    arrays = [np.array([table.base], np.int64), *(np.ascontiguousarray(file[x]) for x in file)]
pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
extents = [(ctypes.c_int64 * 1)(len(a)) for a in arrays]
shapes = (ctypes.POINTER(ctypes.c_int64) * len(arrays))(*extents)
code = ctypes.CDLL(operator).gather(
    len(arrays), pointers, None, shapes, None, ctypes.c_void_p(7), None)
assert code == 0, code
np.savez(f"{folder}/out.npz", *arrays[3:])
"""


@pytest.mark.parametrize(("spec", "window"), quick(SPECS, 1))
def test_what_the_kernel_does_is_the_gather(spec, window, tmp_path):
    """All threads of the kernel run one after the other, launched by the GPU's own operator."""
    table, ids = filled(spec, tmp_path / "table")
    ids, first = asked(ids, spec, window)
    expected = gathered(table, ids, first, window)
    macros = macros_of(spec, window)
    shim = toolchain.library(
        Path(__file__).with_name("host_gpu.cpp"),
        {**macros, "GATHER_H": f'"{SOURCE}"'},
        (*INCLUDES, SOURCE, Path(__file__).with_name("host_gpu.cpp")),
        FLAGS,
    )
    (tmp_path / "libcuda.so.1").symlink_to(shim)
    operator = toolchain.library(SOURCE, {**macros, "KERNEL": '"kernel.ptx"'}, INCLUDES, FLAGS)
    blank = [np.full_like(array, 1) for array in expected]
    np.savez(tmp_path / "in.npz", ids, first, *blank)
    python("-c", CALL, tmp_path, operator, env={"LD_LIBRARY_PATH": str(tmp_path)}, check=True)
    with np.load(tmp_path / "out.npz") as file:
        for got, wanted in zip(file.values(), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_without_a_driver_nothing_is_locked():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        table, _ = filled(SPECS[2][0])
        with pytest.raises(MsrlError, match=r"no NVIDIA driver answers here: libcuda.so.1"):
            table.address_on_gpu()
