"""Wire format of the rows of a batch that cross between ranks."""

import math
from dataclasses import dataclass

import numpy as np

from mindspore_rl.replay.draws import importance_weights
from mindspore_rl.replay.spec import TableSpec

ROW = np.dtype([("ids", "i8"), ("probabilities", "f8"), ("lengths", "i4"), ("first", "i4")])


@dataclass(frozen=True)
class BatchShare:
    """A rank's share of a batch: one entry for each row in its buffers.

    Attributes:
        positions: `[N] int64`, position of each row in the batch.
        ids: `[N] int64`, ids in the whole table, the same on all ranks.
        probabilities: `[N] float64`, of drawing each from the whole table.
        lengths: `[N] int32`, steps of each record.
        first: `[N] int32`, the step at which each window begins.
        least: the smallest probability in the whole batch, if N > 0.
    """

    positions: np.ndarray
    ids: np.ndarray
    probabilities: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    least: float

    def importance_weights(self, exponent: float) -> np.ndarray:
        """See `draws.importance_weights`, relative to the whole batch. Returns: `[N] float32`."""
        return importance_weights(self.probabilities, exponent, self.least)


def message_bytes(spec: TableSpec, rows: int, window: int) -> int:
    """Returns the bytes of a message with so many rows."""
    return 8 + rows * (ROW.itemsize + window * sum(c.step_bytes for c in spec.columns))


class RowsMessage:
    """The rows of a batch that one rank sends another, in one buffer.

    Attributes:
        data: the whole buffer.
        least: `[1] float64`, the smallest probability in the batch that the sender knows; NaN if
            the sender could not draw its rows.
        rows: `[N] ROW`.
        columns: `[N, T, ...]`, by name.
    """

    def __init__(self, data: np.ndarray, count: int, spec: TableSpec, window: int) -> None:
        self.data, self.least = data, data[:8].view(np.float64)
        end = 8 + count * ROW.itemsize
        self.rows = data[8:end].view(ROW)
        self.columns = {}
        for name, like in spec.buffers(0, window).items():
            shape = (count, *like.shape[1:])
            start, end = end, end + math.prod(shape) * like.itemsize
            self.columns[name] = data[start:end].view(like.dtype).reshape(shape)
