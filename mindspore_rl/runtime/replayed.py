"""The plain loop of an asynchronous run, driven by the run's log of arrivals.

The actors' loops are plain loops over their own environments. The learner's loop is a plain loop,
too, whose environments and actors are those of the batch that the log names. So every number of the
run follows from the algorithm and the log.
"""

# ruff: noqa: D102  (the methods of `api.Msrl`)

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from mindspore_rl.errors import MsrlError
from mindspore_rl.plan.plan import STATE, Plan
from mindspore_rl.rl.operators import leaves, put_into, to_array
from mindspore_rl.rl.parameters import named_parameters, set_parameter
from mindspore_rl.rl.records import is_record
from mindspore_rl.runtime import resuming
from mindspore_rl.runtime.arrivals_log import Arrived
from mindspore_rl.runtime.plain_state import (
    Names,
    State,
    begin_of,
    counted,
    records_of,
    set_variables,
    take_rows,
)
from mindspore_rl.runtime.reference import Reference

ENDLESS = 1 << 60
"""Number of iterations of an actor, which ends with the learner."""


class ReplayedLoop(Reference):
    """The learner's loop of one start of an asynchronous run.

    Args:
        trainer: the algorithm.
        plan: of the start.
        log: of the start.
        after_update: called with the environment steps done, before the first update and after
            each.
        names: of the program.
        begin: the state before the first update; None: that of an untrained policy.

    Attributes:
        reported: environment steps after each update, and the metrics that it reported.

    Raises:
        MsrlError: the plain loop cannot begin with this state.
    """

    def __init__(
        self,
        trainer: Any,
        plan: Plan,
        log: Arrived,
        after_update: Callable[[int], None],
        names: Names,
        begin: State | None = None,
    ) -> None:
        assert plan.arrivals is not None
        sender, learner = (
            next(f for f in plan.fragments if f.name == name)
            for name in (plan.arrivals.sender, plan.arrivals.consumer)
        )
        batch = range(learner.shares[-1][1])
        past = _Past(self, trainer.spec, len(batch))
        super().__init__(trainer, 0, environment=past, env_indices=batch)
        self._plan, self._log, self._after_update, self._names = plan, log.rows, after_update, names
        self.draws = names.draws
        self._first_steps = resuming.counted_from(begin[1], plan)[1] if begin else 0
        self._first = self._first_steps // plan.steps_per_update
        self.numbers = range(self._first, self._first + len(self._log))
        if begin:
            self._take(*begin)
        scope = next(message.parameters for message in plan.messages if message.parameters)
        self._acting = named_parameters(trainer, scope)
        self._kept_versions: dict[int, list[np.ndarray]] = {}
        self.batch: list[_Turn] = []
        self.reported: list[tuple[int, dict[str, float]]] = []
        self._inserts: list[tuple[list[np.ndarray], int, str]] = []
        self._actors = []
        for worker, share in enumerate(sender.shares):
            own = self._log[self._log[..., 0] == worker]
            first = int(own[:, 1].min()) if len(own) else 0
            actor = _Actor(trainer, plan, range(*share), first, names)
            if begin:
                actor.begin = begin_of(begin, plan, names.carried, slice(*share))
                actor._kept = records_of(begin, plan, slice(*share))
            self._actors.append(actor)

    def run(self) -> None:
        """Runs the training loop to the end of the log."""
        try:
            super().run()
            self.end = self._state_at_end()
        finally:
            for actor in self._actors:
                actor.end()

    def steps_after(self, updates: int) -> int:
        """Returns the environment steps that are done after a number of updates of the run."""
        return self._first_steps + (updates - self._first) * self._plan.steps_per_update

    def iterations(self) -> Iterator[int]:
        rows = slice(0, self.num_envs)
        take_rows(sys._getframe(1), self._plan, self._names.carried, rows)
        for update in super().iterations():
            self._after_update(self.steps_after(update))
            newest = self._kept_versions[update] = self.versions[-1]
            self.batch = []
            place = update - self._first
            for worker, iteration, version in self._log[place].tolist():
                self._set(self._kept_versions[version])
                steps = self.steps_after(version)
                self.batch.append(self._actors[worker].act(iteration, steps))
            self._set(newest)
            used = self._log[place + 1 :, :, 2]
            oldest = int(used.min()) if used.size else update
            for version in [v for v in self._kept_versions if v < oldest]:
                del self._kept_versions[version]
            yield update
            self._write_inserts()
            metrics = {name: value for report in self.reports for name, value in report.items()}
            self.reported.append((self.steps_after(update + 1), metrics))
            self.reports.clear()
        self._after_update(self.steps_after(self.numbers.stop))

    def env_steps(self) -> Tensor:
        return Tensor(np.float32(self.steps_after(self._iteration)))

    # ---- the states before and after -----------------------------------------------------------

    def _take(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Begins with the parameters and records of a state."""
        carried = self._names.carried
        for name in (name for name, value in self._plan.carried.items() if value.axis is None):
            if name == STATE:
                continue
            if (site := counted(carried[name])) is None:
                raise MsrlError(
                    f"the loop carries {carried[name]} from one iteration to the next, which is no "
                    "value of each environment, so that the plain loop cannot begin with a "
                    "checkpoint; expected a run from its beginning without restarts"
                )
            self._begun[site] = int(arrays[f"variables/{name}"])
        for name, parameter in named_parameters(self.trainer, "state"):
            set_parameter(parameter, arrays[f"parameters/{name}"])
        self._kept = records_of((arrays, meta), self._plan, slice(None))

    def _state_at_end(self) -> State:
        """Returns the state after the last update, between two iterations of each actor."""
        plan, steps = self._plan, self.steps_after(self.numbers.stop)
        arrays = {
            f"parameters/{n}": to_array(p) for n, p in named_parameters(self.trainer, "state")
        }
        for name, kept in self._kept.items():
            arrays |= kept.state(name) if plan.checkpoint_replay else {}
        parts = [actor.state() for actor in self._actors]
        for name in parts[0]:
            value = plan.carried.get(name.removeprefix("variables/"))
            axis = value.axis if value and name.startswith("variables/") else 0
            arrays[name] = np.concatenate([part[name] for part in parts], axis or 0)
        for name, source in self._names.carried.items():
            if name in plan.carried and (site := counted(source)) is not None:
                arrays[f"variables/{name}"] = self.begun(site)
        meta = {
            "num_envs": plan.num_envs,
            "iteration": steps // plan.steps_per_iteration,
            "env_steps": steps,
            "steps_per_iteration": plan.steps_per_iteration,
        }
        return {name: np.array(value) for name, value in arrays.items()}, meta

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

    def agent_learn(self, *args: Any, **named: Any) -> Any:
        result = super().agent_learn(*args, **named)
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
        begin: its part of the state to begin with: that of its environments and the loop's
            variables, by their names in the source.
        learned: what `agent_learn` returned last in the learner's loop; only its form matters.
    """

    def __init__(
        self, trainer: Any, plan: Plan, env_indices: range, first: int, names: Names
    ) -> None:
        super().__init__(trainer, 0, env_indices=env_indices)
        self.numbers, self.draws = range(first, ENDLESS), names.draws
        self._plan, self._carried = plan, names.carried
        self._made = _Turn(env_indices)
        self.begin: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = {}, {}
        self.learned: Any = None
        self._steps_done, self._between = 0, False
        self._loop: FrameType | None = None
        self._turn, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._main, daemon=True)

    def act(self, iteration: int, env_steps: int) -> _Turn:
        """Acts for an iteration, with the parameters that the trainer has now."""
        self._finish()
        assert self._iteration == iteration, (self._iteration, iteration)
        self._made = _Turn(self._made.env_indices)
        self._steps_done = env_steps
        self._between = False
        self._go()
        return self._made

    def state(self) -> dict[str, np.ndarray]:  # type: ignore[override]
        """Returns the arrays of a checkpoint that are of these environments."""
        self._finish()
        assert self._loop is not None
        state = self.environment.get_state() or {}
        found = {f"environment/{name}": value for name, value in state.items()}
        variables = dict(self._loop.f_locals)
        for name, value in self._plan.carried.items():
            if name != STATE and value.axis is not None:
                found[f"variables/{name}"] = to_array(eval(self._carried[name], {}, variables))
        return found

    def end(self) -> None:
        """Ends the thread and closes the environments."""
        self._ended = True
        if self._thread.is_alive():
            self._turn.release()
            self._thread.join()

    def iterations(self) -> Iterator[int]:
        self._loop = sys._getframe(1)
        own = slice(self.env_indices.start, self.env_indices.stop)
        take_rows(self._loop, self._plan, self._carried, own)
        environment, variables = self.begin
        if environment:
            self.environment.set_state(environment)
        if variables:
            set_variables(self._loop, variables)
        for iteration in super().iterations():
            self._between = True
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
        return Tensor(np.float32(self._steps_done))

    def agent_learn(self, *args: Any, **named: Any) -> Any:
        self._pause()
        if self.learned is None:  # nothing was learnt since the checkpoint: a result of this form
            self.learned = super().agent_learn(*args, **named)
        return self.learned

    def report(self, metrics: dict[str, Any]) -> None:
        """Leaves the metrics to the learner."""

    def update(self, method: Callable, *args: Any, **named: Any) -> None:
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

    def _finish(self) -> None:
        """Comes to the end of the iteration before, or to the first one."""
        if not self._thread.is_alive():
            self._thread.start()
            self._wait()
        while not self._between:
            self._go()

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
