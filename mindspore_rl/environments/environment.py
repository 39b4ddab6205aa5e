"""What an environment is, and how one is had from its name.

Names: a gym id ("CartPole-v1"), "graph:CartPole-v1" (MindSpore operators), "probe:bandit" (a known
optimum), "pettingzoo:mpe2.simple_spread_v3" (a module of PettingZoo's kind), or
"path/to/file.py:ClassName" (the user's own).

An environment has one agent or, where its spec has teams, A of them, and then an axis of agents
behind that of the environments: obs `[B, A, O]`, action `[B, A]` (Discrete) or `[B, A, k]` (Box),
reward `[B, A]`; terminated and truncated stay `[B]`, for an episode ends for all agents together.
Agents stand in the order of their teams. Each has the same number of features: its own, zeros up to
the widest, and with several teams the one-hot of its team. The return of an episode is the sum over
its steps of the mean over agents.
"""

import difflib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mindspore_rl.environments.spaces import Box, Discrete, is_count, is_shape
from mindspore_rl.errors import EnvironmentFailure, UnknownEnvironmentError
from mindspore_rl.loading import load_module, package_of


@dataclass(frozen=True)
class Team:
    """Agents of one role, which may share parameters.

    Args:
        name: such as "adversary".
        num_agents: how many.
    """

    name: str
    num_agents: int


@dataclass(frozen=True)
class EnvironmentSpec:
    """The shapes and limits of an environment.

    Args:
        name: the name it was asked for by.
        obs_shape: the shape of one observation; with teams `(A, O)`, all agents'.
        action_space: what an action may be; with teams one agent's.
        max_episode_steps: the most steps an episode can take; 0 if there is no such limit.
        reward_threshold: the return at which it counts as solved, if there is one.
        in_graph: whether it is a `GraphEnvironment`.
        teams: of a multi-agent environment; empty for a single agent.
    """

    name: str
    obs_shape: tuple[int, ...]
    action_space: Discrete | Box
    max_episode_steps: int
    reward_threshold: float | None
    in_graph: bool
    teams: tuple[Team, ...] = ()

    def __post_init__(self) -> None:
        teams = isinstance(self.teams, tuple) and all(isinstance(t, Team) for t in self.teams)
        agents = [team.num_agents for team in self.teams] if teams else []
        for key, right, expected in (
            ("name", isinstance(self.name, str), "text"),
            ("obs_shape", is_shape(self.obs_shape), "a tuple of whole numbers, one array's shape"),
            (
                "action_space",
                isinstance(self.action_space, Discrete | Box),
                "a Discrete or a Box of mindspore_rl.environments.spaces",
            ),
            ("teams", teams and all(map(is_count, agents)), "a tuple of Team(name, num_agents)"),
            (
                "obs_shape",
                not agents or (len(self.obs_shape), *self.obs_shape[:1]) == (2, sum(agents)),
                f"(agents, features), with the {sum(agents)} agents of its teams",
            ),
            (
                "max_episode_steps",
                self.max_episode_steps == 0 or is_count(self.max_episode_steps),
                "a whole number of steps, 0 for no limit",
            ),
        ):
            if not right:
                raise ValueError(f"its {key} is {getattr(self, key)!r}, expected {expected}")

    @property
    def agent_shape(self) -> tuple[int, ...]:
        """What follows the axis of environments in a reward: `(A,)`, or `()` without teams."""
        return (sum(team.num_agents for team in self.teams),) if self.teams else ()


class VectorEnvironment(Protocol):
    """B environments in NumPy, which reset themselves; shapes are those of a single agent.

    A user's class is built as `C(env_indices, seed)`. Everything random derives from (seed, global
    index, steps taken), so that environment i does the same whichever worker holds it.
    """

    spec: EnvironmentSpec

    def reset(self) -> np.ndarray:
        """Goes back to the very beginning, the same each time. Returns: obs `[B, ...] float32`."""

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes one step of every environment.

        Args:
            action: `[B] int32` (Discrete) or `[B, k] float32` (Box; clipped to the bounds).

        Returns:
            Fresh arrays: next_obs `[B, ...] float32`, after the reset where an episode ended;
            final_obs `[B, ...] float32`, the true successor; reward `[B] float32`; terminated
            `[B] bool`; truncated `[B] bool`.
        """

    def get_state(self) -> dict[str, np.ndarray] | None:
        """Returns all that is needed to go on, leading axis B, or None if it cannot be had."""

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Goes on from `get_state()`. Returns: the current obs `[B, ...] float32`."""

    def close(self) -> None:
        """Lets go of windows and simulators."""


