"""Sampler: batches of a table's records, copied into arrays that it reuses."""

import numbers
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.replay.draws import (
    Drawn,
    Key,
    Mode,
    Order,
    check_draw,
    importance_weights,
    sample,
    windows,
)
from mindspore_rl.replay.given import check_kind
from mindspore_rl.replay.rate_limiter import NO_WAIT, Wait
from mindspore_rl.replay.records import Buffers
from mindspore_rl.replay.table import Table


@dataclass(frozen=True)
class SampledBatch(Drawn):
    """Drawn records and their values, which the next batch in the same arrays overwrites.

    Attributes:
        columns: `[N, T, ...]`, of transitions `[N, ...]`, by name.
        first: `[N] int32`, the step at which each window begins.
    """

    columns: Mapping[str, np.ndarray]
    first: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            known = ", ".join(self.columns)
            raise ReplayError(f"a batch has no column {name!r}, expected one of {known}")
        return self.columns[name]

    def importance_weights(self, exponent: float) -> np.ndarray:
        """See `draws.importance_weights`. Returns: `[N] float32`."""
        return importance_weights(self.probabilities, exponent)


class Sampler:
    """Draws batches of a table, and copies them into arrays that it reuses.

    Args:
        table: of which this process maps all lanes.
        batch_size: N.
        mode: a random mode, or an order whose first records are taken.
        seed: of the draws, 0 to 2^32 - 1.
        window: steps to copy of each record, from a random one on; None: whole records.
        wait: the maximum wait if records are lacking or the rate limiter holds a batch back.

    Attributes:
        step: number of the next batch; with the seed it determines the random numbers.

    Raises:
        ReplayError: the table never allows such a batch, or an argument is none.
    """

    def __init__(
        self,
        table: Table,
        batch_size: int,
        mode: Mode | Order = Mode.REPLACE,
        seed: int = 0,
        window: int | None = None,
        wait: Wait = NO_WAIT,
    ) -> None:
        check_kind("table", table, Table)
        check_kind("wait", wait, Wait)
        if not isinstance(mode, Mode | Order):
            raise ReplayError(f"mode of a draw is {mode!r}, expected one such as Mode.REPLACE")
        for name, number in (("batch_size", batch_size), ("seed", seed), ("window", window or 0)):
            whole = isinstance(number, numbers.Integral) and not isinstance(number, bool)
            if not whole or not 0 <= number < 1 << 32:
                raise ReplayError(f"{name} is {number!r}, expected a whole number below 2^32")
        check_draw(table.spec, batch_size, mode)
        if window is not None and not 1 <= window <= table.spec.length:
            raise ReplayError(f"a window of {window} steps, expected 1 to {table.spec.length}")
        self.table, self.batch_size, self.mode, self.wait = table, int(batch_size), mode, wait
        self.seed, self.step = int(seed), 0
        self._own = table.buffers(batch_size, window)
        self._buffers = Buffers(table.spec, self._own, batch_size)

    def sample(self, out: Mapping[str, np.ndarray] | None = None) -> SampledBatch:
        """Draws the next batch.

        Args:
            out: arrays for its values, as `Table.buffers(batch_size, window)` makes them; None: the
                sampler's own.

        Raises:
            ReplayError: records are lacking or held back for too long; an array has a wrong shape
                or type.
        """
        out, count = self._own if out is None else out, self.batch_size
        if not self._buffers.are(out, count):
            self._buffers = Buffers(self.table.spec, out, count)
        buffers, key, starts = self._buffers, Key(self.seed, self.step), np.zeros(count, np.int32)

        def copy(rows: np.ndarray, drawn: Drawn) -> np.ndarray:
            if buffers.window < self.table.spec.length:
                starts[rows] = windows(key, drawn.lengths, buffers.window)[rows]
            if len(rows) == count:
                return self.table.copy(drawn.ids, starts, buffers)
            some = self.table.buffers(len(rows), buffers.window)
            whole = self.table.gather(drawn.ids[rows], some, starts[rows])
            for name, column in some.items():
                out[name][rows[whole]] = column[whole]
            return whole

        at_once = buffers if buffers.window == self.table.spec.length else None
        drawn = sample(self.table, key, count, self.mode, self.wait, copy, at_once)
        self.step += 1
        return SampledBatch(drawn.ids, drawn.probabilities, drawn.lengths, out, starts)
