"""Evaluates checkpoints while a job trains: starts the process that does it, and talks to it.

The process (`trained/evaluator.py`) is no rank: the job does not wait for it, and its failure is
only told. It and the coordinator share a folder: a link to each checkpoint that is to be evaluated,
and beside it, once it has been, a JSON file of the returns.
"""

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from mindspore_rl.platform import interpreter
from mindspore_rl.platform.cache import make_folder, writing
from mindspore_rl.runtime.best_checkpoint import link_or_copy
from mindspore_rl.runtime.coordinator.cleanup import MARK, Reaper
from mindspore_rl.runtime.coordinator.launch import ENDING_S

FOLDER, LOG = "evaluating", "evaluator.log"
LEAST_PRIORITY, NO_LESS = 19, 0  # niceness, added to this process's
COMMAND = tuple(interpreter.command("-m", "mindspore_rl.trained.evaluator"))


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        path: the checkpoint, a link that `Evaluator.forget` removes.
        iteration: of the checkpoint.
        env_steps: of the checkpoint.
        wall_s: the time at which the checkpoint was given, see `Evaluator.give`.
        returns: of each episode, reward units.
    """

    path: Path
    iteration: int
    env_steps: int
    wall_s: float
    returns: list[float]


class Evaluator:
    """The process of a job that evaluates, as a context; it ends with the context.

    Args:
        run_dir: the run's folder.
        episodes: number of episodes of an evaluation.
        command: is started with the run's folder, the shared folder, the number of episodes and
            the niceness that it adds to its own.
    """

    def __init__(self, run_dir: Path, episodes: int, command: tuple[str, ...] = COMMAND) -> None:
        self._folder, self._log = run_dir.resolve() / FOLDER, run_dir / LOG
        self._words = [*command, str(run_dir.resolve()), str(self._folder), str(episodes)]
        self._given: dict[Path, float] = {}

    def __enter__(self) -> "Evaluator":
        with writing(self._folder):
            make_folder(self._folder)
            self._clear()  # an attempt that was killed has left it
        self._start(LEAST_PRIORITY)
        return self

    def _start(self, nice: int) -> None:
        # The cores are the ranks': more threads would only take more of their time.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **interpreter.environment()}
        environment.pop(MARK, None)  # the processes of the job end before this one
        with writing(self._log), self._log.open("ab") as log:
            words = [*self._words, str(nice)]
            self._process = Reaper("the evaluation", "", words, environment, log)

    def _end(self) -> None:
        self._process.ask_to_end()
        self._process.wait(ENDING_S)
        self._process.end()

    def hasten(self) -> None:
        """Starts the process anew with this process's priority, to which it may not raise itself.

        The evaluation that the process is at begins again. Raises: OSError, MsrlError.
        """
        self._end()
        self._start(NO_LESS)

    def __exit__(self, *_: object) -> None:
        self._end()
        with contextlib.suppress(OSError):
            self._clear()
            self._folder.rmdir()

    def _clear(self) -> None:
        for path in self._folder.glob("checkpoint-*"):
            path.unlink()

    @property
    def waiting(self) -> int:
        """Number of checkpoints whose evaluation is not done."""
        return len(self._given)

    def failed(self) -> str:
        """Returns how the process has ended, if it has."""
        if (status := self._process.poll()) is None:
            return ""
        return f"{self._process.who} has ended (exit status {status}), see {self._log}"

    def give(self, path: Path, wall_s: float) -> None:
        """Gives it a checkpoint to evaluate. Raises: OSError.

        Args:
            path: the checkpoint, which may be removed meanwhile.
            wall_s: the time, for the line of metrics.
        """
        link = self._folder / path.name
        if link not in self._given:
            temporary = link.with_suffix(".tmp")
            link_or_copy(path, temporary)
            temporary.replace(link)
            self._given[link] = wall_s

    def take(self) -> list[Evaluation]:
        """Returns the evaluations that are done."""
        found = []
        for path in [path for path in self._given if _result(path).exists()]:
            done = json.loads(_result(path).read_bytes())
            found.append(Evaluation(path, wall_s=self._given.pop(path), **done))
        return found

    def forget(self, done: Evaluation) -> None:
        """Removes the files of an evaluation."""
        done.path.unlink(missing_ok=True)
        _result(done.path).unlink(missing_ok=True)

    def wait(self, seconds: float) -> None:
        """Waits for the next evaluation, the end of the process, or for some time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.failed():
            if any(_result(path).exists() for path in self._given):
                return
            time.sleep(0.02)


def _result(path: Path) -> Path:
    return path.with_suffix(".json")
