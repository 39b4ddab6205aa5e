"""Reads the runs below a folder again and again, for the page of `msrl board`."""

import hashlib
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_rl.errors import MsrlError
from mindspore_rl.performance import report, timeline
from mindspore_rl.performance.timeline import COMMUNICATION, Timeline
from mindspore_rl.plan.plan import GRAPH_FILE, OUTCOME_FILE, PLAN_FILE, Plan, load_plan
from mindspore_rl.plan.text import plan_text
from mindspore_rl.plan.traffic import TRAFFIC_FILE, describe, predict
from mindspore_rl.runtime.coordinator.evaluator import LOG as EVALUATOR_LOG
from mindspore_rl.runtime.coordinator.launch import WORKERS_LOG
from mindspore_rl.runtime.coordinator.metrics_file import (
    EVALUATIONS_FILE,
    METRICS_FILE,
    is_written,
    read_lines_from,
)
from mindspore_rl.runtime.profile_recorder import FOLDER
from mindspore_rl.trained.curves import AXES, POINTS, Curve, curve_of, flat, grouped, spread
from mindspore_rl.trained.video import FORMS

DEPTHS = ("", "*/", "*/*/")
"""Places of runs below the folder; those of a sweep are two folders down."""
TAIL_BYTES = 1 << 16
"""Bytes that are read from the end of a log."""
MARK_BYTES = 64
"""Bytes before a place in a file by which a later reader knows that the file only grew."""


class Lines:
    """The lines of a file of metrics, in columns; each call of `read` takes only the new ones.

    Attributes:
        columns: `[N]` values by name, NaN where a line has none.
        end: bytes read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self.columns: dict[str, array[float]] = {}
        self.end, self._count, self._mark = 0, 0, b""

    def read(self) -> None:
        """Reads what is new; a file that was cut, as a restart does, is read from its start.

        Raises:
            MsrlError: a line is invalid.
        """
        if not self._path.exists():
            return self._forget()
        if self._before() != self._mark:
            self._forget()
        for line, end in read_lines_from(self._path, self.end):
            self.end, row = end, flat(line)
            for name in row.keys() - self.columns.keys():
                self.columns[name] = array("d", [math.nan]) * self._count
            for name, column in self.columns.items():
                value = row.get(name)
                column.append(math.nan if value is None else value)
            self._count += 1
        self._mark = self._before()
        return None

    def _before(self) -> bytes:
        with self._path.open("rb") as file:
            file.seek(max(self.end - MARK_BYTES, 0))
            return file.read(min(self.end, MARK_BYTES))

    def points(self, metric: str, over: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns x and y of a metric, `[N]` each, x ascending."""
        if metric not in self.columns:
            return np.empty(0), np.empty(0)
        x, y = (np.array(self.columns[name]) for name in (over, metric))
        x, y = x[~np.isnan(y)], y[~np.isnan(y)]
        order = np.argsort(x, kind="stable")
        return x[order], y[order]


