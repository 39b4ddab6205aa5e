#!/usr/bin/env python3
"""Compares replay tables: ours, Reverb, cpprb and TorchRL, in turn, in virtual environments.

    bash scripts/setup_peers.sh reverb cpprb torchrl
    .venv/bin/python scripts/benchmark_replay.py
    .venv/bin/python scripts/benchmark_replay.py --only two --batch 64 --seconds 1 --repeats 1

Trajectories have 1000 steps, 104 KB; a rate counts every byte that is copied to a contiguous batch.
"one": the reading process owns the table. "two": another process owns it. "four": four processes
read it at once, and the rate is their sum. "ranks": the same with our table, sharded over four
ranks, which synchronise after every eighth batch, when it could change. "hosts": two such ranks on
two hosts (network namespaces, as root) with a link of 1 Gb/s (`tc tbf`), compared with the rate at
which the link could send all rows to one of them; skewed: one host has 70 % of the weights. If one
process reads, ours copies with one thread per core. Reverb uses the fastest of six settings of its
`TrajectoryDataset` (1, 2 or 4 workers, 16 or 128 samples in flight), found before each turn. Prints
medians with their ranges, and the ratio to each other library with its target. "select" has its
own table: the time to select 256 of 10^3 to 10^7 small records in ours, with every sampler.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import replay_jobs  # noqa: E402
import replay_loop as loop  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = {
    "ours": ROOT / ".venv",
    **{name: ROOT / ".peers" / name for name in ("reverb", "cpprb", "torchrl")},
}


@dataclass(frozen=True)
class Row:
    """A row of the benchmark.

    Attributes:
        name: the group, for `--only`.
        work: a description.
        arguments: those of each library's program; `readers` of them read another's table at once.
        targets: the smallest ratio of ours to another library's, of its reciprocal for seconds; 0
            for no target.
        unit: the unit of the result, and the factor from a program's rate to it.
        ranks: our ranks, instead of readers; each on its own host if there are `hosts`.
    """

    name: str
    work: str
    arguments: tuple[str, ...]
    targets: dict[str, float]
    unit: str
    scale: float = 1.0
    readers: int = 0
    ranks: int = 0
    hosts: int = 0


def rows(batches: list[int]) -> list[Row]:
    """Return all rows."""
    found = []
    for way in ("uniform", "prioritised"):
        more = ("--weighted",) if way == "prioritised" else ()
        one = {"reverb": 3.0, "cpprb": 1.0, **({} if more else {"torchrl": 0.0})}
        for batch in batches:
            read = ("read", "--batch", str(batch), *more)
            scale = batch * loop.BYTES / 1e9
            two = {"reverb": 10.0 if batch <= 64 else 8.0}
            work = f"{way}, batch {batch}"
            alone = (*read, "--threads", str(os.cpu_count()))
            found += [
                Row("one", work, alone, one, "GB/s", scale),
                Row("two", work, alone, two, "GB/s", scale, 1),
                Row("four", work, read, {"reverb": 15.0}, "GB/s", scale, 4),
                Row("ranks", work, read, {"reverb": 15.0}, "GB/s", scale, 4, 4),
            ]
            skewed = ("--skew", "0.7") if more else ()
            over_link = {"link": 2.0 if more else 5.0}
            work = f"skewed, batch {batch}" if more else work
            found.append(
                Row("hosts", work, (*read, *skewed), over_link, "GB/s", scale, ranks=2, hosts=2)
            )
    return [
        *found,
        Row(
            "insert",
            "one trajectory at a time",
            ("insert",),
            {"reverb": 1.0, "torchrl": 0.0},
            "records/s",
        ),
        Row("update", "256 priorities", ("update",), {"reverb": 1.0}, "updates/s"),
        Row("checkpoint", "104 MB", ("checkpoint",), {"reverb": 1.0}, "s"),
    ]


def run(library: str, row: Row, seconds: float, notes: list[str]) -> float:
    """Return the measurement of a library's program; it may add to the notes.

    Raises:
        SystemExit: the program failed; with its output.
    """
    if library == "link":
        return replay_jobs.link_rate()
    if library == "ours" and row.ranks:
        arguments = [*row.arguments, "--seconds", str(seconds)]
        told = replay_jobs.read(
            PYTHONS[library] / "bin" / "python", row.ranks, row.hosts, arguments
        )
        if row.hosts:
            notes.append(f"{row.name}, {row.work}: {replay_jobs.note(told)}")
        return told["rate"] * row.scale
    program = ROOT / "scripts" / "peers" / f"replay_{library}.py"
    command = [PYTHONS[library] / "bin" / "python", program]
    timing = ["--seconds", str(seconds)]
    if not row.readers:
        return _told([*command, *row.arguments, *timing]) * row.scale
    weighted = [word for word in row.arguments if word == "--weighted"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, "serve", *weighted],
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        where = server.stdout.readline().strip()
        read = [*command, *row.arguments, *timing, "--table", where]
        jobs = [
            subprocess.Popen(read, stdout=pipe, stderr=pipe, text=True) for _ in range(row.readers)
        ]
        try:
            return sum(_rate(*job.communicate()) for job in jobs) * row.scale
        finally:
            server.communicate()


def _told(command: list) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return _rate(done.stdout, done.stderr)


def _rate(out: str, err: str) -> float:
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(err)
    return json.loads(lines[-1])["rate"]


def main() -> int:
    """Run the benchmark. Returns: 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    groups = ("one", "two", "four", "ranks", "hosts", "insert", "update", "checkpoint", "select")
    parser.add_argument("--only", nargs="+", choices=groups, help="groups of rows")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each turn (default: 3)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    args = parser.parse_args()
    chosen = [row for row in rows(args.batch) if not args.only or row.name in args.only]
    libraries = [name for name, place in PYTHONS.items() if (place / "bin" / "python").exists()]
    notes = []
    if any(row.hosts for row in chosen):
        if reason := replay_jobs.why_not():
            notes.append(f"hosts: not measured, {reason}")
            chosen = [row for row in chosen if not row.hosts]
        else:
            libraries.append("link")
    print(f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, {args.repeats} turns", flush=True)
    if chosen:
        print("| table | work | " + " | ".join(libraries) + " | ratio (target) |")
        print("|---|---|" + "---|" * len(libraries) + "---|")
    missed = False
    for row in chosen:
        those = [name for name in libraries if name in ("ours", *row.targets)]
        values: dict[str, list[float]] = {name: [] for name in those}
        for _ in range(args.repeats):
            for name in those:
                values[name].append(run(name, row, args.seconds, notes))
                print(".", end="", file=sys.stderr, flush=True)
        missed |= _print(row, values, libraries)
    if notes:
        print("", *notes, sep="\n")
    if not args.only or "select" in args.only:
        print(flush=True)
        program = ROOT / "scripts" / "peers" / "replay_select.py"
        command = [PYTHONS["ours"] / "bin" / "python", program, "--repeats", str(args.repeats)]
        missed |= bool(subprocess.run(command, check=False).returncode)
    return 1 if missed else 0


def _print(row: Row, values: dict[str, list[float]], libraries: list[str]) -> bool:
    """Print a row. Returns: True if it misses a target."""
    show: Callable[[float], str] = lambda x: f"{x:,.2f}" if x < 100 else f"{x:,.0f}"  # noqa: E731
    middle = {name: statistics.median(found) for name, found in values.items()}
    cells = [
        f"{show(middle[name])} ({show(min(values[name]))}-{show(max(values[name]))}) {row.unit}"
        if name in middle
        else ""
        for name in libraries
    ]
    ratios, missed = [], False
    for name, target in row.targets.items():
        if name in middle:
            ratio = middle["ours"] / middle[name]
            ratio = 1 / ratio if row.unit == "s" else ratio
            missed |= ratio < target
            ratios.append(f"{name} {ratio:.1f} x" + (f" ({target:g})" if target else ""))
    print(f"| {row.name} | {row.work} | {' | '.join(cells)} | {', '.join(ratios)} |", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
