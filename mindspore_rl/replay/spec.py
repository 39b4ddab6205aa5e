"""Specification of a replay table: columns, lanes, and the layout of its file."""

import dataclasses
import functools
import itertools
import json
import math
import numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindspore_rl.errors import ReplayError

MAGIC = b"MSRLTBL3"
ALIGNMENT = 64  # a cache line
PAGE = 4096
FANOUT = 16
MAX_WEIGHTED = 1 << 24  # of at most 2^40 each (index.h), which 64 bits can sum
MAX_BYTES = 1 << 62  # of a table, so that every place in it is an int64
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
"""A record among the first in an order, those with larger keys before."""
_NONE = np.empty((0, 0))


@dataclass(frozen=True)
class Column:
    """One kind of value of a step.

    Args:
        name: of the column.
        shape: of the value of one step.
        dtype: NumPy's name of its type, one of numbers or truth values.

    Raises:
        ReplayError: it is not so.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        sized = all(isinstance(x, numbers.Integral) and x >= 0 for x in self.shape)
        if not isinstance(self.name, str) or not sized or not _is_number(self.dtype):
            raise ReplayError(
                f"a column of a replay table is {self.name!r}, {self.shape!r}, {self.dtype!r}, "
                'expected a name, a shape and a type of numbers, such as "obs", (4,), "float32"'
            )

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
        min_records: that are inserted before anything is drawn.
        samples_per_insert: records that are drawn for each that is inserted after those; 0 for no
            limit. Who is ahead waits, a writer or a reader.
        slack: samples by which either may be ahead; with batches of N at least half of N +
            samples_per_insert.

    Raises:
        ReplayError: a number is out of its range, or two columns have one name.
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

    def __post_init__(self) -> None:
        ratio = self.samples_per_insert
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
            if not isinstance(value, int if whole else (int, float)) or not least <= value < 2**63:
                raise ReplayError(
                    f"{name} of a replay table is {value}, expected at least {least:g}"
                    f"{' and whole' if whole else ''}"
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
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise ReplayError(f"columns of a replay table are {names}, expected different names")
        # An empty value takes no memory, but NumPy knows no array of such extents either.
        steps = sum(math.prod(extent or 1 for extent in c.shape) for c in self.columns)
        size = self.lanes * self.capacity * (1 + 32 * self.length * (ALIGNMENT + steps))
        if size >= MAX_BYTES:
            raise ReplayError(f"a replay table does not fit: it would take {size:,} bytes")

    @property
    def limited(self) -> bool:
        """Whether draws and inserts are counted."""
        return self.samples_per_insert > 0 or self.min_records > 1

    def part(self, lanes: int) -> "TableSpec":
        """Of some of the lanes alone, with their share of the limit's numbers."""
        ratio, share = self.samples_per_insert, lanes / self.lanes
        # Each part's inserts may stop almost one short of what its slack allows.
        slack = self.slack * share + ratio * (1 - share)
        return dataclasses.replace(
            self,
            lanes=lanes,
            min_records=max(math.ceil(self.min_records * share), 1),
            slack=max(slack, (1 + ratio) / 2) if ratio else self.slack,
        )

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Where each column begins in a record, and where the record ends: `[columns + 1]`."""
        sizes = [-(-c.step_bytes * self.length // ALIGNMENT) * ALIGNMENT for c in self.columns]
        if self.length == 1:  # small ones without gaps
            sizes = [column.step_bytes for column in self.columns]
            sizes[-1] += -sum(sizes) % 8
        return np.array(list(itertools.accumulate(sizes, initial=0)), np.int64)

    def buffers(self, count: int, window: int | None = None) -> dict[str, np.ndarray]:
        """Arrays to gather records into, `[N, T, ...]` each, or `[N, ...]` of transitions."""
        steps = (window or self.length,) if self.length > 1 else ()
        return {c.name: np.empty((count, *steps, *c.shape), c.dtype) for c in self.columns}

    def header(self) -> np.ndarray:
        """The sizes and places of everything, as `table.cpp` reads them."""
        header = np.zeros((), HEADER)
        text = self.text()
        weights = -(-self.capacity // FANOUT) * FANOUT
        nodes, level = 0, weights
        while level > FANOUT:
            level = -(-(level // FANOUT) // FANOUT) * FANOUT
            nodes += level
        for name in set(HEADER.names or ()) & set(vars(self)):
            header[name] = getattr(self, name)
        header["magic"], header["spec_bytes"] = MAGIC, len(text)
        header["record_bytes"] = self.starts[-1]
        header["weights"], header["nodes"] = weights, nodes
        at = HEADER.itemsize + len(text)
        for name, size in (
            ("limit_offset", LIMIT.itemsize),
            ("lane_offset", self.lanes * LANE.itemsize),
            ("entry_offset", self.lanes * self.capacity * ENTRY.itemsize),
            ("weight_offset", self.lanes * weights * 8),
            ("tree_offset", self.lanes * nodes * (1 + self.weighted) * 8),
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
        """Of JSON. Raises: ValueError, ReplayError."""
        try:
            values = json.loads(text)
            del values["starts"]
            columns = tuple(Column(name, tuple(shape), dtype)
                            for name, shape, dtype in values["columns"])  # fmt: skip
            return TableSpec(**{**values, "columns": columns})
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"its specification cannot be read: {error!r}") from error


def _is_number(dtype: object) -> bool:
    """Whether it is NumPy's name of a type of numbers; others may hold addresses."""
    try:
        return isinstance(dtype, str) and np.dtype(dtype).kind in "biufc"
    except (TypeError, ValueError, SyntaxError):
        return False


