"""Records of a replay table, or of several that are parts of one: found, drawn and copied."""

import ctypes
from collections.abc import Mapping
from operator import is_

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.bindings import functions, in_parts, pointers
from mindspore_rl.replay.given import check_buffers, shown, whole_numbers
from mindspore_rl.replay.spec import TableSpec


class Buffers:
    """Output arrays that records are copied to.

    Args:
        spec: of the records.
        out: arrays as `TableSpec.buffers` makes them.
        rows: number of rows that they need.

    Attributes:
        window: steps of a row.

    Raises:
        ReplayError: an array has a wrong shape or type.
    """

    def __init__(self, spec: TableSpec, out: Mapping[str, np.ndarray], rows: int) -> None:
        self._rows, self._names = rows, [column.name for column in spec.columns]
        self._arrays = check_buffers(spec, out, rows)
        self.window = self._arrays[0].shape[1] if spec.length > 1 else 1
        self._row_bytes = [self.window * column.step_bytes for column in spec.columns]
        self._begin, self._shapes = pointers(self._arrays), [a.shape for a in self._arrays]

    def are(self, out: Mapping[str, np.ndarray], rows: int) -> bool:
        """Returns whether `out` has these very arrays, of unchanged shapes, for as many rows."""
        if rows != self._rows or not isinstance(out, Mapping):
            return False
        same = all(map(is_, map(out.get, self._names), self._arrays))
        return same and [array.shape for array in self._arrays] == self._shapes

    def at(self, row: int) -> ctypes.Array:
        """Returns the address of a row in each array, as a C array."""
        if not row:
            return self._begin
        pairs = zip(self._begin, self._row_bytes, strict=True)
        return type(self._begin)(*(at + row * size for at, size in pairs))


class Records:
    """Records of one or several tables, by lanes and by ids.

    Attributes:
        layout: number of columns, and the addresses of `TableSpec.starts` and of their step bytes.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._step_bytes = np.array([c.step_bytes for c in spec.columns], np.int64)
        self.layout = len(spec.columns), spec.starts.ctypes.data, self._step_bytes.ctypes.data

    def _where(self) -> tuple[int, int | None, int]:
        """Returns a table's address; of several tables the places and number of their lanes."""
        raise NotImplementedError

    def resolve(self, lanes: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, ...]:
        """Finds the records at drawn offsets in lanes.

        Args:
            lanes: `[N] int32`.
            offsets: `[N] uint64`, each below its lane's total.

        Returns: ids `[N] int64` (-1 if the record has changed meanwhile, and must be drawn again),
            weights `[N] uint64`, lengths `[N] int32`.
        """
        count = len(lanes)
        lanes = np.ascontiguousarray(lanes, np.int32)
        offsets = np.ascontiguousarray(offsets, np.uint64)
        ids, weights = np.empty(count, np.int64), np.empty(count, np.uint64)
        lengths = np.empty(count, np.int32)
        inputs, results = (lanes, offsets), (ids, weights, lengths)
        functions().table_resolve(
            *self._where(), count, *(x.ctypes.data for x in inputs), None,
            *(x.ctypes.data for x in results),
        )  # fmt: skip
        return ids, weights, lengths

    def gather(
        self, ids: np.ndarray, out: Mapping[str, np.ndarray], first: np.ndarray | None = None
    ) -> np.ndarray:
        """Copies records.

        Args:
            ids: `[N] int64`.
            out: arrays as `buffers` makes them; steps beyond the end of a record are set to 0.
            first: `[N] int32`, the step at which each window begins; None: 0.

        Returns: `[N] bool`, whether each record still existed; it may have been overwritten since
            its draw.

        Raises:
            ReplayError: an array has a wrong shape or type.
        """
        ids = whole_numbers("ids", ids)
        if first is not None:
            first = whole_numbers("first steps", first).astype(np.int32)
            if first.shape != ids.shape or (first < 0).any():
                raise ReplayError(f"windows begin at {shown(first)}, expected {len(ids)} from 0 on")
        return self.copy(ids, first, Buffers(self.spec, out, len(ids)))

    def copy(
        self, ids: np.ndarray, first: np.ndarray | None, buffers: Buffers, row: int = 0
    ) -> np.ndarray:
        """Copies records like `gather`, to the buffers' rows from `row` on."""
        ids, whole = np.ascontiguousarray(ids), np.empty(len(ids), np.bool_)
        first = None if first is None else np.ascontiguousarray(first)
        functions().table_gather(
            *self._where(), len(ids), ids.ctypes.data, None if first is None else first.ctypes.data,
            buffers.window, *self.layout, buffers.at(row), whole.ctypes.data, in_parts(),
        )  # fmt: skip
        return whole

    def claim(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws given records by their ids `[N]`.

        Returns: `[N] bool`, whether each could still be drawn, and `[N] int32`, its steps.
        """
        ids, claimed = np.ascontiguousarray(ids, np.int64), np.empty(len(ids), np.bool_)
        lengths = np.empty(len(ids), np.int32)
        places = (x.ctypes.data for x in (ids, claimed, lengths))
        functions().table_claim(*self._where(), len(ids), *places)
        return claimed, lengths

    def release(self, ids: np.ndarray, weights: np.ndarray) -> None:
        """Undoes draws that were not used, one for each id `[N]` from 0 on; skips negative ids.

        Args:
            ids: of the records; some may have been overwritten.
            weights: `[N] uint64`, of the records when they were drawn.
        """
        ids, weights = np.ascontiguousarray(ids, np.int64), np.ascontiguousarray(weights, np.uint64)
        functions().table_release(*self._where(), len(ids), ids.ctypes.data, weights.ctypes.data)
