"""The reference: the plain loop that learns and records what passes its boundaries.

Every distributed run is compared with this one (the main theorem of the design).
"""

# ruff: noqa: D102  (the methods of `api.Msrl`)

import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
from mindspore import Tensor

from mindspore_rl.api import in_order
from mindspore_rl.datasets.loader import EnvironmentWindows
from mindspore_rl.datasets.windows import TRANSITIONS
from mindspore_rl.environments.tensor_env import LocalEnvironment
from mindspore_rl.replay.across import ACROSS, drawn_across, drawn_whole
from mindspore_rl.replay.rings import Rings
from mindspore_rl.replay.spec import ONE
from mindspore_rl.rl import operators
from mindspore_rl.rl.operators import gradient_function, leaves, to_array
from mindspore_rl.rl.parameters import named_parameters, set_parameter, trainable
from mindspore_rl.runtime.checkpoint import column_of, inserted_of, lagged
from mindspore_rl.runtime.plain_loop import PlainLoop
from mindspore_rl.runtime.replay_segments import put


class Kept:
    """A kept replay of all environments.

    Args:
        num_envs: B.
        by_priority: see below; a draw by priority shows it, too.

    Attributes:
        columns: arrays `[capacity, B, ...]`.
        weights: `[capacity, B]` int64, see `replay.rings`.
        inserted: number of records ever inserted for each environment, `[B]`.
        by_priority: whether it is drawn from by priority.
    """

    def __init__(self, num_envs: int, by_priority: bool = False) -> None:
        self.columns: list[np.ndarray] = []
        self.weights = np.zeros((0, num_envs), np.int64)
        self.inserted = np.zeros(num_envs, np.int64)
        self.by_priority = by_priority

    def write(self, places: slice, values: list[np.ndarray], capacity: int) -> None:
        """Keeps a record of each of some environments."""
        if not self.columns:
            shapes = [(capacity, len(self.inserted), *value.shape[1:]) for value in values]
            pairs = zip(shapes, values, strict=True)
            self.columns = [np.zeros(shape, value.dtype) for shape, value in pairs]
            self.weights = np.zeros(shapes[0][:2], np.int64)
        if len(self.columns) > len(values):
            self.weights, self.by_priority = self.columns.pop(), True
        self._rings.write(places, tuple(values))

    def take(self, columns: list[np.ndarray], inserted: np.ndarray, capacity: int) -> None:
        """Goes on with the records of a checkpoint, whose last column may hold the weights."""
        before = len(columns[0])
        now = np.minimum(inserted, before) if capacity > before else inserted
        numbers = inserted - np.minimum(inserted, before) + np.arange(before)[:, None]
        rows, lanes = numbers % before, np.arange(len(inserted))
        numbers = np.where(numbers < inserted, numbers - (inserted - now), -1)
        for column in columns:
            self.columns.append(np.zeros((capacity, *column.shape[1:]), column.dtype))
            put(self.columns[-1], column[rows, lanes], numbers, now)
        filled = np.arange(capacity)[:, None] < now
        self.weights, self.inserted = np.where(filled, ONE, 0), now.copy()

    def draw(self, noise: np.ndarray, count: int, by: str, steps: int) -> tuple[Tensor, ...]:
        """Draws records, see `api.Msrl.replay_sample`; noise `[B, 2 k]`."""
        rings = self._rings
        if by == "priority":
            self.by_priority = True
            found = rings.draw_weighted(noise, steps)
        elif count % rings.num_envs or by in ACROSS:
            filled = np.minimum(self.inserted, rings.capacity)
            oldest, starts = self.inserted - filled, filled - max(steps, 1) + 1
            if count % rings.num_envs:
                rows, holders = drawn_whole(noise, starts, count, by)
            else:
                rows, holders = drawn_across(noise, starts, by == "distinct")
            numbers = oldest[holders] + rows
            found = rings.records(numbers.reshape(-1), holders.reshape(-1), steps)
        else:
            found = rings.draw(noise, steps)
        return tuple(map(Tensor, found))

    def update(self, ids: np.ndarray, priorities: np.ndarray) -> None:
        """Sets the priorities of drawn records, both `[k * B]`."""
        self._rings.update(ids, priorities)

    @property
    def _rings(self) -> Rings:
        return Rings(self.columns, self.weights, self.inserted)

    def state(self, name: str) -> dict[str, np.ndarray]:
        """Returns the arrays of a checkpoint, for a replay of this name."""
        columns = [*self.columns, *[self.weights][: self.by_priority]]
        arrays = {column_of(name, n): column.copy() for n, column in enumerate(columns)}
        return arrays | {inserted_of(name): self.inserted.copy()}


