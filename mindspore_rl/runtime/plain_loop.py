"""The plain loop: `train` run as ordinary Python, uncompiled, on all environments.

It uses no graph, and shares only the formulas with the generated fragments.
"""

# ruff: noqa: D102  (the methods of `api.Msrl`)

import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partialmethod
from types import FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np
from mindspore import Tensor, ops

from mindspore_rl.api import bound_to_act
from mindspore_rl.plan.value import reduced_count
from mindspore_rl.rl import operators, random
from mindspore_rl.rl.operators import leaves, minibatch_rows, put_into, reduce_samples, take_rows
from mindspore_rl.rl.records import is_record


class Environments(Protocol):
    """All environments of a loop, as `tensor_env.LocalEnvironment`.

    Attributes:
        noise_size: random numbers that each environment uses in a step.
    """

    noise_size: int

    def reset(self, noise: Tensor | None) -> Tensor:
        """Returns: obs `[B, ...]`."""

    def step(self, action: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Returns: next_obs, final_obs, reward, terminated, truncated."""


def _has_names(value: Any) -> bool:
    """Returns whether a value is a record or a dictionary."""
    return isinstance(value, dict) or is_record(value)


def _position(frame: FrameType) -> object:
    """Returns the place in the source of the call that a frame executes.

    The instruction would do in Python 3.10 alone: later versions execute a call of a built-in
    function, as in `sum(f(x) for x in xs)`, by another instruction once it has been called a while.
    """
    code, instruction = frame.f_code, frame.f_lasti
    if sys.version_info < (3, 11):
        return instruction
    place = next(itertools.islice(code.co_positions(), instruction // 2, None))
    return instruction if None in place else place


class Draws(NamedTuple):
    """A call of the program that draws random numbers.

    Attributes:
        lines: of the calls that lead there, the innermost last.
        rows: its turns an iteration; 0 for a call that has a mark alone.
    """

    lines: tuple[int, ...]
    rows: int


class PlainLoop(ABC):
    """Calls of `msrl` that step the training loop, for one process.

    A subclass adds the kept records and the calls that learn or report.

    Args:
        trainer: the algorithm.
        environment: all environments of the loop.
        numbers: of the iterations.
        env_indices: global indices of the environments, which select their random numbers.
        seed: of every random number.

    Attributes:
        draws: calls of the program by the names of their random numbers, as far as they are known.
            Other calls are numbered in the order in which they are reached, and must be reached as
            often in each iteration.
    """

    def __init__(
        self, trainer: Any, environment: Environments, numbers: range, env_indices: range, seed: int
    ) -> None:
        self.trainer, self.environment, self.numbers = trainer, environment, numbers
        self.env_indices, self.num_envs, self.seed = env_indices, len(env_indices), seed
        self.num_steps = trainer.config.num_steps
        self._iteration = 0
        self._rows: list[tuple] = []
        self._sampled = False
        self._records: dict[str | None, Any] = {}  # by replay; None: the trajectory buffer
        self.draws: dict[str, Draws] = {}
        self._sites: dict[str, dict[tuple, int]] = {}
        self._turns: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._begun: dict[str, int] = {}

    def run(self) -> None:
        """Runs the training loop."""
        self.trainer.train(self)

    # ---- loops -----------------------------------------------------------------------------

    def iterations(self) -> Iterator[int]:
        for iteration in self.numbers:
            self._iteration, self._counts = iteration, dict(self._turns)
            self._turns.clear()
            yield iteration

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
            np.array(self.env_indices),
            self.num_steps // max(steps, 1),
        )[0]
        stride, columns = max(steps, 1) * self.num_envs, np.arange(self.num_envs)
        permutation = Tensor((order * stride + columns).astype(np.int32))

        def part(number: int) -> tuple:
            rows = minibatch_rows(permutation, Tensor(number), count, steps)
            return put_into(values, (take_rows(value, rows) for value in leaves(values)))

        return map(part, range(count))

    def begun(self, site: str) -> np.ndarray:
        """Returns how often the loop over minibatches at a site has begun, 0-d int32."""
        known = self.draws.get(site)
        before = self.numbers.start * known.rows if known else 0
        return np.array(self._begun.get(site, before), np.int32)

    # ---- environment, actor, replay --------------------------------------------------------

    def env_reset(self) -> Tensor:
        return self.environment.reset(self._noise("env_reset", self.environment.noise_size))

    def env_step(self, action: Tensor) -> tuple[Tensor, ...]:
        noise = self._noise("env_step", self.environment.noise_size)
        return self.environment.step(action, noise)

    def env_index(self) -> Tensor:
        # A trained policy may play in more environments than it was trained in.
        numbers = np.array(self.env_indices, np.int32)
        return Tensor(numbers % self.trainer.config.num_envs)

    def agent_index(self) -> Tensor:
        return Tensor(np.arange(*self.trainer.spec.agent_shape, dtype=np.int32))

    def agent_act(self, *args: Any, **named: Any) -> Any:
        actor = self.trainer.actor
        noise = self._noise("agent_act", actor.noise_size)
        bound = bound_to_act(actor.act, args, named, noise)
        return self._act(*bound.args, **bound.kwargs)

    def _act(self, *args: Any, **named: Any) -> Any:
        return self.trainer.actor.act(*args, **named)

    def agent_learn(self, *args: Any, **named: Any) -> Any:
        return self.trainer.learner.learn(self, *args, **named)

    def replay_insert(self, *values: Any, keep: int = 0, into: str = "") -> None:
        if any(isinstance(value, tuple) or _has_names(value) for value in values):
            one = len(values) == 1 and _has_names(values[0])
            self._records[into if keep else None] = values[0] if one else values
            values = tuple(leaves(values))
        if keep:
            self._keep(values, keep // self.num_envs, into)
            return
        if self._sampled:
            self._rows, self._sampled = [], False
        self._rows.append(values)

    def replay_sample(
        self, count: int = 0, by: str = "stratified", steps: int = 0, of: str = ""
    ) -> Any:
        if count:
            return self._as_inserted(self._draw(count, by, steps, of), of)
        self._sampled = True
        rows = tuple(ops.stack(column) for column in zip(*self._rows, strict=True))
        return self._as_inserted(rows, None)

    @abstractmethod
    def _keep(self, values: tuple, capacity: int, into: str) -> None:
        """Keeps a record of each environment, of which the newest `capacity` are kept."""

    @abstractmethod
    def _draw(self, count: int, by: str, steps: int, of: str) -> tuple[Tensor, ...]:
        """Draws kept records, see `api.Msrl.replay_sample`. Returns: the columns."""

    def _as_inserted(self, columns: tuple[Tensor, ...], of: str | None) -> Any:
        """Columns in the form in which records were inserted; ids and odds stand behind it."""
        if of not in self._records:
            return columns
        rest = iter(columns)
        record = put_into(self._records[of], rest)
        more = tuple(rest)
        if _has_names(self._records[of]):
            return (record, *more) if more else record
        return (*record, *more)

    def uniform(self, count: int, size: int) -> Tensor:
        return operators.uniform(self._noise("uniform", self._each(count) * size), size)

    def _each(self, count: int) -> int:
        """Returns an environment's rows of a batch of `count`, at least 1."""
        return max(count // self.num_envs, 1)

    # ---- learning --------------------------------------------------------------------------

    def _reduce(self, kind: str, *values: Tensor, keep: int = 0) -> Any:
        results = tuple(
            reduce_samples(kind, value, keep, reduced_count(value.shape, keep)) for value in values
        )
        return results if len(results) > 1 else results[0]

    mean = partialmethod(_reduce, "mean")
    sum = partialmethod(_reduce, "sum")
    max = partialmethod(_reduce, "max")
    min = partialmethod(_reduce, "min")

    def __getattr__(self, name: str) -> Any:
        """Looks up calls of `msrl` that are functions of arrays in `operators`."""
        if name.startswith("_") or not hasattr(operators, name):
            raise AttributeError(f"msrl has no {name}")
        return getattr(operators, name)

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
            np.array(self.env_indices),
            size,
            random.all_agents(*shape) if shape else None,
        )
        return Tensor(noise[0])

    def _site(self, purpose: str, asker: FrameType | None) -> str:
        """Names a call site: its purpose and its number in the program, see `draws`."""
        frames: list[FrameType] = []
        frame = asker
        while frame is not None and frame.f_code is not PlainLoop.run.__code__:
            frames.append(frame)
            frame = frame.f_back
        sites = self._sites.setdefault(purpose, {})
        place = tuple((frame.f_code, _position(frame)) for frame in frames)
        if place not in sites:
            sites[place] = self._number(purpose, frames, {*sites.values()})
        return f"{purpose}#{sites[place]}"

    def _number(self, purpose: str, frames: list[FrameType], others: set[int]) -> int:
        """Returns the number of a new site; by its lines in the user's file, if they are known."""
        outside = (f for f in frames if not f.f_globals["__name__"].startswith(__package__))
        lines = tuple(line for line, _ in itertools.groupby(f.f_lineno for f in outside))[::-1]
        limit = len(others) + len(self.draws) + 1
        free = [number for number in range(1, limit + 1) if number not in others]
        known = {number: self.draws.get(f"{purpose}#{number}") for number in free}
        there = {number: draw.lines for number, draw in known.items() if draw}
        same = [number for number in there if there[number] == lines]
        alike = [number for number in there if there[number][-1:] == lines[-1:]]
        return [*same, *alike, *free][0]

    def _step(self, site: str) -> int:
        """Numbers a site's calls over the whole run; every iteration has as many."""
        turn = self._turns.get(site, 0)
        self._turns[site] = turn + 1
        known = self.draws.get(site)
        return self._iteration * (known.rows if known else self._counts.get(site, 0)) + turn
