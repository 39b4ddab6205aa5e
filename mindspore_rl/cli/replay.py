"""`msrl replay`: runs an asynchronous run again, as the plain loop that its log drives."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mindspore_rl.checking.table import print_rows
from mindspore_rl.cli.job_flags import add_trust
from mindspore_rl.cli.parser import add_command
from mindspore_rl.jobs.run_directory import check_trusted

HEAD = ("updates", "compared", "how far", "outcome")


def add(subparsers: Any) -> None:
    """Adds the subcommand."""
    text = (
        "run an asynchronous run again in this process, as the plain loop that its log of arrivals "
        "drives, and compare checkpoints and metrics"
    )
    parser = add_command(subparsers, "replay", replay, text)
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="run directory")
    add_trust(parser)


def replay(args: argparse.Namespace) -> int:
    """Runs `msrl replay`. Returns: the exit code, 1 if a checkpoint or a metric differs."""
    from mindspore_rl.checking import replayed  # noqa: PLC0415  (MindSpore)

    check_trusted(args.run_directory, args.trust)
    columns = (TextColumn("updates"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        found = replayed.replay(
            args.run_directory,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    rows = []
    saved = [one for one in found if one.name.startswith(replayed.PARAMETERS)]
    reported = [one for one in found if one not in saved]
    for one in saved:
        what = f"a checkpoint; most {one.name.removeprefix(replayed.PARAMETERS)}"
        rows.append((str(one.iteration), what, f"{one.far:.1e}", one.wrong or "equal"))
    if reported:
        worst = replayed.worst(reported)
        what = f"{len(reported)} lines of metrics; most {worst.name.removeprefix(replayed.METRIC)}"
        rows.append((str(worst.iteration), what, f"{worst.far:.1e}", worst.wrong or "equal"))
    print_rows(HEAD, ("updates", "how far"), rows)
    if wrong := sorted((one.iteration or 0, one.name) for one in found if one.wrong):
        update, name = wrong[0]
        far = [one.far for one in found if (one.iteration or 0) < update]
        print(
            f"the first that differs: {name} of update {update}; before it, all are within "
            f"{max(far, default=0.0):.1e}. A rounding error can change a draw by priority or the "
            "best action, and the runs part there"
        )
    return 1 if wrong else 0
