"""The replay of the row `apex-inserts` without acting and learning: two writers and a reader.

    .venv/bin/python scripts/peers/tables_alone.py --run-dir DIRECTORY

Each writer inserts a CartPole step of 8 environments at a time, the reader draws batches of 256 by
priority and sets their priorities, and a rate limiter lets 32 steps in for each batch. It runs
until it is terminated, and writes the metrics of a run.
"""

import argparse
import json
import multiprocessing
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mindspore_rl.replay import Column, RateLimiter, Sampler, Table, TableSpec, Wait, Writer

ENVS, BATCH, STEPS_PER_BATCH, WRITERS, CAPACITY = 8, 256, 32, 2, 100_000
SPEC = TableSpec(
    columns=(
        Column("obs", (4,), "float32"),
        Column("action", (), "int32"),
        Column("reward", (), "float32"),
        Column("next_obs", (4,), "float32"),
        Column("terminated", (), "float32"),
    ),
    capacity=CAPACITY // (WRITERS * ENVS),
    lanes=WRITERS * ENVS,
    weighted=True,
    sequential=True,
    rate_limiter=RateLimiter(10_000, BATCH / STEPS_PER_BATCH, 16 * BATCH),
)
PATIENT = Wait(60)


def write(path: Path, number: int) -> None:
    """Inserts steps into the lanes of a writer, until it is terminated."""
    lanes = np.arange(number * ENVS, (number + 1) * ENVS)
    step = {c.name: np.ones((ENVS, *c.shape), c.dtype) for c in SPEC.columns}
    with Table.open(path) as table, Writer(table, lanes, PATIENT) as writer:
        while True:
            writer.insert(lanes, step)


def main() -> None:
    """Reads, until it is terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    run = parser.parse_args().run_dir
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    run.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="msrl-replay-", dir="/dev/shm") as folder:
        path = Path(folder, "table")
        with Table.create(SPEC, path) as table, (run / "metrics.jsonl").open("w") as metrics:
            for number in range(WRITERS):
                multiprocessing.Process(target=write, args=(path, number), daemon=True).start()
            sampler, errors = Sampler(table, BATCH, wait=PATIENT), np.ones(BATCH, np.float32)
            batches, began, told = 0, time.monotonic(), 0.0
            while True:
                table.update(sampler.sample().ids, errors, 0.6)
                batches += 1
                if (now := time.monotonic() - began) > told + 0.1:
                    record = {"wall_s": now, "env_steps": batches * STEPS_PER_BATCH}
                    print(json.dumps(record), file=metrics, flush=True)
                    told = now


if __name__ == "__main__":
    main()
