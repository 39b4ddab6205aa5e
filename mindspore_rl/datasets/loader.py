"""Batches of windows of a data set, gathered while the learner works on the ones before."""

import itertools
import queue
import threading
from dataclasses import dataclass

import numpy as np

from mindspore_rl.datasets.dataset import Dataset
from mindspore_rl.datasets.epochs import Epochs
from mindspore_rl.errors import ReplayError


class Windows:
    """All windows of a data set, numbered: each begins at another step of a record.

    A window lies within its record; a record that is shorter has one, of all its steps.

    Args:
        lengths: `[N] int32`, steps of each record.
        window: steps of a window.
    """

    def __init__(self, lengths: np.ndarray, window: int) -> None:
        self._ends = np.cumsum(np.maximum(lengths.astype(np.int64) - window + 1, 1))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def find(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The record of each window `[K] int64`, and its first step there `[K] int32`."""
        records = np.searchsorted(self._ends, numbers, side="right")
        begins = np.where(records > 0, self._ends[records - 1], 0)
        return records, (numbers - begins).astype(np.int32)


@dataclass(frozen=True)
class Batch:
    """Windows of a data set.

    Attributes:
        columns: by name, `[B, T, ...]`; 0 behind the end of a record.
        mask: `[B, T] bool`, which steps there are.
    """

    columns: dict[str, np.ndarray]
    mask: np.ndarray


class Loader:
    """An endless iterator over batches; a context that ends it.

    A batch may be used until the next one is asked for: then its memory takes another one, which a
    thread gathers. For what is drawn see `Epochs`.

    Args:
        dataset: open for as long as this is.
        window: steps of each window; whole records if None.
        batch_size: windows, of all ranks together.
        seed: of the job.
        ranks: how many there are.
        rank: which of them this is.
        first: number of the first batch, to go on from.
        buffers: batches in memory: one is used, the others are ready or being gathered.

    Raises:
        ReplayError: a number is out of its range.
    """

    def __init__(
        self,
        dataset: Dataset,
        window: int | None,
        batch_size: int,
        seed: int,
        ranks: int = 1,
        rank: int = 0,
        first: int = 0,
        buffers: int = 3,
    ) -> None:
        window = window or dataset.length
        if window < 1 or buffers < 2:
            raise ReplayError(f"window is {window}, buffers {buffers}, expected from 1 and 2 on")
        self._dataset, self._window, self._first = dataset, window, first
        self._windows = Windows(dataset.lengths, window)
        self._epochs = Epochs(seed, len(self._windows), batch_size, ranks, rank)
        self._free: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Batch | Exception] = queue.SimpleQueue()
        self._used: Batch | None = None
        for _ in range(buffers):
            columns = dataset.table.buffers(self._epochs.size, window)
            self._free.put(Batch(columns, np.zeros((self._epochs.size, window), bool)))
        self._thread = threading.Thread(target=self._run, name="msrl-loader", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> Batch:
        if self._used is not None:
            self._free.put(self._used)
        found = self._ready.get()
        if isinstance(found, Exception):
            self._ready.put(found)  # there is nothing else to come
            raise found
        self._used = found
        return found

    def close(self) -> None:
        """Ends the thread; batches that are used already stay."""
        self._free.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            for step in itertools.count(self._first):
                batch = self._free.get()
                if batch is None:
                    raise ReplayError("the loader is closed")
                self._gather(step, batch)
                self._ready.put(batch)
        except Exception as error:  # noqa: BLE001  (the learner's thread raises it)
            self._ready.put(error)

    def _gather(self, step: int, batch: Batch) -> None:
        records, first = self._windows.find(self._epochs.part(step))
        self._dataset.table.gather(self._dataset.ids[records], batch.columns, first)
        steps = self._dataset.lengths[records] - first
        np.less(np.arange(self._window), steps[:, None], out=batch.mask)
