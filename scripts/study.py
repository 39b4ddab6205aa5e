"""The harness of the scripts that measure: jobs, files of rows, tables and pictures.

A study is rows of a CSV file. It measures each row by a job of its own (`trained`), shows them as a
Markdown table (`table`, `pivot`), and may draw them (`picture`).
"""

import contextlib
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from network_hosts import Network

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from mindspore_rl.runtime.rank.worker_settings import prepare_mindspore  # noqa: E402

prepare_mindspore()  # before a study imports what imports MindSpore
Row = dict[str, Any]


class NotMeasured(Exception):
    """A job failed; the text is the first line of its error.

    Attributes:
        refused: True: no run started, because the job is not possible.
    """

    def __init__(self, text: str, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


@dataclass(frozen=True)
class Run:
    """A run that ended well: its folder, and the seconds of the whole process."""

    folder: Path
    wall_s: float

    def metrics(self) -> list[Row]:
        """Returns the records of its iterations."""
        return metrics(self.folder)

    def durations_s(self, warm_up: int) -> np.ndarray:
        """Returns the times of its iterations after the first ones."""
        return durations_s(self.folder, warm_up)


def metrics(folder: Path) -> list[Row]:
    """Returns the records of a run's iterations, also while it runs."""
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def durations_s(folder: Path, warm_up: int) -> np.ndarray:
    """Returns the times of a run's iterations after the first ones."""
    return np.diff([record["wall_s"] for record in metrics(folder)])[warm_up - 1 :]


def msrl(*words: object, keys: Mapping[str, Any] | None = None, **flags: Any) -> list[str]:
    """Returns a command of `msrl`.

    Args:
        words: its first arguments.
        keys: keys of the algorithm's configuration.
        flags: options by name; without the ones that are None, without a value if it is True.
    """
    command = [sys.executable, "-m", "mindspore_rl.cli", *map(str, words)]
    for name, value in flags.items():
        if value is not None:
            command.append(f"--{name.replace('_', '-')}")
            command += [] if value is True else [str(value)]
    for key, value in (keys or {}).items():
        command.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    return command


@contextlib.contextmanager
def trained(
    *words: object,
    keys: Mapping[str, Any] | None = None,
    network: Network | None = None,
    **flags: Any,
) -> Iterator[Run]:
    """Runs `msrl train` to its end, in a temporary folder; see `msrl` for the arguments.

    Args:
        words: its first arguments.
        keys: keys of the algorithm's configuration.
        network: the network whose first host trains.
        flags: options.

    Raises:
        NotMeasured: the job failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run, environment = Path(folder, "run"), None
        if "--config" not in words:
            flags = {"config": "none"} | flags  # the same keys for every environment
        command = msrl("train", *words, keys=keys, quiet=True, run_dir=run, **flags)
        if network is not None:
            environment = {**network.environment(), "PYTHONPATH": str(ROOT)}
            command = network.command(0, command)
        began = time.monotonic()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["no reason was given"]
            refused = done.returncode == 2 and not run.exists()
            raise NotMeasured(said[0].removeprefix("msrl: "), refused)
        yield Run(run, time.monotonic() - began)


def profile(*words: object, **flags: Any) -> str:
    """Returns the output of `msrl profile` for a run; see `trained` for the arguments."""
    with trained(*words, profile=True, **flags) as run:
        command = msrl("profile", run.folder)
        done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    return done.stdout[: done.stdout.rindex("trace:")].strip()


def read(file: Path) -> list[Row]:
    """Reads the rows of a file, without the columns that are empty in a row."""
    with file.open(newline="") as stream:
        return [{k: _value(v) for k, v in row.items() if v} for row in csv.DictReader(stream)]


def _value(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def write(rows: Iterable[Row], file: Path, columns: Sequence[str]) -> None:
    """Writes rows."""
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns a Markdown table."""
    heads = list(heads)
    lines = [line(heads), "|---" * len(heads) + "|"]
    return "\n".join([*lines, *map(line, rows)])


def line(cells: Iterable[object]) -> str:
    """Returns a line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def pivot(corner: str, cells: Iterable[tuple[str, str, str]]) -> str:
    """Returns a Markdown table of (row, column, text) as they appear; "" if all are empty."""
    found = {(row, column): text for row, column, text in cells}
    columns = list(dict.fromkeys(column for _, column in found))
    rows = dict.fromkeys(row for row, _ in found)
    rows = [row for row in rows if any(found.get((row, column)) for column in columns)]
    lines = ([row, *(found.get((row, column), "") for column in columns)] for row in rows)
    return table([corner, *columns], lines) if rows else ""


def spread(
    values: Sequence[float], show: Callable[[float], str] = "{:,.0f}".format, unit: str = ""
) -> str:
    """Returns the median, with its unit, and the range."""
    return f"{show(statistics.median(values))}{unit} ({show(min(values))}-{show(max(values))})"


@contextlib.contextmanager
def picture(
    file: Path, size: tuple[float, float], columns: int = 1, legend: int = 0, **how: Any
) -> Iterator[Any]:
    """Draws a picture with matplotlib: yields axes side by side, then writes the file.

    Args:
        file: the picture.
        size: inches.
        columns: the number of axes.
        legend: the columns of a common legend below; 0: without one.
        how: arguments of `pyplot.subplots`.
    """
    from matplotlib import pyplot  # noqa: PLC0415 (an extra)

    figure, axes = pyplot.subplots(1, columns, figsize=size, squeeze=False, **how)
    yield axes[0]
    if legend:
        place = {"loc": "lower center", "ncols": legend, "fontsize": "small", "frameon": False}
        figure.legend(*axes[0][0].get_legend_handles_labels(), **place)
    figure.tight_layout(rect=(0, 0.12 if legend else 0, 1, 1))
    figure.savefig(file)
    pyplot.close(figure)


def versions(*packages: str) -> str:
    """Returns the installed versions of packages."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in packages)


def machine() -> str:
    """Describes this machine and what our jobs run on."""
    where = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return f"{where}, {versions('mindspore', 'gymnasium', 'numpy')}"
