"""A table of trajectories in shared memory, or in a file larger than memory.

A record is one trajectory of at most `length` steps, or one transition if that is 1. Its columns
lie side by side in one block, each time-major, so that a window of a column is one copy. Records
are distributed over lanes, each a ring buffer with one writer at a time: a full lane overwrites its
oldest record. A draw depends on the lanes' totals and on a key, not on the process that draws
(`draws`). The file contains its specification, so that it can be opened without any other
information.

    header | specification (JSON) | limit | lanes | entries | weights | sums, maxima | records

Weights are integers, so that sums are exact in any order of additions; weight 0 means that a record
is not to be drawn. Needs a C++ compiler.
"""

import contextlib
import errno
import fcntl
import io
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import ReplayError
from mindspore_rl.platform.cache import replacing, writing
from mindspore_rl.platform.resources import available_memory, free_shared_bytes
from mindspore_rl.replay.bindings import functions
from mindspore_rl.replay.given import check_kind, check_priorities, path_of, whole_numbers
from mindspore_rl.replay.pinned_memory import PageLock
from mindspore_rl.replay.records import Records
from mindspore_rl.replay.spec import (
    ALIGNMENT,
    ENTRY,
    FIRST,
    LANE,
    LARGEST,
    LIMIT,
    TableSpec,
    check_same,
    described,
)

PIECE_BYTES = 1 << 22
_MAP_NORESERVE = 0x4000  # else a file larger than memory cannot be mapped; mmap's from 3.13 on
_LOCK = struct.Struct("hhqqi4x")  # of fcntl's struct flock


