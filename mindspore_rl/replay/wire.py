"""Wire format of the rows of a batch that cross between ranks."""

import math
from dataclasses import dataclass

import numpy as np

from mindspore_rl.replay.spec import TableSpec

ROW = np.dtype([("ids", "i8"), ("probabilities", "f8"), ("lengths", "i4"), ("first", "i4")])


@dataclass(frozen=True)
class Share:
    """The rows of a batch that a rank gets, as they stand in its buffers.

    Attributes:
        positions: `[N] int64`, where in the batch each row stands.
        ids: `[N] int64`, of the records, the same on all ranks.
        probabilities: `[N] float64`, with which each was drawn from the whole table.
        lengths: `[N] int32`, steps of each record.
        first: `[N] int32`, the step at which its window begins.
        least: the smallest probability in the whole batch, if N > 0.
    """

    positions: np.ndarray
    ids: np.ndarray
    probabilities: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    least: float

    def importance_weights(self, exponent: float) -> np.ndarray:
        """See `selection.importance_weights`: over the largest of the whole batch, `[N] float32`.

        The number of records stands in each weight and in the largest, and falls out.
        """
        return ((self.probabilities / self.least) ** -exponent).astype(np.float32)


def message_bytes(spec: TableSpec, rows: int, window: int) -> int:
    """What the message of so many rows weighs."""
    return 8 + rows * (ROW.itemsize + window * sum(c.step_bytes for c in spec.columns))


class Message:
    """What one rank sends another of a batch.

    Attributes:
        data: all of it.
        least: `[1] float64`, the smallest probability among what the sender has seen of the batch;
            NaN if it could not draw all that it had to.
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
