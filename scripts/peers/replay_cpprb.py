"""cpprb in the benchmark of replay tables: one process owns the table and reads it."""

import time

import cpprb
import numpy as np
import replay_loop as loop

args = loop.arguments()
columns = {
    name: {"shape": shape if len(shape) > 1 else (*shape, 1), "dtype": np.dtype(dtype)}
    for name, (shape, dtype) in loop.SHAPES.items()
}
weighted = args.weighted or args.what == "update"
kind = cpprb.PrioritizedReplayBuffer if weighted else cpprb.ReplayBuffer
buffer = kind(loop.RECORDS, columns)
data = {name: x.reshape(len(x), *columns[name]["shape"]) for name, x in
        loop.trajectories(loop.RECORDS).items()}  # fmt: skip
more = {"priorities": loop.priorities(loop.RECORDS)} if weighted else {}
buffer.add(**data, **more)
if args.what == "read":
    loop.tell(loop.rate(lambda: buffer.sample(args.batch), args.seconds))
elif args.what == "insert":
    start = time.perf_counter()
    for i in range(loop.RECORDS):
        buffer.add(**{name: x[i] for name, x in data.items()})
    loop.tell(loop.RECORDS / (time.perf_counter() - start))
elif args.what == "update":
    indexes, values = np.arange(256), loop.priorities(256)
    loop.tell(loop.rate(lambda: buffer.update_priorities(indexes, values), args.seconds))
