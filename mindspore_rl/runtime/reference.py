"""The plain loop: `train` run as ordinary Python, uncompiled, on all environments.

Every distributed run is compared with this one (the main theorem of the design). It uses no graph,
and shares only the formulas with the generated fragments.
"""

# ruff: noqa: D102  (the methods of `api.Msrl`)

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partialmethod
from types import FrameType
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from mindspore_rl.datasets.loader import EnvironmentWindows
from mindspore_rl.environments.tensor_env import LocalEnvironment
from mindspore_rl.plan.value import reduced_count
from mindspore_rl.replay.across import ACROSS, drawn_across
from mindspore_rl.replay.weights import ONE, weighted_rows, weights_of
from mindspore_rl.rl import operators, random
from mindspore_rl.rl.operators import (
    drawn_rows,
    gradient_function,
    is_record,
    leaves,
    minibatch_rows,
    put_into,
    reduce_samples,
    take_rows,
    to_array,
)
from mindspore_rl.rl.parameters import named_parameters

Recorder = Callable[[int, str, list[np.ndarray]], None]


@dataclass
class Reference:
    """`msrl` for one process.

    Args:
        trainer: the algorithm.
        num_iterations: number at which `iterations()` ends.
        recorder: called with (iteration, site, arrays) for every boundary passed; the sites of a
            mark are numbered in the order in which they are first reached.
        on_iteration: called with (iteration, the training loop's local variables) before each
            iteration and once after the last.
        first_iteration: number at which `iterations()` begins.
        implied: by operation and mark, which arguments or results of a call pass a boundary that
            the program does not set; None: all that there may be, of a program that sets none.
    """

    trainer: Any
    num_iterations: int
    recorder: Recorder | None = None
    on_iteration: Callable[[int, dict[str, Any]], None] | None = None
    reports: list[dict[str, float]] = field(default_factory=list)
    first_iteration: int = 0
    implied: dict[tuple[str, str], tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        config = self.trainer.config
        self.num_envs, self.num_steps, self.seed = config.num_envs, config.num_steps, config.seed
        self.environment = self._made_environment()
        self._iteration = 0
        self._env_steps = self._steps_before = 0
        self._rows: list[tuple] = []
        self._sampled = False
        self._record: Any = None
        self._kept: list[tuple] = []
        self._weights: list[np.ndarray] = []
        self._by_priority = False
        self._capacity = self._inserted = 0
        self._sites: dict[str, dict[tuple, int]] = {}
        self._turns: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._begun: dict[str, int] = {}
        self._gradients: dict[tuple, Callable] = {}
        self._windows: dict[str, EnvironmentWindows] = {}

    def _made_environment(self) -> Any:
        config, spec = self.trainer.config, self.trainer.spec
        return LocalEnvironment(config.env, spec.in_graph, range(self.num_envs), self.seed)

    def run(self) -> None:
        """Runs the training loop."""
        try:
            with self.environment:
                self.trainer.train(self)
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
        columns = [to_array(column) for column in self._kept_columns()]
        columns += [np.stack(self._weights)] if self._by_priority else []
        for number, column in enumerate(columns):
            empty = [(0, self._capacity - len(column))] + [(0, 0)] * (column.ndim - 1)
            arrays[f"replay/{number}"] = np.pad(column, empty)
        for name, parameter in named_parameters(self.trainer, "state"):
            arrays[f"parameters/{name}"] = to_array(parameter)
        return arrays

    # ---- loops -----------------------------------------------------------------------------

    def iterations(self) -> Iterator[int]:
        loop = sys._getframe(1)
        self._env_steps = 0
        for iteration in range(self.first_iteration, self.num_iterations):
            self._iteration, self._steps_before = iteration, self._env_steps
            self._counts = dict(self._turns)
            self._turns.clear()
            if self.on_iteration:
                self.on_iteration(self._iteration, loop.f_locals)
            yield self._iteration
        if self.on_iteration:
            self.on_iteration(self.num_iterations, loop.f_locals)

    def steps(self) -> range:
        return range(self.num_steps)

    def epochs(self, count: int) -> range:
        return range(count)

    def minibatches(self, count: int, values: tuple, steps: int = 0) -> Iterator[tuple]:
        site = self._site("permutations", sys._getframe(1))
        number = int(self.begun(site))
        self._begun[site] = number + 1
        order = random.permutations(
            self.seed,
            random.stream(site),
            np.array([number]),
            np.arange(self.num_envs),
            self.num_steps // max(steps, 1),
        )[0]
        stride, columns = max(steps, 1) * self.num_envs, np.arange(self.num_envs)
        permutation = Tensor((order * stride + columns).astype(np.int32))
        for number in range(count):
            rows = minibatch_rows(permutation, Tensor(number), count, steps)
            taken = (take_rows(value, rows) for value in leaves(values))
            yield put_into(values, taken)

    def begun(self, site: str) -> np.ndarray:
        """Returns how often the loop over minibatches at a site has begun, 0-d int32."""
        return np.array(self._begun.get(site, 0), np.int32)

    # ---- environment, actor, replay --------------------------------------------------------

    def env_reset(self) -> Tensor:
        obs = self.environment.reset(self._noise("env_reset", self.environment.noise_size))
        return self._implied("env_reset", "observation", (obs,))[0]

    def env_step(self, action: Tensor) -> tuple[Tensor, ...]:
        self._env_steps += self.num_envs
        self._implied("env_step", "action", (action,))
        noise = self._noise("env_step", self.environment.noise_size)
        return self._implied("env_step", "observation", self.environment.step(action, noise))

    def agent_act(self, *args: Any) -> Any:
        noise = self._noise("agent_act", self.trainer.actor.noise_size)
        return self.trainer.actor.act(*args, *(() if noise is None else (noise,)))

    def agent_learn(self, *args: Any) -> Any:
        return self.trainer.learner.learn(self, *args)

    def replay_insert(self, *values: Any, keep: int = 0) -> None:
        if is_record(values[0]):
            self._record, values = values[0], tuple(leaves(values))
        self._implied("replay_keep" if keep else "replay_insert", "transition", values)
        if keep:
            capacity = keep // self.num_envs
            row = self._inserted % capacity
            first = np.full(self.num_envs, ONE, np.int64)
            largest = np.max(self._weights, axis=0) if self._weights else first
            self._kept[row : row + 1], self._weights[row : row + 1] = [values], [largest]
            self._capacity, self._inserted = capacity, self._inserted + 1
            return
        if self._sampled:
            self._rows, self._sampled = [], False
        self._rows.append(values)

    def replay_sample(self, count: int = 0, by: str = "stratified", steps: int = 0) -> Any:
        if count:
            noise = self._noise("replay_sample", 2 * (count // self.num_envs))
            drawn = self._implied("replay_draw", "batch", self._drawn(noise, by, steps))
            return self._as_inserted(drawn)
        self._sampled = True
        rows = tuple(ops.stack(column) for column in zip(*self._rows, strict=True))
        return self._as_inserted(self._implied("replay_sample", "batch", rows))

    def _as_inserted(self, columns: tuple[Tensor, ...]) -> Any:
        """Columns in the form in which records were inserted; ids and odds stand behind it."""
        if self._record is None:
            return columns
        rest = iter(columns)
        record = put_into(self._record, rest)
        more = tuple(rest)
        return (record, *more) if more else record

    def _drawn(self, noise: Tensor, by: str, steps: int) -> tuple[Tensor, ...]:
        if by in ACROSS:
            return self._across(noise, steps, by == "distinct")
        if by == "priority":
            return self._weighted(noise, steps)
        columns = Tensor(np.arange(self.num_envs, dtype=np.int32))
        inserted = Tensor(np.int32(self._inserted))
        rows = drawn_rows(noise, inserted, self._capacity, columns, steps)
        return tuple(take_rows(column, rows) for column in self._kept_columns())

    def _weighted(self, noise: Tensor, steps: int) -> tuple[Tensor, ...]:
        self._by_priority = True
        weights, length = np.stack(self._weights), max(steps, 1)
        newest = [(self._inserted - 1 - i) % self._capacity for i in range(length - 1)]
        found, odds = weighted_rows(noise.asnumpy(), weights, newest)
        columns = self._records(found, np.arange(self.num_envs), steps)
        return (*columns, Tensor(found.reshape(-1)), Tensor(odds.reshape(-1)))

    def _across(self, noise: Tensor, steps: int, distinct: bool) -> tuple[Tensor, ...]:
        records = len(self._kept) - max(steps, 1) + 1
        found, holders = drawn_across(noise.asnumpy(), records, distinct)
        oldest = self._inserted - len(self._kept)
        return self._records(oldest + found, holders, steps)

    def _records(self, rows: np.ndarray, holders: np.ndarray, steps: int) -> tuple[Tensor, ...]:
        """Gathers records, or windows from there on: rows `[k, B]` of environments `holders`."""
        behind = [(rows + i) % self._capacity for i in range(max(steps, 1))]
        places = np.stack(behind, -1) * self.num_envs + np.expand_dims(holders, -1)
        at = Tensor(places.reshape((-1, steps) if steps else -1).astype(np.int32))
        return tuple(take_rows(column, at) for column in self._kept_columns())

    def replay_update(self, ids: Tensor, priorities: Tensor) -> None:
        self._implied("replay_update", "priority", (ids, priorities))
        pairs = zip(ids.asnumpy(), weights_of(priorities.asnumpy()), strict=True)
        for place, (row, weight) in enumerate(pairs):
            self._weights[row][place % self.num_envs] = weight

    def uniform(self, count: int, size: int) -> Tensor:
        return operators.uniform(self._noise("uniform", count // self.num_envs * size), size)

    def dataset_windows(self, path: str, count: int, length: int) -> tuple[Tensor, ...]:
        purpose = self._site("dataset_windows_order", sys._getframe(1))
        step = self._step(purpose)
        if purpose not in self._windows:
            each, own = count // self.num_envs, range(self.num_envs)
            self._windows[purpose] = EnvironmentWindows(
                path, length, each, 1, self.num_envs, own, self.seed, purpose
            )
        return tuple(Tensor(array[0]) for array in self._windows[purpose].of_iteration(step))

    def _kept_columns(self) -> list[Tensor]:
        return [ops.stack(column) for column in zip(*self._kept, strict=True)]

    # ---- learning --------------------------------------------------------------------------

    def gradient(self, loss: Callable, network: Any, *args: Any) -> tuple:
        key = (loss, id(network))
        if key not in self._gradients:
            self._gradients[key] = gradient_function(loss, network, None)
        return self._implied("gradient", "gradient", self._gradients[key](*args))

    def update(self, method: Callable, *args: Any) -> None:
        if self.implied is not None:  # statistics are told by the program alone
            self._implied("update", "gradient", args)
        method(*args)

    def _reduce(self, kind: str, *values: Tensor, keep: int = 0) -> Any:
        results = tuple(
            reduce_samples(kind, value, keep, reduced_count(value.shape, keep)) for value in values
        )
        return results if len(results) > 1 else results[0]

    mean = partialmethod(_reduce, "mean")
    sum = partialmethod(_reduce, "sum")
    max = partialmethod(_reduce, "max")
    min = partialmethod(_reduce, "min")

    def env_steps(self) -> Tensor:
        return Tensor(np.float32(self._steps_before))

    def __getattr__(self, name: str) -> Any:
        """Looks up calls of `msrl` that are functions of arrays in `operators`."""
        if name.startswith("_") or not hasattr(operators, name):
            raise AttributeError(f"msrl has no {name}")
        return getattr(operators, name)

    def boundary(self, name: str, value: Any) -> Any:
        self._pass(name, value, sys._getframe(1))
        return value

    def _implied(self, call: str, mark: str, values: tuple) -> tuple:
        """Passes the boundary that the call being made implies."""
        if self.recorder:
            frame, every = sys._getframe(2), range(len(values))
            op = self._site(call, frame)
            places = every if self.implied is None else self.implied.get((op, mark), ())
            chosen = tuple(values[place] for place in places if place in every)
            if chosen:
                self._pass(mark, chosen, frame)
        return values

    def _pass(self, mark: str, value: Any, frame: FrameType) -> None:
        if self.recorder:
            site = self._site(f"boundary:{mark}", frame)
            self.recorder(self._iteration, site, [to_array(leaf) for leaf in leaves(value)])

    def report(self, metrics: dict[str, Any]) -> None:
        self.reports.append({key: float(to_array(value)) for key, value in metrics.items()})

    # ---- random numbers --------------------------------------------------------------------

    def _noise(self, call: str, size: int) -> Tensor | None:
        site = self._site(f"{call}_noise", sys._getframe(2))
        step = self._step(site)
        if not size:
            return None
        shape = self.trainer.spec.agent_shape if call == "agent_act" else ()
        noise = random.uniform(
            self.seed,
            random.stream(site),
            np.array([step]),
            np.arange(self.num_envs),
            size,
            random.all_agents(*shape) if shape else None,
        )
        return Tensor(noise[0])

    def _site(self, purpose: str, frame: FrameType | None) -> str:
        """Names a call site: its purpose, and its number in the order of first calls."""
        place: list = []
        while frame is not None and frame.f_code is not type(self).run.__code__:
            place.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        sites = self._sites.setdefault(purpose, {})
        return f"{purpose}#{sites.setdefault(tuple(place), len(sites) + 1)}"

    def _step(self, site: str) -> int:
        """Numbers a site's calls over the whole run; every iteration has as many."""
        turn = self._turns.get(site, 0)
        self._turns[site] = turn + 1
        return self._iteration * self._counts.get(site, 0) + turn
