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
process reads, ours copies with one thread per core. Reverb uses the fastest of twenty settings of
its `TrajectoryDataset`, found before each turn: 1, 2, 4 or as many workers as it chooses itself,
and 16, 128, 1, 3 or 8 batches of samples in flight. Prints medians with their ranges, and the ratio
to each other library with its target. "others", in records: 10^6 transitions of 42 bytes (10^5 in
Reverb, which takes minutes for more), trajectories that another process reads while a third one
writes 500 a second, trajectories of equal numbers, which Reverb compresses, of 100 to 1000 steps,
and from a file that is not in memory (the first batches, again and again). "select" has its own
table: the time to select 256 of 10^3 to 10^7 small records in ours, with every sampler.
"standstill": how long training stands still for five checkpoints of a replay that fills at 14 MB/s,
in seconds a minute, compared with 2 % of the time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import study
from network_hosts import LAUNCHER, Network, why_not
from peers import replay_loop as loop
from study import ROOT, spread

PROGRAMS = ROOT / "scripts" / "peers"
PYTHONS = {
    "ours": ROOT / ".venv" / "bin" / "python",
    **{name: ROOT / ".peers" / name / "bin" / "python" for name in ("reverb", "cpprb", "torchrl")},
}
LINK_GBIT = 1.0
LINK, STANDSTILL = "link", "2 %"
BOUNDS = {LINK: LINK_GBIT / 8, STANDSTILL: 0.02 * 60}
"""Numbers that rows are compared with as with another library's, by the head of their column."""
SHAPE = ("tbf", "rate", f"{LINK_GBIT:g}gbit", "burst", "256kb", "latency", "50ms")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Row:
    """A row of the benchmark.

    Attributes:
        name: the group, for `--only`.
        work: a description.
        arguments: those of each library's program; `readers` of them read another's table at once.
        targets: the smallest ratio of ours to another library's or to a bound, of its reciprocal
            for seconds; 0 for no target.
        unit: the unit of the result, and the factor from a program's rate to it.
        ranks: our ranks, instead of readers; each on its own host if there are `hosts`.
        written: whether another process writes to the table.
        cold: whether the table is a file that is not in memory.
    """

    name: str
    work: str
    arguments: tuple[str, ...]
    targets: dict[str, float]
    unit: str = "GB/s"
    scale: float = 1.0
    readers: int = 0
    ranks: int = 0
    hosts: int = 0
    written: bool = False
    cold: bool = False


def rows(batches: list[int], filling: float) -> list[Row]:
    """Return all rows; a replay fills for so many seconds."""
    found = []
    for way in ("uniform", "prioritised"):
        more = ("--weighted",) if way == "prioritised" else ()
        one = {"reverb": 3.0, "cpprb": 1.0, **({} if more else {"torchrl": 0.0})}
        for batch in batches:
            read = ("read", "--batch", str(batch), *more)
            rate = {"scale": batch * loop.BYTES / 1e9}
            two, four = {"reverb": 10.0 if batch <= 64 else 8.0}, {"reverb": 15.0}
            work = f"{way}, batch {batch}"
            alone = (*read, "--threads", str(os.cpu_count()))
            found += [
                Row("one", work, alone, one, **rate),
                Row("two", work, alone, two, **rate, readers=1),
                Row("four", work, read, four, **rate, readers=4),
                Row("ranks", work, read, four, **rate, readers=4, ranks=4),
            ]
            skewed = (*read, "--skew", "0.7") if more else read
            work = f"skewed, batch {batch}" if more else work
            over_link = {LINK: 2.0 if more else 5.0}
            found.append(Row("hosts", work, skewed, over_link, **rate, ranks=2, hosts=2))
    insert = {"reverb": 1.0, "torchrl": 0.0}
    both, batch = {"reverb": 1.0, "cpprb": 1.0}, 64
    records: dict[str, Any] = {"unit": "records/s", "scale": batch}
    read = ("read", "--batch", str(batch))
    small = ("read", "--batch", "256", "--kind", "transitions")
    for way in ("uniform", "prioritised"):
        more = ("--weighted",) if way == "prioritised" else ()
        work = f"10^6 transitions, {way}, batch 256"
        found.append(Row("others", work, (*small, *more), both, "records/s", 256))
    return [
        *found,
        Row(
            "others",
            f"written meanwhile, batch {batch}",
            read,
            both,
            readers=1,
            written=True,
            **records,
        ),
        *(
            Row("others", f"{work}, batch {batch}", (*read, "--kind", kind), both, **records)
            for work, kind in (("equal numbers", "constant"), ("100 to 1000 steps", "lengths"))
        ),
        Row("others", f"cold file, batch {batch}", read, {"cpprb": 1.0}, cold=True, **records),
        Row("insert", "one trajectory at a time", ("insert",), insert, "records/s"),
        Row("update", "256 priorities", ("update",), {"reverb": 1.0}, "updates/s"),
        Row("checkpoint", "104 MB", ("checkpoint",), {"reverb": 1.0}, "s"),
        Row("standstill", f"{filling * 14e-3:.1f} GB", (str(filling),), {STANDSTILL: 1.0}, "s"),
    ]