class Board:
    """The runs of a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lines: dict[Path, Lines] = {}
        self._plan = lru_cache(1000)(lambda run, _: load_plan(run))
        self._profile = lru_cache(20)(_profile)

    def runs(self) -> dict[str, Path]:
        """Returns the runs by their place below the folder, the newest first."""
        base = self.root.resolve()
        found = [
            path.parent
            for depth in DEPTHS
            for path in self.root.glob(f"{depth}{PLAN_FILE}")
            if path.resolve().is_relative_to(base)  # no link leads out
        ]
        found.sort(key=lambda run: (-_mtime(run / PLAN_FILE), run))
        return {run.relative_to(self.root).as_posix(): run for run in found}

    def plan(self, run: Path) -> Plan:
        """Returns a run's plan. Raises: MsrlError: it cannot be read."""
        return self._plan(run, _stamp([run / PLAN_FILE]))

    def summaries(self) -> list[dict[str, Any]]:
        """Describes each run, with its state and its last line of metrics."""
        return [self._summary(name, run) for name, run in self.runs().items()]

    def _summary(self, name: str, run: Path) -> dict[str, Any]:
        about: dict[str, Any] = {"run": name, "name": self._shown(name)}
        state, why = _state(run)
        try:
            plan = self.plan(run)
            line = _last_line(run / METRICS_FILE)
        except (MsrlError, OSError) as error:
            return {**about, "state": "unreadable", "why": str(error)}
        about |= {"state": state, "why": why, "workers": plan.workers, "seed": plan.seed}
        about |= {"algorithm": plan.algorithm["name"], "env": plan.environment}
        about |= {"policy": plan.policy, "total_steps": plan.last_step}
        keys = ("env_steps", "mean_return", "steps_per_second", "wall_s")
        return about | {key: line.get(key) for key in keys}

    def _shown(self, name: str) -> str:
        return self.root.resolve().name if name == "." else name

    def curves(
        self, names: Iterable[str], metrics: Sequence[str], over: str
    ) -> tuple[dict[str, Any], str]:
        """Reads metrics of runs; runs that differ only in their seed are one group.

        Args:
            names: of the runs; those that are gone or cannot be read are left out.
            metrics: their names.
            over: a key of `AXES`.

        Returns: the names of all metrics, the groups and for each metric a curve of each group,
            with the runs' own; and a text that changes with them.
        """
        runs, chosen = self.runs(), {}
        for name in names:
            try:
                chosen[name] = self.plan(runs[name]), self._followed(runs[name])
            except (KeyError, MsrlError, OSError):
                continue  # its summary says why
        known = {key for _, lines in chosen.values() for one in lines for key in one.columns}
        plain = {name: curve_of(plan, *np.empty((2, 0))) for name, (plan, _) in chosen.items()}
        groups = {
            label: [name for name in chosen if any(plain[name] is one for one in members)]
            for label, members in grouped(list(plain.values())).items()
        }
        drawn = {
            metric: [
                _group([_points(chosen[name], metric, over) for name in members])
                for members in groups.values()
            ]
            for metric in metrics
        }
        found = {
            "metrics": sorted(known - {*AXES, "iterations"}),
            "groups": [{"label": label, "runs": members} for label, members in groups.items()],
            "curves": drawn,
        }
        ends = [(name, [one.end for one in lines]) for name, (_, lines) in chosen.items()]
        return found, digest([ends, groups])

    def _followed(self, run: Path) -> list[Lines]:
        found = []
        for file in (METRICS_FILE, EVALUATIONS_FILE):
            lines = self._lines.setdefault(run / file, Lines(run / file))
            lines.read()
            found.append(lines)
        return found

    def detail(self, name: str) -> dict[str, Any]:
        """Describes one run: plan, messages with bytes and times, ranks, log, films.

        Raises:
            KeyError: there is no such run.
            MsrlError: its plan cannot be read.
        """
        run = self.runs()[name]
        plan, profile, (state, why) = self.plan(run), self.profile(run), _state(run)
        said = {one.name: describe(one) for one in predict(plan)}
        times = message_times(profile)
        messages = [
            {
                "what": f"{one.mark}: {one.source} to {one.target}",
                "said": said[one.name],
                "ms": times.get(one.name),
            }
            for one in plan.messages
        ]
        messages += [
            {"what": f"{one.reduction} over {one.fragment}", "said": said[one.name], "ms": None}
            for one in plan.reductions
        ]
        ranks = [] if profile is None else report.spent_by_rank(profile)
        logs = {file: _tail(run / file) for file in (WORKERS_LOG, EVALUATOR_LOG)}
        return {
            "run": name,
            "name": self._shown(name),
            "path": str(run),
            "error": why if state in ("failed", "stopped") else "",
            "config": {key: str(value) for key, value in plan.config.items()},
            "plan": plan_text(plan),
            "messages": messages,
            "ranks": [
                {
                    "rank": plan.rank_name(rank),
                    "parts": [
                        {"kind": part.kind, "what": part.what, "ms": ms}
                        for part, ms in sorted(parts.items(), key=lambda item: -item[1])
                    ],
                }
                for rank, parts in enumerate(ranks)
            ],
            "iteration_ms": None if profile is None else profile.iteration_ms,
            "logs": {file: text for file, text in logs.items() if text},
            "films": {path.name: _stamp([path]) for path in self.films(run)},
            "graph": _stamp([run / GRAPH_FILE, *sorted((run / FOLDER).glob("*.npz"))])
            if (run / GRAPH_FILE).is_file()
            else "",
        }

    def films(self, run: Path) -> list[Path]:
        """Returns the videos in a run directory."""
        base = run.resolve()
        found = (path for path in run.iterdir() if path.suffix in FORMS and path.is_file())
        return sorted(path for path in found if path.resolve().parent == base)

    def profile(self, run: Path) -> Timeline | None:
        """Returns the profile of a run, if it has one."""
        return self._profile(run, _stamp(sorted((run / FOLDER).glob("*.npz"))))


