"""The log of arrivals of an asynchronous run, over all starts of the run.

A learner writes the log of its start. When the run goes on from a checkpoint, in its own directory
or in another one, the log up to the checkpoint is kept with its plan in a folder of `before`. So a
run directory has what `msrl replay` needs from the first start on.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import PLAN_FILE, Plan, load_plan
from mindspore_rl.platform.cache import make_folder, sync, write_file, writing

ARRIVALS_FILE = "arrivals.bin"
"""The log of arrivals: a `HEADER`, then int64 `[updates, messages, 3]`, for each message whose rows
an update used: the worker, its iteration, and the number of updates that had made the parameters it
acted with."""
HEADER = np.dtype([("magic", "S8"), ("version", "<i8"), ("env_steps", "<i8")])
"""The kind and version of the file, and the environment steps before the start."""
KIND = (b"arrivals", 3)
"""Logs of the versions 1 and 2 had no kind; version 2 began with the environment steps."""
BEFORE = "before"
"""Folder of a run with the plans and logs of earlier starts, by the steps before each."""


class Arrived(NamedTuple):
    """A log: the environment steps before it, and `[updates, messages, 3]` int64."""

    env_steps: int
    rows: np.ndarray

    def until(self, env_steps: int, plan: Plan) -> "Arrived":
        """Returns the part of the log before a number of environment steps."""
        updates = max(env_steps - self.env_steps, 0) // plan.steps_per_update
        return Arrived(self.env_steps, self.rows[:updates])


def begin(run_dir: Path, env_steps: int) -> None:
    """Begins the log of a start, durably."""
    write_file(run_dir / ARRIVALS_FILE, _header(env_steps))


def append(run_dir: Path, rows: np.ndarray) -> None:
    """Appends the messages of an update, which are durable after the next `make_durable`."""
    path = run_dir / ARRIVALS_FILE
    with writing(path), path.open("ab") as file:
        file.write(rows.tobytes())


def make_durable(run_dir: Path) -> None:
    """Waits until what was appended is on the disk, so that no checkpoint is newer than the log."""
    path = run_dir / ARRIVALS_FILE
    with writing(path):
        if path.exists():  # not in a synchronous run, nor perhaps at the first checkpoint
            sync(path)


def read_log(folder: Path, plan: Plan) -> Arrived:
    """Returns the log of a start; one without updates if nothing has arrived.

    Raises:
        MsrlError: it is of another version, or no log.
    """
    assert plan.arrivals is not None
    messages = plan.arrivals.gather * plan.arrivals.consumers
    path, size = folder / ARRIVALS_FILE, 3 * messages
    head = np.fromfile(path, HEADER, 1) if path.is_file() else np.zeros(0, HEADER)
    if not len(head):  # a writer that is killed may leave less
        return Arrived(0, np.zeros((0, messages, 3), np.int64))
    magic, version, env_steps = head[0].tolist()
    if (magic, version) != KIND:
        raise MsrlError(
            f"{path} is no log of arrivals of version {KIND[1]}, the one that this msrl reads; "
            "use the msrl that wrote it, or train again"
        )
    numbers = np.fromfile(path, np.int64, offset=HEADER.itemsize)
    return Arrived(env_steps, numbers[: len(numbers) // size * size].reshape(-1, messages, 3))


def starts(run_dir: Path) -> list[tuple[Plan, Arrived]]:
    """Returns the plans and logs of a run's starts, the earliest first.

    Raises:
        MsrlError: a plan or a log cannot be read.
    """
    found = []
    for folder in [*sorted((run_dir / BEFORE).glob("*")), run_dir]:
        plan = load_plan(folder)
        if plan.arrivals is not None and plan.arrivals.gather:
            found.append((plan, read_log(folder, plan)))
    return found


def keep(run_dir: Path, new: Path, env_steps: int) -> None:
    """Keeps the logs of a run's starts up to a checkpoint, from which it goes on.

    Args:
        run_dir: of the run.
        new: where it goes on, perhaps the same.
        env_steps: of the checkpoint.
    """
    try:
        found = starts(run_dir)
        last = load_plan(run_dir).arrivals
    except MsrlError:  # of another version: the log begins with this start
        found, last = [], None
    whole = last is not None and last.gather > 0
    names = [folder.name for folder in sorted((run_dir / BEFORE).glob("*"))]
    place = new / BEFORE
    with writing(place):
        if not whole:  # nothing says what it did since those starts
            shutil.rmtree(place, ignore_errors=True)
            return
        for (plan, log), name in zip(found, [*names, ""], strict=True):
            part, folder = log.until(env_steps, plan), place / f"{log.env_steps:012d}"
            if not len(part.rows):
                if name:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            make_folder(folder)
            source = run_dir / BEFORE / name if name else run_dir
            write_file(folder / PLAN_FILE, (source / PLAN_FILE).read_bytes())
            write_file(folder / ARRIVALS_FILE, _header(part.env_steps) + part.rows.tobytes())


def _header(env_steps: int) -> bytes:
    return np.array((*KIND, env_steps), HEADER).tobytes()
