"""A table of trajectories in memory that processes share, or in a file beyond it.

A record is one trajectory of at most `length` steps, or one transition if that is 1. Its columns
stand side by side in one block, each time-major, so that a window of a column is one copy. Records
are spread over lanes, each with one writer at a time and with its own order: once a lane is full,
its oldest record makes way. What is drawn depends on the lanes' totals and on a key, not on who
draws (`selection`). The file is its own description: whoever opens it needs nothing else.

    header | specification (JSON) | lanes | entries | weights | sums of weights | records

Weights are integers, so that sums are exact whatever the order of additions; 0 is "not to be
drawn". Needs a C++ compiler.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspore_rl import toolchain
from mindspore_rl.errors import ReplayError
from mindspore_rl.storage import writing

MAGIC = b"MSRLTBL1"
SOURCE = Path(__file__).parent / "table.cpp"
FLAGS = ("-std=c++20", "-pthread")
ALIGNMENT = 64  # a cache line
PAGE, PIECE_BYTES = 4096, 1 << 22
FANOUT = 16
HEADER = np.dtype(
    [("magic", "S8")]
    + [
        (name, np.int64)
        for name in (
            "spec_bytes",
            "lanes",
            "capacity",
            "length",
            "record_bytes",
            "max_times_sampled",
            "weighted",
            "lane_offset",
            "entry_offset",
            "weight_offset",
            "weights",
            "tree_offset",
            "nodes",
            "data_offset",
            "total_bytes",
        )  # fmt: skip
    ]
)
LANE = np.dtype(
    {
        "names": ["lock", "session", "begun", "committed", "total"],
        "formats": ["V40", "u4", "u8", "u8", "u8"],
        "offsets": [0, 40, 48, 56, 64],
        "itemsize": 128,
    }
)
ENTRY = np.dtype(
    [
        ("generation", "u4"),
        ("length", "u4"),
        ("order", "u8"),
        ("sampled", "u4"),
        ("session", "u4"),
        ("unused", "u8"),
    ]
)
_LOCK = struct.Struct("hhqqi4x")  # of fcntl's struct flock


@dataclass(frozen=True)
class Column:
    """One kind of value of a step.

    Args:
        name: of the column.
        shape: of the value of one step.
        dtype: NumPy's name of its type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def step_bytes(self) -> int:
        """Of the value of one step."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class TableSpec:
    """What a table holds.

    Args:
        columns: of every step.
        capacity: records of one lane.
        lanes: each with a writer and an order of its own.
        length: steps of a record at most; 1 for transitions.
        weighted: whether records are drawn by priority.
        max_times_sampled: after so many draws a record is not drawn any more; 0 for no limit.

    Raises:
        ReplayError: a number is out of its range, or two columns have one name.
    """

    columns: tuple[Column, ...]
    capacity: int
    lanes: int = 1
    length: int = 1
    weighted: bool = False
    max_times_sampled: int = 0

    def __post_init__(self) -> None:
        for name, least in (("capacity", 1), ("lanes", 1), ("length", 1), ("max_times_sampled", 0)):
            if getattr(self, name) < least:
                raise ReplayError(
                    f"{name} of a replay table is {getattr(self, name)}, expected at least {least}"
                )
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ReplayError(f"columns of a replay table are {names}, expected different names")

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Where each column begins in a record, and where the record ends: `[columns + 1]`."""
        sizes = [-(-c.step_bytes * self.length // ALIGNMENT) * ALIGNMENT for c in self.columns]
        if self.length == 1:  # small ones without gaps
            sizes = [column.step_bytes for column in self.columns]
            sizes[-1] += -sum(sizes) % 8
        return np.cumsum([0, *sizes], dtype=np.int64)

    def header(self) -> np.ndarray:
        """The sizes and places of everything, as `table.cpp` reads them."""
        header = np.zeros((), HEADER)
        text = self.text()
        weights = -(-self.capacity // FANOUT) * FANOUT
        nodes, level = 0, weights
        while level > FANOUT:
            level = -(-(level // FANOUT) // FANOUT) * FANOUT
            nodes += level
        header["magic"], header["spec_bytes"] = MAGIC, len(text)
        header["length"], header["record_bytes"] = self.length, self.starts[-1]
        for name in ("lanes", "capacity", "max_times_sampled", "weighted"):
            header[name] = getattr(self, name)
        header["weights"], header["nodes"] = weights, nodes
        at = HEADER.itemsize + len(text)
        for name, size in (
            ("lane_offset", self.lanes * LANE.itemsize),
            ("entry_offset", self.lanes * self.capacity * ENTRY.itemsize),
            ("weight_offset", self.lanes * weights * 8),
            ("tree_offset", self.lanes * nodes * 8),
            ("data_offset", self.lanes * self.capacity * int(self.starts[-1])),
            ("total_bytes", 0),
        ):
            at = -(-at // PAGE) * PAGE
            header[name] = at
            at += size
        return header

    def text(self) -> bytes:
        """As JSON."""
        columns = [[c.name, list(c.shape), c.dtype] for c in self.columns]
        return json.dumps({**vars(self), "columns": columns, "starts": None}).encode()

    @staticmethod
    def parse(text: bytes) -> "TableSpec":
        """Of JSON. Raises: ValueError, KeyError, TypeError."""
        values = json.loads(text)
        del values["starts"]
        columns = [Column(name, tuple(shape), dtype) for name, shape, dtype in values["columns"]]
        return TableSpec(**{**values, "columns": tuple(columns)})


class Table:
    """A table that this process has mapped. A context that unmaps it.

    Args:
        descriptor: of the file, taken over.
        spec: what it holds.

    Attributes:
        entries: `[lanes, capacity] ENTRY`, the index, to look at.
    """

    def __init__(self, descriptor: int, spec: TableSpec, prefault: bool) -> None:
        self.spec, self._descriptor = spec, descriptor
        self._header = spec.header()
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if prefault else 0)
        self._map = mmap.mmap(descriptor, int(self._header["total_bytes"]), flags)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.base = self._bytes.ctypes.data
        self.functions = _functions()
        self.entries = self._view(ENTRY, "entry_offset", (spec.lanes, spec.capacity))
        self.lanes = self._view(LANE, "lane_offset", (spec.lanes,))
        self.columns = len(spec.columns)
        self.step_bytes = np.array([c.step_bytes for c in spec.columns], np.int64)

    @staticmethod
    def create(spec: TableSpec, path: Path | None = None, prefault: bool = True) -> "Table":
        """A new table.

        Args:
            spec: what it holds.
            path: of a new file: on /dev/shm to be shared by processes, on a disk to be larger than
                memory. Without one, processes that this one starts can share it.
            prefault: whether all memory is taken now, not when it is first written.

        Raises:
            ReplayError: there is not so much room, or the file is there.
        """
        header = spec.header()
        size = int(header["total_bytes"])
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
            _check_memory(size, path)
            # Without this a full /dev/shm is found by a signal, in the middle of a write.
            os.posix_fallocate(descriptor, 0, size)
            os.pwrite(descriptor, header.tobytes() + spec.text(), 0)
            table = Table(descriptor, spec, prefault)
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
        table.functions.table_init(table.base)
        table._share()
        return table

    @staticmethod
    def open(path: Path, prefault: bool = False) -> "Table":
        """The table of a file.

        Raises:
            ReplayError: it is no table, or damaged.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ReplayError(f"replay table {path} cannot be opened: {error.strerror}") from error
        try:
            table = Table(descriptor, _described(descriptor), prefault)
        except (OSError, ValueError, KeyError, TypeError, IndexError, ReplayError) as error:
            os.close(descriptor)
            raise ReplayError(f"{path} is not a replay table, or damaged: {error}") from error
        with contextlib.suppress(OSError):
            # Nobody else has it open: its locks are of processes that are gone.
            _lock(descriptor, fcntl.F_WRLCK, table.spec.lanes)
            table.functions.table_init(table.base)
        table._share()
        return table

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps it; arrays of it must not be used any more."""
        os.close(self._descriptor)

    def _share(self) -> None:
        _lock(self._descriptor, fcntl.F_RDLCK, self.spec.lanes)

    def _view(self, dtype: np.dtype, offset: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.frombuffer(self._map, dtype, math.prod(shape), int(self._header[offset])).reshape(
            shape
        )

    @contextlib.contextmanager
    def writing(self, lanes: Sequence[int]) -> Iterator["Writer"]:
        """A writer of some lanes, which no other process can write meanwhile.

        What a writer before it has left open, because it died, is written again.

        Raises:
            ReplayError: a lane has a writer.
        """
        # Of its own description, since a lock is one's whom a process has already let in.
        descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            for lane in lanes:
                try:
                    _lock(descriptor, fcntl.F_WRLCK, lane)
                except OSError as error:
                    raise ReplayError(
                        f"lane {lane} of the replay table has a writer; expected one at a time"
                    ) from error
                self.functions.table_take(self.base, lane)
            yield Writer(self, frozenset(lanes))
        finally:
            os.close(descriptor)

    def save(self, path: Path) -> None:
        """Writes a copy to a file, piece by piece; nobody may write the table meanwhile.

        Raises:
            StorageError: the disk is full; no file is left.
        """
        temporary = path.with_name(path.name + ".tmp")
        with writing(path):
            try:
                with temporary.open("wb") as file:
                    checksum = 0
                    for piece in self._pieces():
                        file.write(piece)
                        checksum = self._add(checksum, piece)
                    file.write(checksum.to_bytes(8, "little"))
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path, to: Path | None = None) -> "Table":
        """A new table with what was saved.

        Args:
            path: of `save`.
            to: of the table, see `create`.

        Raises:
            ReplayError: it is damaged, or there is no room for it.
        """
        try:
            with path.open("rb") as file:
                table = Table.create(_described(file.fileno(), 8), to)
                checksum = 0
                for piece in table._pieces():
                    file.readinto(piece)
                    checksum = table._add(checksum, piece)
                if file.read() != checksum.to_bytes(8, "little"):
                    if to is not None:
                        to.unlink()
                    raise ValueError("its checksum is not that of its contents")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ReplayError(f"{path} is not a saved replay table, or damaged: {error}") from error
        table.functions.table_init(table.base)
        return table

    def _pieces(self) -> Iterator[memoryview]:
        whole = memoryview(self._map)
        return (whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES))

    def _add(self, checksum: int, piece: memoryview) -> int:
        data = np.frombuffer(piece, np.uint8)
        return int(self.functions.table_checksum(data.ctypes.data, len(data), checksum))

    def totals(self) -> np.ndarray:
        """What the weights of every lane are in all, `[lanes] uint64`; 0: nothing to draw."""
        totals = np.empty(self.spec.lanes, np.uint64)
        self.functions.table_totals(self.base, totals.ctypes.data)
        return totals

    def resolve(self, lanes: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, ...]:
        """The records that draws fell on.

        Args:
            lanes: `[N] int32`.
            offsets: `[N] uint64`, each below its lane's total.

        Returns: ids `[N] int64` (-1 where a record has changed meanwhile, and is to be drawn
            again), weights `[N] uint64`, lengths `[N] int32`.
        """
        count = len(lanes)
        ids, weights = np.empty(count, np.int64), np.empty(count, np.uint64)
        lengths = np.empty(count, np.int32)
        places = (x.ctypes.data for x in (lanes, offsets, ids, weights, lengths))
        self.functions.table_resolve(self.base, count, *places)
        return ids, weights, lengths

    def buffers(self, count: int, window: int | None = None) -> dict[str, np.ndarray]:
        """Arrays to gather into, `[N, T, ...]` each, or `[N, ...]` of transitions."""
        steps = (window or self.spec.length,) if self.spec.length > 1 else ()
        columns = self.spec.columns
        return {c.name: np.empty((count, *steps, *c.shape), c.dtype) for c in columns}

    def gather(
        self, ids: np.ndarray, out: dict[str, np.ndarray], first: np.ndarray | None = None
    ) -> np.ndarray:
        """Copies records.

        Args:
            ids: `[N] int64`.
            out: of `buffers`; what lies behind the end of a record is set to 0.
            first: `[N] int32`, the step at which each window begins; 0 without it.

        Returns: `[N] bool`, whether each was there; one may have been overwritten since its draw.
        """
        whole = np.empty(len(ids), np.bool_)
        arrays = [out[column.name] for column in self.spec.columns]
        window = arrays[0].shape[1] if self.spec.length > 1 else 1
        self.functions.table_gather(
            self.base, len(ids), ids.ctypes.data, None if first is None else first.ctypes.data,
            window, self.columns, self.spec.starts.ctypes.data, self.step_bytes.ctypes.data,
            _pointers(arrays), whole.ctypes.data,
        )  # fmt: skip
        return whole

    def update(self, ids: np.ndarray, priorities: np.ndarray, exponent: float = 1.0) -> int:
        """Gives records weights: their priorities to the power of an exponent.

        Args:
            ids: `[N] int64`; records that have been overwritten since are left alone.
            priorities: `[N]`, finite and not negative.
            exponent: alpha in Schaul et al. 2016, "Prioritized experience replay".

        Returns: how many were still there.

        Raises:
            ReplayError: a priority is not finite, or negative; the table is not weighted.
        """
        values = _priorities(self.spec, priorities)
        ids = np.ascontiguousarray(ids, np.int64)
        if len(ids) != len(values):
            raise ReplayError(f"{len(ids)} ids have {len(values)} priorities, expected as many")
        data = (ids.ctypes.data, values.ctypes.data)
        return int(self.functions.table_update(self.base, len(ids), *data, exponent))

    def best(self, lane: int, count: int, largest: bool) -> tuple[np.ndarray, ...]:
        """The records of a lane that were inserted first, or have the largest weights.

        Returns: ids `[n] int64`, insertion orders `[n] uint64`, weights `[n] uint64`; n <= count.
        """
        ids = np.empty(count, np.int64)
        orders, weights = np.empty(count, np.uint64), np.empty(count, np.uint64)
        data = (ids.ctypes.data, orders.ctypes.data, weights.ctypes.data)
        found = self.functions.table_best(self.base, lane, count, largest, *data)
        return ids[:found], orders[:found], weights[:found]


class Writer:
    """Writes the lanes of a table that it has, see `Table.writing`."""

    def __init__(self, table: Table, lanes: frozenset[int]) -> None:
        self.table, self.lanes = table, lanes
        self._open: dict[int, int] = {}

    def insert(
        self,
        lanes: np.ndarray,
        columns: Mapping[str, np.ndarray],
        lengths: np.ndarray | None = None,
        priorities: np.ndarray | None = None,
        exponent: float = 1.0,
    ) -> np.ndarray:
        """Inserts whole records.

        Args:
            lanes: `[N]`, one's own.
            columns: by name, `[N, length, ...]`, or `[N, ...]` of transitions.
            lengths: `[N]`, steps of each; all of them without it.
            priorities: `[N]`, see `Table.update`; 1 without it.
            exponent: of the priorities.

        Returns: ids `[N] int64`.

        Raises:
            ReplayError: an array has a wrong name, shape or type.
        """
        table, spec = self.table, self.table.spec
        lanes = np.ascontiguousarray(lanes, np.int32)
        count = len(lanes)
        self._check_lanes(lanes)
        steps = (spec.length,) if spec.length > 1 else ()
        arrays = _columns(spec, columns, (count, *steps))
        if lengths is None:
            lengths = np.full(count, spec.length)
        lengths = np.ascontiguousarray(lengths, np.int32)
        if lengths.shape != (count,) or not ((lengths > 0) & (lengths <= spec.length)).all():
            raise ReplayError(f"lengths are {lengths}, expected {count} of 1 to {spec.length}")
        values = None if priorities is None else _priorities(spec, priorities)
        ids = np.empty(count, np.int64)
        done = table.functions.table_insert(
            table.base, count, lanes.ctypes.data, lengths.ctypes.data,
            None if values is None else values.ctypes.data, exponent, table.columns,
            spec.starts.ctypes.data, table.step_bytes.ctypes.data, _pointers(arrays),
            ids.ctypes.data,
        )  # fmt: skip
        if done < count:
            raise self._full(int(lanes[done]))
        return ids

    def begin(self, lane: int) -> int:
        """Opens a record; nobody can draw it before `commit`. Returns: its number.

        Raises:
            ReplayError: all records of the lane are open.
        """
        self._check_lanes(np.array([lane]))
        record = int(self.table.functions.table_begin(self.table.base, lane))
        if record < 0:
            raise self._full(lane)
        self._open[record] = 0
        return record

    def append(self, record: int, columns: Mapping[str, np.ndarray]) -> None:
        """Appends steps, `[T, ...]` each, to a record that is open."""
        table, spec = self.table, self.table.spec
        steps = len(next(iter(columns.values())))
        arrays = _columns(spec, columns, (steps,))
        done = self._steps(record)
        if done + steps > spec.length:
            raise ReplayError(f"a record of {done} steps gets {steps}; it holds {spec.length}")
        self._open[record] = done + steps
        table.functions.table_append(
            table.base, record, steps, table.columns, spec.starts.ctypes.data,
            table.step_bytes.ctypes.data, _pointers(arrays),
        )  # fmt: skip

    def commit(self, record: int, priority: float = 1.0, exponent: float = 1.0) -> int:
        """Closes a record: from now on it can be drawn. Returns: its id."""
        if not self._steps(record):
            raise ReplayError("a record without a step is committed")
        value = float(_priorities(self.table.spec, np.array([priority]), any_table=True)[0])
        functions = self.table.functions
        found = int(functions.table_commit(self.table.base, record, value, exponent))
        del self._open[record]
        return found

    def _steps(self, record: int) -> int:
        if record not in self._open:
            raise ReplayError(f"record {record} is not open")
        return self._open[record]

    def _check_lanes(self, lanes: np.ndarray) -> None:
        if not self.lanes.issuperset(lanes.tolist()):
            raise ReplayError(f"lanes are {lanes}, expected some of {sorted(self.lanes)}")

    def _full(self, lane: int) -> ReplayError:
        return ReplayError(
            f"all {self.table.spec.capacity} records of lane {lane} are open; raise the capacity"
        )


def _described(descriptor: int, more_bytes: int = 0) -> TableSpec:
    """What a file says that it holds.

    Raises:
        ValueError, KeyError, TypeError, IndexError, ReplayError: it is none of ours, or not whole.
    """
    header = np.frombuffer(os.pread(descriptor, HEADER.itemsize, 0), HEADER)[0]
    if header["magic"] != MAGIC:
        raise ValueError("it begins differently")
    spec = TableSpec.parse(os.pread(descriptor, int(header["spec_bytes"]), HEADER.itemsize))
    size = os.fstat(descriptor).st_size - more_bytes
    if spec.header() != header or size != header["total_bytes"]:
        raise ValueError("its header and its size do not agree")
    return spec


def _columns(
    spec: TableSpec, columns: Mapping[str, np.ndarray], leading: tuple[int, ...]
) -> list[np.ndarray]:
    """The columns as the table has them. Raises: ReplayError."""
    names = [column.name for column in spec.columns]
    if set(columns) != set(names):
        raise ReplayError(f"columns are {sorted(columns)}, expected {sorted(names)}")
    arrays = []
    for column in spec.columns:
        array = np.asarray(columns[column.name])
        shape = (*leading, *column.shape)
        if array.shape != shape or array.dtype != column.dtype:
            raise ReplayError(
                f"column {column.name} is {array.dtype} {array.shape}, expected {column.dtype} "
                f"{shape}"
            )
        arrays.append(np.ascontiguousarray(array))
    return arrays


def _priorities(spec: TableSpec, values: np.ndarray, any_table: bool = False) -> np.ndarray:
    values = np.ascontiguousarray(values, np.float64)
    if not (values >= 0).all() or not np.isfinite(values).all():
        raise ReplayError(f"priorities are {values}, expected finite numbers from 0 on")
    if not spec.weighted and not any_table:
        raise ReplayError(
            "a table that is not weighted gets priorities; make it with weighted=True"
        )
    return values


def _pointers(arrays: list[np.ndarray]) -> ctypes.Array:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _lock(descriptor: int, kind: int, byte: int) -> None:
    """Locks a byte of a file for as long as it is open, and not after a kill. Raises: OSError."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def _check_memory(size: int, path: Path | None) -> None:
    if path is not None and not str(path).startswith("/dev/shm/"):
        return
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    for file, used in (("memory.max", "memory.current"),):
        group = Path("/sys/fs/cgroup")
        with contextlib.suppress(OSError, ValueError):
            left = int((group / file).read_text()) - int((group / used).read_text())
            free = min(free, left // 1024)
    if size > free * 1024:
        raise ReplayError(f"{free / 1024:,.0f} MB of memory are free")


@functools.cache
def _functions() -> ctypes.CDLL:
    """Of `table.cpp`. Raises: MsrlError."""
    functions = ctypes.CDLL(str(toolchain.library(SOURCE, {}, flags=FLAGS)))
    p, i, d, u = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_uint32
    for name, result, arguments in (
        ("init", None, [p]),
        ("take", None, [p, i]),
        ("begin", i, [p, i]),
        ("commit", i, [p, i, d, d]),
        ("append", None, [p, i, i, i, p, p, p]),
        ("insert", i, [p, i, p, p, p, d, i, p, p, p, p]),
        ("totals", None, [p, p]),
        ("draw", i, [u, u, u, u, i, i, i, p, p, p]),
        ("resolve", i, [p, i, p, p, p, p, p]),
        ("gather", i, [p, i, p, p, i, i, p, p, p, p]),
        ("update", i, [p, i, p, p, d]),
        ("checksum", ctypes.c_uint64, [p, i, ctypes.c_uint64]),
        ("best", i, [p, i, i, i, p, p, p]),
    ):
        function = getattr(functions, f"table_{name}")
        function.restype, function.argtypes = result, arguments
    return functions