def message_times(profile: Timeline | None) -> dict[str, float]:
    """Returns milliseconds of an iteration by the name of a message, on the rank with the most.

    A profile knows messages by their mark: two messages of one mark in an iteration have no time.
    """
    if profile is None:
        return {}
    found: dict[str, float] = {}
    for parts in report.spent_by_rank(profile):
        for part, ms in parts.items():
            if part.kind == COMMUNICATION:
                found[part.what] = max(found.get(part.what, 0.0), ms)
    sent = [one for one in profile.plan.messages if one.times]
    marks = Counter(one.mark for one in sent)
    words = {one.name: f"message {one.mark}" for one in sent if marks[one.mark] == 1}
    return {name: found[word] for name, word in words.items() if word in found}


def digest(value: object) -> str:
    """Returns a short text that differs for another value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _profile(run: Path, stamp: str) -> Timeline | None:
    try:
        return timeline.load(run)
    except MsrlError:
        return None


def _points(chosen: tuple[Plan, list[Lines]], metric: str, over: str) -> Curve:
    plan, files = chosen
    points = [lines.points(metric, over) for lines in files]
    return curve_of(plan, *max(points, key=lambda pair: len(pair[0])))


def _group(curves: list[Curve]) -> dict[str, Any] | None:
    """Returns mean, band and members of the curves that have points, as JSON."""
    curves = [_thinned(one) for one in curves if len(one.x)]
    if not curves:
        return None
    x, *rows = spread(curves)
    found: dict[str, Any] = {"x": _json(x), "mean": _json(rows[0])}
    if len(curves) > 1:
        found |= {"low": _json(rows[1]), "high": _json(rows[2])}
        found["runs"] = [{"x": _json(one.x), "y": _json(one.y)} for one in curves]
    return found


def _thinned(curve: Curve) -> Curve:
    """Returns a curve of at most `POINTS` points, which are means of neighbours."""
    size = len(curve.x)
    if size <= POINTS:
        return curve
    starts = np.linspace(0, size, POINTS, endpoint=False).astype(int)
    counts = np.diff([*starts, size])
    x, y = (np.add.reduceat(values, starts) / counts for values in (curve.x, curve.y))
    return Curve(curve.kind, curve.config, x, y)


def _json(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _state(run: Path) -> tuple[str, str]:
    """Returns the state of a run, and why it ended."""
    try:
        outcome = json.loads((run / OUTCOME_FILE).read_bytes())
        stopped, error = str(outcome["stopped"]), str(outcome["error"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as unread:
        return "ended", f"{OUTCOME_FILE} cannot be read ({unread})"
    else:
        return ("failed", error) if error else ("ended", stopped)
    if is_written(run / METRICS_FILE):
        return "running", ""
    if not (run / METRICS_FILE).exists():
        return "starting", ""
    if (run / TRAFFIC_FILE).exists():  # an earlier version wrote it
        return "ended", ""
    return "stopped", "its process ended without writing how: it was killed, or its machine failed"


def _last_line(path: Path) -> dict[str, Any]:
    """Returns the last line of metrics; an empty one before the first."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        start = max(path.stat().st_size - TAIL_BYTES, 0)
        file.seek(start)
        if start:
            file.readline()
        start = file.tell()
    last: dict[str, Any] = {}
    for last, _ in read_lines_from(path, start):  # noqa: B007
        pass
    return last


def _tail(path: Path) -> str:
    """Returns the end of a log, whole lines; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - TAIL_BYTES, 0))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return text if size <= TAIL_BYTES else text.partition("\n")[2]


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _stamp(paths: Iterable[Path]) -> str:
    """Returns a text that changes when one of the files does."""
    found = []
    for path in paths:
        try:
            about = path.stat()
        except OSError:
            continue
        found.append((str(path), about.st_mtime_ns, about.st_size))
    return digest(found)
