"""Measures the time to select a batch of 256 in our tables of 10^3 to 10^7 records of 64 bytes.

Compares it with the gather of a row, and with one random read in as much memory. Fails if the time
in the largest table is more than the target's multiple of that in the smallest.
"""

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import study

from mindspore_rl.platform import toolchain
from mindspore_rl.replay.draws import Key, Mode, Order, sample
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import Writer

BATCH, LANES, PIECE = 256, 4, 100_000
PLAIN, WEIGHTED, SEQUENTIAL, BOTH = (False, False), (True, False), (False, True), (True, True)
"""Whether a table has priorities, and whether it is sequential."""
WAYS: dict[str, tuple[Mode | Order, tuple[bool, bool], float]] = {
    "uniform": (Mode.REPLACE, PLAIN, 1.5),
    "uniform, sequential": (Mode.REPLACE, SEQUENTIAL, 1.5),
    "distinct": (Mode.DISTINCT, PLAIN, 0),
    "stratified": (Mode.STRATIFIED, PLAIN, 0),
    "prioritised": (Mode.REPLACE, WEIGHTED, 4.0),
    "prioritised, sequential": (Mode.REPLACE, BOTH, 4.0),
    "first in": (Order.FIFO, PLAIN, 0),
    "last in": (Order.LIFO, PLAIN, 0),
    "largest": (Order.LARGEST, WEIGHTED, 0),
}
"""The sampler, the table, and the target."""


def filled(records: int, weighted: bool, sequential: bool) -> Table:
    """Return a table of records of 64 bytes."""
    columns = (Column("obs", (16,), "float32"),)
    spec = TableSpec(columns, records // LANES, LANES, weighted=weighted, sequential=sequential)
    table = Table.create(spec)
    rng = np.random.default_rng(records)
    with Writer(table) as writer:
        for start in range(0, records, PIECE):
            count = min(PIECE, records - start)
            values = rng.exponential(size=count) + 1e-3 if weighted else None
            data = {"obs": np.zeros((count, 16), np.float32)}
            writer.insert(np.arange(count) % LANES, data, priorities=values)
    return table


class Size:
    """Measurements at one table size.

    Attributes:
        times: seconds by sampler, and of the gather of a row and of a random read, one per turn.
    """

    def __init__(self, records: int, read: Callable[[int, int], float]) -> None:
        self.records, self._read = records, read
        self._tables = {kind: filled(records, *kind) for _, kind, _ in WAYS.values()}
        self._out = self._tables[PLAIN].buffers(BATCH)
        self._step = 0
        self.times: dict[str, list[float]] = {}

    def turn(self, repeats: int) -> None:
        """Measure everything once, each as the median of many repeats."""
        for name, (mode, kind, _) in WAYS.items():
            table, spent, gather = self._tables[kind], [], []
            for _ in range(repeats):
                self._step += 1
                start = time.perf_counter()
                drawn = sample(table, Key(1, self._step), BATCH, mode)
                spent.append(time.perf_counter() - start)
                if name == "uniform":
                    start = time.perf_counter()
                    table.gather(drawn.ids, self._out)
                    gather.append((time.perf_counter() - start) / BATCH)
            self._add(name, statistics.median(spent))
            if gather:
                self._add("gather", statistics.median(gather))
        self._add("read", self._read(self.records, 1000) / 1e9)

    def _add(self, name: str, seconds: float) -> None:
        self.times.setdefault(name, []).append(seconds)


def main() -> int:
    """Run the measurements and print a table. Returns: 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--batches", type=int, default=500, help="batches a turn (default: 500)")
    parser.add_argument("--largest", type=int, default=7, help="exponent of 10 (default: 7)")
    args = parser.parse_args()
    source = Path(__file__).with_name("random_read.cpp")
    read = ctypes.CDLL(str(toolchain.library(source, {}))).random_read
    read.restype, read.argtypes = ctypes.c_double, [ctypes.c_int64, ctypes.c_int64]
    sizes = [Size(10**power, read) for power in range(3, args.largest + 1)]
    for _ in range(args.repeats):
        for size in sizes:
            size.turn(args.batches)
    lines, missed = [], False
    for name, (_, _, target) in WAYS.items():
        first, last = (statistics.median(sizes[i].times[name]) for i in (0, -1))
        missed |= bool(target) and last / first > target
        goal = f" ({target:g})" if target else ""
        cells = (study.spread(size.times[name], lambda s: f"{s * 1e6:.0f}") for size in sizes)
        lines.append((f"{name}, us", *cells, f"{last / first:.1f} x{goal}"))
    for name, words in (("gather", "gather, ns a row"), ("read", "a random read, ns")):
        cells = (study.spread(size.times[name], lambda s: f"{s * 1e9:.0f}") for size in sizes)
        lines.append((words, *cells, ""))
    powers = (f"10^{len(str(size.records)) - 1}" for size in sizes)
    print(study.table(("select 256 of", *powers, "largest / smallest (target)"), lines))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
