"""Writes records into the lanes of a replay table."""

import fcntl
import numbers
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.bindings import functions, pointers
from mindspore_rl.replay.given import (
    check_columns,
    check_exponent,
    check_kind,
    check_names,
    check_priorities,
    shown,
    whole_numbers,
)
from mindspore_rl.replay.rate_limiter import NO_WAIT, Wait, inserts_held, until
from mindspore_rl.replay.table import Table, lock


class Writer:
    """Writes records into lanes of a table, which nobody else can write until `close`.

    A context that closes it on exit. Records that a previous writer left open when it died are
    overwritten.

    Args:
        table: to write to.
        lanes: of the table; None: all.
        wait: the maximum wait of an insert that the rate limiter holds back.

    Raises:
        ReplayError: the table has no such lane, or it already has a writer; the table is closed.
    """

    def __init__(
        self, table: Table, lanes: Iterable[int] | None = None, wait: Wait = NO_WAIT
    ) -> None:
        check_kind("table", table, Table)
        check_kind("wait", wait, Wait)
        if table.base and table.descriptor < 0:
            raise ReplayError(
                "a table in memory that only this process has takes no writer, which locks its "
                "lanes in a file; make it by `Table.create`"
            )
        self.table, self.wait = table, wait
        every = range(table.spec.lanes)
        lanes = every if lanes is None else lanes
        listed = list(lanes) if isinstance(lanes, Iterable) else lanes
        chosen = whole_numbers("lanes", listed).tolist()
        if table.base and not set(every).issuperset(chosen):
            raise ReplayError(f"lanes of a writer are {chosen}, expected some of {list(every)}")
        self.lanes = frozenset(chosen)
        self._open: dict[int, int] = {}
        # A new open file description: locks of the same description never conflict.
        locks = os.open(f"/proc/self/fd/{table.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        self._unlock = weakref.finalize(self, os.close, locks)
        for lane in sorted(self.lanes):
            try:
                lock(locks, fcntl.F_WRLCK, lane)
            except OSError as error:
                self.close()
                raise ReplayError(
                    f"lane {lane} of the replay table has a writer; expected one at a time"
                ) from error
            functions().table_take(table.base, lane)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets others write the lanes."""
        self._unlock()
        self.lanes = frozenset()

    def insert(
        self,
        lanes: ArrayLike,
        columns: Mapping[str, Any],
        lengths: ArrayLike | None = None,
        priorities: Any = None,
        exponent: float = 1.0,
    ) -> np.ndarray:
        """Inserts complete records.

        Args:
            lanes: `[N]`, among this writer's lanes.
            columns: by name, `[N, length, ...]`, or `[N, ...]` for transitions: NumPy arrays, or
                arrays of PyTorch, JAX or another library in the CPU's memory, or Python numbers.
            lengths: `[N]`, steps of each record; None: the maximum.
            priorities: `[N]`, see `Table.update`; None: 1.
            exponent: of the priorities.

        Returns: ids `[N] int64`.

        Raises:
            ReplayError: an array has a wrong name, shape or type; or the rate limiter holds the
                rest of the records back for too long.
        """
        table, spec = self.table, self.table.spec
        lanes = self._checked(lanes)
        count = len(lanes)
        steps = (spec.length,) if spec.length > 1 else ()
        arrays = check_columns(spec, columns, (count, *steps))
        if lengths is None:
            lengths = np.full(count, spec.length)
        lengths = whole_numbers("lengths", lengths).astype(np.int32)
        if lengths.shape != (count,) or not ((lengths > 0) & (lengths <= spec.length)).all():
            raise ReplayError(
                f"lengths are {shown(lengths)}, expected {count} of 1 to {spec.length}"
            )
        check_exponent(exponent)
        values = None
        if priorities is not None:
            values = check_priorities(spec, priorities, count, exponent)
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
        self._checked([lane])
        record = int(functions().table_begin(self.table.base, lane))
        if record < 0:
            raise self._full(lane)
        self._open[record] = 0
        return record

    def append(self, record: int, columns: Mapping[str, Any]) -> None:
        """Appends steps, `[T, ...]` each (see `insert`), to an open record."""
        table, spec = self.table, self.table.spec
        check_names(spec, columns)
        steps = (np.shape(columns[spec.columns[0].name]) or (1,))[0]
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
        spec = self.table.spec
        value = float(check_priorities(spec, [priority], 1, exponent, any_table=True)[0])

        def close() -> int:
            found = int(functions().table_commit(self.table.base, record, value, exponent))
            if found < 0:
                raise inserts_held(self.table, 1)
            return found

        found = until(self.table, close, self.wait)
        del self._open[record]
        return found

    def _steps(self, record: int) -> int:
        if not isinstance(record, numbers.Integral) or record not in self._open:
            raise ReplayError(f"record {record!r} is not open")
        return self._open[record]

    def _checked(self, lanes: ArrayLike) -> np.ndarray:
        """Returns numbers of this writer's lanes, `[N] int32`. Raises: ReplayError."""
        found = whole_numbers("lanes", lanes)
        if not self.lanes:
            raise ReplayError("a writer is used that was closed, or has no lanes")
        if not self.lanes.issuperset(found.tolist()):
            raise ReplayError(f"lanes are {shown(found)}, expected some of {sorted(self.lanes)}")
        return found.astype(np.int32)

    def _full(self, lane: int) -> ReplayError:
        return ReplayError(
            f"the record of lane {lane} is open; commit it first, or make the table without "
            "`sequential`"
            if self.table.spec.sequential
            else f"all {self.table.spec.capacity} records of lane {lane} are open; raise the "
            "capacity"
        )


writing = Writer
"""Former name of `Writer`."""