class GraphEnvironment(Protocol):
    """B environments in MindSpore operators: state in, state out; a user's class is built as `C()`.

    `noise_size` is how many uniform [0, 1) numbers one environment uses in a step or a reset, and
    `state_size` how many float32 numbers are all of its state, the steps taken included. A class
    may have its steps in C++ too, in a source that its attribute `native` names (see `native`).
    """

    spec: EnvironmentSpec
    noise_size: int
    state_size: int

    def reset(self, noise: Any) -> tuple[Any, Any]:
        """Starts every environment.

        Args:
            noise: `[B, noise_size] float32`, uniform in [0, 1).

        Returns:
            state `[B, state_size] float32` and obs `[B, ...] float32`.
        """

    def step(self, state: Any, action: Any, noise: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Takes one step of every environment.

        Args:
            state: `[B, state_size] float32`.
            action: as for `VectorEnvironment.step`.
            noise: `[B, noise_size] float32`, for the environments that start anew.

        Returns:
            The new state, then what `VectorEnvironment.step` returns, as tensors.
        """


_GRAPH_SPECS = {
    "graph:CartPole-v1": EnvironmentSpec(
        "graph:CartPole-v1", (4,), Discrete(2), 500, 475.0, in_graph=True
    ),
    "graph:Pendulum-v1": EnvironmentSpec(
        "graph:Pendulum-v1", (3,), Box((1,), (-2.0,), (2.0,)), 200, None, in_graph=True
    ),
    "graph:simple_spread_v3": EnvironmentSpec(
        "graph:simple_spread_v3",
        (3, 18),
        Discrete(5),
        25,
        None,
        in_graph=True,
        teams=(Team("agent", 3),),
    ),
    "graph:simple_tag_v3": EnvironmentSpec(
        "graph:simple_tag_v3",
        (4, 18),
        Discrete(5),
        25,
        None,
        in_graph=True,
        teams=(Team("adversary", 3), Team("agent", 1)),
    ),
}
_PYTHON_NAMES = {
    "graph:CartPole-v1": "CartPole-v1",
    "graph:Pendulum-v1": "Pendulum-v1",
    "graph:simple_spread_v3": "pettingzoo:mpe2.simple_spread_v3",
    "graph:simple_tag_v3": "pettingzoo:mpe2.simple_tag_v3",
}


def graph_names() -> list[str]:
    """Returns the names of the in-graph environments that come with the package."""
    return list(_GRAPH_SPECS)


def python_name(graph_name: str) -> str:
    """Returns the name of the environment that one of `graph_names()` is in MindSpore operators."""
    return _PYTHON_NAMES[graph_name]


def graph_name(name: str) -> str | None:
    """Returns the in-graph environment that is the Python one `name`, if there is one."""
    return next((graph for graph, python in _PYTHON_NAMES.items() if python == name), None)


def names() -> list[str]:
    """Returns all known names; some of gym's need packages that may not be installed."""
    # Not at the top: gym is heavy, and both import this module.
    from mindspore_rl.environments import gym_vector, probe  # noqa: PLC0415

    pettingzoo = [name for name in _PYTHON_NAMES.values() if name.startswith("pettingzoo:")]
    return [*_GRAPH_SPECS, *probe.PROBES, *pettingzoo, *gym_vector.gym_names()]


def spec(name: str) -> EnvironmentSpec:
    """Finds out the shapes of an environment.

    Raises:
        UnknownEnvironmentError: there is none of this name.
        EnvironmentFailure: it cannot be built here.
    """
    if name in _GRAPH_SPECS:
        return _GRAPH_SPECS[name]
    if _is_file(name):
        built = _load_class(name)
        if _is_graph_class(built):
            return _of_user(name, built).spec
        env = _of_user(name, built, range(1), 0)
        env.close()
        return env.spec
    if name.startswith("probe:"):
        return _probe(name).spec
    if name.startswith("graph:"):
        raise unknown(name, graph_names())
    if name.startswith("pettingzoo:"):
        from mindspore_rl.environments import pettingzoo_vector  # noqa: PLC0415

        return pettingzoo_vector.pettingzoo_spec(name)
    from mindspore_rl.environments import gym_vector  # noqa: PLC0415

    return gym_vector.gym_spec(name)


def make_vector(name: str, env_indices: range, seed: int) -> VectorEnvironment:
    """Builds a share of the environments of a run.

    Args:
        name: a name as in the module's docstring, of a Python environment.
        env_indices: the global indices of the environments to build.
        seed: the run's seed, not negative.

    Raises:
        UnknownEnvironmentError: there is no Python environment of this name.
        EnvironmentFailure: it cannot be built here.
    """
    if name in _GRAPH_SPECS:
        raise UnknownEnvironmentError(
            f"{name!r} is an in-graph environment, expected a Python one: leave out 'graph:'"
        )
    if _is_file(name):
        built = _load_class(name)
        if _is_graph_class(built):
            raise UnknownEnvironmentError(
                f"{name!r} is an in-graph environment (it has noise_size and "
                "step(state, action, noise)), expected a Python one"
            )
        return _of_user(name, built, env_indices, seed)
    if name.startswith("probe:"):
        return _probe(name)(env_indices, seed)
    if name.startswith("graph:"):
        raise unknown(name, graph_names())
    if name.startswith("pettingzoo:"):
        from mindspore_rl.environments import pettingzoo_vector  # noqa: PLC0415

        return pettingzoo_vector.PettingZooVector(name, env_indices, seed)
    from mindspore_rl.environments import gym_vector  # noqa: PLC0415

    return gym_vector.GymVector(name, env_indices, seed)


def make_graph(name: str) -> GraphEnvironment:
    """Builds an in-graph environment; imports MindSpore.

    Raises:
        UnknownEnvironmentError: there is no in-graph environment of this name.
    """
    if _is_file(name):
        built = _load_class(name)
        if not _is_graph_class(built):
            raise UnknownEnvironmentError(
                f"{name!r} is a Python environment, expected an in-graph one: a class with a "
                "class attribute noise_size and step(self, state, action, noise)"
            )
        return _accelerated(_of_user(name, built))
    if name not in _GRAPH_SPECS:
        raise unknown(name, graph_names(), "in-graph environment")
    # MindSpore: 1.2 s, 450 MB.
    from mindspore_rl.environments import classic, particle  # noqa: PLC0415

    classes: dict[str, Any] = {
        "graph:CartPole-v1": classic.GraphCartPole,
        "graph:Pendulum-v1": classic.GraphPendulum,
        "graph:simple_spread_v3": particle.GraphSimpleSpread,
        "graph:simple_tag_v3": particle.GraphSimpleTag,
    }
    return _accelerated(classes[name]())


def _accelerated(environment: Any) -> Any:
    from mindspore_rl.environments import native  # noqa: PLC0415  (imports MindSpore)

    return native.accelerated(environment)


def _of_user(name: str, built: Any, *arguments: Any) -> Any:
    try:
        environment = built(*arguments)
    except EnvironmentFailure:
        raise
    except Exception as error:  # the user's own code
        text = f"{name} could not be made: {type(error).__name__}: {error}"
        raise EnvironmentFailure(text) from error
    of_python = ("get_state", "close") if arguments else ()
    missing = [part for part in ("reset", "step", *of_python) if not hasattr(environment, part)]
    if missing:
        raise EnvironmentFailure(f"{name} has no {', '.join(missing)}, expected such methods")
    if not isinstance(getattr(environment, "spec", None), EnvironmentSpec):
        raise EnvironmentFailure(
            f"{name}: its spec is {getattr(environment, 'spec', None)!r}, expected an "
            "EnvironmentSpec of mindspore_rl.environments.environment"
        )
    return environment


def unknown(name: str, known: list[str], what: str = "environment") -> UnknownEnvironmentError:
    """Returns the error for a name that is not among `known`, with the nearest that are."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {known[:5]} ..."
    return UnknownEnvironmentError(
        f"there is no {what} {name!r}; {hint} "
        "Your own is named by its file and class: 'path/to/file.py:ClassName'"
    )


def _probe(name: str) -> Any:
    from mindspore_rl.environments import probe  # noqa: PLC0415

    if name not in probe.PROBES:
        raise unknown(name, list(probe.PROBES))
    return probe.PROBES[name]


def _is_file(name: str) -> bool:
    return ".py:" in name


def _is_graph_class(built: Any) -> bool:
    step = getattr(built, "step", None)
    if not hasattr(built, "noise_size") or step is None:
        return False
    return list(inspect.signature(step).parameters)[1:] == ["state", "action", "noise"]


def _load_class(name: str) -> Any:
    """Imports the class that "path/to/file.py:ClassName" names; a file is run once a process."""
    path_text, class_name = name.rsplit(":", 1)
    path = Path(path_text).resolve()
    if not path.is_file():
        raise UnknownEnvironmentError(f"there is no file {path} (from the environment {name!r})")
    # Apart from an algorithm in the same folder, of which a run may have a copy.
    module = load_module(path, package_of(path, "environment"), EnvironmentFailure)
    built = getattr(module, class_name, None)
    if not inspect.isclass(built):
        classes = [
            key
            for key, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        raise UnknownEnvironmentError(
            f"{path} has no class {class_name!r}; it has {', '.join(classes) or 'no class at all'}"
        )
    return built
