"""Makes data sets of episodes."""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspore_rl.datasets.dataset import About, Dataset, Source, finish
from mindspore_rl.datasets.episodes import Episode
from mindspore_rl.errors import ReplayError, StorageError
from mindspore_rl.platform.cache import commit
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import Writer

LONGEST = 1000
"""Steps of a record if none are given and episodes are longer."""


@dataclass(frozen=True)
class Part:
    """Episodes to be added.

    Args:
        name: of their source.
        lengths: steps of each episode.
        episodes: may be read lazily.
    """

    name: str
    lengths: Sequence[int]
    episodes: Iterable[Episode]


def write(
    path: Path,
    columns: tuple[Column, ...],
    about: About,
    parts: Sequence[Part],
    length: int | None = None,
    append: bool = False,
) -> int:
    """Makes a data set, or appends to one.

    Args:
        path: of the data set's file.
        columns: see `episodes.columns_of`.
        about: where the episodes are from; its `sources` are ignored.
        parts: the episodes to write.
        length: steps of a record; None: those of the longest episode, at most `LONGEST`.
        append: whether the file may exist, and is appended to.

    Returns: the steps of a record.

    Raises:
        ReplayError: the file has other contents, or there is not enough space.
    """
    check_place(path, append)
    with contextlib.ExitStack() as stack:
        earlier = stack.enter_context(Dataset(path)) if path.exists() else None
        if earlier is not None:
            length = _check_like(earlier, columns, about, length)
            about = dataclasses.replace(
                about,
                environment=about.environment or earlier.about.environment,
                action_space=about.action_space or earlier.about.action_space,
            )
        longest = max(max(part.lengths) for part in parts)
        length = length or max(2, min(longest, LONGEST))
        records = sum(-(-steps // length) for part in parts for steps in part.lengths)
        records += len(earlier) if earlier else 0
        with _building(path, TableSpec(columns, records, length=length), about) as builder:
            if earlier is not None:
                builder.copy(earlier)
            for part in parts:
                builder.add(part)
    return length


def check_place(path: Path, append: bool) -> None:
    """Checks that a data set can be made at a path. Raises: ReplayError."""
    if path.exists() and not append:
        raise ReplayError(f"{path} is there; add to it with --append, or choose another name")
    if not path.parent.is_dir():
        raise ReplayError(f"there is no folder {path.parent}; make it, or choose another name")


def _check_like(
    earlier: Dataset, columns: tuple[Column, ...], about: About, length: int | None
) -> int:
    """Checks that a data set can be appended to. Returns: the steps of its records."""
    spec, known = earlier.table.spec, earlier.about
    for what, old, new in (
        ("environment", known.environment, about.environment),
        ("action_space", known.action_space, about.action_space),
        ("columns", spec.columns, columns),
        ("length", spec.length, length),
    ):
        if old and new and old != new:
            raise ReplayError(
                f"{earlier.path} has the {what} {old}, and what is added has {new}: make another "
                "data set of it"
            )
    return spec.length


class _Builder:
    """Writes episodes into a new data set, see `_building`.

    Args:
        writer: of the only lane of its table.
        length: steps of a record.

    Attributes:
        sources: of the episodes added so far.
    """

    def __init__(self, writer: Writer, length: int) -> None:
        self.sources: list[Source] = []
        self._writer, self._length = writer, length

    def add(self, part: Part) -> None:
        """Adds episodes, each split into records. Raises: ReplayError."""
        returns, steps = [], 0
        for episode in part.episodes:
            columns = episode.columns()
            for at in range(0, len(episode.reward), self._length):
                self._record({key: x[at : at + self._length] for key, x in columns.items()})
            returns.append(float(episode.rewards.sum()))
            steps += len(episode.reward)
        mean = sum(returns) / len(returns)
        self.sources.append(
            Source(part.name, len(returns), steps, mean, min(returns), max(returns))
        )

    def copy(self, dataset: Dataset) -> None:
        """Adds all records of another data set."""
        for columns in dataset.records():
            self._record(columns)
        self.sources += dataset.about.sources

    def _record(self, columns: dict[str, np.ndarray]) -> None:
        record = self._writer.begin(0)
        self._writer.append(record, columns)
        self._writer.commit(record)


@contextlib.contextmanager
def _building(path: Path, spec: TableSpec, about: About) -> Iterator[_Builder]:
    """A context that makes a data set atomically: at its end the file is complete, or unchanged.

    Args:
        path: of the file; an existing one is replaced at the end.
        spec: of its table, with a capacity of exactly the records to be added.
        about: where the episodes are from, without sources.

    Raises:
        ReplayError: there is not enough space.
        StorageError: the disk is faulty.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with Table.create(spec, temporary, prefault=False) as table:
            with Writer(table, [0]) as writer:
                builder = _Builder(writer, spec.length)
                yield builder
            assert (table.entries["generation"] == 2).all(), "its records are not all written"
            try:
                finish(table.descriptor, dataclasses.replace(about, sources=tuple(builder.sources)))
                commit(temporary, path)
            except OSError as error:
                raise StorageError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)
