"""Writes metrics: JSON lines, TensorBoard scalars, the progress bar."""

import contextlib
import fcntl
import json
import math
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import hparams, scalar

from mindspore_rl.platform.cache import writing
from mindspore_rl.runtime.coordinator.evaluator import Evaluation
from mindspore_rl.runtime.coordinator.metrics_file import (
    EVALUATIONS_FILE,
    METRICS_FILE,
    forget_after,
    forget_evaluations,
)
from mindspore_rl.runtime.coordinator.wandb import Tracked
from mindspore_rl.runtime.rank.episodes import Episode, RecentEpisodes

RETURN = "episode/mean_return"
INFO = "info/"
"""Beginning of the names of metrics from the environments' `info`."""
WHOLE_LINES = 100_000
"""Lines of a file that cover one iteration each; each later line covers one second."""
_SPEED_WINDOW_S = 5.0
_WRITE_INTERVAL_S = 1.0
_BAR_INTERVAL_S = 0.2
_LINE_INTERVAL_S = 5.0
_FEW_ITERATIONS = 3
"""Iterations after the first, which compiles, from whose speed the time left follows."""


class Metrics:
    """Records a run in its folder and shows its progress on standard error.

    Each `log` is a line of `metrics.jsonl`: `iteration`, `env_steps`, `wall_s` (of this process),
    `steps_per_second` (over the last 5 s), `mean_return` and `mean_length` (over the last 100
    finished episodes, null before the first), and `values`, the iteration's own. A value that is
    not finite is written as null, since JSON has no NaN.

    After `WHOLE_LINES` lines there is one line a second, and one at each checkpoint, so that a fast
    run does not fill the disk: such a line gives the number of `iterations` that it covers, and
    `values` are their means.
    """

    def __init__(
        self,
        run_dir: Path,
        total_steps: int,
        progress: bool,
        start_steps: int = 0,
        start_iteration: int = 0,
        *,
        about: Mapping[str, object] | None = None,
        wandb: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the run's files; a resumed run appends to those of the earlier attempt.

        Args:
            run_dir: the run's folder; created if absent.
            total_steps: environment steps at which the run ends.
            progress: whether to show progress: a bar on a terminal, else a line every 5 s.
            start_steps: environment steps already taken, in a resumed run.
            start_iteration: iterations already done, in a resumed run.
            about: hyper-parameters and other facts that identify the run, for TensorBoard.
            wandb: project of Weights & Biases that gets the metrics too; empty: none.
            clock: monotonic time in seconds.

        Raises:
            StorageError: the run directory cannot be written; also raised by `log` and `close`.
            MsrlError: Weights & Biases rejects the run.
        """
        self._tracked = Tracked(wandb, run_dir, about or {}) if wandb else None
        self._path = run_dir / METRICS_FILE
        with writing(self._path):
            run_dir.mkdir(parents=True, exist_ok=True)
            self._lines, last = forget_after(self._path, start_steps)
            forget_evaluations(run_dir / EVALUATIONS_FILE, start_steps)
            # Whole lines are written, once a second: the buffer is larger than a second's lines.
            self._json = self._path.open("a", encoding="utf-8", buffering=1 << 20)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._json, fcntl.LOCK_EX | fcntl.LOCK_NB)  # see `is_written`
            self._tensorboard = _start_events(run_dir / "tensorboard", start_steps)
            self._tell_about(about or {})
        self._clock = clock
        self._started = self._written = self._shown = clock()
        self._total_steps = total_steps
        self._recent = deque([(self._started, start_steps)])
        self._first: tuple[float, int] | None = None
        self._iterations = 0
        self._episodes = RecentEpisodes()
        self._last: dict[str, Any] | None = None
        self._told_at = 0  # the iteration of the last line of progress
        self._sums: dict[str, tuple[float, int]] = {}  # of iterations that no line covers yet
        self._without_line = 0
        self._closed = False
        self._progress = progress
        self._bar = _start_bar(total_steps, start_steps) if progress and _on_terminal() else None
        if last is not None and last["iteration"] < start_iteration:
            # A power failure has left a checkpoint, and not the last lines before it.
            self._without_line = start_iteration - last.pop("iteration")
            last.pop("iterations", None)
            self._last = {"iteration": start_iteration, **last, "env_steps": start_steps}
            self._write_line()

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 finished episodes, reward units; None before the first."""
        return self._episodes.mean_return

    @property
    def settled_return(self) -> float | None:
        """The same, but None before 100 have finished since the start of this process."""
        return self._episodes.settled_return

    def log(
        self,
        iteration: int,
        env_steps: int,
        values: dict[str, float],
        episodes: list[Episode],
        age_s: float = 0.0,
    ) -> dict[str, Any]:
        """Records one iteration; cheap enough for a thousand calls a second.

        Args:
            iteration: its number.
            env_steps: environment steps since the start of the run, over all environments.
            values: losses and other metrics, by name.
            episodes: return (reward units) and length (steps) of each episode that finished, and
                numbers from its `info` by name, whose means are added to `values`.
            age_s: seconds since the iteration was done.

        Returns: its line, a copy that the caller may change.
        """
        now = self._clock() - age_s
        self._episodes.add(episodes)
        values = values | _info_means(episodes)
        self._recent.append((now, env_steps))
        self._first = self._first or self._recent[-1]
        self._iterations += 1
        while len(self._recent) > 2 and now - self._recent[0][0] > _SPEED_WINDOW_S:
            self._recent.popleft()
        since, steps = self._recent[0]
        self._last = {
            "iteration": int(iteration),
            "env_steps": int(env_steps),
            "wall_s": round(now - self._started, 6),
            "steps_per_second": round((env_steps - steps) / max(now - since, 1e-9), 1),
            "mean_return": _finite(self.mean_return),
            "mean_length": self._episodes.mean_length,
            "values": {name: _finite(float(value)) for name, value in values.items()},
        }
        told = {**self._last, "values": dict(self._last["values"])}
        for name, value in values.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + float(value), count + 1
        self._without_line += 1
        due = now - self._written >= _WRITE_INTERVAL_S
        if due or self._lines < WHOLE_LINES:
            self._write_line()
        if due:
            self._written = now
            self._write()
        interval_s = _BAR_INTERVAL_S if self._bar else _LINE_INTERVAL_S
        if now - self._shown >= interval_s:
            self._shown = now
            self._show()
        return told

    @property
    def wall_s(self) -> float:
        """The time that a line would have now, seconds."""
        return round(self._clock() - self._started, 6)

    def evaluated(self, done: Evaluation) -> float:
        """Records an evaluation, as a line of `evaluations.jsonl`. Returns: its mean return."""
        mean, std = fmean(done.returns), pstdev(done.returns)
        values = {"eval/mean_return": mean, "eval/std_return": std}
        line = {"iteration": done.iteration, "env_steps": done.env_steps, "wall_s": done.wall_s}
        path = self._path.with_name(EVALUATIONS_FILE)
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "values": values}) + "\n")
        self._record(done.env_steps, values)
        if self._progress:
            count = f"{len(done.returns)} episode{'s' * (len(done.returns) != 1)}"
            self.note(
                f"evaluation at {done.env_steps:,} steps: return {mean:.1f} +- {std:.1f} over "
                f"{count}"
            )
        return mean

    def keep(self) -> None:
        """Ends the line and hands all lines to the system: a restart resumes after them."""
        self._write_line()
        with writing(self._path):
            self._json.flush()

    def _write_line(self) -> None:
        """Writes a line for the iterations that no line covers yet, if there are any."""
        if self._last is None or not self._without_line:
            return
        means = {name: _finite(total / count) for name, (total, count) in self._sums.items()}
        many = {"iterations": self._without_line} if self._without_line > 1 else {}
        self._last = {**self._last, **many, "values": means}
        self._json.write(json.dumps(self._last) + "\n")
        self._sums, self._without_line = {}, 0
        self._lines += 1

    def note(self, text: str) -> None:
        """Prints a line on standard error, above the progress bar if there is one."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Writes and shows what is pending; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._last is not None and self._last["iteration"] != self._told_at:
            self._show()
        if self._bar:
            self._bar.stop()
        with writing(self._path), contextlib.ExitStack() as stack:
            if self._tracked:
                stack.callback(self._tracked.close)
            stack.callback(self._tensorboard.close)
            stack.callback(self._json.close)
            self._write_line()
            self._write()
            os.fsync(self._json.fileno())

    def _tell_about(self, about: Mapping[str, object]) -> None:
        """Adds this run's row to TensorBoard's table of hyper-parameters."""
        values = {k: v if isinstance(v, int | float) else str(v) for k, v in about.items()}
        for summary in hparams(values, {RETURN: 0.0}) if values else ():
            self._tensorboard.write_event(Event(wall_time=time.time(), summary=summary))

    def _write(self) -> None:
        """Flushes the JSON lines and writes the last iteration's scalars to TensorBoard."""
        with writing(self._path):
            self._json.flush()
            # Writes to a file that was removed would be lost.
            if not os.path.samestat(os.stat(self._path), os.fstat(self._json.fileno())):
                raise OSError("it is no longer the file that was begun")
        if self._last is None:
            return
        scalars = {
            RETURN: self._last["mean_return"],
            "episode/mean_length": self._last["mean_length"],
            "speed/steps_per_second": self._last["steps_per_second"],
        }
        scalars |= {
            name if name.startswith(INFO) else f"train/{name}": value
            for name, value in self._last["values"].items()
        }
        self._record(self._last["env_steps"], scalars)

    def _record(self, env_steps: int, scalars: Mapping[str, float | None]) -> None:
        """Writes scalars to TensorBoard, and to Weights & Biases."""
        if self._tracked:
            self._tracked.log(env_steps, scalars)
        with writing(self._path.parent / "tensorboard"):
            for tag, value in scalars.items():
                if value is not None:
                    summary = scalar(tag, value)
                    self._tensorboard.write_event(
                        Event(wall_time=time.time(), step=env_steps, summary=summary)
                    )

    def _show(self) -> None:
        if not self._progress or self._last is None:
            return
        self._told_at = self._last["iteration"]
        env_steps, speed = self._last["env_steps"], self._last["steps_per_second"]
        mean_return = "-" if self.mean_return is None else f"{self.mean_return:.1f}"
        if self._bar:
            self._bar.update(
                self._bar.task_ids[0],
                completed=env_steps,
                speed=f"{speed:,.0f}",
                mean_return=mean_return,
            )
            return
        left_s = self._left_s(env_steps)
        left = "" if left_s is None else f"  time left {left_s // 60}:{left_s % 60:02}"
        self.note(
            f"env_steps {env_steps:,}/{self._total_steps:,}  {speed:,.0f} steps/s  "
            f"mean return {mean_return}{left}"
        )

    def _left_s(self, env_steps: int) -> int | None:
        """Returns the time left in seconds; None: it is not known yet."""
        if env_steps >= self._total_steps:
            return 0
        if self._first is None or self._iterations <= _FEW_ITERATIONS:
            return None
        since, steps = max(self._recent[0], self._first)
        now, done = self._recent[-1]
        if now <= since or done <= steps:
            return None
        return round((self._total_steps - env_steps) * (now - since) / (done - steps))


