"""Reverb in the benchmark of replay tables, with the fastest of several settings of its client."""

import sys
import tempfile
import time

import replay_loop as loop
import reverb
import tensorflow as tf

AUTO = -1
args = loop.arguments()
IN_FLIGHT = (16, 128, args.batch, 3 * args.batch, 8 * args.batch)
SETTINGS = [(workers, in_flight) for workers in (AUTO, 1, 2, 4) for in_flight in IN_FLIGHT]


def table(**more):
    """Return a table of whole trajectories; an item is one trajectory."""
    steps = (None,) if args.kind == "lengths" else ()
    tensors = {
        name: tf.TensorSpec((*steps, *shape[len(steps) :]), dtype)
        for name, (shape, dtype) in loop.shapes(args.kind).items()
    }
    draw = reverb.selectors.Prioritized(1.0) if args.weighted else reverb.selectors.Uniform()
    limit = reverb.rate_limiters.MinSize(1)
    fifo = reverb.selectors.Fifo()
    return reverb.Table("t", draw, fifo, args.records, limit, signature=tensors, **more)


def fill(client, count=args.records):
    """Insert records."""
    columns, priorities = loop.records(args.kind, count), loop.priorities(count)
    steps = loop.lengths(count) if args.kind == "lengths" else [None] * count
    # The tensors of a writer have one shape.
    each = 1 if args.kind == "lengths" else 1000
    for start in range(0, count, each):
        with client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for i in range(start, min(start + each, count)):
                record = {name: x[i] for name, x in columns.items()}
                if steps[i]:
                    record = {name: value[: steps[i]] for name, value in record.items()}
                insert(writer, record, priorities[i])
            writer.flush()


def insert(writer, record, priority=1.0):
    """Insert a record."""
    # One step contains a whole trajectory: fewer and larger chunks are faster.
    writer.append(record)
    item = {name: history[-1] for name, history in writer.history.items()}
    writer.create_item("t", float(priority), item)


def reader(address, workers, in_flight):
    """Return a function that reads the next batch."""
    data = reverb.TrajectoryDataset.from_table_signature(
        address, "t", max_in_flight_samples_per_worker=in_flight, num_workers_per_iterator=workers
    )
    batch = data.padded_batch if args.kind == "lengths" else data.batch
    batches = iter(batch(args.batch, drop_remainder=True).prefetch(1))
    return lambda: next(batches)


if args.what == "insert":
    server = reverb.Server([table()])
    client = reverb.Client(f"localhost:{server.port}")
    fill(client, 100)
    start = time.perf_counter()
    fill(client)
    loop.tell(loop.RECORDS / (time.perf_counter() - start))
elif args.what == "serve":
    server = reverb.Server([table()])
    fill(reverb.Client(f"localhost:{server.port}"))
    loop.serve(f"localhost:{server.port}")
elif args.what == "write":
    data = loop.records(args.kind, args.records)
    with reverb.Client(args.table).trajectory_writer(num_keep_alive_refs=1) as writer:
        loop.write_for_ever(
            lambda i: (insert(writer, {name: x[i] for name, x in data.items()}), writer.flush())
        )
elif args.what == "read":
    address = args.table
    if not address:
        server = reverb.Server([table()])
        address = f"localhost:{server.port}"
        fill(reverb.Client(address))
    rates = {found: loop.rate(reader(address, *found), 0.5) for found in SETTINGS}
    best = max(rates, key=rates.get)
    print(f"fastest: {best[0]} workers, {best[1]} in flight", file=sys.stderr)
    loop.tell(loop.rate(reader(address, *best), args.seconds))
elif args.what == "update":
    args.weighted = True
    server = reverb.Server([table()])
    client = reverb.Client(f"localhost:{server.port}")
    fill(client)
    keys = [sample[0].info.key for sample in client.sample("t", 256)]
    values = loop.priorities(256)
    updates = dict(zip(keys, values.tolist(), strict=True))
    loop.tell(loop.rate(lambda: client.mutate_priorities("t", updates=updates), args.seconds))
elif args.what == "checkpoint":
    with tempfile.TemporaryDirectory() as folder:
        keeper = reverb.platform.checkpointers_lib.DefaultCheckpointer(path=folder)
        server = reverb.Server([table()], checkpointer=keeper)
        client = reverb.Client(f"localhost:{server.port}")
        fill(client)
        start = time.perf_counter()
        client.checkpoint()
        loop.tell(time.perf_counter() - start)
