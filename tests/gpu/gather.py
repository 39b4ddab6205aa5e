"""Gathers records of a table on the GPU, in its own process, and compares them with the table's."""

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindspore_rl.platform import mindspore_device
from mindspore_rl.replay.operator import TableGather
from mindspore_rl.replay.writer import writing
from tests.replay.test_operator import COLUMNS, SPECS, Cell, asked, filled, gathered


def compare(spec, window):
    """Compares all records, before and after others are written over the oldest."""
    table, ids = filled(spec)
    cell = Cell(TableGather(table, window))
    for _ in range(2):
        some, first = asked(ids, spec, window)
        *expected, reward, whole = gathered(table, some, first, window)
        found = [array.asnumpy() for array in cell(Tensor(some), Tensor(first))]
        for got, wanted in zip(found, (*expected, reward * 2, whole), strict=True):
            np.testing.assert_array_equal(got, wanted)
        with writing(table, range(spec.lanes)) as writer:
            columns = {c.name: np.ones((4, *table.buffers(1)[c.name].shape[1:])) for c in COLUMNS}
            columns = {c.name: columns[c.name].astype(c.dtype) for c in COLUMNS}
            ids = np.concatenate([ids, writer.insert(np.arange(4) % spec.lanes, columns)])


if __name__ == "__main__":
    mindspore_device.use("GPU", compiled=True)
    for spec, window in SPECS:
        compare(spec, window)
    assert ms.get_context("device_target") == "GPU"
    print("equal")
