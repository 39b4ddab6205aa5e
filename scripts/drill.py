#!/usr/bin/env python3
"""Injects faults into jobs, and writes a table of their outcomes.

    .venv/bin/python scripts/drill.py --minutes 60 --soak --output table.md    (all of it)
    .venv/bin/python scripts/drill.py --only kills --kills 10 --seed 3
    .venv/bin/python scripts/drill.py --only disk two environments limits neighbours network
    .venv/bin/python scripts/drill.py --only soak --minutes 60
    .venv/bin/python scripts/drill.py --only ports              (foreign clients at every port)

Sends SIGKILL, SIGSTOP and SIGTERM to any process of a job (`msrl train`, coordinator, reaper,
mpiexec, proxy, rank, MindSpore's scheduler), at random moments, under every policy. If a job loses
its coordinator or `msrl train`, the drill resumes it. As root, jobs have their own /dev/shm and
/tmp; otherwise run no other job at the same time.

The folder of a failed case is kept and named in the table. Exit code 1: a promise was broken.
"""

import argparse
import contextlib
import itertools
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.chaos import neighbours, plans, ports, strikes  # noqa: E402 (needs the project)
from tests.chaos.cases import run_part  # noqa: E402
from tests.chaos.jobs import Broken, Outcome, Place, private_mounts, public_again  # noqa: E402
from tests.chaos.soak import Soak  # noqa: E402

SMALL = {**neighbours.PARTS, "ports": ports.CASES}
PARTS = (*SMALL, "kills", "soak")
ASKED_FOR = ("ports", "soak")
HEADER = """{machine}, {minutes:.0f} minutes, {strikes} kills and stops, {broken} promises
broken. Made by

```bash
{command}
```

| part | tried | came | as promised |
|---|---|---|---|
"""


def main() -> int:
    """Runs the drill. Returns: 1 if a promise was broken, 130 if it was interrupted."""
    args = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in a shell's background jobs
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` has it ignored, by all jobs too
    folder = Path(tempfile.mkdtemp(prefix="drill-", dir=args.folder)).resolve()
    private = private_mounts(folder)
    place = Place(folder, folder / "cache")
    began = time.monotonic()
    cases: list[Outcome] = []
    if not private:
        why = "no mounts are allowed here, so leftovers in /dev/shm and /tmp may be another job's"
        print(f"drill: {why}", file=sys.stderr)
    struck: list[strikes.Struck] = []
    done = False
    try:
        with _telling() as tell:
            _parts(args, place, cases, struck, tell, began)
        done = True
    except KeyboardInterrupt:
        print("drill: interrupted", file=sys.stderr)
        done = True
        return 130
    finally:
        place.kill()
        cases += strikes.rows(struck)
        broken = [case for case in cases if case.good is False]
        text = table(cases, args, (time.monotonic() - began) / 60, struck)
        print(text, end="")
        if args.output:
            args.output.write(text)
            args.output.close()
        if private:
            public_again()
        if done and not broken:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if broken else 0


def _parts(
    args: argparse.Namespace,
    place: Place,
    cases: list[Outcome],
    struck: list[strikes.Struck],
    tell: Callable,
    began: float,
) -> None:
    """Runs the selected parts; appends the outcomes to `cases` and `struck`."""
    ends = began + 60 * args.minutes if args.minutes else None
    soak, problems = None, []
    if "soak" in args.only:
        seconds = 60 * args.minutes if args.minutes else 120.0
        soak = Soak(place, seconds)
        watcher = threading.Thread(
            target=_watch, args=(soak, (ends or began + seconds) - 30.0, problems), daemon=True
        )
        watcher.start()
    beside = place.folder / "beside"
    others = place if soak is None else Place(beside, beside / "cache")
    try:
        others.folder.mkdir(exist_ok=True)
        for part, which in SMALL.items():
            if part in args.only:
                cases.extend(run_part(part, which, others, tell))
        if "kills" in args.only:
            stop = None if ends is None else ends - args.reserve
            sent = _strike_at_random(args, stop, others, struck, tell)
            if sent < args.kills:
                cases.append(Outcome("kills", f"{args.kills} of them", f"only {sent}", False))
    finally:
        others.kill()
    if soak is not None:
        tell("soak")
        watcher.join()
        try:
            if problems:
                raise problems[0]
            cases += soak.finish()
        except Broken as error:
            cases.append(Outcome("soak", "two workers", f"{error} ({soak.job.folder})", False))


def _strike_at_random(
    args: argparse.Namespace,
    stop: float | None,
    place: Place,
    struck: list[strikes.Struck],
    tell: Callable,
) -> int:
    """Sends signals to one job after another. Returns: how many."""
    works = [w for w in strikes.WORKS if not args.policies or w.name in args.policies]
    plan = plans.AtRandom(random.Random(args.seed), args.kills, stop, args.deadline)
    struggle = strikes.Struggle(place, args.deadline)
    for work in itertools.cycle(works):
        if plan.over:
            break
        tell(f"kills: {work.name}, {plan.counts.total()} until now")
        struck.append(strikes.Struck(work, []))
        struggle.one(work, plan, struck[-1])
    return plan.counts.total()


def _watch(soak: Soak, until_s: float, problems: list[Broken]) -> None:
    try:
        soak.watch(until_s)
    except Broken as error:
        problems.append(error)


def table(
    cases: list[Outcome], args: argparse.Namespace, minutes: float, struck: list[strikes.Struck]
) -> str:
    """Returns the table as Markdown, as docs/guarantees.md contains it."""
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("mindspore", "mpich", "numpy"))
    header = HEADER.format(
        machine=f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, {versions}",
        minutes=minutes,
        strikes=sum(len(job.strikes) for job in struck),
        broken=sum(case.good is False for case in cases),
        command=f"python scripts/drill.py {' '.join(args.words)}".strip(),
    )
    lines = []
    for case in cases:
        good = {True: "yes", False: "**no**", None: ""}[case.good]
        cells = (case.part, case.tried, case.came, good)
        lines.append("| " + " | ".join(" ".join(c.replace("|", "\\|").split()) for c in cells))
    return header + "".join(f"{line} |\n" for line in lines)


@contextlib.contextmanager
def _telling():
    """Context: gives a function that shows the current case."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")

        def tell(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                print(f"drill: {text}", file=sys.stderr, flush=True)

        yield tell


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, help="parts (default: all but ports and soak)"
    )
    parser.add_argument("--minutes", type=float, help="of it all; kills take what is left")
    parser.add_argument("--kills", type=int, help="at least so many (default: 60, or --minutes)")
    parser.add_argument(
        "--policies", nargs="+", choices=[work.name for work in strikes.WORKS], help="of kills"
    )
    parser.add_argument("--soak", action="store_true", help="train beside the other parts")
    parser.add_argument(
        "--deadline",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="--timeout of struck jobs; stops last a little longer (default: 20)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the processes")
    parser.add_argument("--folder", type=Path, help="for everything (default: of temporary files)")
    parser.add_argument("--output", type=argparse.FileType("w"), help="file of the table")
    parser.add_argument(
        "--reserve",
        type=float,
        default=90.0,
        metavar="SECONDS",
        help="of --minutes, for the last struck job to come to its end (default: 90)",
    )
    args = parser.parse_args()
    args.words = sys.argv[1:]
    if args.kills is None:
        args.kills = 0 if args.minutes else 60
    args.only = args.only or [part for part in PARTS if part not in ASKED_FOR]
    if args.soak:
        args.only.append("soak")
    return args


if __name__ == "__main__":
    sys.exit(main())
