"""Our replay tables in the benchmark of replay tables."""

import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import replay_loop as loop

from mindspore_rl.replay.bindings import use_threads
from mindspore_rl.replay.draws import Key, sample
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import Writer

args = loop.arguments()
LANES = 4
COLUMNS = tuple(Column(name, shape[1:], dtype) for name, (shape, dtype) in loop.SHAPES.items())
SPEC = TableSpec(COLUMNS, loop.RECORDS // LANES, LANES, loop.LENGTH, args.weighted)
DATA = loop.trajectories(loop.RECORDS) if not args.table else {}
PRIORITIES = loop.priorities(loop.RECORDS)


def filled(spec: TableSpec = SPEC, path: Path | None = None) -> Table:
    """Return a table with all trajectories."""
    table = Table.create(spec, path)
    with Writer(table) as writer:
        given = PRIORITIES if spec.weighted else None
        writer.insert(np.arange(loop.RECORDS) % LANES, DATA, priorities=given)
    return table


if args.what == "insert":
    table = Table.create(SPEC)
    with Writer(table) as writer:
        start = time.perf_counter()
        for i in range(loop.RECORDS):
            writer.insert(np.array([i % LANES]), {name: x[i : i + 1] for name, x in DATA.items()})
        loop.tell(loop.RECORDS / (time.perf_counter() - start))
elif args.what == "serve":
    with tempfile.NamedTemporaryFile(prefix="msrl-replay-", dir="/dev/shm") as file:
        path = Path(f"{file.name}-table")
        try:
            filled(path=path)
            loop.serve(str(path))
        finally:
            path.unlink()
elif args.what == "read":
    use_threads(args.threads)
    table = Table.open(Path(args.table), prefault=True) if args.table else filled()
    out, steps = table.buffers(args.batch), itertools.count()

    def read() -> None:
        """Draw a batch and copy it."""
        whole = table.gather(sample(table, Key(1, next(steps)), args.batch).ids, out)
        assert whole.all()

    loop.tell(loop.rate(read, args.seconds))
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