class Table(Records):
    """A table that this process has mapped; a context that unmaps it on exit.

    Args:
        spec: the table's specification.
        memory: with the table's bytes.
        descriptor: of the file that is mapped there, which this object closes; -1: there is none.

    Attributes:
        descriptor: of the file.
        entries: `[lanes, capacity] ENTRY`, the index, for reading only; `[0, 0]` in a sequential
            table.
        lanes: `[lanes] LANE`, for reading only.
        limit: `[] LIMIT`, state of the rate limiter (inserts, samples), for reading only.
    """

    def __init__(
        self, spec: TableSpec, memory: mmap.mmap | np.ndarray, descriptor: int = -1
    ) -> None:
        super().__init__(spec)
        self.descriptor, self._map = descriptor, memory
        self._header = spec.header()
        self._base = np.frombuffer(self._map, np.uint8).ctypes.data
        self._locked: PageLock | None = None
        entries = (0, 0) if spec.sequential else (spec.lanes, spec.capacity)
        self.entries = self._view(ENTRY, "entry_offset", entries)
        self.lanes = self._view(LANE, "lane_offset", (spec.lanes,))
        self.limit = self._view(LIMIT, "limit_offset", ())

    @staticmethod
    def mapped(spec: TableSpec, descriptor: int, prefault: bool = False) -> "Table":
        """Maps a table's file, which the table closes then. Raises: OSError, ValueError."""
        shared = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        # If the file is open for reading only, this process's changes stay private.
        flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | _MAP_NORESERVE) | (
            mmap.MAP_POPULATE if prefault else 0
        )
        memory = mmap.mmap(descriptor, int(spec.header()["total_bytes"]), flags)
        return Table(spec, memory, descriptor)

    @staticmethod
    def create(spec: TableSpec, path: Path | str | None = None, prefault: bool = True) -> "Table":
        """Creates a table.

        Args:
            spec: the table's specification.
            path: of a new file: on /dev/shm to be shared by processes, on a disk to be larger than
                memory. None: anonymous memory, which only processes started by this one can share.
            prefault: whether all memory is allocated now instead of at the first write.

        Raises:
            ReplayError: there is not enough space, or the file exists already.
        """
        check_kind("the specification of a replay table", spec, TableSpec)
        header = spec.header()
        size = int(header["total_bytes"])
        path = None if path is None else path_of(path)
        where = path or "memory"
        try:
            if path is None:
                descriptor = os.memfd_create("replay", os.MFD_CLOEXEC)
            else:
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise ReplayError(f"replay table {where} cannot be made: {error.strerror}") from error
        try:
            _check_room(size, path)
            # Other processes that open it wait for this lock until it is initialised.
            lock(descriptor, fcntl.F_WRLCK, spec.lanes)
            # Without this, a full /dev/shm would raise SIGBUS in the middle of a write.
            os.posix_fallocate(descriptor, 0, size)
            os.pwrite(descriptor, header.tobytes() + spec.text(), 0)
            table = Table.mapped(spec, descriptor, prefault)
        except (OSError, ReplayError) as error:
            os.close(descriptor)
            if path is not None:
                path.unlink()
            if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EFBIG):
                raise
            raise ReplayError(
                f"replay table {where} of {size / 1e6:,.0f} MB does not fit ({error}); lower its "
                "capacity, or give it a file on a larger disk"
            ) from error
        functions().table_init(table.base)
        table._share()
        return table

    @staticmethod
    def open(path: Path | str, prefault: bool = False, spec: TableSpec | None = None) -> "Table":
        """Opens the table of a file.

        Args:
            path: of the file.
            prefault: see `create`.
            spec: expected specification; None: any.

        Raises:
            ReplayError: the file is no table, or damaged, or has another specification.
        """
        path = path_of(path)
        if spec is not None:
            check_kind("the specification of a replay table", spec, TableSpec)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ReplayError(f"replay table {path} cannot be opened: {error.strerror}") from error
        try:
            found = described(descriptor)
            check_same(path, found, spec or found)
            table = Table.mapped(found, descriptor, prefault)
            table.check_index()
        except ReplayError:
            os.close(descriptor)
            raise
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise ReplayError(f"{path} is not a replay table, or damaged: {error}") from error
        with contextlib.suppress(OSError):
            # No other process has it open: locks in it are left by processes that have ended.
            lock(descriptor, fcntl.F_WRLCK, table.spec.lanes)
            functions().table_init(table.base)
        table._share()
        return table

    @staticmethod
    def within(spec: TableSpec, allocate: Callable[[int], np.ndarray]) -> "Table":
        """Creates a table in memory that this process alone has, which grows as it is written.

        Args:
            spec: the table's specification.
            allocate: returns so many bytes of zeros.
        """
        header = spec.header()
        memory = allocate(int(header["total_bytes"]) + ALIGNMENT)
        memory = memory[-memory.ctypes.data % ALIGNMENT :][: header["total_bytes"]]
        start = np.frombuffer(header.tobytes() + spec.text(), np.uint8)
        memory[: len(start)] = start
        table = Table(spec, memory)
        functions().table_init(table.base)
        return table

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def base(self) -> int:
        """The table's address in memory. Raises: ReplayError: the table is closed."""
        if not self._base:
            raise ReplayError("a replay table is used that was closed; open it anew")
        return self._base

    def _where(self) -> tuple[int, int | None, int]:
        return self.base, None, 0

    def address_on_gpu(self) -> int:
        """Returns the table's address for this process's GPU; pins its memory until `close`.

        Raises:
            ReplayError: the driver refuses to pin that much memory.
            MsrlError: there is no CUDA driver.
        """
        if self._locked is None:
            self._locked = PageLock(self.base, int(self._header["total_bytes"]))
        return self._locked.address

    def close(self) -> None:
        """Closes the table; its memory is unmapped once no array refers to it any more."""
        if not self._base:
            return
        if self._locked is not None:
            self._locked.free()
        self._base = 0
        del self.entries, self.lanes, self.limit
        if isinstance(self._map, mmap.mmap):
            os.close(self.descriptor)
            with contextlib.suppress(BufferError):  # an array still refers to it
                self._map.close()
        del self._map

    def _share(self) -> None:
        lock(self.descriptor, fcntl.F_RDLCK, self.spec.lanes, wait=True)

    def _view(self, dtype: np.dtype, offset: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.frombuffer(self._map, dtype, math.prod(shape), int(self._header[offset])).reshape(
            shape
        )

    def column(self, number: int) -> np.ndarray:
        """Returns all records' values in a column of the table, to read and write them there.

        Nobody else may use the table meanwhile.

        Returns: `[lanes, capacity, T, ...]`, of single steps `[lanes, capacity, ...]`.
        """
        spec, column, each = self.spec, self.spec.columns[number], int(self.spec.starts[-1])
        steps = (spec.length,) if spec.length > 1 else ()
        one = np.empty((*steps, *column.shape), column.dtype)
        shape, strides = (spec.lanes, spec.capacity, *one.shape), (spec.capacity * each, each)
        begin = int(self._header["data_offset"] + spec.starts[number])
        return np.ndarray(shape, one.dtype, self._map, begin, (*strides, *one.strides))

    @property
    def weights(self) -> np.ndarray:
        """The weights of all records, `[lanes, capacity] uint64`."""
        return self._all_weights()[:, : self.spec.capacity]

    def _all_weights(self) -> np.ndarray:
        """Returns the weights with those behind the records, which are 0."""
        extent = self.spec.lanes, int(self._header["weights"])
        return self._view(np.dtype(np.uint64), "weight_offset", extent)

    def check_index(self) -> None:
        """Checks that the index is consistent: no entry may lead to a read out of bounds.

        Raises:
            ValueError: a record is too long, or a weight is too large or belongs to no record.
        """
        spec, most = self.spec, LARGEST if self.spec.weighted else 1
        longest = int(self.entries["length"].max(initial=0))
        if longest > min(spec.length, np.iinfo(np.int32).max):
            raise ValueError(f"it has a record of {longest} steps, expected at most {spec.length}")
        behind = self._all_weights()[:, spec.capacity :]
        if self.weights.max(initial=0) > most or behind.any():
            raise ValueError("it has weights that no record can have")
        begun, committed = self.lanes["begun"], self.lanes["committed"]
        if spec.sequential and (begun - committed > 1).any():
            raise ValueError("its lanes have records that were not written one after the other")

    def save(self, path: Path | str) -> None:
        """Writes a copy to a file, piece by piece; the table must not be written meanwhile.

        Raises:
            StorageError: the disk is full; no file is left.
        """
        path, checksum = path_of(path), 0
        with writing(path), replacing(path) as file:
            for piece in self._pieces():
                file.write(piece)
                checksum = self._add(checksum, piece)
            file.write(checksum.to_bytes(8, "little"))

    @staticmethod
    def load(path: Path | str, to: Path | str | None = None) -> "Table":
        """Creates a table from a saved copy.

        Args:
            path: of a file that `save` wrote.
            to: path of the new table, see `create`.

        Raises:
            ReplayError: the file is damaged, or there is not enough space.
        """
        path, to = path_of(path), None if to is None else path_of(to)
        try:
            with path.open("rb") as file:
                table = Table.create(described(file.fileno(), 8), to)
                try:
                    table._read(file)
                    table.check_index()
                except (OSError, ValueError):
                    table.close()
                    if to is not None:
                        to.unlink()
                    raise
        except (OSError, ValueError) as error:
            raise ReplayError(f"{path} is not a saved replay table, or damaged: {error}") from error
        functions().table_init(table.base)
        return table

    def _read(self, file: io.BufferedReader) -> None:
        checksum = 0
        for piece in self._pieces():
            file.readinto(piece)
            checksum = self._add(checksum, piece)
        if file.read() != checksum.to_bytes(8, "little"):
            raise ValueError("its checksum is not that of its contents")

    def _pieces(self) -> Iterator[memoryview]:
        memory: Any = self._map if self.base else b""
        whole = memoryview(memory)
        return (whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES))

    def _add(self, checksum: int, piece: memoryview) -> int:
        data = np.frombuffer(piece, np.uint8)
        return int(functions().table_checksum(data.ctypes.data, len(data), checksum))

    def totals(self) -> np.ndarray:
        """Returns the total weight of every lane, `[lanes] uint64`; 0: nothing to draw."""
        totals = np.empty(self.spec.lanes, np.uint64)
        functions().table_totals(self.base, totals.ctypes.data)
        return totals

    def buffers(self, count: int, window: int | None = None) -> dict[str, np.ndarray]:
        """See `TableSpec.buffers`."""
        return self.spec.buffers(count, window)

    def update(self, ids: np.ndarray, priorities: np.ndarray, exponent: float = 1.0) -> int:
        """Sets weights of records: their priorities to the power of an exponent.

        Args:
            ids: `[N] int64`; records that have been overwritten since are skipped.
            priorities: `[N]`, finite and not negative.
            exponent: alpha in Schaul et al. 2016, "Prioritized experience replay".

        Returns: number of records that still existed.

        Raises:
            ReplayError: there is not one priority of each record; a priority or the exponent is not
                finite, or negative; the table is not weighted.
        """
        ids = whole_numbers("ids", ids)
        values = check_priorities(self.spec, priorities, len(ids), exponent)
        data = (ids.ctypes.data, values.ctypes.data)
        return int(functions().table_update(self.base, len(ids), *data, exponent))

    def want(self, lanes: np.ndarray) -> None:
        """Lets the rate limiter admit an insert into each of these lanes that has nothing to draw.

        Their writers may have started late, when others had used up all inserts that it allows.

        Args:
            lanes: `[N] int32`, for which a draw waits.
        """
        functions().table_want(self.base, len(lanes), lanes.ctypes.data)

    def read_at_random(self) -> None:
        """Turns off the system's read-ahead in the table's file."""
        if self.base and isinstance(self._map, mmap.mmap):
            self._map.madvise(mmap.MADV_RANDOM)

    def will_need(self, ids: np.ndarray, first: np.ndarray, window: int) -> None:
        """Asks the system to prefetch from the file what a later `gather` copies.

        Args:
            ids: `[N] int64`, from 0 on.
            first: `[N] int32`, the step at which each window begins.
            window: steps of a window.
        """
        data = ids.ctypes.data, first.ctypes.data, window
        functions().table_will_need(self.base, len(ids), *data, *self.layout)

    def pick(self, order: int, count: int) -> tuple[np.ndarray, ...] | int:
        """Takes the first records in an order over all lanes, atomically; see `draws.Order`.

        Returns: ids `[N] int64`, weights `[N] uint64`, lengths `[N] int32`; or, with nothing taken,
            the number of records if there are too few, or -1 if the rate limiter holds them back.
        """
        ids, weights = np.empty(count, np.int64), np.empty(count, np.uint64)
        lengths = np.empty(count, np.int32)
        places = (x.ctypes.data for x in (ids, weights, lengths))
        found = int(functions().table_pick(self.base, order, count, *places))
        return (ids, weights, lengths) if found == count else found

    def peek(self, order: int, count: int) -> np.ndarray:
        """Returns up to `count` first records in an order without drawing them: `[N] FIRST`."""
        keys, ids = np.empty(count, np.uint64), np.empty(count, np.int64)
        lengths = np.empty(count, np.int32)
        places = (x.ctypes.data for x in (keys, ids, lengths))
        found = np.empty(functions().table_peek(self.base, order, count, *places), FIRST)
        for name, column in (("key", keys), ("id", ids), ("length", lengths)):
            found[name] = column[: len(found)]
        return found


def lock(descriptor: int, kind: int, byte: int, wait: bool = False) -> None:
    """Locks a byte of a file until the descriptor is closed or its owner dies. Raises: OSError."""
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    fcntl.fcntl(descriptor, command, _LOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def _check_room(size: int, path: Path | None) -> None:
    rooms = {"memory": float(available_memory())}
    if path is not None and path.resolve().is_relative_to("/dev/shm"):
        rooms["/dev/shm"] = free_shared_bytes()
    elif path is not None:
        rooms = {}  # a full disk raises its own error
    for name, free in rooms.items():
        if size > free:
            raise ReplayError(f"{free / 1e6:,.0f} MB of {name} are free")
