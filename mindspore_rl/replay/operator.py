"""The gather of a replay table inside compiled cells, as one custom operator."""

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindspore_rl.errors import ReplayError
from mindspore_rl.platform import gpu, toolchain
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table

SOURCE = Path(__file__).parent / "gather.h"
HEADERS = (SOURCE.with_name(f"{name}.h") for name in ("copying", "index", "views"))
INCLUDES = (*HEADERS, toolchain.DRIVER)
FLAGS = ("-pthread",)


class TableGather(nn.Cell):
    """Copies records of a table inside a compiled cell, on the CPU or a GPU: see `Table.gather`.

    On a GPU the table is pinned memory, which the kernel reads in place. The table must stay open
    as long as the cell is used.

    Args:
        table: that holds the records.
        window: steps to copy; None: whole records.

    Raises:
        ReplayError: the window does not fit a record.
        MsrlError: the operator does not compile, or the GPU cannot map the memory.
    """

    def __init__(self, table: Table, window: int | None = None) -> None:
        super().__init__(auto_prefix=False)
        spec = table.spec
        self.window = spec.length if window is None else window
        if not 1 <= self.window <= spec.length:
            raise ReplayError(f"a window of {window} steps, expected 1 to {spec.length}")
        address, macros = table.base, macros_of(spec, self.window)
        if toolchain.usable("GPU"):
            address = table.address_on_gpu()
            oldest = min(gpu.architecture(), gpu.NEWEST)
            macros["KERNEL"] = f'"{toolchain.kernel(SOURCE, macros, (), oldest)}"'
        # A parameter, so that the compiled graph does not depend on the table's address.
        self.table = Parameter(
            Tensor(np.array([address], np.int64)), name="replay_table", requires_grad=False
        )
        self._spec = spec
        dtypes = tuple(
            getattr(ms, column.dtype.replace("bool", "bool_")) for column in spec.columns
        )
        self.operator = ops.Custom(
            f"{toolchain.library(SOURCE, macros, INCLUDES, FLAGS)}:gather",
            self._shapes,
            lambda *_: (*dtypes, ms.bool_),
            func_type="aot",
        )

    def _shapes(self, table: list, ids: list, first: list) -> tuple:
        if ids != first or len(ids) != 1:
            raise ReplayError(f"ids are {ids} and first steps {first}, expected `[N]` both")
        steps = [self.window] if self._spec.length > 1 else []
        return (*([*ids, *steps, *column.shape] for column in self._spec.columns), ids)

    def construct(self, ids: Any, first: Any) -> tuple:
        """Copies records.

        Args:
            ids: `[N] int64`.
            first: `[N] int32`, the step at which each window begins.

        Returns: the columns in the table's order, `[N, window, ...]`, of transitions `[N, ...]`, 0
            beyond a record's end; and `[N] bool`, whether each record still existed: the values of
            others are 0.
        """
        return self.operator(self.table, ids, first)


def macros_of(spec: TableSpec, window: int) -> dict[str, str | int]:
    """Returns the macros that `gather.h` needs."""
    header = spec.header()
    return {
        "RECORDS": f"{spec.lanes * spec.capacity}ll",
        "CAPACITY": f"{spec.capacity}ll",
        "LANES": f"{header['lane_offset']}ll",
        "RECORD_BYTES": f"{header['record_bytes']}ll",
        "ENTRIES": f"{0 if spec.sequential else header['entry_offset']}ll",
        "DATA": f"{header['data_offset']}ll",
        "COLUMNS": len(spec.columns),
        "STARTS": ",".join(map(str, spec.starts[:-1])),
        "STEP_BYTES": ",".join(str(column.step_bytes) for column in spec.columns),
        "WINDOW": f"{window}ll",
    }