def run(library: str, row: Row, seconds: float, notes: list[str]) -> float:
    """Return the measurement of a library's program; it may add to the notes.

    Raises:
        SystemExit: the program failed; with its output.
    """
    if library in BOUNDS:
        return BOUNDS[library]
    if row.name == "standstill":
        command = [str(PYTHONS[library]), str(PROGRAMS / "replay_standstill.py")]
        timeout_s = 2 * TIMEOUT_S + float(row.arguments[0])
        return _ended([*command, "--seconds", *row.arguments], None, timeout_s)["rate"]
    arguments = [*row.arguments, "--seconds", str(seconds)]
    if "transitions" in arguments:
        arguments += ["--records", "100000" if library == "reverb" else "1000000"]
    if library == "ours" and row.ranks:
        told = _ranks(row, arguments)
        if row.hosts:
            notes.append(f"{row.name}, {row.work}: {_note(told)}")
        return told["rate"] * row.scale
    command = [str(PYTHONS[library]), str(PROGRAMS / f"replay_{library}.py")]
    weighted = [word for word in row.arguments if word == "--weighted"]
    pipe, table = subprocess.PIPE, []
    with ExitStack() as stack:
        if row.cold:
            arguments += ["--cold", stack.enter_context(tempfile.TemporaryDirectory())]
        if row.readers and library == "cpprb":
            table = ["--table", "fork"]
        elif row.readers:
            server = stack.enter_context(
                subprocess.Popen(
                    [*command, "serve", *weighted],
                    stdin=pipe,
                    stdout=pipe,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(server.communicate)
            assert server.stdout is not None
            table = ["--table", server.stdout.readline().strip()]
            if row.written:
                writer = stack.enter_context(
                    subprocess.Popen([*command, "write", *table], stderr=subprocess.DEVNULL)
                )
                stack.callback(writer.kill)
        jobs = [
            subprocess.Popen([*command, *arguments, *table], stdout=pipe, stderr=pipe, text=True)
            for _ in range(max(row.readers, 1))
        ]
        return sum(_told(*job.communicate())["rate"] for job in jobs) * row.scale


def _ranks(row: Row, arguments: list[str]) -> dict[str, float]:
    """Return rank 0's report on a sharded table that all our ranks read."""
    python = PYTHONS["ours"]
    with tempfile.TemporaryDirectory(prefix="msrl-replay-", dir="/dev/shm") as folder:
        program = [str(python), str(PROGRAMS / "replay_ranks.py"), *arguments, "--table", folder]
        command = [str(python.with_name("mpiexec")), "-rmk", "user", "-n", str(row.ranks)]
        if not row.hosts:
            command += ["-launcher", "fork", "-iface", "lo", *program]
            return _ended(command, {**os.environ, "UCX_TLS": "self,sysv"})
        with Network(row.hosts) as network:
            for host in range(row.hosts):
                shape = ["tc", "qdisc", "add", "dev", "eth0", "root", *SHAPE]
                subprocess.run(network.command(host, shape), check=True)
            file = Path(folder) / "hosts"
            file.write_text("".join(f"{address}:1\n" for address in network.addresses))
            command += ["-launcher", "ssh", "-launcher-exec", str(LAUNCHER), "-f", str(file)]
            command += ["-localhost", network.addresses[0], "-iface", "eth0", *program, "--hosts"]
            return _ended(network.command(0, command), network.environment())


def _ended(
    command: list[str], environment: dict[str, str] | None, timeout_s: float = TIMEOUT_S
) -> dict[str, float]:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    return _told(done.stdout, done.stderr)


def _told(out: str, err: str) -> dict[str, float]:
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(out + err)
    return json.loads(lines[-1])


def _note(found: dict[str, float]) -> str:
    """Return the link's traffic, in words."""
    return (
        f"{found['moved']:.1%} of all rows cross, {found['predicted'] / 1e6:,.1f} MB as predicted, "
        f"{found['crossed'] / 1e6:,.1f} MB counted on the link with all headers "
        f"({found['crossed'] / max(found['predicted'], 1):.3f} x)"
    )


def main() -> int:
    """Run the benchmark. Returns: 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    groups = [*dict.fromkeys(row.name for row in rows([64], 1)), "select"]
    parser.add_argument("--only", nargs="+", choices=groups, help="groups of rows")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--seconds", type=float, default=3.0, help="time of each turn (default: 3)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    parser.add_argument(
        "--filling",
        type=float,
        default=300.0,
        help="seconds in which a replay fills (default: 300)",
    )
    args = parser.parse_args()
    chosen = [
        row for row in rows(args.batch, args.filling) if not args.only or row.name in args.only
    ]
    libraries = [name for name, python in PYTHONS.items() if python.exists()]
    notes = []
    if any(row.hosts for row in chosen) and (reason := why_not()):
        notes.append(f"hosts: not measured, {reason}")
        chosen = [row for row in chosen if not row.hosts]
    libraries += [name for name in BOUNDS if any(name in row.targets for row in chosen)]
    print(f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, {args.repeats} turns", flush=True)
    if chosen:
        print(study.table(("table", "work", *libraries, "ratio (target)"), ()))
    missed = False
    for row in chosen:
        values = {name: [] for name in libraries if name in ("ours", *row.targets)}
        for _ in range(args.repeats):
            for name, found in values.items():
                found.append(run(name, row, args.seconds, notes))
                print(".", end="", file=sys.stderr, flush=True)
        missed |= _print(row, values, libraries)
    if notes:
        print("", *notes, sep="\n")
    if not args.only or "select" in args.only:
        print(flush=True)
        command = [PYTHONS["ours"], PROGRAMS / "replay_select.py", "--repeats", str(args.repeats)]
        missed |= bool(subprocess.run(command, check=False).returncode)
    return 1 if missed else 0


def _print(row: Row, values: dict[str, list[float]], libraries: list[str]) -> bool:
    """Print a row. Returns: True if it misses a target."""
    cells = [
        f"{spread(values[name], _shown)} {row.unit}" if name in values else "" for name in libraries
    ]
    middle = {name: statistics.median(found) for name, found in values.items()}
    ratios, missed = [], False
    for name, target in row.targets.items():
        if name not in middle:
            continue
        ratio = middle["ours"] / middle[name]
        ratio = 1 / ratio if row.unit == "s" else ratio
        missed |= ratio < target
        ratios.append(f"{name} {ratio:.1f} x" + (f" ({target:g})" if target else ""))
    print(study.line((row.name, row.work, *cells, ", ".join(ratios))), flush=True)
    return missed


def _shown(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