def _start_events(folder: Path, start_steps: int) -> EventsWriter:
    """Opens an event file without the thread of tensorboardX's `SummaryWriter`.

    On a full disk that thread dies, and its full queue then blocks for ever.
    """
    folder.mkdir(exist_ok=True)
    writer = EventsWriter(str(folder / "events"), f".{start_steps}")
    # TensorBoard hides events of an earlier attempt from this step on.
    start = SessionLog(status=SessionLog.START)
    writer.write_event(Event(wall_time=time.time(), step=start_steps + 1, session_log=start))
    return writer


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _start_bar(total_steps: int, start_steps: int) -> Progress:
    bar = Progress(
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
        BarColumn(),
        TextColumn("{task.fields[speed]} steps/s  mean return {task.fields[mean_return]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
        # rich redirects only streams that are the terminal: a piped stdout stays a pipe.
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )
    bar.add_task("train", total=total_steps, completed=start_steps, speed="-", mean_return="-")
    bar.start()
    return bar


def _info_means(episodes: list[Episode]) -> dict[str, float]:
    """Returns the means over episodes of the numbers from their `info`, the same in any order."""
    found = defaultdict(list)
    for _, _, *info in episodes:
        for name, value in info[0].items() if info else ():
            found[f"{INFO}{name}"].append(value)
    return {name: math.fsum(numbers) / len(numbers) for name, numbers in sorted(found.items())}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
