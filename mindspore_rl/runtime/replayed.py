"""The plain loop of an asynchronous run, driven by the run's log of arrivals.

The actors' loops are plain loops over their own environments. The learner's loop is a plain loop,
too, whose environments and actors are those of the batch that the log names. So every number of the
run follows from the algorithm and the log.
"""

# ruff: noqa: D102  (the methods of `api.Msrl`)

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from mindspore_rl.plan.plan import Plan
from mindspore_rl.rl.operators import leaves, put_into, to_array
from mindspore_rl.rl.parameters import named_parameters
from mindspore_rl.rl.records import is_record
from mindspore_rl.runtime.rank.batch_server import ARRIVALS_FILE
from mindspore_rl.runtime.reference import Reference

ENDLESS = 1 << 60
"""Number of iterations of an actor, which ends with the learner."""


class ReplayedLoop(Reference):
    """The learner's loop of an asynchronous run.

    Args:
        trainer: the algorithm.
        plan: of the run.
        log: int64 `[updates, messages, 3]`, see `ARRIVALS_FILE`.
        after_update: called with the number of updates made, before the first and after each.
    """

    def __init__(
        self, trainer: Any, plan: Plan, log: np.ndarray, after_update: Callable[[int], None]
    ) -> None:
        assert plan.arrivals is not None
        sender, learner = (
            next(f for f in plan.fragments if f.name == name)
            for name in (plan.arrivals.sender, plan.arrivals.consumer)
        )
        batch = range(learner.shares[-1][1])
        past = _Past(self, trainer.spec, len(batch))
        super().__init__(trainer, len(log), environment=past, env_indices=batch)
        self._log, self._after_update = log, after_update
        scope = next(message.parameters for message in plan.messages if message.parameters)
        self._acting = named_parameters(trainer, scope)
        self._kept_versions: dict[int, list[np.ndarray]] = {}
        self.batch: list[_Turn] = []
        self._inserts: list[tuple[list[np.ndarray], int, str]] = []
        steps = plan.steps_per_update
        self._actors = [_Actor(trainer, range(*share), steps) for share in sender.shares]

    def run(self) -> None:
        """Runs the training loop to the end of the log."""
        try:
            super().run()
        finally:
            for actor in self._actors:
                actor.end()

    def iterations(self) -> Iterator[int]:
        for update in super().iterations():
            self._after_update(update)
            newest = self._kept_versions[update] = self.versions[-1]
            self.batch = []
            for worker, iteration, version in self._log[update].tolist():
                self._set(self._kept_versions[version])
                self.batch.append(self._actors[worker].act(iteration, version))
            self._set(newest)
            used = self._log[update + 1 :, :, 2]
            oldest = int(used.min()) if used.size else update
            for version in [v for v in self._kept_versions if v < oldest]:
                del self._kept_versions[version]
            yield update
            self._write_inserts()
        self._after_update(self.numbers.stop)

    def agent_act(self, *args: Any, **named: Any) -> Any:
        return joined([turn.acted.pop(0) for turn in self.batch])

    def replay_insert(self, *values: Any, keep: int = 0, into: str = "") -> None:
        rows = joined([turn.inserted.pop(0) for turn in self.batch])
        super().replay_insert(*rows, keep=keep, into=into)

    def _keep(self, values: tuple, capacity: int, into: str) -> None:
        self._inserts.append(([to_array(value) for value in values], capacity, into))

    def _draw(self, count: int, by: str, steps: int, of: str) -> tuple[Tensor, ...]:
        self._write_inserts()
        return super()._draw(count, by, steps, of)

    def _write_inserts(self) -> None:
        """Writes the records of an iteration, message by message, as the learner does."""
        first = 0
        for turn in self.batch:
            end = first + len(turn.env_indices)
            places = slice(turn.env_indices.start, turn.env_indices.stop)
            for arrays, capacity, into in self._inserts:
                rows = [array[first:end] for array in arrays]
                self._kept_in(into).write(places, rows, capacity)
            first = end
        self._inserts = []

    def agent_learn(self, *args: Any) -> Any:
        result = super().agent_learn(*args)
        for actor in self._actors:
            actor.learned = result
        return result


