"""Writes a rank's replay to segments of checkpoints, and reads it back.

Each rank writes the records of its environments that came since its last segment. Rank 0 gets the
list of segments, for the checkpoint's metadata.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import CheckpointError
from mindspore_rl.plan.reading import read
from mindspore_rl.plan.stages import Stage
from mindspore_rl.replay.frames import FrameColumn
from mindspore_rl.replay.kept import KeptReplay
from mindspore_rl.replay.spec import ONE
from mindspore_rl.runtime import checkpoint, replay_segments
from mindspore_rl.runtime.rank.arrays import to_host
from mindspore_rl.runtime.rank.rank import Rank
from mindspore_rl.runtime.replay_segments import Replay, Segment

WRITTEN = "written/replay/"
"""Prefix of the arrays by which ranks tell what they have written: the JSON of a `Replay`."""
SMALL_BYTES = 1 << 22
"""A smaller segment is written again together with the records after it, so that few are kept."""
AHEAD_BYTES = 1 << 25
"""So many bytes of new records are written before a checkpoint asks for them."""


class ReplaySegments:
    """One rank's side of saving and loading the replay."""

    def __init__(self, rank: Rank, kept: KeptReplay, name: str = "") -> None:
        self._rank, self._kept, self._name = rank, kept, name
        self._segments: list[Segment] = []
        self._ahead: list[Segment] = []  # prepared, but not kept yet; complete if not `busy`
        self._look_at = 0  # so many records of all environments: then there may be many new ones

    def write_ahead(self, inserted: np.ndarray) -> None:
        """Begins to write new records if they are many, so that the next checkpoint has few left.

        They are copied first, at most about twice `AHEAD_BYTES` at once.
        """
        rank, total = self._rank, int(inserted.sum())
        if total < self._look_at or rank.background.busy:
            return
        if self._kept.dtypes and rank.plan.device == "GPU":  # it would be copied whole
            return
        columns = list(self._columns())
        if not columns:
            return
        first = self._unwritten(np.maximum(inserted - len(columns[0][0]), 0))
        each, new = _record_bytes(columns), int((inserted - first).sum())
        many = AHEAD_BYTES // each + 1
        if new >= many:
            most = max(2 * many // len(inserted), SMALL_BYTES // each) + 1
            end = np.minimum(inserted, first + most)
            for lanes in _alike(first, end):
                if (end - first)[lanes].sum() * each < SMALL_BYTES:
                    end[lanes] = first[lanes]
            parts = [
                (segment, [piece if piece.base is None else piece.copy() for piece in pieces])
                for segment, pieces in self._parts(columns, self._constant(columns), first, end)
            ]
            rank.background.begin(partial(self._write_parts, rank.iterations_done, parts))
            new = int((inserted - end).sum())
        self._look_at = total + max(many - new, many // 8)

    def write(self, inserted: np.ndarray) -> dict[str, tuple[np.ndarray, None]]:
        """Writes the new records of this rank's replay, and has the disk take them meanwhile.

        A segment has its final name once it is durable.

        Args:
            inserted: number of records ever inserted for each environment of this rank, `[B]`.

        Returns: an array for rank 0, see `written`; none if this rank has no records.

        Raises:
            StorageError: the disk is full or faulty.
        """
        columns = list(self._columns())
        if not columns:
            return {}
        kinds = tuple((dtype.str, column.shape[2:]) for column, dtype in columns)
        found = Replay(len(columns[0][0]), kinds, by_priority=self._kept.by_priority)
        found = replace(found, segments=tuple(self._write(columns, inserted, found)))
        data = np.frombuffer(json.dumps(asdict(found)).encode(), np.uint8)
        return {f"{WRITTEN}{self._rank.number}/{self._name}": (data, None)}

    def _write(
        self, columns: list[tuple[Any, np.dtype]], inserted: np.ndarray, replay: Replay
    ) -> list[Segment]:
        """Returns the segments that hold this rank's replay; writes those that are new.

        Priorities change: the last column, which holds them, is written whole.
        """
        numbers, last = self._constant(columns), len(columns) - 1
        oldest = np.maximum(inserted - len(columns[last][0]), 0)
        self._unwritten(oldest)
        new, self._ahead = self._ahead, []
        for small in [one for one in new if replay.size(one) < SMALL_BYTES]:
            replay_segments.drop(self._folder, small.file)
            new.remove(small)
        self._segments = [
            segment
            for segment in self._segments
            if replay.size(segment) >= SMALL_BYTES and self._has_any(segment, oldest)
        ] + new
        rest = list(self._written(columns, numbers, self._unwritten(oldest), inserted))
        self._segments += rest
        priorities: list[Segment] = []
        if last not in numbers:
            priorities += self._written(columns, range(last, last + 1), oldest, inserted)
        self._rank.background.begin(partial(self._keep, [*new, *rest, *priorities]))
        return self._segments + priorities

    def _keep(self, segments: list[Segment]) -> None:
        for segment in segments:
            replay_segments.keep(self._folder, segment.file)

    def _unwritten(self, oldest: np.ndarray) -> np.ndarray:
        """Returns the first record of each environment that is in no segment, `oldest` or later.

        Removes what was written ahead and is overwritten by now.
        """
        for segment in [one for one in self._ahead if not self._has_any(one, oldest)]:
            replay_segments.drop(self._folder, segment.file)
            self._ahead.remove(segment)
        first = oldest.copy()
        for segment in self._segments + self._ahead:
            lanes = self._places(segment)
            first[lanes] = np.maximum(first[lanes], segment.records[1])
        return first

    def _has_any(self, segment: Segment, oldest: np.ndarray) -> bool:
        """Returns whether the replay still has a record of a segment."""
        return bool(segment.records[1] > oldest[self._places(segment)].min())

    @property
    def _folder(self) -> Path:
        return self._rank.run_dir / replay_segments.FOLDER

    def _write_parts(self, iteration: int, parts: list[tuple[Segment, list[np.ndarray]]]) -> None:
        """Writes what `write_ahead` has copied."""
        for segment, pieces in parts:
            self._ahead.append(self._prepared(iteration, segment, pieces))

    def _written(
        self,
        columns: list[tuple[Any, np.dtype]],
        numbers: Sequence[int],
        first: np.ndarray,
        end: np.ndarray,
    ) -> Iterator[Segment]:
        """Writes columns of records, see `_parts`."""
        for segment, pieces in self._parts(columns, numbers, first, end):
            yield self._prepared(self._rank.iterations_done, segment, self._stamped(pieces))

    def _prepared(self, iteration: int, segment: Segment, pieces: Iterable[np.ndarray]) -> Segment:
        """Writes a segment, which is not durable yet. Returns: it, with its name and checksum."""
        number = self._rank.number
        file, checksum = replay_segments.prepare(self._folder, iteration, number, pieces)
        return replace(segment, file=file, checksum=checksum)

    def _parts(
        self,
        columns: list[tuple[Any, np.dtype]],
        numbers: Sequence[int],
        first: np.ndarray,
        end: np.ndarray,
    ) -> Iterator[tuple[Segment, Iterator[np.ndarray]]]:
        """Yields segments of records, `first` to `end` of each environment, and their contents.

        Neighbouring environments with one range are together.
        """
        envs = self._rank.env_indices
        for lanes in _alike(first, end):
            records = int(first[lanes.start]), int(end[lanes.start])
            if records[0] < records[1]:
                chosen = [columns[number] for number in numbers]
                frames, pieces = replay_segments.contents(chosen, lanes, records)
                places = envs[lanes.start], envs[lanes.stop - 1] + 1
                yield Segment("", places, records, tuple(numbers), 0, frames), pieces

    def _stamped(self, pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Tells the stall detector of each piece."""
        for piece in pieces:
            self._rank.stamp(Stage.CHECKPOINT)
            yield piece

    def _places(self, segment: Segment) -> slice:
        start = self._rank.env_indices.start
        return slice(segment.lanes[0] - start, segment.lanes[1] - start)

    def take(self, path: Path, meta: dict[str, Any], inserted: np.ndarray) -> np.ndarray:
        """Loads the records of this rank's environments from a checkpoint.

        Args:
            path: of the checkpoint.
            meta: its metadata.
            inserted: number of records ever inserted for each environment then, `[num_envs]`.

        Returns: the same numbers as they go on: a larger replay counts from the oldest record that
            there still is.

        Raises:
            CheckpointError: it is damaged, or this rank cannot go on with its replay.
        """
        kept, own = self._kept, self._rank.env_indices
        self._segments, self._ahead, self._look_at = [], [], 0
        replay = checkpoint.replays_of(meta).get(self._name)
        if replay is None:
            return self._begin_empty(path, meta)
        capacity = kept.capacity
        now = np.minimum(inserted, replay.capacity) if capacity > replay.capacity else inserted
        if kept.dtypes and (now != inserted).any():
            raise CheckpointError(
                f"checkpoint {path} holds the newest {replay.capacity:,} records of each "
                f"environment, of more, and here a compiled cell keeps {capacity:,}, where a full "
                "replay cannot grow: leave what is kept as it was, or keep less"
            )
        kinds = replay.kinds()
        weighted = replay.by_priority
        if weighted is None:  # an earlier version did not say so
            weighted = kept.by_priority and kinds[-1] == (np.int64, ())
        found = kept.allocate(kinds[:-1] if weighted else kinds)
        if kept.by_priority and not weighted:  # as if all were new
            found[-1][:] = np.where(np.arange(capacity)[:, None] < now[own], ONE, 0)
        for number, lanes, records, piece in checkpoint.replay_parts(
            path, meta, inserted, self._name
        ):
            both = range(max(lanes.start, own.start), min(lanes.stop, own.stop))
            if not both or number == len(found):  # priorities that are not used any more
                continue
            part = slice(both.start - lanes.start, both.stop - lanes.start)
            here = slice(both.start - own.start, both.stop - own.start)
            every = slice(both.start, both.stop)
            places = records[:, part] - (inserted - now)[every]
            replay_segments.put(found[number][:, here], piece[:, part], places, now[every])
        if kept.dtypes:
            self._set_buffers(found)
        return now

    def _begin_empty(self, path: Path, meta: dict[str, Any]) -> np.ndarray:
        """Goes on without records. Returns: the numbers of records of all environments."""
        rank = self._rank
        replay = f'replay "{self._name}"' if self._name else "replay"
        if meta["iteration"] and self._kept.dtypes:
            raise CheckpointError(
                f"checkpoint {path} has no {replay} (--checkpoint-replay false), and a compiled "
                "cell cannot go on with an empty one: resume it under another policy, such as "
                "SingleLearnerCoarse"
            )
        if meta["iteration"] and rank.replica == 0:
            rank.note(f"the checkpoint has no {replay}: it begins empty")
        return np.zeros(rank.plan.num_envs, np.int64)

    def _set_buffers(self, columns: list[np.ndarray]) -> None:
        """Puts columns into the buffers of a cell."""
        from mindspore_rl.rl.parameters import set_parameter  # noqa: PLC0415

        for buffer, column in zip(self._kept.columns, columns, strict=False):
            set_parameter(buffer, column)

    def _constant(self, columns: list[tuple[Any, np.dtype]]) -> range:
        """Returns the numbers of the columns whose records never change: not that of priorities."""
        return range(len(columns) - self._kept.by_priority)

    def _columns(self) -> Iterator[tuple[Any, np.dtype]]:
        """Yields the columns on the host, and the dtypes in which they are saved."""
        for column, dtype in zip_longest(self._kept.columns, self._kept.dtypes):
            array = to_host(column) if dtype else column
            yield array, np.dtype(dtype or array.dtype)


def _alike(first: np.ndarray, end: np.ndarray) -> Iterator[slice]:
    """Yields neighbouring environments with one range of records, `first` to `end`."""
    differ = np.flatnonzero((np.diff(first) != 0) | (np.diff(end) != 0)) + 1
    yield from (slice(*both) for both in pairwise((0, *differ.tolist(), len(first))))


def _record_bytes(columns: list[tuple[Any, np.dtype]]) -> int:
    """Returns about how many bytes a record adds to a segment: of images, one frame."""
    stores = {column.store for column, _ in columns if isinstance(column, FrameColumn)}
    arrays = (column.index if isinstance(column, FrameColumn) else column for column, _ in columns)
    each = sum(replay_segments.row_bytes(array.shape[1:], array.dtype) for array in arrays)
    return each + sum(store.frame_bytes for store in stores)


def written(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the replays for the checkpoint's metadata, and removes them from the arrays."""
    found: dict[str, Replay] = {}
    for key in [key for key in arrays if key.startswith(WRITTEN)]:
        part = read(Replay, json.loads(bytes(arrays.pop(key))))
        name = key.rpartition("/")[2]
        before = found.get(name, replace(part, segments=()))
        found[name] = replace(before, segments=before.segments + part.segments)
    return checkpoint.meta_of(found)
