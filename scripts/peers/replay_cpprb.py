"""cpprb in the benchmark of replay tables: one process owns the table and reads it.

With `--table fork`, a child of the process writes to its table.
"""

import multiprocessing
import time
from pathlib import Path

import cpprb
import numpy as np
import replay_loop as loop

args = loop.arguments()
columns = {
    name: {"shape": shape if len(shape) > 1 else (*shape, 1), "dtype": np.dtype(dtype)}
    for name, (shape, dtype) in loop.shapes(args.kind).items()
}
weighted = args.weighted or args.what == "update"
kind = cpprb.PrioritizedReplayBuffer if weighted else cpprb.ReplayBuffer
if args.table:
    kind = cpprb.MPReplayBuffer
where = {"mmap_prefix": f"{args.cold}/column"} if args.cold else {}
buffer = kind(args.records, columns, **where)
data = {name: x.reshape(len(x), *columns[name]["shape"]) for name, x in
        loop.records(args.kind, args.records).items()}  # fmt: skip
more = {"priorities": loop.priorities(args.records)} if weighted else {}
buffer.add(**data, **more)


def insert(i: int) -> None:
    """Insert a record."""
    buffer.add(**{name: x[i] for name, x in data.items()})


if args.table:
    write = multiprocessing.get_context("fork").Process(
        target=loop.write_for_ever, args=(insert,), daemon=True
    )
    write.start()
if args.what == "read" and args.cold:
    files = list(Path(args.cold).iterdir())
    loop.tell(loop.cold_rate(lambda: buffer.sample(args.batch), files, args.seconds))
elif args.what == "read":
    loop.tell(loop.rate(lambda: buffer.sample(args.batch), args.seconds))
elif args.what == "insert":
    start = time.perf_counter()
    for i in range(loop.RECORDS):
        insert(i)
    loop.tell(loop.RECORDS / (time.perf_counter() - start))
elif args.what == "update":
    indexes, values = np.arange(256), loop.priorities(256)
    loop.tell(loop.rate(lambda: buffer.update_priorities(indexes, values), args.seconds))
