"""Reverb in the benchmark of replay tables, with the fastest of several settings of its client."""

import tempfile
import time

import replay_loop as loop
import reverb
import tensorflow as tf

SETTINGS = [(workers, in_flight) for workers in (1, 2, 4) for in_flight in (16, 128)]
args = loop.arguments()


def table(**more):
    """Return a table of whole trajectories; an item is one trajectory."""
    tensors = {name: tf.TensorSpec(*found) for name, found in loop.SHAPES.items()}
    draw = reverb.selectors.Prioritized(1.0) if args.weighted else reverb.selectors.Uniform()
    limit = reverb.rate_limiters.MinSize(1)
    fifo = reverb.selectors.Fifo()
    return reverb.Table("t", draw, fifo, loop.RECORDS, limit, signature=tensors, **more)


def fill(client, count=loop.RECORDS):
    """Insert trajectories."""
    columns, priorities = loop.trajectories(count), loop.priorities(count)
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for i in range(count):
            # One step contains a whole trajectory: fewer and larger chunks are faster.
            writer.append({name: column[i] for name, column in columns.items()})
            item = {name: history[-1] for name, history in writer.history.items()}
            writer.create_item("t", float(priorities[i]), item)
        writer.flush()


def reader(address, workers, in_flight):
    """Return a function that reads the next batch."""
    data = reverb.TrajectoryDataset.from_table_signature(
        address,
        "t",
        max_in_flight_samples_per_worker=in_flight,
        num_workers_per_iterator=workers,
    )
    batches = iter(data.batch(args.batch, drop_remainder=True).prefetch(1))
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
elif args.what == "read":
    address = args.table
    if not address:
        server = reverb.Server([table()])
        address = f"localhost:{server.port}"
        fill(reverb.Client(address))
    rates = {found: loop.rate(reader(address, *found), 0.5) for found in SETTINGS}
    best = max(rates, key=rates.get)
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
