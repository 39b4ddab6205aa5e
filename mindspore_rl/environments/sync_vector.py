"""Base class of vector environments that step one environment after the other."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import TYPES, Box, Discrete, taken
from mindspore_rl.errors import EnvironmentFailure, NumericsError, described

RAISED = (Exception, SystemExit)
"""Exceptions of an environment's code that count as its failure."""
MOST_NUMBERS, LONGEST_NAME = 50, 100
"""Numbers that are taken from an `info`, and letters of their names."""
TIME_LIMIT = "TimeLimit.truncated"


class LoopVector:
    """Single environments in a plain loop; an error names the environment and its last action.

    Args:
        spec: the environments' spec.
        env_indices: their global indices.
        seed: the run's seed, not negative.
        envs: the environments, with gym's or PettingZoo's `reset` and `step`.
        space: the action space of an environment, or of each of its agents.

    Attributes:
        at_work: its first number is the row of the environment that is running; -1 if several
            are.
        threads: the number of threads that may step environments at once.
        episode_info: see `VectorEnvironment`.
    """

    def __init__(
        self, spec: EnvironmentSpec, env_indices: range, seed: int, envs: list[Any], space: Any
    ) -> None:
        self.spec = spec
        self.at_work = np.zeros(1)
        self.threads = 1
        self.episode_info: list[dict[str, float]] = []
        self._indices, self._seed, self._envs = env_indices, seed, envs
        size = len(envs)
        self._box = isinstance(spec.action_space, Box)
        self._first_action = 0 if self._box else int(getattr(space, "start", 0))
        self._as_int = any(kind.__module__.startswith("gym.") for kind in type(space).__mro__)
        self._lead = (size, *spec.agent_shape)
        self._action_shape = (*self._lead, space.low.size) if self._box else self._lead
        self._actions: Any = [None] * size
        self._seeds_resets = True  # else the first one of an environment alone
        # Steps of the current episodes and of all episodes, in one array: one sum updates both.
        self._counters = np.zeros((2, size), np.int64)
        self._elapsed, self._total = self._counters

    def render(self, i: int) -> Any:
        """Returns an environment's picture, if its `render_mode` is rgb_array.

        Raises:
            EnvironmentFailure: it raised.
        """
        try:
            return self._envs[i].render()
        except NotImplementedError as error:  # the library's Env raises it
            text = "it draws nothing: its class has no render()"
            raise self._failure(i, text) from error
        except RAISED as error:
            raise self._failure(i, f"render {raised(error)}") from error

    def close(self) -> None:
        """Closes every environment. Raises: EnvironmentFailure: the first error."""
        failures = []
        for i, env in enumerate(self._envs):
            try:
                env.close()
            except RAISED as error:
                failures.append(self._failure(i, f"close {raised(error)}"))
        if failures:
            raise failures[0]

    def _begin(self) -> list[Any]:
        """Resets all environments to the initial state. Returns: each environment's observation."""
        self._counters[:] = 0
        self._actions = [None] * len(self._envs)
        return [own(self._reset_one(i)) for i in range(len(self._envs))]

    def _reset_one(self, i: int) -> Any:
        total, seed = int(self._total[i]), None
        if self._seeds_resets or total == 0:
            seed = seed_of(self._seed, self._indices[i], total)
        self.at_work[0] = i
        try:
            begun = self._envs[i].reset(seed=seed)
        except RAISED as error:
            hint = ""
            if isinstance(error, TypeError) and "argument 'seed'" in str(error):
                hint = "; expected reset(self, *, seed=None, options=None), as of gym 0.26 on"
            raise self._failure(i, f"reset {raised(error)}{hint}") from error
        if not isinstance(begun, tuple) or len(begun) != 2:
            text = f"reset returned {begun!r}, expected a pair: the observation and a dict"
            raise self._failure(i, text)
        return begun[0]

    def _take_counters(self, state: dict[str, np.ndarray]) -> None:
        if len(state["total"]) != len(self._envs):
            raise EnvironmentFailure(
                f"got the state of {len(state['total'])} environments, "
                f"expected that of {len(self._envs)}"
            )
        self._counters[:] = state["elapsed"], state["total"]

    def _as_their_actions(self, action: np.ndarray) -> Any:
        """Checks actions `[B, ...]`. Returns: them, as the environments number or bound them."""
        action = np.asarray(action)
        if action.shape != self._action_shape or (not self._box and action.dtype.kind not in "iu"):
            raise EnvironmentFailure(
                f"{self.spec.name}: got an action {action.dtype} {action.shape}, expected "
                f"{'float32' if self._box else 'int32'} {self._action_shape}"
            )
        if not self._box:
            # The types of the library's own `sample`: int for gym's, np.int64 for gymnasium's.
            counted = action.astype(np.int64) + self._first_action
            return counted.tolist() if self._as_int else counted
        if not all_finite(action):
            raise diverged(self.spec.name, self._indices, action)
        found = taken(self.spec.action_space, action)
        # One array per environment, as `sample` gives it, also if its shape is ().
        return found if found.ndim > len(self._lead) else [found[i, ...] for i in range(len(found))]

    def _failure(self, i: int, what: str) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"{self.spec.name}, environment {self._indices[i]}, after {self._total[i]} steps: "
            f"{what}; the last action was {self._actions[i]!r}"
        )


