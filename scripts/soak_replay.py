#!/usr/bin/env python3
"""Runs two writers and two readers of one replay table at full speed, and kills some of them.

    .venv/bin/python scripts/soak_replay.py
    .venv/bin/python scripts/soak_replay.py --sequential --minutes 0.2 --kill-every 0.3

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
from mindspore_rl.replay.spec import ONE, Column, TableSpec
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.views import window_mask
from mindspore_rl.replay.writer import Writer

BATCH, WORDS = 64, 1600
FACTORS = np.random.default_rng(0).integers(0, 1 << 63, WORDS, np.uint64) * np.uint64(2)
FACTORS += np.uint64(1)  # odd: any changed word changes the checksum
STILL_S = 60.0
MAX_GROWTH_MB = 16.0
ROLES = ("writer", "reader", "writer", "reader")  # the last two are killed


def specification(sequential: bool) -> TableSpec:
    """Return that of a table of trajectories, or of single steps of the same size."""
    length = 1 if sequential else 100
    columns = (Column("data", (WORDS // length,), "uint64"), Column("checksum", (), "uint64"))
    return TableSpec(columns, 300, 2, length, weighted=True, sequential=sequential)


def checksums(data: np.ndarray) -> np.ndarray:
    """Return `[N]`, of data of several steps `[N, T, words]`, or of one `[N, words]`."""
    return (data.reshape(len(data), -1) * FACTORS).sum(1)


def batch(rng: np.random.Generator, lengths: np.ndarray, spec: TableSpec) -> dict[str, np.ndarray]:
    """Return records of several lengths, padded with zeros."""
    shape = spec.buffers(len(lengths))["data"].shape
    data, mask = rng.integers(0, 1 << 63, shape, np.uint64), np.ones(len(lengths), np.uint64)
    if spec.length > 1:
        mask = window_mask(lengths, np.zeros_like(lengths), spec.length)
    data *= mask[..., None].astype(np.uint64)
    return {"data": data, "checksum": (checksums(data) * mask.T).T}


def write(path: Path, lane: int, done: np.ndarray) -> None:
    """Write records forever, in batches and step by step."""
    rng = np.random.default_rng(os.getpid())
    made = []
    with Table.open(path) as table, Writer(table, [lane]) as writer:
        spec = table.spec
        for _ in range(20):
            lengths = rng.integers(1, spec.length + 1, 8)
            made.append((batch(rng, lengths, spec), lengths))
        for records, lengths in itertools.cycle(made):
            writer.insert(np.full(8, lane), records, lengths, rng.random(8))
            record = writer.begin(lane)
            for start in range(0, int(lengths[0]), 30):
                steps = slice(start, min(start + 30, int(lengths[0])))
                first = {n: x[0] if spec.length > 1 else x for n, x in records.items()}
                writer.append(record, {name: x[steps] for name, x in first.items()})
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
            right = checksums(out["data"]) == out["checksum"].T
            if table.spec.length > 1:
                mask = window_mask(drawn.lengths, np.zeros(BATCH, np.int32), table.spec.length)
                right = (right | ~mask.T).all(0)
            table.update(drawn.ids, rng.random(BATCH))
            done[0] += int(whole.sum())
            done[1] += int((whole & ~right).sum())
            done[2] += int((~whole).sum())


def sums_are_right(table: Table) -> bool:
    """Returns whether the next writer finds right sums, whenever the last one died."""
    spec = table.spec
    ones = np.ones(spec.capacity, np.int64)
    records = batch(np.random.default_rng(0), ones, spec)
    with Writer(table) as writer:
        for lane in range(spec.lanes):
            writer.insert(ones * lane, records, ones)
    return bool((table.totals() == spec.capacity * ONE).all())


def memory_mb(pid: int) -> float:
    """Return the private memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3


def soak(path: Path, spec: TableSpec, seconds: float, kill_every_s: float) -> int:
    """Run the soak and print its results. Returns: 1 if something was wrong."""
    context = multiprocessing.get_context("fork")
    # [role, (records, torn, overwritten)], each row of one process at a time
    done = np.memmap(path.with_suffix(".counts"), np.int64, "w+", shape=(len(ROLES), 3))

    def start(number: int) -> multiprocessing.process.BaseProcess:
        job = context.Process(target=run, args=(path, number), daemon=True)
        job.start()
        return job

    table = Table.create(spec, path)
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
    megabytes = spec.starts[-1] / 1e6
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
    parser.add_argument("--sequential", action="store_true", help="single steps without entries")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="msrl-soak-", dir="/dev/shm") as folder:
        spec = specification(args.sequential)
        return soak(Path(folder, "table"), spec, args.minutes * 60, args.kill_every)


if __name__ == "__main__":
    sys.exit(main())
