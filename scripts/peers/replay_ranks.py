"""One MPI rank of our replay in its benchmark: all ranks read one table, sharded over them."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import replay_loop as loop

from mindspore_rl.communication.mpi import MpiCommunicator
from mindspore_rl.replay.assignment import split
from mindspore_rl.replay.draws import Key, Mode
from mindspore_rl.replay.shards import ShardedTable
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import Writer

LANES, TABLE_TAG, TAG = 4, 1, 2
COLUMNS = tuple(Column(name, shape[1:], dtype) for name, (shape, dtype) in loop.SHAPES.items())
WARM_UP = 16
PHASE = 8
"""Batches between two times at which the table may change, like a learner's updates."""


def waiting() -> None:
    """Keep waiting: the process that started this one has a deadline."""


def shard(spec: TableSpec, lanes: int, rank: int, weight: float, path: Path) -> Table:
    """Return a rank's lanes, full, with a given sum of priorities."""
    table = Table.create(spec.part(lanes), path)
    count = lanes * spec.capacity
    priorities = loop.priorities(count)
    with Writer(table) as writer:
        writer.insert(
            np.arange(count) % lanes,
            loop.trajectories(count, rank),
            priorities=priorities / priorities.sum() * weight if spec.weighted else None,
        )
    return table


def sent_bytes() -> int:
    """Return the bytes that this host has sent, with all headers; 0 without a network."""
    counter = Path("/sys/class/net/eth0/statistics/tx_bytes")
    return int(counter.read_text()) if counter.exists() else 0


def told(comm: MpiCommunicator, value: int) -> list[int]:
    """Return every rank's number."""
    mine, found = np.array([value]), []
    for rank in range(comm.size):
        if rank != comm.rank:
            comm.send(rank, TAG, mine.view(np.uint8))
    for rank in range(comm.size):
        number = mine.copy()
        if rank != comm.rank:
            comm.receive(rank, TAG, number.view(np.uint8), waiting)
        found.append(int(number[0]))
    return found


def timed(sharded: ShardedTable, read: Callable[[int], object], batches: range) -> float:
    """Return the seconds of some batches."""
    start = time.perf_counter()
    for first in batches[::PHASE]:
        with sharded.reading():
            for step in range(first, min(first + PHASE, batches.stop)):
                read(step)
    return time.perf_counter() - start


def main() -> None:
    """Read for a while; rank 0 prints the amount read and the bytes sent."""
    args = loop.arguments()
    comm = MpiCommunicator()
    lanes, quotas = split(LANES, comm.size), (args.batch,) * comm.size
    spec = TableSpec(COLUMNS, loop.RECORDS // LANES, LANES, loop.LENGTH, args.weighted)
    others = (1 - args.skew) / max(comm.size - 1, 1)
    weight = loop.RECORDS * ((others if comm.rank else args.skew) if args.skew else 1 / comm.size)
    folder = Path(args.table)
    hosts = range(comm.size) if args.hosts else (0,) * comm.size
    own = shard(spec, lanes[comm.rank], comm.rank, weight, folder / str(comm.rank))
    told(comm, 0)  # all tables exist
    tables = {
        rank: own if rank == comm.rank else Table.open(folder / str(rank), prefault=True)
        for rank in range(comm.size)
        if hosts[rank] == hosts[comm.rank]
    }
    sharded = ShardedTable(spec, lanes, tables, comm, TABLE_TAG, waiting, hosts)
    out = spec.buffers(args.batch)
    read = lambda step: sharded.sample(Key(1, step), quotas, out)  # noqa: E731
    timed(sharded, read, range(WARM_UP))
    least = timed(sharded, read, range(WARM_UP, 2 * WARM_UP)) / WARM_UP
    count = max(told(comm, int(args.seconds / least))[0], 1)
    steps = range(2 * WARM_UP, 2 * WARM_UP + count)
    before = sum(told(comm, sent_bytes()))
    seconds = timed(sharded, read, steps)
    told(comm, 0)  # the bytes are on their way until all ranks arrive here
    crossed = sum(told(comm, sent_bytes())) - before
    totals, moved, predicted = sharded.totals(), 0, 0
    for step in steps:
        draws = sharded.draw(Key(1, step), quotas, Mode.REPLACE, totals)
        sizes = [len(rows) for rows in sharded.messages(draws).values()]
        moved += sum(sizes)
        predicted += sum(sharded.message_bytes(size) for size in sizes)
    comm.close()
    if comm.rank == 0:
        found = {"rate": comm.size * count / seconds, "moved": moved / (sum(quotas) * count)}
        print(json.dumps({**found, "predicted": predicted, "crossed": crossed}), flush=True)


main()