def described(descriptor: int, more_bytes: int = 0) -> TableSpec:
    """What a file says that it holds.

    Raises:
        OSError, ValueError, ReplayError: it is none of ours, or not whole.
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
    """Raises: ReplayError: a file holds something else than what is expected; with what."""
    pairs = [(name, getattr(found, name), value) for name, value in vars(expected).items()
             if name != "starts"]  # fmt: skip
    if differences := [
        f"{name} {value}, expected {other}" for name, value, other in pairs if value != other
    ]:
        raise ReplayError(
            f"replay table {path} has another specification: {'; '.join(differences)}; give "
            "another file, or the specification that this one has"
        )


def check_columns(
    spec: TableSpec, columns: Mapping[str, np.ndarray], leading: tuple[int, ...]
) -> list[np.ndarray]:
    """Columns in the table's order, `[*leading, *shape]` each, contiguous. Raises: ReplayError."""
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


def check_buffers(spec: TableSpec, out: Mapping[str, np.ndarray], rows: int) -> list[np.ndarray]:
    """Arrays to copy records to, in the table's order, and what they hold. Raises: ReplayError."""
    arrays = [out.get(column.name, _NONE) for column in spec.columns]
    steps = (arrays[0].shape[1:2] or ("T",)) if spec.length > 1 else ()
    for column, array in zip(spec.columns, arrays, strict=True):
        right = array.shape[1:] == (*steps, *column.shape) and array.dtype == column.dtype
        right &= array.flags.c_contiguous and array.flags.writeable
        if not right or len(array) < rows:
            raise ReplayError(
                f"column {column.name} is to be copied to {array.dtype} {array.shape}, expected "
                f"{column.dtype} {(rows, *steps, *column.shape)}, contiguous and to be written; "
                "see Table.buffers"
            )
    return arrays


def check_priorities(spec: TableSpec, values: np.ndarray, any_table: bool = False) -> np.ndarray:
    """Priorities as the table has them: float64, finite, not negative. Raises: ReplayError."""
    values = np.ascontiguousarray(values, np.float64)
    if not (values >= 0).all() or not np.isfinite(values).all():
        raise ReplayError(f"priorities are {values}, expected finite numbers from 0 on")
    if not spec.weighted and not any_table:
        raise ReplayError(
            "a table that is not weighted gets priorities; make it with weighted=True"
        )
    return values