class _Past:
    """The environments of a batch, which its actors have already stepped."""

    noise_size = 0

    def __init__(self, loop: ReplayedLoop, spec: Any, num_envs: int) -> None:
        self._loop, self._spec, self._num_envs = loop, spec, num_envs

    def reset(self, noise: Tensor | None) -> Tensor:
        """Returns: obs of zeros; the rows of a batch come from its actors."""
        return ops.zeros((self._num_envs, *self._spec.obs_shape))

    def step(self, action: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Returns: what the actors' environments returned."""
        return joined([turn.stepped.pop(0) for turn in self._loop.batch])

    def __enter__(self) -> "_Past":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class _Turn:
    """Results of an actor's calls in one of its iterations."""

    env_indices: range
    acted: list[Any] = field(default_factory=list)
    stepped: list[Any] = field(default_factory=list)
    inserted: list[Any] = field(default_factory=list)


class _Actor(Reference):
    """An actor's loop, in a thread of its own that runs only while `act` waits for it.

    Attributes:
        learned: what `agent_learn` returned last in the learner's loop.
    """

    def __init__(self, trainer: Any, env_indices: range, steps_per_update: int) -> None:
        super().__init__(trainer, ENDLESS, env_indices=env_indices)
        self._made = _Turn(env_indices)
        self.learned: Any = None
        self._steps_per_update, self._version = steps_per_update, 0
        self._turn, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._main, daemon=True)

    def act(self, iteration: int, version: int) -> _Turn:
        """Acts for an iteration, with the parameters that the trainer has now."""
        self._version = version
        if not self._thread.is_alive():
            self._thread.start()
            self._wait()
        else:
            self._go()  # to the end of the iteration before
        self._made = _Turn(self._made.env_indices)
        self._go()
        assert self._iteration == iteration, (self._iteration, iteration)
        return self._made

    def end(self) -> None:
        """Ends the thread and closes the environments."""
        self._ended = True
        if self._thread.is_alive():
            self._turn.release()
            self._thread.join()

    def iterations(self) -> Iterator[int]:
        for iteration in super().iterations():
            self._pause()
            yield iteration

    def agent_act(self, *args: Any, **named: Any) -> Any:
        self._made.acted.append(super().agent_act(*args, **named))
        return self._made.acted[-1]

    def env_step(self, action: Tensor) -> tuple[Tensor, ...]:
        self._made.stepped.append(super().env_step(action))
        return self._made.stepped[-1]

    def replay_insert(self, *values: Any, keep: int = 0, into: str = "") -> None:
        self._made.inserted.append(values)
        super().replay_insert(*values, keep=keep, into=into)

    def env_steps(self) -> Tensor:
        return Tensor(np.float32(self._version * self._steps_per_update))

    def agent_learn(self, *args: Any) -> Any:
        self._pause()
        return self.learned

    def update(self, method: Callable, *args: Any) -> None:
        """Leaves updates to the learner."""

    # ---- one thread at a time ----------------------------------------------------------------

    def _main(self) -> None:
        try:
            self.run()
        except _Ended:
            pass
        except Exception as error:  # noqa: BLE001  (raised where `act` waits)
            self._error = error
        self._done.release()

    def _pause(self) -> None:
        self._done.release()
        self._turn.acquire()
        if self._ended:
            raise _Ended

    def _go(self) -> None:
        self._turn.release()
        self._wait()

    def _wait(self) -> None:
        self._done.acquire()
        if self._error is not None:
            raise self._error


class _Ended(BaseException):
    """Ends the thread of an actor."""


def joined(parts: list[Any]) -> Any:
    """Concatenates nested tuples or records of arrays, each along its first axis."""
    first = parts[0]
    if isinstance(first, (tuple, list, dict)) or is_record(first):
        columns = zip(*(leaves(part) for part in parts), strict=True)
        return put_into(first, map(joined, map(list, columns)))
    return Tensor(np.concatenate([to_array(part) for part in parts]))


def read_log(run_dir: Path, plan: Plan) -> np.ndarray:
    """Returns a run's log of arrivals, see `ARRIVALS_FILE`."""
    assert plan.arrivals is not None
    rows = np.fromfile(run_dir / ARRIVALS_FILE, np.int64)
    messages = plan.arrivals.gather * plan.arrivals.consumers
    size = 3 * messages
    return rows[: len(rows) // size * size].reshape(-1, messages, 3)
