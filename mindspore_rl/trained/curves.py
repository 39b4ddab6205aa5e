"""`msrl plot RUN...`: learning curves with the spread over seeds."""

import argparse
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import MsrlError, install
from mindspore_rl.plan.plan import PLAN_FILE, load_plan
from mindspore_rl.platform.cache import writing
from mindspore_rl.runtime.coordinator.metrics import METRICS_FILE, read_lines

AXES = {
    "env_steps": "environment steps",
    "wall_s": "seconds of training",
    "iteration": "iterations",
}
POINTS = 400
"""Of a mean over runs whose own points are at different places."""


@dataclass(frozen=True)
class Curve:
    """A metric of a run.

    Attributes:
        kind: algorithm, policy, workers and environment.
        config: of the algorithm, without its seed.
        x: `[N]`, ascending.
        y: `[N]`.
    """

    kind: str
    config: dict[str, Any]
    x: np.ndarray
    y: np.ndarray


def plot(args: argparse.Namespace) -> int:
    """`msrl plot`. Returns: the exit code."""
    found = curves(list(find_runs(args.runs)), args.metric, args.over)
    draw(found, args.metric, args.over, args.output)
    print(f"{args.output}: {args.metric} of {len(found)} run{'s' if len(found) > 1 else ''}")
    return 0


def curves(runs: Sequence[Path], metric: str, over: str) -> list[Curve]:
    """A metric of some runs; one that has it of no iteration is left out, and that is told.

    Args:
        runs: their directories.
        metric: a key of their lines, or one that the algorithm reported.
        over: a key of `AXES`.

    Raises:
        MsrlError: there is no such metric, or nothing of it.
    """
    if over not in AXES:
        raise MsrlError(f"over is {over!r}, expected one of {', '.join(AXES)}")
    found = {run: curve(run, metric, over) for run in runs}
    drawn = [one for one in found.values() if len(one.x)]
    if not drawn:
        raise MsrlError(
            f"{', '.join(map(str, found))}: no {metric} of any iteration; returns come with the "
            "first episode that ends: train for longer, or draw another metric"
        )
    for run, one in found.items():
        if not len(one.x):
            print(f"msrl: {run} is left out: it has no {metric} yet", file=sys.stderr)
    return drawn


def draw(
    found: list[Curve], metric: str, over: str = "env_steps", output: Path | None = None
) -> Any:
    """Draws curves.

    Args:
        found: see `curves`.
        metric: what they show.
        over: a key of `AXES`.
        output: a picture to be made.

    Returns: a figure of matplotlib's, which a notebook shows.

    Raises:
        MsrlError: there is no such kind of picture, or no matplotlib.
    """
    try:
        from matplotlib import pyplot  # noqa: PLC0415
    except ImportError as error:
        raise MsrlError(f"msrl plot needs matplotlib: {install('plot')}") from error
    groups = grouped(found)
    with pyplot.ioff():
        figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    pyplot.close(figure)  # shown where it is returned to, and only there
    for kind, members in sorted(groups.items()):
        x, middle, low, high = spread(members)
        label = f"{kind}, {len(members)} runs" if len(members) > 1 else kind
        (line,) = axes.plot(x, middle, label=label)
        if len(members) > 1:
            axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel=AXES[over], ylabel=metric.replace("_", " "))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    if output is not None:
        known = figure.canvas.get_supported_filetypes()
        if output.suffix.removeprefix(".") not in known:
            raise MsrlError(
                f"{output} is to be a picture; expected an ending of {', '.join(known)}"
            )
        with writing(output, "--output"):
            figure.savefig(output, dpi=150)
    return figure


def find_runs(places: Iterable[Path]) -> Iterable[Path]:
    """Run directories, given by themselves or by a folder that holds them.

    Raises:
        MsrlError: there is none in a place.
    """
    for place in places:
        found = [place] if (place / PLAN_FILE).exists() else []
        found = found or sorted(path.parent for path in place.glob(f"*/{PLAN_FILE}"))
        if not found:
            raise MsrlError(f"{place} is no run directory, and holds none")
        yield from found


def curve(run: Path, metric: str, over: str) -> Curve:
    """A metric of a run.

    Args:
        run: its directory.
        metric: a key of its lines, or one that the algorithm reported.
        over: a key of `AXES`.

    Returns: it, without points if it has been of no iteration yet.

    Raises:
        MsrlError: there is no such metric.
    """
    path = run / METRICS_FILE
    points, names = array("d"), set[str]()
    for line in read_lines(path):
        row = flat(line)
        names |= row.keys()
        if row.get(metric) is not None:
            points.extend((row[over], row[metric]))
    if names and not points and metric not in names:
        raise MsrlError(f"{path} has no {metric}; it has {', '.join(sorted(names - set(AXES)))}")
    x, y = np.array(points).reshape(-1, 2).T
    plan = load_plan(run)
    workers = f", {plan.workers} workers" if plan.workers > 1 else ""
    kind = f"{plan.algorithm['name']} on {plan.environment}, {plan.policy}{workers}"
    config = {key: value for key, value in plan.config.items() if key not in ("seed", "env")}
    return Curve(kind, config, x, y)


def grouped(curves: list[Curve]) -> dict[str, list[Curve]]:
    """Curves by what their runs were; those of one group differ in their seed alone."""
    alike: dict[str, list[Curve]] = defaultdict(list)
    for one in curves:
        alike[one.kind].append(one)
    found: dict[str, list[Curve]] = defaultdict(list)
    for kind, members in alike.items():
        keys = sorted({key for one in members for key in one.config})
        values = {key: {str(one.config.get(key)) for one in members} for key in keys}
        telling = [key for key in keys if len(values[key]) > 1]
        for one in members:
            words = [kind, *(f"{key}={one.config.get(key)}" for key in telling)]
            found[", ".join(words)].append(one)
    return found


def flat(line: dict[str, Any]) -> dict[str, Any]:
    """A line's own keys and those that the algorithm reported."""
    return {**line["values"], **{key: value for key, value in line.items() if key != "values"}}


def spread(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places, mean, least and largest of curves, where all of them are there."""
    if len(curves) == 1:
        return curves[0].x, *(curves[0].y,) * 3
    first, last = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    x = np.linspace(first, max(first, last), POINTS)
    y = np.stack([np.interp(x, c.x, c.y) for c in curves])
    return x, y.mean(0), y.min(0), y.max(0)
