"""Writes records into the lanes of a replay table."""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.bindings import functions, pointers
from mindspore_rl.replay.rate_limiter import NO_WAIT, Wait, inserts_held, until
from mindspore_rl.replay.spec import check_columns, check_priorities
from mindspore_rl.replay.table import Table, lock


@contextlib.contextmanager
def writing(table: Table, lanes: Sequence[int], wait: Wait = NO_WAIT) -> Iterator["Writer"]:
    """A context with a writer of some lanes, which no other process can write meanwhile.

    Records that a previous writer left open when it died are overwritten.

    Args:
        table: to write to.
        lanes: of the table.
        wait: the maximum wait of an insert that the rate limiter holds back.

    Raises:
        ReplayError: a lane already has a writer.
    """
    # A new open file description: locks of the same description never conflict.
    descriptor = os.open(f"/proc/self/fd/{table.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        for lane in lanes:
            try:
                lock(descriptor, fcntl.F_WRLCK, lane)
            except OSError as error:
                raise ReplayError(
                    f"lane {lane} of the replay table has a writer; expected one at a time"
                ) from error
            functions().table_take(table.base, lane)
        yield Writer(table, frozenset(lanes), wait)
    finally:
        os.close(descriptor)


class Writer:
    """Writes records into the lanes of `writing`."""

    def __init__(self, table: Table, lanes: frozenset[int], wait: Wait) -> None:
        self.table, self.lanes, self.wait = table, lanes, wait
        self._open: dict[int, int] = {}

    def insert(
        self,
        lanes: np.ndarray,
        columns: Mapping[str, np.ndarray],
        lengths: np.ndarray | None = None,
        priorities: np.ndarray | None = None,
        exponent: float = 1.0,
    ) -> np.ndarray:
        """Inserts complete records.

        Args:
            lanes: `[N]`, among this writer's lanes.
            columns: by name, `[N, length, ...]`, or `[N, ...]` for transitions.
            lengths: `[N]`, steps of each record; None: the maximum.
            priorities: `[N]`, see `Table.update`; None: 1.
            exponent: of the priorities.

        Returns: ids `[N] int64`.

        Raises:
            ReplayError: an array has a wrong name, shape or type; or the rate limiter holds the
                rest of the records back for too long.
        """
        table, spec = self.table, self.table.spec
        lanes = np.ascontiguousarray(lanes, np.int32)
        count = len(lanes)
        self._check_lanes(lanes)
        steps = (spec.length,) if spec.length > 1 else ()
        arrays = check_columns(spec, columns, (count, *steps))
        if lengths is None:
            lengths = np.full(count, spec.length)
        lengths = np.ascontiguousarray(lengths, np.int32)
        if lengths.shape != (count,) or not ((lengths > 0) & (lengths <= spec.length)).all():
            raise ReplayError(f"lengths are {lengths}, expected {count} of 1 to {spec.length}")
        values = None if priorities is None else check_priorities(spec, priorities)
        ids = np.empty(count, np.int64)
        done = 0

        def more() -> None:
            nonlocal done
            done = functions().table_insert(
                table.base, done, count, lanes.ctypes.data, lengths.ctypes.data,
                None if values is None else values.ctypes.data, exponent, *table.layout,
                pointers(arrays), ids.ctypes.data,
            )  # fmt: skip
            if done < 0:
                raise self._full(int(lanes[-1 - done]))
            if done < count:
                raise inserts_held(table, count - done)

        until(table, more, self.wait)
        return ids

    def begin(self, lane: int) -> int:
        """Opens a record, which cannot be drawn before `commit`. Returns: its number.

        Raises:
            ReplayError: all records of the lane are open.
        """
        self._check_lanes(np.array([lane]))
        record = int(functions().table_begin(self.table.base, lane))
        if record < 0:
            raise self._full(lane)
        self._open[record] = 0
        return record

    def append(self, record: int, columns: Mapping[str, np.ndarray]) -> None:
        """Appends steps, `[T, ...]` each, to an open record."""
        table, spec = self.table, self.table.spec
        steps = len(next(iter(columns.values())))
        arrays = check_columns(spec, columns, (steps,))
        done = self._steps(record)
        if done + steps > spec.length:
            raise ReplayError(f"a record of {done} steps gets {steps}; it holds {spec.length}")
        self._open[record] = done + steps
        functions().table_append(table.base, record, steps, *table.layout, pointers(arrays))

    def commit(self, record: int, priority: float = 1.0, exponent: float = 1.0) -> int:
        """Closes a record, which can be drawn from now on. Returns: its id."""
        if not self._steps(record):
            raise ReplayError("a record without a step is committed")
        value = float(check_priorities(self.table.spec, np.array([priority]), any_table=True)[0])

        def close() -> int:
            found = int(functions().table_commit(self.table.base, record, value, exponent))
            if found < 0:
                raise inserts_held(self.table, 1)
            return found

        found = until(self.table, close, self.wait)
        del self._open[record]
        return found

    def _steps(self, record: int) -> int:
        if record not in self._open:
            raise ReplayError(f"record {record} is not open")
        return self._open[record]

    def _check_lanes(self, lanes: np.ndarray) -> None:
        if not self.lanes.issuperset(lanes.tolist()):
            raise ReplayError(f"lanes are {lanes}, expected some of {sorted(self.lanes)}")

    def _full(self, lane: int) -> ReplayError:
        return ReplayError(
            f"all {self.table.spec.capacity} records of lane {lane} are open; raise the capacity"
        )
