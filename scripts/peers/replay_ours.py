"""Our replay tables in the benchmark of replay tables."""

import itertools
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import replay_loop as loop

from mindspore_rl.replay.bindings import use_threads
from mindspore_rl.replay.draws import Key, sample
from mindspore_rl.replay.sampler import Sampler
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import Writer

args = loop.arguments()
LANES = 4
STEPS = 1 if args.kind == "transitions" else loop.LENGTH
COLUMNS = tuple(
    Column(name, shape[STEPS > 1 :], dtype)
    for name, (shape, dtype) in loop.shapes(args.kind).items()
)
SPEC = TableSpec(COLUMNS, args.records // LANES, LANES, STEPS, args.weighted, sequential=STEPS == 1)
WRITES = args.what == "write"
DATA = loop.records(args.kind, args.records) if WRITES or not args.table else {}
PRIORITIES = loop.priorities(args.records)


def filled(spec: TableSpec = SPEC, path: Path | None = None) -> Table:
    """Return a table with all trajectories."""
    table = Table.create(spec, path)
    with Writer(table) as writer:
        given = PRIORITIES if spec.weighted else None
        steps = loop.lengths(args.records) if args.kind == "lengths" else None
        writer.insert(np.arange(args.records) % LANES, DATA, steps, priorities=given)
    return table


def insert(writer: Writer, i: int) -> None:
    """Insert a record."""
    writer.insert(np.array([i % LANES]), {name: x[i : i + 1] for name, x in DATA.items()})


if args.what == "insert":
    table = Table.create(SPEC)
    with Writer(table) as writer:
        start = time.perf_counter()
        for i in range(loop.RECORDS):
            insert(writer, i)
        loop.tell(loop.RECORDS / (time.perf_counter() - start))
elif WRITES:
    with Writer(Table.open(Path(args.table), prefault=True)) as writer:
        loop.write_for_ever(lambda i: insert(writer, i))
elif args.what == "serve":
    with tempfile.NamedTemporaryFile(prefix="msrl-replay-", dir="/dev/shm") as file:
        path = Path(f"{file.name}-table")
        try:
            filled(path=path)
            loop.serve(str(path))
        finally:
            path.unlink()
elif args.what == "read" and args.cold:
    path = Path(args.cold, "table")
    filled(path=path).close()
    table = Table.open(path)
    out, keys = table.buffers(args.batch), map(partial(Key, 1), itertools.count())
    first = np.zeros(args.batch, np.int32)
    following: list[np.ndarray] = []

    def announced() -> None:
        """Announce the batch after the next one, and copy the next one."""
        while len(following) < 2:
            following.append(sample(table, next(keys), args.batch).ids)
            table.will_need(following[-1], first, STEPS)
        assert table.gather(following.pop(0), out).all()

    loop.tell(loop.cold_rate(announced, [path], args.seconds))
elif args.what == "read":
    use_threads(args.threads)
    table = Table.open(Path(args.table), prefault=True) if args.table else filled()
    loop.tell(loop.rate(Sampler(table, args.batch).sample, args.seconds))
elif args.what == "update":
    table = filled(TableSpec(COLUMNS, SPEC.capacity, LANES, loop.LENGTH, weighted=True))
    ids = sample(table, Key(1, 0), 256).ids
    loop.tell(loop.rate(lambda: table.update(ids, PRIORITIES[:256], 0.6), args.seconds))
elif args.what == "checkpoint":
    with tempfile.TemporaryDirectory() as folder:
        table = filled()
        start = time.perf_counter()
        table.save(Path(folder, "table"))
        loop.tell(time.perf_counter() - start)
