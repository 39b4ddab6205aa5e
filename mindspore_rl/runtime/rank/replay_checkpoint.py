"""Streams the replay of a job to a checkpoint and back, a piece at a time.

Rank 0 writes. First the ranks announce who has which environments; then rank 0 receives the pieces
without requesting them, in an order that all know: column by column, some rows of all environments,
from rank after rank.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.plan.stages import Stage
from mindspore_rl.replay.kept import KeptReplay
from mindspore_rl.runtime import checkpoint
from mindspore_rl.runtime.rank.arrays import to_host
from mindspore_rl.runtime.rank.messenger import BYTES_TAG
from mindspore_rl.runtime.rank.rank import Rank

OWNER = "owners/replay"
"""Prefix of the arrays that announce, for each environment, the rank and shape of its records."""


class ReplayStream:
    """One rank's side of saving and loading the replay.

    Args:
        rank: whose replay it is.
        kept: the rank's records.
    """

    def __init__(self, rank: Rank, kept: KeptReplay) -> None:
        self._rank, self._kept = rank, kept

    def announced(self) -> dict[str, tuple[np.ndarray, int]]:
        """Announces for each column, by environment: this rank and the shape of the records."""
        own, found = self._rank.env_indices, {}
        for number, (column, dtype) in enumerate(self._columns()):
            extents = (self._rank.number, len(column), *column.shape[2:])
            found[f"{OWNER}/{number}/{dtype}"] = (np.tile(extents, (len(own), 1)), 0)
        return found

    def send(self) -> None:
        """Sends this rank's records to rank 0, in pieces."""
        for column, dtype in self._columns():
            shape = (len(column), self._rank.plan.num_envs, *column.shape[2:])
            for row, rows in checkpoint.pieces_of(shape, np.dtype(dtype)):
                piece = np.ascontiguousarray(column[row : row + rows], dtype)
                bytes_of_it = piece.reshape(-1).view(np.uint8)
                self._rank.messenger.send_whole(0, BYTES_TAG, bytes_of_it)

    def streams(self, arrays: dict[str, np.ndarray]) -> dict[str, checkpoint.Stream]:
        """Returns the streams that rank 0 writes.

        Args:
            arrays: of all ranks; the announcements among them are removed.
        """
        names = [name for name in arrays if name.startswith(OWNER)]
        columns = [column for column, _ in self._columns()]
        found = {}
        for name in sorted(names, key=lambda name: int(name.split("/")[2])):
            announced, (*_, number, dtype) = arrays.pop(name), name.split("/")
            capacity, *record = announced[0, 1:].tolist()
            shape, kind = (capacity, len(announced), *record), np.dtype(dtype)
            own = columns[int(number)] if columns else None
            pieces = self._pieces(own, shape, kind, announced[:, 0])
            found[f"{checkpoint.REPLAY}{number}"] = checkpoint.Stream(kind, shape, pieces)
        return found

    def _pieces(
        self, own: Any, shape: tuple[int, ...], dtype: np.dtype, owners: np.ndarray
    ) -> Iterator[np.ndarray]:
        begins = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        for row, rows in checkpoint.pieces_of(shape, dtype):
            whole = np.empty((rows, *shape[1:]), dtype)
            for first, end in zip(begins[:-1], begins[1:], strict=True):
                owner = int(owners[first])
                if owner == self._rank.number:
                    whole[:, first:end] = own[row : row + rows]
                    continue
                piece = np.empty((rows, end - first, *shape[2:]), dtype)
                bytes_of_it = piece.reshape(-1).view(np.uint8)
                self._rank.messenger.receive(owner, BYTES_TAG, bytes_of_it, Stage.CHECKPOINT)
                whole[:, first:end] = piece
            yield whole

    def take(self, path: Path, meta: dict[str, Any]) -> None:
        """Loads the records of this rank's environments from a checkpoint.

        Raises:
            CheckpointError: it is damaged.
        """
        rank, kept = self._rank, self._kept
        if "replay" not in rank.fragment.components:
            return
        share, found = slice(rank.env_indices.start, rank.env_indices.stop), []
        for number in range(sum(name.startswith(checkpoint.REPLAY) for name in meta["arrays"])):
            name = f"{checkpoint.REPLAY}{number}"
            dtype, (capacity, _, *record), _ = meta["arrays"][name]
            column = kept.empty((capacity, len(rank.env_indices), *record), np.dtype(dtype))
            for row, piece in checkpoint.replay_pieces(path, meta, name):
                column[row : row + len(piece)] = piece[:, share]
            found.append(column)
        if not kept.dtypes:
            kept.restore(found)
            return
        from mindspore_rl.rl.parameters import set_parameter  # noqa: PLC0415

        for buffer, column in zip(kept.columns, found, strict=False):
            set_parameter(buffer, column)

    def _columns(self) -> Iterator[tuple[np.ndarray, str]]:
        """Yields the columns on the host, and the dtypes in which they are saved."""
        for column, dtype in zip_longest(self._kept.columns, self._kept.dtypes):
            array = to_host(column)
            yield array, dtype or array.dtype.name
