"""Prefetches batches while the learner works."""

import itertools
import queue
import threading
from pathlib import Path

import numpy as np

from mindspore_rl.datasets.dataset import Dataset
from mindspore_rl.datasets.windows import TRANSITIONS, Batch, Batches
from mindspore_rl.errors import ReplayError


class Loader:
    """An endless iterator over batches, with a thread that prefetches; a context that ends it.

    A batch is valid until the next one is requested: then the thread reuses its memory.

    Args:
        batches: to gather.
        first: number of the first batch, to resume from.
        buffers: batches in memory: one in use, the others ready or being gathered.

    Raises:
        ReplayError: there are too few buffers.
    """

    def __init__(self, batches: Batches, first: int = 0, buffers: int = 3) -> None:
        if buffers < 2:
            raise ReplayError(f"{buffers} buffers, expected at least 2")
        self._batches, self._first = batches, first
        self._free: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Batch | Exception] = queue.SimpleQueue()
        self._used: Batch | None = None
        for _ in range(buffers):
            self._free.put(batches.buffer())
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
            self._ready.put(found)  # later calls raise it again
            raise found
        self._used = found
        return found

    def close(self) -> None:
        """Ends the thread; the batch in use stays valid."""
        self._free.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            for step in itertools.count(self._first):
                batch = self._free.get()
                if batch is None:
                    raise ReplayError("the loader is closed")
                self._batches.gather(step, batch)
                self._ready.put(batch)
        except Exception as error:  # noqa: BLE001  (raised in the learner's thread)
            self._ready.put(error)


class EnvironmentWindows:
    """A program's windows or transitions of a data set, for some of the environments.

    Args:
        path: of the data set.
        length: of each window, in steps; or `TRANSITIONS`.
        per_env: windows of each environment in one turn.
        rows: turns of an iteration.
        num_envs: of the whole job.
        env_indices: global indices of these environments.
        seed: of the job.
        purpose: of the call's random numbers.
    """

    def __init__(
        self,
        path: str,
        length: int,
        per_env: int,
        rows: int,
        num_envs: int,
        env_indices: range,
        seed: int,
        purpose: str,
    ) -> None:
        turns = np.arange(rows * per_env)[:, None] * num_envs
        places = (turns + np.array(env_indices)).reshape(-1)
        self._rows, self._length, count = rows, length, rows * per_env * num_envs
        self._dataset = Dataset(Path(path))
        self._batches = Batches(self._dataset, length, count, seed, places, purpose)
        self._loader: Loader | None = None
        self._next = 0

    def of_iteration(self, iteration: int) -> tuple[np.ndarray, ...]:
        """Returns each of `OUTPUTS` as `[rows, per_env * b, length, ...]`, environments innermost.

        For transitions: each of `OF_TRANSITIONS`, `[rows, per_env * b, ...]`. The arrays are valid
        until the next call.
        """
        if self._loader is None or iteration != self._next:
            self._end()
            self._loader = Loader(self._batches, iteration)
        self._next = iteration + 1
        batch = next(self._loader)
        arrays = batch.transitions() if self._length == TRANSITIONS else batch.windows()
        return tuple(array.reshape(self._rows, -1, *array.shape[1:]) for array in arrays)

    def close(self) -> None:
        """Stops prefetching, and closes the data set."""
        self._end()
        self._dataset.table.close()

    def _end(self) -> None:
        if self._loader is not None:
            self._loader.close()