class Mean(Tensor):
    """The mean of a loss that returns one array: a number, and a tuple of one."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter((Tensor(self),))

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: Any) -> Any:
        return (Tensor(self),)[place]


Recorder = Callable[[int, str, list[np.ndarray]], None]


class Reference(PlainLoop):
    """`msrl` for one process.

    Args:
        trainer: the algorithm.
        num_iterations: number at which `iterations()` ends.
        recorder: called with (iteration, site, arrays) for every boundary passed; the sites of a
            mark are numbered in the order in which they are first reached.
        on_iteration: called with (iteration, the training loop's local variables) before each
            iteration and once after the last.
        implied: by operation and mark, which arguments or results of a call pass a boundary that
            the program does not set; None: all that there may be, of a program that sets none.
        lag: `agent_act` of iteration i uses the actor's parameters after iteration i - 1 - lag.
        environment: the environments; None: all of the configuration.
        env_indices: their global indices.

    Attributes:
        reports: the metrics that were reported.
        by_priority: the names of the replays that are drawn from by priority, of those that are
            known to be before the first draw.
        nudge: changes each gradient, if set.
        versions: the actor's parameters before this iteration and the `lag` iterations before it,
            the oldest first, in the order of `named_parameters`.
    """

    environment: LocalEnvironment

    def __init__(
        self,
        trainer: Any,
        num_iterations: int,
        recorder: Recorder | None = None,
        on_iteration: Callable[[int, dict[str, Any]], None] | None = None,
        implied: dict[tuple[str, str], tuple[int, ...]] | None = None,
        lag: int = 0,
        environment: Any = None,
        env_indices: range | None = None,
    ) -> None:
        config, in_graph = trainer.config, trainer.spec.in_graph
        every = range(config.num_envs) if env_indices is None else env_indices
        environment = environment or LocalEnvironment(config.env, in_graph, every, config.seed)
        super().__init__(trainer, environment, range(num_iterations), every, config.seed)
        self.recorder, self.on_iteration, self.implied = recorder, on_iteration, implied
        self.reports: list[dict[str, float]] = []
        self.lag, self._acting = lag, named_parameters(trainer, "actor") if lag else []
        self.versions = deque([self._newest()] * (lag + 1), maxlen=lag + 1)
        self._env_steps = self._steps_before = 0
        self._kept: dict[str, Kept] = {}
        self.by_priority: set[str] = set()
        self._gradients: dict[tuple, Callable] = {}
        self._told: Any = ()  # the rows of the last gradient, which no mark records
        self._windows: dict[str, EnvironmentWindows] = {}
        self.nudge: Callable[[Tensor], Tensor] | None = None

    def run(self) -> None:
        """Runs the training loop, and closes what it has opened."""
        try:
            with self.environment:
                super().run()
        finally:
            for windows in self._windows.values():
                windows.close()

    def state(self, variables: dict[str, Any]) -> dict[str, np.ndarray]:
        """Returns the arrays of a checkpoint at this point.

        Args:
            variables: the loop's carried variables by their names in the graph.
        """
        arrays = {f"variables/{name}": to_array(value) for name, value in variables.items()}
        for name, value in (self.environment.get_state() or {}).items():
            arrays[f"environment/{name}"] = value
        for name in ("return", "length"):
            arrays[f"episodes/{name}"] = np.zeros(self.num_envs)
        for name, kept in self._kept.items():
            arrays |= kept.state(name)
        for name, parameter in named_parameters(self.trainer, "state"):
            arrays[f"parameters/{name}"] = to_array(parameter)
        for age in range(1, self.lag + 1):
            for (name, _), value in zip(self._acting, self.versions[-1 - age], strict=True):
                arrays[lagged(age, name)] = value
        return arrays

    def iterations(self) -> Iterator[int]:
        loop = sys._getframe(1)
        self._env_steps = 0
        for iteration in super().iterations():
            self._steps_before = self._env_steps
            self.versions.append(self._newest())
            if self.on_iteration:
                self.on_iteration(iteration, loop.f_locals)
            yield iteration
        self.versions.append(self._newest())
        if self.on_iteration:
            self.on_iteration(self.numbers.stop, loop.f_locals)

    # ---- acting with older parameters ------------------------------------------------------

    def agent_act(self, *args: Any, **named: Any) -> Any:
        if not self.lag:
            return super().agent_act(*args, **named)
        newest = self._newest()
        self._set(self.versions[0])
        result = super().agent_act(*args, **named)
        self._set(newest)
        return result

    def _newest(self) -> list[np.ndarray]:
        return [np.array(to_array(parameter)) for _, parameter in self._acting]

    def _set(self, values: list[np.ndarray]) -> None:
        for (_, parameter), value in zip(self._acting, values, strict=True):
            set_parameter(parameter, value)

    # ---- environment, replay ---------------------------------------------------------------

    def env_reset(self) -> Tensor:
        return self._implied("env_reset", "observation", (super().env_reset(),))[0]

    def env_step(self, action: Tensor) -> tuple[Tensor, ...]:
        self._env_steps += self.num_envs
        self._implied("env_step", "action", (action,))
        return self._implied("env_step", "observation", super().env_step(action))

    def replay_insert(self, *values: Any, keep: int = 0, into: str = "") -> None:
        columns = tuple(leaves(values))
        self._implied("replay_keep" if keep else "replay_insert", "transition", columns)
        super().replay_insert(*values, keep=keep, into=into)

    def replay_sample(
        self, count: int = 0, by: str = "stratified", steps: int = 0, of: str = ""
    ) -> Any:
        found = super().replay_sample(count, by, steps, of)
        self._implied("replay_draw" if count else "replay_sample", "batch", tuple(leaves(found)))
        return found

    def _keep(self, values: tuple, capacity: int, into: str) -> None:
        self._kept_in(into).write(slice(None), [to_array(value) for value in values], capacity)

    def _draw(self, count: int, by: str, steps: int, of: str) -> tuple[Tensor, ...]:
        numbers = self._noise("replay_sample", 2 * -(-count // self.num_envs))
        assert numbers is not None
        return self._kept[of].draw(numbers.asnumpy(), count, by, steps)

    def uniform(self, count: int, size: int) -> Tensor:
        numbers = self._noise("uniform", -(-count // self.num_envs) * size)
        return operators.uniform(numbers, size)[:count]

    def _kept_in(self, name: str) -> Kept:
        if name not in self._kept:
            self._kept[name] = Kept(self.num_envs, name in self.by_priority)
        return self._kept[name]

    def replay_update(self, ids: Tensor, priorities: Tensor, of: str = "") -> None:
        self._implied("replay_update", "priority", (ids, priorities))
        self._kept[of].update(ids.asnumpy(), priorities.asnumpy())

    def dataset_windows(self, path: str, count: int, length: int) -> tuple[Tensor, ...]:
        return self._of_dataset("dataset_windows", path, count, length)

    def dataset_transitions(self, path: str, count: int) -> tuple[Tensor, ...]:
        return self._of_dataset("dataset_transitions", path, count, TRANSITIONS)

    def _of_dataset(self, call: str, path: str, count: int, length: int) -> tuple[Tensor, ...]:
        purpose = self._site(f"{call}_order", sys._getframe(2))
        step = self._step(purpose)
        if purpose not in self._windows:
            each, own = count // self.num_envs, range(self.num_envs)
            self._windows[purpose] = EnvironmentWindows(
                path, length, each, 1, self.num_envs, own, self.seed, purpose
            )
        return tuple(Tensor(array[0]) for array in self._windows[purpose].of_iteration(step))

    # ---- learning --------------------------------------------------------------------------

    def gradient(
        self, loss: Callable, network: Any, *args: Any, rows: bool = False, **named: Any
    ) -> tuple:
        args = in_order(loss, args, named)
        key = (loss, *map(id, trainable(network)))
        compute = self._gradients.get(key) or gradient_function(loss, network, None)
        if inspect.ismethod(loss):  # a function inside `learn` is another one in every call
            self._gradients[key] = compute
        grads, means, self._told = compute(*args)
        if self.nudge:
            grads = tuple(map(self.nudge, grads))
        means = Mean(means[0]) if len(means) == 1 else means
        found = (grads, means, self._told) if rows else (grads, means)
        return self._implied("gradient", "gradient", found)

    def update(self, method: Callable, *args: Any, **named: Any) -> None:
        args = in_order(method, args, named)
        if self.implied is not None:  # statistics are told by the program alone
            self._implied("update", "gradient", _arrays(args))
        method(*(tuple(arg) if type(arg) is list else arg for arg in args))  # as a cell gets it

    def env_steps(self) -> Tensor:
        return Tensor(np.float32(self._steps_before))

    def boundary(self, name: str, value: Any) -> Any:
        self._pass(name, value, sys._getframe(1))
        return value

    def _implied(self, call: str, mark: str, values: tuple) -> tuple:
        """Passes the boundary that the call being made implies."""
        if self.recorder:
            frame, every = sys._getframe(2), range(len(values))
            op = self._site(call, frame)
            places = every if self.implied is None else self._places(op, mark)
            chosen = tuple(values[place] for place in places if place in every)
            if chosen:
                self._pass(mark, chosen, frame)
        return values

    def _places(self, op: str, mark: str) -> tuple[int, ...]:
        """Returns the values of a call that pass its implied boundary."""
        assert self.implied is not None
        unrolled = self.implied.get((f"{op}.1", mark), ())  # the first turn of an unrolled loop
        return self.implied.get((op, mark), unrolled)

    def _pass(self, mark: str, value: Any, frame: FrameType) -> None:
        if self.recorder:
            site = self._site(f"boundary:{mark}", frame)
            parts = value if isinstance(value, tuple) else (value,)
            given = leaves([part for part in parts if part is not self._told])
            self.recorder(self._iteration, site, list(map(to_array, given)))

    def report(self, metrics: dict[str, Any]) -> None:
        self.reports.append({key: float(to_array(value)) for key, value in metrics.items()})


def _arrays(args: tuple) -> tuple:
    """Returns the arguments of an update that the graph has; a network or number may be fixed."""
    known = (Tensor, np.ndarray, np.generic, int, float)
    objects = [not all(isinstance(leaf, known) for leaf in leaves(arg)) for arg in args]
    fixed = (int, float) if any(objects) else ()
    pairs = zip(args, objects, strict=True)
    return tuple(arg for arg, own in pairs if not own and not isinstance(arg, fixed))
