"""`msrl dataset`: makes data sets from files and from runs, and prints their contents."""

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl.environments import registry
from mindspore_rl.errors import MsrlError, ReplayError
from mindspore_rl.jobs.run_directory import check_trusted
from mindspore_rl.plan.plan import load_plan
from mindspore_rl.platform.stdio import say

BARS, BAR_WIDTH = 10, 40


def import_file(args: argparse.Namespace) -> int:
    """Runs `msrl dataset import`."""
    from mindspore_rl.datasets.build import Part, check_place  # noqa: PLC0415
    from mindspore_rl.datasets.dataset import About  # noqa: PLC0415
    from mindspore_rl.datasets.episodes import Bounded, of_environment  # noqa: PLC0415
    from mindspore_rl.datasets.sources import EpisodeFile  # noqa: PLC0415

    check_place(args.dataset, args.append)
    file = EpisodeFile(args.source)
    about = About(file.environment, file.action_space)
    if args.env:
        spec = registry.spec(args.env)
        if file.columns != of_environment(spec):
            raise ReplayError(
                f"{args.source} has {_listed(file.columns)}, and {args.env} has "
                f"{_listed(of_environment(spec))}: name the --env that it is of"
            )
        about = About(args.env, spec.action_space)
    if file.open_end:
        say("nothing says how the last episode ended: it is truncated")
    bounded = Bounded(about.action_space)
    shown = _shown(bounded.of(file.episodes(about.action_space)), len(file.lengths))
    _write(args, file.columns, about, [Part(str(args.source), file.lengths, shown)])
    if told := bounded.told():
        say(f"{args.source}: {told}")
    return 0


def record(args: argparse.Namespace) -> int:
    """Runs `msrl dataset record`."""
    from mindspore_rl.datasets.build import Part, check_place  # noqa: PLC0415
    from mindspore_rl.datasets.dataset import About  # noqa: PLC0415
    from mindspore_rl.datasets.episodes import Recorder, of_environment  # noqa: PLC0415
    from mindspore_rl.trained.evaluate import evaluate  # noqa: PLC0415

    check_place(args.dataset, args.append)
    for run in args.runs:
        check_trusted(run, args.trust)
    names = [load_plan(run).environment for run in args.runs]
    if len(set(names)) > 1:
        raise MsrlError(f"the runs are of {', '.join(set(names))}, expected one environment")
    spec = registry.spec(names[0])
    parts = []
    for run in args.runs:
        for iteration in args.checkpoint or [_newest(run)]:
            recorder = Recorder(spec.action_space)
            played = (run, args.episodes, args.seed, not args.greedy)
            returns = evaluate(*played, which=str(iteration), watch=recorder.watch)
            episodes = recorder.episodes()
            name = f"{run}, iteration {iteration}, {'greedy' if args.greedy else 'sampled'}"
            parts.append(Part(name, [len(one.reward) for one in episodes], episodes))
            mean = sum(returns) / len(returns)
            say(f"{name}: return {mean:.1f}")
    _write(args, of_environment(spec), About(names[0], spec.action_space), parts)
    return 0


def show(args: argparse.Namespace) -> int:
    """Runs `msrl dataset show`."""
    from mindspore_rl.datasets.dataset import Dataset  # noqa: PLC0415

    with Dataset(args.dataset) as dataset:
        about = dataset.about
        size = args.dataset.stat().st_size / 1e6
        print(f"{about.environment or 'environment not known'}, {about.action_space}")
        print(
            f"{about.episodes:,} episodes of {about.steps:,} steps, in {len(dataset):,} records of "
            f"at most {dataset.length:,} steps, {size:,.1f} MB\n"
        )
        columns = dataset.table.spec.columns
        _print_table([("column", "type", "shape"), *((c.name, c.dtype, c.shape) for c in columns)])
        head = ("source", "episodes", "steps", "mean return", "min", "max")
        rows: list[Any] = [dataclasses.astuple(source) for source in about.sources]
        _print_table([head, *rows])
        _print_returns(dataset.returns())
    return 0


def _write(args: argparse.Namespace, columns: Any, about: Any, parts: list[Any]) -> None:
    from mindspore_rl.datasets.build import write  # noqa: PLC0415

    length = write(args.dataset, columns, about, parts, args.length, args.append)
    cut = sum(steps > length for part in parts for steps in part.lengths)
    if cut:
        say(
            f"{cut} episodes are longer than a record's {length} steps, and were cut into "
            "consecutive records (see --length)"
        )
    episodes = sum(len(part.lengths) for part in parts)
    steps = sum(sum(part.lengths) for part in parts)
    print(f"{args.dataset}: {episodes:,} episodes, {steps:,} steps")


def _newest(run: Path) -> int:
    from mindspore_rl.runtime import checkpoint  # noqa: PLC0415

    _, done, damaged = checkpoint.load_newest(run / checkpoint.FOLDER, replay=False)
    for text in damaged:
        say(text)
    return done["iteration"]


def _listed(columns: Any) -> str:
    return ", ".join(f"{c.name} {c.dtype} {c.shape}" for c in columns[:3])


def _shown(episodes: Iterator[Any], count: int) -> Iterator[Any]:
    """Yields the same items and shows their count, as a bar on a terminal's standard error."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import track  # noqa: PLC0415

    console = Console(stderr=True)
    yield from track(episodes, "episodes", total=count, console=console)


def _print_table(rows: list[Any]) -> None:
    cells = [[f"{x:,.1f}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    print()


def _print_returns(returns: Any) -> None:
    """Prints a histogram of the finite returns."""
    import numpy as np  # noqa: PLC0415

    returns = returns[np.isfinite(returns)].astype(np.float64)
    if not len(returns):
        return
    counts, edges = np.histogram(returns, BARS)
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        bar = "#" * -(-count * BAR_WIDTH // counts.max())
        print(f"return {low:12,.1f} to {high:12,.1f}  {count:8,}  {bar}".rstrip())
