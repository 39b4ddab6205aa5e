"""Algorithms that suit an environment, for the error of one that does not."""

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore_rl import programs
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.registry import spec
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs import registry

DISCRETE, BOX = Discrete(3), Box((2,), (-1.0, -1.0), (1.0, 1.0))


@contextlib.contextmanager
def suggested(algorithm: Path, env: str) -> Iterator[None]:
    """A context in which the error of an algorithm that does not take the actions names others.

    Raises:
        ConfigError: the error, with the names of algorithms that take the environment.
    """
    try:
        yield
    except ConfigError as error:
        found = spec(env)
        space = found.action_space
        kind = "discrete"
        if isinstance(space, Box):
            kind = "continuous" if space.bounded else "unbounded"
        cls = programs.trainer_class(algorithm)
        others = (dataclasses.replace(found, action_space=other) for other in (DISCRETE, BOX))
        if made(cls, found) is not None or all(made(cls, other) is None for other in others):
            raise
        names = ", ".join(_that_take(found))
        raise ConfigError(f"{error}. For {kind} ones: {names}; see msrl list") from error


def _that_take(env_spec: EnvironmentSpec) -> Iterator[str]:
    """Yields the names of algorithms that take an environment and need no data set."""
    for name in registry.algorithms():
        cls: Any = programs.trainer_class(registry.find_algorithm(name))
        if not needs_data(cls) and made(cls, env_spec) is not None:
            yield name


def needs_data(cls: Any) -> bool:
    """Returns whether a trainer learns from a data set alone."""
    keys = {field.name for field in dataclasses.fields(cls.Config)}
    return "dataset" in keys and "replay_insert" not in inspect.getsource(cls.train)


def made(cls: Any, env_spec: EnvironmentSpec, **keys: object) -> Any:
    """Returns a trainer for an environment, or None if it takes no such environment."""
    try:
        return programs.make_trainer(cls, cls.Config(**keys), env_spec)
    except Exception:  # noqa: BLE001  (a user's file may fail in any way on what it does not take)
        return None
