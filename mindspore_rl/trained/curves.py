"""`msrl plot RUN...`: learning curves with the spread over seeds."""

import argparse
import itertools
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import MsrlError, install
from mindspore_rl.plan.plan import PLAN_FILE, Plan, load_plan
from mindspore_rl.platform.cache import writing
from mindspore_rl.platform.stdio import say
from mindspore_rl.runtime.coordinator.metrics_file import EVALUATIONS_FILE, METRICS_FILE, read_lines

AXES = {
    "env_steps": "environment steps",
    "wall_s": "seconds of training",
    "iteration": "iterations",
}
POINTS = 400
"""Points of a mean over runs whose own points differ."""


@dataclass(frozen=True)
class Curve:
    """A metric of a run over its course.

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
    """Runs `msrl plot`. Returns: the exit code."""
    found = curves(list(find_runs(args.runs)), args.metric, args.over)
    draw(found, args.metric, args.over, args.output)
    print(f"{args.output}: {args.metric} of {len(found)} run{'s' if len(found) > 1 else ''}")
    return 0


def curves(runs: Sequence[Path], metric: str, over: str) -> list[Curve]:
    """Reads a metric of some runs; runs without a value of it are skipped, with a message.

    Args:
        runs: their directories.
        metric: a key of their metrics lines, or one that the algorithm reported.
        over: a key of `AXES`.

    Raises:
        MsrlError: there is no such metric, or no value of it.
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
            say(f"{run} is left out: it has no {metric} yet")
    return drawn


def draw(
    found: list[Curve], metric: str, over: str = "env_steps", output: Path | None = None
) -> Any:
    """Draws learning curves.

    Args:
        found: the curves, see `curves`.
        metric: that they show.
        over: a key of `AXES`.
        output: image file to write.

    Returns: a matplotlib figure, which a notebook shows.

    Raises:
        MsrlError: there is no such kind of image, or no matplotlib.
    """
    try:
        from matplotlib import pyplot  # noqa: PLC0415
    except ImportError as error:
        raise MsrlError(f"msrl plot needs matplotlib: {install('plot')}") from error
    groups = grouped(found)
    with pyplot.ioff():
        figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    pyplot.close(figure)  # else notebooks would show it twice
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
    """Yields run directories, given themselves or as a folder of runs.

    Raises:
        MsrlError: a place has no run.
    """
    for place in places:
        found = [place] if (place / PLAN_FILE).exists() else []
        found = found or sorted(path.parent for path in place.glob(f"*/{PLAN_FILE}"))
        if not found:
            raise MsrlError(f"{place} is no run directory, and holds none")
        yield from found


def curve(run: Path, metric: str, over: str) -> Curve:
    """Reads a metric of a run.

    Args:
        run: its directory.
        metric: a key of its metrics lines, or one that the algorithm reported.
        over: a key of `AXES`.

    Returns: the curve; it has no points if no iteration has had a value yet.

    Raises:
        MsrlError: there is no such metric.
    """
    path = run / METRICS_FILE
    points, names = array("d"), set[str]()
    # A run that has not begun has neither, nor has a policy of the package.
    files = [file for file in (path, run / EVALUATIONS_FILE) if file.exists()]
    for line in itertools.chain.from_iterable(map(read_lines, files)):
        row = flat(line)
        names |= row.keys()
        if row.get(metric) is not None:
            points.extend((row[over], row[metric]))
    if names and not points and metric not in names:
        raise MsrlError(f"{path} has no {metric}; it has {', '.join(sorted(names - set(AXES)))}")
    x, y = np.array(points).reshape(-1, 2).T
    order = np.argsort(x, kind="stable")  # evaluations are recorded as they are done
    return curve_of(load_plan(run), x[order], y[order])


def curve_of(plan: Plan, x: np.ndarray, y: np.ndarray) -> Curve:
    """Returns points of a run, with what tells it from other runs."""
    workers = f", {plan.workers} workers" if plan.workers > 1 else ""
    kind = f"{plan.algorithm['name']} on {plan.environment}, {plan.policy}{workers}"
    config = {key: value for key, value in plan.config.items() if key not in ("seed", "env")}
    return Curve(kind, config, x, y)


def grouped(curves: list[Curve]) -> dict[str, list[Curve]]:
    """Groups curves of runs that differ in nothing but their seed."""
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
    """Merges a line's own keys with those that the algorithm reported."""
    return {**line["values"], **{key: value for key, value in line.items() if key != "values"}}


def spread(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns x, mean, minimum and maximum of curves, over the range that all of them cover."""
    if len(curves) == 1:
        return curves[0].x, *(curves[0].y,) * 3
    first, last = max(c.x[0] for c in curves), min(c.x[-1] for c in curves)
    x = np.linspace(first, max(first, last), POINTS)
    y = np.stack([np.interp(x, c.x, c.y) for c in curves])
    return x, y.mean(0), y.min(0), y.max(0)
