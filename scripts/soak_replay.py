#!/usr/bin/env python3
"""Runs two writers and two readers of one replay table at full speed, and kills some of them.

    .venv/bin/python scripts/soak_replay.py
    .venv/bin/python scripts/soak_replay.py --minutes 0.2 --kill-every 0.3

Each record contains a checksum, which readers verify. One writer and one reader live throughout.
A random one of the other two is killed (kill -9) again and again, at any moment, and restarted.
Prints the records written and read, the torn records, the memory growth of the two that live, and
whether any process made no progress. Fails if a record was torn, a process made no progress, memory
grew by more than 16 MB, or the sums of weights are wrong at the end.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mindspore_rl.replay.draws import Key, Mode, Order, sample
from mindspore_rl.replay.rate_limiter import Wait
from mindspore_rl.replay.spec import Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.views import window_mask
from mindspore_rl.replay.weights import ONE
from mindspore_rl.replay.writer import Writer

LENGTH, BATCH = 100, 64
COLUMNS = (Column("data", (16,), "uint64"), Column("checksum", (), "uint64"))
SPEC = TableSpec(COLUMNS, capacity=300, lanes=2, length=LENGTH, weighted=True)
FACTORS = np.random.default_rng(0).integers(0, 1 << 63, (LENGTH, 16), np.uint64) * np.uint64(2)
FACTORS += np.uint64(1)  # odd: any changed word changes the checksum
STILL_S = 60.0
MAX_GROWTH_MB = 16.0
ROLES = ("writer", "reader", "writer", "reader")  # the last two are killed


def checksums(data: np.ndarray) -> np.ndarray:
    """Return `[N]`, of data `[N, T, 16]`."""
    return (data * FACTORS[: data.shape[1]]).sum((1, 2))


def batch(rng: np.random.Generator, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Return records of several lengths, padded with zeros."""
    mask = window_mask(lengths, np.zeros_like(lengths), LENGTH)
    data = rng.integers(0, 1 << 63, (len(lengths), LENGTH, 16), np.uint64) * mask[..., None]
    return {"data": data, "checksum": checksums(data)[:, None] * mask}


def write(path: Path, lane: int, done: np.ndarray) -> None:
    """Write records forever, in batches and step by step."""
    rng = np.random.default_rng(os.getpid())
    made = []
    for _ in range(20):
        lengths = rng.integers(1, LENGTH + 1, 8)
        made.append((batch(rng, lengths), lengths))
    with Table.open(path) as table, Writer(table, [lane]) as writer:
        for records, lengths in itertools.cycle(made):
            writer.insert(np.full(8, lane), records, lengths, rng.random(8))
            record = writer.begin(lane)
            for start in range(0, int(lengths[0]), 30):
                steps = slice(start, min(start + 30, int(lengths[0])))
                writer.append(record, {name: x[0, steps] for name, x in records.items()})
            writer.commit(record, rng.random())
            done[0] += 9


def read(path: Path, number: int, done: np.ndarray) -> None:
    """Read records forever, with every sampler, and update their priorities."""
    rng = np.random.default_rng(os.getpid())
    ways = (Mode.REPLACE, Mode.STRATIFIED, Order.FIFO, Order.LIFO, Order.LARGEST)
    with Table.open(path) as table:
        out = table.buffers(BATCH)
        for step in itertools.count():
            drawn = sample(table, Key(number, step), BATCH, ways[step % len(ways)], Wait(STILL_S))
            whole = table.gather(drawn.ids, out)
            mask = window_mask(drawn.lengths, np.zeros(BATCH, np.int32), LENGTH)
            right = (out["checksum"] == checksums(out["data"])[:, None] * mask).all(1)
            table.update(drawn.ids, rng.random(BATCH))
            done[0] += int(whole.sum())
            done[1] += int((whole & ~right).sum())
            done[2] += int((~whole).sum())


