"""Windows of a data set, and batches of them."""

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.datasets.dataset import Dataset
from mindspore_rl.datasets.episodes import of_environment
from mindspore_rl.datasets.epochs import Epochs
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.errors import ReplayError

OUTPUTS = ("obs", "action", "reward", "return_to_go", "step", "mask")
"""The arrays of windows, in the order in which a program gets them."""
OF_TRANSITIONS = ("obs", "action", "reward", "terminated", "next_obs")
"""The arrays of transitions, likewise."""
TRANSITIONS = 0
"""Stands for a window's length: transitions are read."""
_RECORDS = 1024
COLD = 64
"""Batches that are prefetched after a batch that had to wait for the disk."""
_NOTHING = -1, (np.empty(0, np.int64), np.empty(0, np.int32))


class Windows:
    """All windows of a data set, numbered: each starts at another step of a record.

    A window lies within its record; a record that is too short has one window of all its steps.

    Args:
        lengths: `[N] int32`, steps of each record.
        window: steps of a window.
        terminated: `[N] bool`, of windows of two steps that are transitions: which records have one
            more, of their last step alone; a record with no transition then has none.
    """

    def __init__(
        self, lengths: np.ndarray, window: int, terminated: np.ndarray | None = None
    ) -> None:
        counts = lengths.astype(np.int64) - window + 1
        more = np.maximum(counts, 1) if terminated is None else counts + terminated
        self._ends = np.cumsum(more)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def find(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the record of each window `[K] int64`, and its first step there `[K] int32`."""
        records = np.searchsorted(self._ends, numbers, side="right")
        begins = np.where(records > 0, self._ends[records - 1], 0)
        return records, (numbers - begins).astype(np.int32)


@dataclass(frozen=True)
class Batch:
    """A batch of windows of a data set.

    Attributes:
        columns: by name, `[B, T, ...]`; 0 after the end of a record.
        mask: `[B, T] bool`, which steps exist.
    """

    columns: dict[str, np.ndarray]
    mask: np.ndarray

    def windows(self) -> tuple[np.ndarray, ...]:
        """Returns `OUTPUTS`, `[B, T, ...]` each."""
        return (*(self.columns[name] for name in OUTPUTS[:-1]), self.mask)

    def transitions(self) -> tuple[np.ndarray, ...]:
        """Returns `OF_TRANSITIONS`, `[B, ...]` each, of windows of two steps."""
        parts = [self.columns[name][:, 0] for name in OF_TRANSITIONS[:-1]]
        return tuple(map(np.ascontiguousarray, (*parts, self.columns["obs"][:, 1])))


class Batches:
    """Batches of windows in the order of `Epochs`, gathered into given memory.

    Args:
        dataset: must stay open as long as this object is used.
        window: steps of each window; None: whole records; `TRANSITIONS`: two, see `Windows`.
        batch_size: number of windows, over all ranks.
        seed: of the job.
        places: this rank's positions in a batch; None: all.
        purpose: distinguishes these batches from others of the job.

    Raises:
        ReplayError: a number is out of range.
    """

    def __init__(
        self,
        dataset: Dataset,
        window: int | None,
        batch_size: int,
        seed: int,
        places: np.ndarray | None = None,
        purpose: str = "epoch",
    ) -> None:
        ends = terminated(dataset) if window == TRANSITIONS else None
        window = dataset.length if window is None else 2 if window == TRANSITIONS else window
        if window < 1:
            raise ReplayError(f"a window of {window} steps, expected at least 1")
        self._dataset, self._window = dataset, window
        dataset.table.read_at_random()
        self._ahead, self._asked, self._found = COLD, (-1, -1), _NOTHING
        self._windows = Windows(dataset.lengths, window, ends)
        self._epochs = Epochs(seed, len(self._windows), batch_size, places, purpose)

    def buffer(self) -> Batch:
        """Allocates memory for a batch."""
        size = len(self._epochs.places)
        columns = self._dataset.table.buffers(size, self._window)
        return Batch(columns, np.zeros((size, self._window), bool))

    def gather(self, step: int, batch: Batch) -> None:
        """Gathers batch number `step` into `batch`."""
        records, first = self._find(step)
        table, ids, faults = self._dataset.table, self._dataset.ids, _faults()
        if self._ahead:
            self._read_ahead(step)
        table.gather(ids[records], batch.columns, first)
        if _faults() > faults:
            self._ahead = COLD
        steps = self._dataset.lengths[records] - first
        np.less(np.arange(self._window), steps[:, None], out=batch.mask)

    def _read_ahead(self, step: int) -> None:
        """Asks the system to prefetch a batch and the next one, a no-op for cached pages."""
        for number in {step, step + 1} - set(self._asked):
            records, first = self._find(number)
            self._dataset.table.will_need(self._dataset.ids[records], first, self._window)
        self._ahead, self._asked = self._ahead - 1, (step, step + 1)

    def _find(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the records and first steps of a batch's windows; caches the last batch."""
        if self._found[0] != step:
            self._found = step, self._windows.find(self._epochs.part(step))
        return self._found[1]


def _faults() -> int:
    """Returns how often this process has waited for the disk (major page faults)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def terminated(dataset: Dataset) -> np.ndarray:
    """Reads which records end with a step that terminated the episode, `[N] bool`."""
    found, out = [], dataset.table.buffers(_RECORDS, 1)
    for at in range(0, len(dataset), _RECORDS):
        part = slice(at, at + _RECORDS)
        ids, last = dataset.ids[part], dataset.lengths[part] - 1
        dataset.table.gather(ids, out, last)
        found.append(out["terminated"][: len(ids), 0].copy())
    return np.concatenate(found)


def check_windows(path: Any, length: Any, spec: EnvironmentSpec) -> str:
    """Checks that a program can read windows of a data set.

    Returns: the absolute path of its file.

    Raises:
        ReplayError: it is no data set of such an environment, or the length is out of range.
    """
    with _opened(path, spec) as dataset:
        if type(length) is not int or not 1 <= length <= dataset.length:
            raise ReplayError(
                f"windows of {length} steps, and the records of {path} have at most "
                f"{dataset.length}"
            )
    return str(Path(path).resolve())


def check_transitions(path: Any, spec: EnvironmentSpec) -> str:
    """Checks that a program can read transitions of a data set; see `check_windows`."""
    with _opened(path, spec) as dataset:
        if dataset.lengths.max() < 2 and not terminated(dataset).any():
            raise ReplayError(
                f"{path} has no transition: each of its records has one step, which was truncated"
            )
    return str(Path(path).resolve())


def _opened(path: Any, spec: EnvironmentSpec) -> Dataset:
    """Opens a data set of an environment. Raises: ReplayError."""
    if not isinstance(path, (str, Path)) or not str(path):
        raise ReplayError(
            f"the data set is {path!r}, expected the path of a file, as in `dataset=FILE`: make "
            "one with `msrl dataset record` or `msrl dataset import`"
        )
    dataset = Dataset(Path(path))
    for found, expected in zip(dataset.table.spec.columns, of_environment(spec), strict=True):
        if found != expected:
            dataset.table.close()
            raise ReplayError(
                f"{path} has {found.name} {found.shape} {found.dtype}, and {spec.name} has "
                f"{expected.shape} {expected.dtype}: another data set, or another --env"
            )
    return dataset


def blank_windows(spec: EnvironmentSpec, *shape: int) -> tuple[np.ndarray, ...]:
    """Makes blank windows as a program gets them, each `[*shape, ...]`: all values 0."""
    columns = {column.name: column for column in of_environment(spec)}
    arrays = [
        np.zeros((*shape, *columns[name].shape), columns[name].dtype) for name in OUTPUTS[:-1]
    ]
    return (*arrays, np.ones(shape, bool))


def blank_transitions(spec: EnvironmentSpec, *shape: int) -> tuple[np.ndarray, ...]:
    """Makes blank transitions as a program gets them, each `[*shape, ...]`: all values 0."""
    obs, action, reward, *_ = blank_windows(spec, *shape)
    return obs, action, reward, np.zeros(shape, bool), obs.copy()
