"""Reads `metrics.jsonl`, and cuts off lines that a resumed run repeats."""

import contextlib
import fcntl
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl.errors import MsrlError

METRICS_FILE, EVALUATIONS_FILE = "metrics.jsonl", "evaluations.jsonl"
LONGEST_LINE = 1 << 20
"""Bytes; a run writes no longer line."""


def is_written(path: Path) -> bool:
    """Returns whether a process has a `metrics.jsonl` open to write: its run goes on."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there is no such file, or the file system has no locks
    return False


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Reads a run's `metrics.jsonl`, one line at a time; skips a last line that is incomplete.

    Raises:
        MsrlError: the file cannot be read, or has an invalid line.
    """
    for line, _ in read_lines_from(path, 0):
        yield line


def read_lines_from(path: Path, start: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Reads lines from a place on, like `read_lines`; yields each with the place of its end.

    Args:
        path: of the file.
        start: byte of the file at which a line begins.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            for number in itertools.count(1):
                text = file.readline(LONGEST_LINE)
                if len(text) < LONGEST_LINE and not text.endswith(b"\n"):
                    return
                try:
                    line = _read_line(text)
                except (ValueError, RecursionError) as error:
                    place = f"line {number}" + (f" after byte {start}" if start else "")
                    raise MsrlError(
                        f"{path}: {place} is none that a run writes ({error}); expected an "
                        "object of numbers: remove the line"
                    ) from error
                yield line, file.tell()
    except OSError as error:
        raise MsrlError(f"{path} cannot be read: {error}") from error


def _read_line(text: bytes) -> dict[str, Any]:
    """Parses one line. Raises: ValueError, RecursionError: it is invalid."""
    line = json.loads(text)
    if not isinstance(line, dict) or not isinstance(line.get("values"), dict):
        raise ValueError("it has no `values`")
    for name in ("iteration", "env_steps", "wall_s"):
        if line.get(name) is None:
            raise ValueError(f"it has no {name}")
    for name, value in [*{**line, "values": None}.items(), *line["values"].items()]:
        if not _is_number(value):
            raise ValueError(f"{name} is no number")
    return line


def _is_number(value: object) -> bool:
    """Returns whether a value is a finite number or null."""
    if isinstance(value, bool) or not isinstance(value, int | float | type(None)):
        return False
    try:
        return value is None or math.isfinite(value)
    except OverflowError:  # an integer of 400 digits
        return False


def forget_after(path: Path, env_steps: int) -> tuple[int, dict[str, Any] | None]:
    """Cuts off lines after `env_steps`, which a resumed run repeats, and invalid lines.

    Returns: the number of lines left, and the last of them.
    """
    kept, lines, last = 0, 0, None
    if not path.exists():
        return lines, last
    with path.open("r+b") as file:
        while (text := file.readline(LONGEST_LINE)).endswith(b"\n"):
            with contextlib.suppress(ValueError, RecursionError):
                line = _read_line(text)
                if line["env_steps"] <= env_steps:
                    kept, lines, last = kept + len(text), lines + 1, line
                    continue
            break
        file.truncate(kept)
    return lines, last


def forget_evaluations(path: Path, env_steps: int) -> None:
    """Removes the lines of evaluations after `env_steps`, which are in no order."""
    if path.exists():
        kept = [line for line in read_lines(path) if line["env_steps"] <= env_steps]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")