def seed_of(seed: int, index: int, steps: int) -> int:
    """Returns the seed of a reset.

    Args:
        seed: the run's.
        index: global index of the environment.
        steps: that it has taken in all its episodes.
    """
    return int(np.random.SeedSequence((seed, index, steps)).generate_state(1)[0])


def own(obs: Any) -> Any:
    """Copies an observation: an environment may write all observations to one array."""
    if type(obs) is np.ndarray:
        return obs.copy()
    return np.array(obs) if hasattr(obs, "__array__") else copy.deepcopy(obs)


def shape_of(value: Any) -> tuple[int, ...] | str:
    """Returns the shape of an environment's result, or words if it is not an array."""
    try:
        return np.shape(value)
    except (TypeError, ValueError):  # lists of different lengths
        return "none (its parts differ in length)"


def raised(error: BaseException) -> str:
    """Describes an exception in an environment's code, to follow the method's name."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({'' if error.code is None else repr(error.code)})"
    return f"raised {described(error)}"


def numbers_of(info: Any) -> dict[str, float]:
    """Returns the finite numbers and truth values of an `info`, by name; nested ones are left out.

    gym's own truth value of its time limit is left out too, and what follows `MOST_NUMBERS`.
    """
    found: dict[str, float] = {}
    for name, value in info.items() if isinstance(info, Mapping) else ():
        if not isinstance(name, str) or name == TIME_LIMIT or len(name) > LONGEST_NAME:
            continue
        number = np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf"
        if number and math.isfinite(value) and len(found) < MOST_NUMBERS:
            found[name] = float(value)
    return found


def closed(name: str, close: Callable[[], Any]) -> None:
    """Closes an environment that was made for its shapes. Raises: EnvironmentFailure."""
    try:
        close()
    except RAISED as error:
        raise EnvironmentFailure(f"{name}: close {raised(error)}") from error


def layers(module: Any, env: Any) -> Iterator[Any]:
    """Returns an environment of gym or gymnasium, the module: its wrappers, then the bare one."""
    while isinstance(env, module.Wrapper):
        yield env
        env = env.env
    yield env


def as_space(space: Any) -> Discrete | Box | None:
    """Converts gym's or gymnasium's space; None if it is neither Discrete nor a Box of numbers."""
    kinds = {kind.__name__ for kind in type(space).__mro__}
    if "Discrete" in kinds:
        return Discrete(int(space.n))
    if "Box" in kinds and 0 not in space.shape and str(space.dtype) in TYPES:
        shape = tuple(int(size) for size in space.shape)
        low, high = (tuple(bound.ravel().tolist()) for bound in (space.low, space.high))
        return Box(shape, low, high, str(space.dtype))
    return None


def all_finite(array: np.ndarray) -> bool:
    """Returns whether all numbers of an array are finite; `np.all` costs twice as much."""
    return np.count_nonzero(np.isfinite(array)) == array.size


def diverged(name: str, env_indices: range, action: np.ndarray) -> NumericsError:
    """Describes actions `[B, ...]` of which at least one is not finite."""
    row = int(np.argwhere(~np.isfinite(action))[0][0])
    return NumericsError(
        f"{name}: the action for environment {env_indices[row]} is {action[row]}: the policy has "
        "diverged; lower the learning rate"
    )
