"""Adds context to an environment's error: its number and its last action."""

import numbers
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from mindspore_rl.environments.action_mask import wrong_mask
from mindspore_rl.environments.environment import EnvironmentSpec, VectorEnvironment
from mindspore_rl.environments.finite_check import all_trainable, first_untrainable, untrainable
from mindspore_rl.environments.spaces import Box, within
from mindspore_rl.environments.sync_vector import (
    RAISED,
    LoopVector,
    all_finite,
    diverged,
    numbers_of,
    raised,
    shape_of,
)
from mindspore_rl.errors import EnvironmentFailure, NumericsError

FIELDS = ("next_obs", "final_obs", "reward", "terminated", "truncated")


class GuardedVector:
    """A `VectorEnvironment` that checks the shapes, types and numbers of all results.

    Args:
        environment: the environment to check; a `LoopVector` checks its own results.
        env_indices: global indices of its environments.
        note: called with the actions before every step.

    Attributes:
        episode_info: see `VectorEnvironment`.
    """

    def __init__(
        self, environment: VectorEnvironment, env_indices: range, note: Callable[[np.ndarray], None]
    ) -> None:
        self._environment, self._indices, self._note = environment, env_indices, note
        self.spec: EnvironmentSpec = environment.spec
        self._careful = isinstance(environment, LoopVector)
        self._steps, self.episode_info = 0, list[dict[str, float]]()
        self._action: np.ndarray | None = None
        self._expected = [
            (np.dtype(dtype), (len(env_indices), *shape))
            for dtype, shape in (
                (self.spec.obs_dtype, self.spec.obs_shape),
                (self.spec.obs_dtype, self.spec.obs_shape),
                (np.float32, self.spec.agent_shape),
                (np.bool_, ()),
                (np.bool_, ()),
            )
        ]

    def reset(self) -> np.ndarray:
        """See `VectorEnvironment`. Raises: EnvironmentFailure."""
        self._steps, self._action = 0, None
        obs = self._call("reset")
        self._look_at("reset", "obs", obs, *self._expected[0])
        self._look_at_mask("reset", obs)
        return obs

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """See `VectorEnvironment`. Raises: EnvironmentFailure, NumericsError (of the action)."""
        self._action = action
        self._note(action)
        if not self._careful and action.dtype.kind == "f":
            if not all_finite(action):
                raise diverged(self.spec.name, self._indices, action)
            space = cast(Box, self.spec.action_space)
            action = within(action, *space.limits, space.whole).astype(np.float32, copy=False)
        outcome = self._call("step", action)
        if not self._careful:
            if not isinstance(outcome, tuple) or len(outcome) != len(FIELDS):
                what = type(outcome).__name__
                if isinstance(outcome, (tuple, list)):
                    what = f"{what} of {len(outcome)}"
                raise self._failure(
                    f"step returned a {what}, expected a tuple of {', '.join(FIELDS)}"
                )
            for field, array, expected in zip(FIELDS, outcome, self._expected, strict=True):
                self._look_at("step", field, array, *expected)
            self._look_at_mask("step", outcome[0])
        self.episode_info = self._info_of(outcome)
        self._steps += 1
        return outcome

    def _info_of(self, outcome: tuple[np.ndarray, ...]) -> list[dict[str, float]]:
        """Returns the numbers of the episodes that ended with a step, if it has any."""
        info = getattr(self._environment, "episode_info", [])
        if self._careful:
            return info
        _, _, _, terminated, truncated = outcome
        count = np.count_nonzero(terminated | truncated)
        if not isinstance(info, list) or (info and len(info) != count):
            raise self._failure(
                f"step: episode_info is {info!r}, expected a list of a dict for each of the "
                f"{count} episodes that ended"
            )
        return [numbers_of(one) for one in info]

    def get_state(self) -> dict[str, np.ndarray] | None:
        """See `VectorEnvironment`."""
        return self._call("get_state")

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """See `VectorEnvironment`."""
        return self._call("set_state", state)

    def render(self, i: int) -> Any:
        """Returns a picture from the environment, if it can draw. Raises: EnvironmentFailure."""
        return self._call("render", i) if hasattr(self._environment, "render") else None

    def close(self) -> None:
        """See `VectorEnvironment`."""
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._environment, method)(*arguments)
        except (EnvironmentFailure, NumericsError):
            raise  # it already has the context
        except RAISED as error:
            raise self._failure(f"{method} {raised(error)}") from error

    def _look_at(
        self, method: str, field: str, array: Any, dtype: np.dtype, shape: tuple[int, ...]
    ) -> None:
        if getattr(array, "dtype", None) != dtype or array.shape != shape:
            got = getattr(array, "dtype", type(array).__name__)
            raise self._failure(
                f"{method}: {field} is {got} {shape_of(array)}, expected {dtype} {shape}",
                row=_odd_row(array, shape),
            )
        if not all_trainable(array):
            row = first_untrainable(array)[0]
            raise self._failure(f"{method}: {untrainable(field, array[row])}", row)

    def _look_at_mask(self, method: str, obs: np.ndarray) -> None:
        if wrong := wrong_mask(self.spec, obs):
            raise self._failure(f"{method}: {wrong[1]}", wrong[0])

    def _failure(self, what: str, row: int | None = None) -> EnvironmentFailure:
        """Makes the error of the environment of a row, or of all if the row is unknown."""
        text = describe(self._indices, self._action, row)
        return EnvironmentFailure(f"{self.spec.name}, after {self._steps} steps: {what}; {text}")


def describe(env_indices: range, action: np.ndarray | None, row: int | None) -> str:
    """Describes an environment and its last action.

    Args:
        env_indices: global indices of a share of the environments.
        action: their last actions `[B, ...]`, or None if unknown.
        row: the row of the environment; None: unknown.
    """
    if row is None and len(env_indices) == 1:
        row = 0
    if row is None:
        names = f"{env_indices.start}..{env_indices.stop - 1}"
        if env_indices.step != 1:
            names = ", ".join(map(str, env_indices))
        where = f"environments {names} are one batch"
        what = action
    else:
        where = f"it was environment {env_indices[row]}"
        what = None if action is None else action[row]
    if what is None:
        return where
    shown = np.array2string(np.asarray(what), precision=4, threshold=64, separator=", ")
    return f"{where}; the last action was {shown}".replace("\n", "")


def _odd_row(rows: Any, shape: tuple[int, ...]) -> int | None:
    """Returns the first row with a wrong shape, if rows are separate objects."""
    if not isinstance(rows, (list, tuple)) or len(rows) != shape[0]:
        return None
    odd = [i for i, row in enumerate(rows) if shape_of(row) != shape[1:]]
    return odd[0] if odd and not isinstance(rows[odd[0]], numbers.Number) else None
