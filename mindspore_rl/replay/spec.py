"""Specification of a replay table: columns, lanes, and the layout of its file."""

import dataclasses
import functools
import itertools
import json
import math
import numbers
import os
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path

import numpy as np

from mindspore_rl.errors import ReplayError

MAGIC = b"MSRLTBL3"
ALIGNMENT = 64  # a cache line
PAGE = 4096
FANOUT = 16
ONE, LARGEST = 1 << 20, 1 << 40
"""The weight of a priority of 1, and the largest weight (index.h)."""
MAX_WEIGHTED = 1 << 24  # so many weights' sum fits 64 bits
MAX_BYTES = 1 << 62  # of a table, so that every offset in it is an int64
MAX_TEXT = 1 << 20  # of a specification in a file
HEADER = np.dtype(
    [("magic", "S8")]
    + [
        (name, np.float64 if name in ("samples_per_insert", "slack") else np.int64)
        for name in (
            "spec_bytes",
            "lanes",
            "capacity",
            "length",
            "record_bytes",
            "max_times_sampled",
            "weighted",
            "min_records",
            "samples_per_insert",
            "slack",
            "limit_offset",
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
LIMIT = np.dtype(
    {
        "names": ["lock", "changes", "sleeping", "inserts", "samples", "posts"],
        "formats": ["V40", "u4", "u4", "i8", "i8", "u8"],
        "offsets": [0, 40, 44, 48, 56, 64],
        "itemsize": 128,
    }
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
FIRST = np.dtype([("key", "u8"), ("id", "i8"), ("length", "i4")])
"""A record of an order with its sort key: larger keys come first."""


@dataclass(frozen=True)
class Column:
    """A column: one kind of value of every step.

    Args:
        name: of the column.
        shape: of the value of one step.
        dtype: name of a NumPy dtype of numbers or booleans.

    Raises:
        ReplayError: an argument is invalid.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        sized = isinstance(self.shape, Sequence) and all(
            isinstance(x, numbers.Integral) and x >= 0 for x in self.shape
        )
        if not isinstance(self.name, str) or not sized or not _is_number(self.dtype):
            raise ReplayError(
                f"a column of a replay table is {self.name!r}, {self.shape!r}, {self.dtype!r}, "
                'expected a name, a shape and a type of numbers, such as "obs", (4,), "float32"'
            )

    @property
    def step_bytes(self) -> int:
        """Bytes of the value of one step."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class RateLimiter:
    """Settings of a table's rate limiter, which makes the side that is ahead wait.

    Args:
        min_records: number of records inserted before anything is drawn.
        samples_per_insert: records drawn for each one inserted after those; 0: no limit.
        slack: samples by which either side may be ahead; with batches of N at least half of N +
            samples_per_insert.
    """

    min_records: int = 1
    samples_per_insert: float = 0.0
    slack: float = 0.0


@dataclass(frozen=True)
class TableSpec:
    """The contents of a table and the settings of its rate limiter.

    Args:
        columns: of every step.
        capacity: records of each lane.
        lanes: number of lanes; each has a writer and an order of its own.
        length: maximum steps of a record; 1 for transitions.
        weighted: whether records are drawn by priority.
        max_times_sampled: number of draws after which a record is no longer drawn; 0: no limit.
        min_records, samples_per_insert, slack: see `RateLimiter`.
        sequential: whether the writer of a lane writes single steps one after the other, which may
            be drawn any number of times. Such records have no index but for their weights, so that
            small ones take half the memory; and all of a lane count as written by one writer.
        rate_limiter: in place of these three.

    Raises:
        ReplayError: a number is out of range, or two columns have the same name.
    """

    columns: tuple[Column, ...]
    capacity: int
    lanes: int = 1
    length: int = 1
    weighted: bool = False
    max_times_sampled: int = 0
    min_records: int = 1
    samples_per_insert: float = 0.0
    slack: float = 0.0
    sequential: bool = False
    rate_limiter: InitVar[RateLimiter | None] = None

    def __post_init__(self, rate_limiter: RateLimiter | None) -> None:
        if not isinstance(rate_limiter, RateLimiter | None):
            raise ReplayError(f"rate_limiter is {rate_limiter!r}, expected a RateLimiter")
        for name, value in vars(rate_limiter).items() if rate_limiter else ():
            object.__setattr__(self, name, value)
        ratio = self.samples_per_insert if isinstance(self.samples_per_insert, int | float) else 0
        for name, least in (
            ("capacity", 1),
            ("lanes", 1),
            ("length", 1),
            ("max_times_sampled", 0),
            ("min_records", 1),
            ("samples_per_insert", 0),
            ("slack", (1 + ratio) / 2 if ratio else 0),
        ):
            value, whole = getattr(self, name), name not in ("samples_per_insert", "slack")
            number = isinstance(value, int if whole else (int, float)) and value is not True
            if not number or not least <= value < 2**63:
                raise ReplayError(
                    f"{name} of a replay table is {value}, expected at least {least:g}"
                    f"{' and whole' if whole else ''}"
                )
        if self.sequential and (self.length > 1 or self.max_times_sampled):
            raise ReplayError(
                f"a sequential replay table has length={self.length} and max_times_sampled="
                f"{self.max_times_sampled}, expected single steps without a limit (1 and 0); leave "
                "out `sequential`"
            )
        if self.min_records > self.lanes * self.capacity:
            raise ReplayError(
                f"min_records of a replay table is {self.min_records}, expected at most the "
                f"{self.lanes * self.capacity} that it holds"
            )
        if self.weighted and self.lanes * self.capacity >= MAX_WEIGHTED:
            raise ReplayError(
                f"a weighted replay table has room for {self.lanes * self.capacity:,} records, "
                f"expected fewer than {MAX_WEIGHTED:,}, whose weights fit an exact sum"
            )
        if not isinstance(self.columns, Sequence) or not all(
            isinstance(column, Column) for column in self.columns
        ):
            raise ReplayError(f"columns of a replay table are {self.columns!r}, expected `Column`s")
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ReplayError(f"columns of a replay table are {names}, expected different names")
        # An empty value takes no memory, but NumPy refuses arrays of such extents too.
        steps = sum(math.prod(extent or 1 for extent in c.shape) for c in self.columns)
        size = self.lanes * self.capacity * (1 + 32 * self.length * (ALIGNMENT + steps))
        if size >= MAX_BYTES:
            raise ReplayError(f"a replay table does not fit: it would take {size:,} bytes")

    @property
    def limited(self) -> bool:
        """True if the rate limiter counts draws and inserts."""
        return self.samples_per_insert > 0 or self.min_records > 1

    def part(self, lanes: int) -> "TableSpec":
        """Returns the specification of some lanes, with their share of the rate limits."""
        ratio, share = self.samples_per_insert, lanes / self.lanes
        # Each part's inserts may stop almost one insert short of what its slack allows.
        slack = self.slack * share + ratio * (1 - share)
        return dataclasses.replace(
            self,
            lanes=lanes,
            min_records=max(math.ceil(self.min_records * share), 1),
            slack=max(slack, (1 + ratio) / 2) if ratio else self.slack,
        )

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The offset of each column in a record, then the size of the record: `[columns + 1]`."""
        sizes = [-(-c.step_bytes * self.length // ALIGNMENT) * ALIGNMENT for c in self.columns]
        if self.length == 1:  # transitions are packed
            sizes = [column.step_bytes for column in self.columns]
            sizes[-1] += -sum(sizes) % 8
        return np.array(list(itertools.accumulate(sizes, initial=0)), np.int64)

    def buffers(self, count: int, window: int | None = None) -> dict[str, np.ndarray]:
        """Makes arrays to gather records into: `[N, T, ...]` each, for transitions `[N, ...]`.

        Raises:
            ReplayError: the count is no whole number from 0 on, or the window none from 1 on.
        """
        if window is not None and (not isinstance(window, numbers.Integral) or window < 1):
            raise ReplayError(f"a window of {window!r} steps, expected a whole number from 1 on")
        if not isinstance(count, numbers.Integral) or count < 0:
            raise ReplayError(f"arrays for {count!r} records, expected a whole number from 0 on")
        steps = (window or self.length,) if self.length > 1 else ()
        return {c.name: _aligned((count, *steps, *c.shape), c.dtype) for c in self.columns}

    def header(self) -> np.ndarray:
        """Returns the sizes and offsets of all sections, as `table.cpp` reads them."""
        header = np.zeros((), HEADER)
        text = self.text()
        for name in set(HEADER.names or ()) & set(vars(self)):
            header[name] = getattr(self, name)
        header["magic"], header["spec_bytes"] = MAGIC, len(text)
        header["record_bytes"] = self.starts[-1]
        _lay_out(header, self.sequential)
        return header

    def text(self) -> bytes:
        """Serialises the specification as JSON."""
        columns = [[c.name, list(c.shape), c.dtype] for c in self.columns]
        return json.dumps({**vars(self), "columns": columns, "starts": None}).encode()

    @staticmethod
    def parse(text: bytes) -> "TableSpec":
        """Parses the JSON of a specification. Raises: ValueError, ReplayError."""
        try:
            values = json.loads(text)
            del values["starts"]
            columns = tuple(Column(name, tuple(shape), dtype)
                            for name, shape, dtype in values["columns"])  # fmt: skip
            return TableSpec(**{**values, "columns": columns})
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"its specification cannot be read: {error!r}") from error


def _lay_out(header: np.ndarray, sequential: bool) -> None:
    """Sets the sizes of the index in a header, and where each section begins."""
    lanes, capacity, weighted, record_bytes, text_bytes = (
        int(header[name])
        for name in ("lanes", "capacity", "weighted", "record_bytes", "spec_bytes")
    )
    weights = 0 if sequential and not weighted else -(-capacity // FANOUT) * FANOUT
    nodes, level = 0, weights
    while level > FANOUT:
        level = -(-(level // FANOUT) // FANOUT) * FANOUT
        nodes += level
    header["weights"], header["nodes"] = weights, nodes
    at = HEADER.itemsize + text_bytes
    for name, size in (
        ("limit_offset", LIMIT.itemsize),
        ("lane_offset", lanes * LANE.itemsize),
        ("entry_offset", 0 if sequential else lanes * capacity * ENTRY.itemsize),
        ("weight_offset", lanes * weights * 8),
        ("tree_offset", lanes * nodes * (1 + weighted) * 8),
        ("data_offset", lanes * capacity * record_bytes),
        ("total_bytes", 0),
    ):
        at = -(-at // PAGE) * PAGE
        header[name] = at
        at += size


def _is_number(dtype: object) -> bool:
    """Returns whether a dtype is a NumPy dtype of numbers; others may hold pointers."""
    try:
        return isinstance(dtype, str) and np.dtype(dtype).kind in "biufc"
    except (TypeError, ValueError, SyntaxError):
        return False


def _aligned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Makes an array at the start of a cache line: JAX copies others."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def described(descriptor: int, more_bytes: int = 0) -> TableSpec:
    """Reads the specification from a table's file.

    Raises:
        OSError, ValueError, ReplayError: it is no table, or incomplete.
    """
    size = os.fstat(descriptor).st_size - more_bytes
    begin = os.pread(descriptor, HEADER.itemsize, 0)
    if size < HEADER.itemsize or len(begin) < HEADER.itemsize:
        raise ValueError(f"it has {size} bytes")
    header = np.frombuffer(begin, HEADER)[0]
    if header["magic"] != MAGIC:
        raise ValueError(f"it begins with {header['magic']!r}, expected {MAGIC!r}")
    if not 0 <= header["spec_bytes"] <= min(size, MAX_TEXT):
        raise ValueError("its header and its size do not agree")
    spec = TableSpec.parse(os.pread(descriptor, int(header["spec_bytes"]), HEADER.itemsize))
    if spec.header() != header or size != header["total_bytes"]:
        raise ValueError("its header and its size do not agree")
    return spec


def check_same(path: Path, found: TableSpec, expected: TableSpec) -> None:
    """Raises: ReplayError: a file's specification differs from the expected one; says how."""
    pairs = [(name, getattr(found, name), value) for name, value in vars(expected).items()
             if name != "starts"]  # fmt: skip
    if differences := [
        f"{name} {value}, expected {other}" for name, value, other in pairs if value != other
    ]:
        raise ReplayError(
            f"replay table {path} has another specification: {'; '.join(differences)}; give "
            "another file, or the specification that this one has"
        )