def sums_are_right(table: Table) -> bool:
    """Returns whether the next writer finds right sums, whenever the last one died."""
    records = batch(np.random.default_rng(0), np.ones(SPEC.capacity, np.int64))
    with Writer(table) as writer:
        for lane in range(SPEC.lanes):
            writer.insert(np.full(SPEC.capacity, lane), records, np.ones(SPEC.capacity, np.int64))
    return bool((table.totals() == SPEC.capacity * ONE).all())


def memory_mb(pid: int) -> float:
    """Return the private memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3


def soak(path: Path, seconds: float, kill_every_s: float) -> int:
    """Run the soak and print its results. Returns: 1 if something was wrong."""
    context = multiprocessing.get_context("fork")
    # [role, (records, torn, overwritten)], each row of one process at a time
    done = np.memmap(path.with_suffix(".counts"), np.int64, "w+", shape=(len(ROLES), 3))

    def start(number: int) -> multiprocessing.process.BaseProcess:
        job = context.Process(target=run, args=(path, number), daemon=True)
        job.start()
        return job

    table = Table.create(SPEC, path)
    jobs = [start(number) for number in range(len(ROLES))]
    began, kills, wrong = time.monotonic(), 0, []
    first: list[float] = []
    try:
        while not wrong and time.monotonic() < began + seconds:
            before, since = done[:, 0].copy(), time.monotonic()
            time.sleep(random.uniform(0.5, 1.5) * kill_every_s)
            while (done[:, 0] == before).any() and not wrong:
                time.sleep(0.05)
                still = [f"{ROLES[i]} {i}" for i in np.flatnonzero(done[:, 0] == before)]
                dead = [f"{ROLES[i]} {i}" for i in range(len(ROLES)) if not jobs[i].is_alive()]
                if dead or time.monotonic() > since + STILL_S:
                    wrong.append(f"{', '.join(dead)} died; {', '.join(still)} stood still")
            if not first and time.monotonic() > began + seconds / 5:
                first = [memory_mb(job.pid) for job in jobs[:2]]
                print(f"{ROLES[0]} and {ROLES[1]} have {first} MB", flush=True)
            victim = random.choice((2, 3))
            jobs[victim].kill()
            jobs[victim].join()
            jobs[victim] = start(victim)
            kills += 1
        grown = [memory_mb(job.pid) - mb for job, mb in zip(jobs, first, strict=False)]
    finally:
        for job in jobs:
            job.kill()
            job.join()
    if not sums_are_right(table):
        wrong.append("sums are not those of the weights")
    table.close()
    spent = time.monotonic() - began
    records, torn, overwritten = (done[:, i] for i in range(3))
    megabytes = SPEC.starts[-1] / 1e6
    for i, role in enumerate(ROLES):
        rate = records[i] / spent
        print(f"{role} {i}: {rate:,.0f} records/s, {rate * megabytes:,.0f} MB/s")
    print(f"{spent:.0f} s, {kills} kills, {records[::2].sum():,} records written")
    print(f"{records[1::2].sum():,} read, {overwritten.sum():,} overwritten before they were read")
    print(f"torn records: {torn.sum()}")
    print(f"growth of memory: {', '.join(f'{mb:.1f}' for mb in grown)} MB")
    if torn.sum():
        wrong.append("torn records")
    if not grown or max(grown) > MAX_GROWTH_MB:
        wrong.append("memory grows")
    print("; ".join(wrong) or "all is well")
    return 1 if wrong else 0


def run(path: Path, number: int) -> None:
    """Run a role until the process is killed."""
    done = np.memmap(path.with_suffix(".counts"), np.int64, "r+", shape=(len(ROLES), 3))[number]
    (write if ROLES[number] == "writer" else read)(path, number // 2, done)


def main() -> int:
    """Run the soak. Returns: 1 if something was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="(default: 10)")
    parser.add_argument("--kill-every", type=float, default=2.0, help="seconds (default: 2)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="msrl-soak-", dir="/dev/shm") as folder:
        return soak(Path(folder, "table"), args.minutes * 60, args.kill_every)


if __name__ == "__main__":
    sys.exit(main())
