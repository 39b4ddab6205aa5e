"""Runs a sharded table on ranks that are threads, or as a program of one MPI rank."""

import dataclasses
import sys
import threading
import time
from pathlib import Path

import numpy as np

from mindspore_rl.communication.inproc import InprocHub
from mindspore_rl.communication.mpi import MpiCommunicator
from mindspore_rl.replay.assignment import split
from mindspore_rl.replay.draws import Key, Mode
from mindspore_rl.replay.shards import ShardedTable
from mindspore_rl.replay.spec import TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing
from tests.replay.tables import COLUMNS, records

TAG = 7
LANES, EACH, LENGTH = 7, 9, 4


def whole_spec(weighted=False, length=LENGTH, **fields):
    return TableSpec(
        COLUMNS, capacity=EACH, lanes=LANES, length=length, weighted=weighted, **fields
    )


def lane_of(records_in_all):
    """Fills a lane with records that do not depend on its rank."""
    return np.arange(records_in_all) // (EACH + 2) % LANES


def skewed(records_in_all):
    """Returns priorities that give the first lanes most of the weight."""
    numbers = np.arange(records_in_all)
    return (1 + numbers % 5) * 2.0 ** -lane_of(records_in_all).astype(float)


def shard(spec, lanes, rank, path=None):
    """Makes a rank's lanes; each gets more records than its capacity, of several lengths."""
    table = Table.create(dataclasses.replace(spec, lanes=lanes[rank]), path)
    count = (EACH + 2) * spec.lanes
    first = sum(lanes[:rank])
    own = np.flatnonzero((lane_of(count) >= first) & (lane_of(count) < first + lanes[rank]))
    with writing(table, range(lanes[rank])) as writer:
        writer.insert(
            lane_of(count)[own] - first,
            records(own, spec.length),
            lengths=1 + own % spec.length,
            priorities=skewed(count)[own] if spec.weighted else None,
        )
    return table


class Deadline:
    def __init__(self, seconds=60.0):
        self.end = time.monotonic() + seconds

    def __call__(self):
        if time.monotonic() > self.end:
            raise TimeoutError("the others are not coming")


class Counting:
    """A communicator that counts what it sends: `{(target, bytes)}` in order."""

    def __init__(self, comm):
        self.comm, self.rank, self.size, self.sent = comm, comm.rank, comm.size, []
        self.receive, self.until, self.flush = comm.receive, comm.until, comm.flush

    def send(self, target, tag, data):
        self.sent.append((target, len(data)))
        self.comm.send(target, tag, data)


def on_ranks(lanes, job, spec, make=shard, seconds=60.0, hosts=None):
    """Returns the results of `job(sharded table, its communicator)` on as many ranks as `lanes`."""
    hub = InprocHub(len(lanes))
    results, errors = [None] * len(lanes), []
    numbers = hosts if hosts and len(hosts) == len(lanes) else range(len(lanes))
    tables = {rank: make(spec, lanes, rank) for rank in range(len(lanes)) if lanes[rank]}

    def run(rank):
        with hub.baton:
            try:
                comm = Counting(hub.communicator(rank))
                near = {one: x for one, x in tables.items() if numbers[one] == numbers[rank]}
                sharded = ShardedTable(spec, lanes, near, comm, TAG, Deadline(seconds), hosts)
                results[rank] = job(sharded, comm)
            except BaseException as error:  # noqa: BLE001  (raised again below)
                errors.append(error)
                hub.failed = True
                hub.baton.notify_all()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(lanes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def batches(sharded, quotas, rank, mode, steps=3, window=None):
    """Returns batches with updates in between, as arrays `[steps, N, ...]` by name."""
    out, found = sharded.spec.buffers(quotas[rank], window), []
    for step in range(steps):
        share = sharded.sample(Key(3, step), quotas, out, mode)
        weights = share.importance_weights(0.5)
        values = {name: column.copy() for name, column in out.items()}
        found.append({**vars(share), **values, "weights": weights})
        if sharded.spec.weighted:
            sharded.update(share.ids, share.positions % 7 + 0.5, 0.6)
    if quotas[rank]:
        assert len({len(one["ids"]) for one in found}) == 1
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


def drawn(spec, lanes, quotas, mode, hosts=None, make=shard, **how):
    """Returns the rows of all ranks of `batches`."""

    def job(sharded, comm):
        return batches(sharded, quotas, comm.rank, mode, **how)

    return union(on_ranks(lanes, job, spec, make, hosts=hosts))


def sampling(quotas, key, *mode, steps=1):
    """Returns a job that gives a rank's shares of batches, each with a copy of its columns."""

    def job(sharded, comm):
        out, found = sharded.spec.buffers(quotas[comm.rank]), []
        for step in range(steps):
            share = sharded.sample(Key(key.seed, key.step + step), quotas, out, *mode)
            found.append((share, {name: column.copy() for name, column in out.items()}))
        return found

    return job


def of(tables):
    """Returns a `make` that gives each rank its table of these."""
    return lambda _, __, rank: tables[rank]


def union(shares):
    """Joins the rows of all ranks by their places in the batch; checks that each occurs once."""
    merged = {}
    positions = np.concatenate([share["positions"] for share in shares], axis=1)
    order = np.argsort(positions, axis=1)
    for step in positions:
        assert sorted(step) == list(range(len(step)))
    for name in shares[0]:
        if name == "least":
            told = [share[name] for share in shares if share["ids"].size]
            for value in told:
                np.testing.assert_array_equal(value, told[0])
            merged[name] = told[0]
            continue
        rows = np.concatenate([share[name] for share in shares], axis=1)
        merged[name] = np.stack([rows[i][order[i]] for i in range(len(rows))])
    return merged


def main():
    """Runs one MPI rank: writes its batches in all modes to a folder."""
    comm, folder, hosts = MpiCommunicator(), Path(sys.argv[1]), [int(x) for x in sys.argv[2]]
    lanes, quotas = split(LANES, comm.size), split(24, comm.size)
    found = {}
    for mode in Mode:
        for weighted in (False, True):
            if weighted and mode == Mode.DISTINCT:
                continue
            name = f"{mode.name}-{weighted}-"
            spec, paths = whole_spec(weighted), [folder / f"{name}{r}" for r in range(comm.size)]
            tables = {comm.rank: shard(spec, lanes, comm.rank, paths[comm.rank])}
            # All have a table once they have exchanged messages about it.
            ShardedTable(spec, lanes, tables, comm, TAG, Deadline()).totals()
            for rank in range(comm.size):
                if rank != comm.rank and hosts[rank] == hosts[comm.rank]:
                    tables[rank] = Table.open(paths[rank])
            sharded = ShardedTable(spec, lanes, tables, comm, TAG, Deadline(), hosts)
            rows = batches(sharded, quotas, comm.rank, mode, window=2)
            found |= {name + column: value for column, value in rows.items()}
    comm.close()
    np.savez(folder / f"{comm.rank}.npz", **found)


if __name__ == "__main__":
    main()
