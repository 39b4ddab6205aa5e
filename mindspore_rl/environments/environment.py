"""The interface of an environment; `registry.py` makes environments from their names.

An environment has one agent or, if its spec has teams, A agents. Arrays of several agents have an
axis of agents after that of the environments: obs `[B, A, O]`, action `[B, A]` (Discrete) or
`[B, A, k]` (Box), reward `[B, A]`. An episode ends for all agents together, so terminated and
truncated are `[B]`. Agents are in the order of their teams. All have the same number of features:
an agent's own, zeros up to the widest, and with several teams the one-hot of its team. The return
of an episode is the sum over its steps of the mean over agents.
"""

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mindspore_rl.environments.layout import Layout
from mindspore_rl.environments.options import split_options
from mindspore_rl.environments.spaces import Box, Discrete, is_count, is_shape
from mindspore_rl.errors import UnknownEnvironmentError


@dataclass(frozen=True)
class Team:
    """Agents of one role, which may share parameters.

    Args:
        name: for example "adversary".
        num_agents: the number of agents.
    """

    name: str
    num_agents: int


@dataclass(frozen=True)
class Goal:
    """The goal in the observations of an environment, and the reward of reaching it.

    The first `size` numbers of an observation are the goal that its state achieves, the next `size`
    the desired one. A step reaches the goal if the distance between them, after the step, is at
    most `tolerance`.

    Args:
        size: numbers of a goal.
        tolerance: the largest distance (Euclidean) at which it is reached.
        reached: the reward of a step that reaches it.
        missed: the reward of every other step.
        ends: True if an episode terminates where it is reached.
    """

    size: int
    tolerance: float
    reached: float = 0.0
    missed: float = -1.0
    ends: bool = False


@dataclass(frozen=True)
class EnvironmentSpec:
    """The shapes and limits of an environment.

    Args:
        name: the name that the user gave.
        obs_shape: the shape of one observation; with teams `(A, O)`, of all agents; of an image
            `(C, H, W)`.
        action_space: the space of one action; with teams, of one agent's.
        max_episode_steps: the largest number of steps of an episode; 0: no limit.
        reward_threshold: the return at which the environment counts as solved; None: no threshold.
        in_graph: True if it is a `GraphEnvironment`.
        teams: the teams of a multi-agent environment; empty for a single agent.
        notes: its library and the layout of its observations, in words for the user.
        obs_dtype: "float32", or "uint8" for images, which are stored and sent as bytes.
        warning: differences between evaluation and training, in words for the user.
        library: "gymnasium" or "gym" for their environments; empty for others.
        action_mask: True if the last `action_space.n` numbers of an observation (with teams, of
            each agent's) tell which actions are valid there: 1, or 0 for an invalid one.
        goal: the goal of an environment whose reward tells only if it is reached; None: none.
        layout: how the environment's own observations become one array, without its action mask;
            None: they are such arrays.
        two_players: True if two players move in turn. Observation, mask and reward of a step are
            those of the player who moves, and what one gains the other loses.
    """

    name: str
    obs_shape: tuple[int, ...]
    action_space: Discrete | Box
    max_episode_steps: int
    reward_threshold: float | None
    in_graph: bool
    teams: tuple[Team, ...] = ()
    notes: str = ""
    obs_dtype: str = "float32"
    warning: str = ""
    library: str = ""
    action_mask: bool = False
    goal: Goal | None = None
    two_players: bool = False
    layout: Layout | None = None

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
                "obs_dtype",
                self.obs_dtype == "float32" or (self.images and self._may_be_images),
                '"float32", or "uint8" of images [C, H, W], in Python and of one agent',
            ),
            (
                "max_episode_steps",
                self.max_episode_steps == 0 or is_count(self.max_episode_steps),
                "a whole number of steps, 0 for no limit",
            ),
            (
                "action_mask",
                not self.action_mask or self._may_be_masked,
                "False, or True of Discrete(n) actions and flat observations of more than n "
                "numbers in float32",
            ),
            (
                "goal",
                self.goal is None or (not self.images and not self.teams and self._holds_goals),
                "None, or a Goal of half the numbers of a flat observation at most",
            ),
            (
                "two_players",
                not (self.two_players and self.teams),
                "False with teams: two players who move in turn are one agent",
            ),
        ):
            if not right:
                raise ValueError(f"its {key} is {getattr(self, key)!r}, expected {expected}")

    @property
    def images(self) -> bool:
        """True if observations are images `[C, H, W] uint8`."""
        return self.obs_dtype == "uint8"

    @property
    def mask_size(self) -> int:
        """The number of mask entries at the end of an observation; 0: actions are not masked."""
        return self.action_space.n if self.action_mask else 0  # type: ignore[union-attr]

    @property
    def _may_be_masked(self) -> bool:
        flat = len(self.obs_shape) == 1 + bool(self.teams) and not self.images
        discrete = isinstance(self.action_space, Discrete)
        return flat and discrete and self.mask_size < self.obs_shape[-1]

    @property
    def _holds_goals(self) -> bool:
        size = getattr(self.goal, "size", 0)
        return is_count(size) and len(self.obs_shape) == 1 and 2 * size <= self.obs_shape[0]

    @property
    def _may_be_images(self) -> bool:
        return len(self.obs_shape) == 3 and not self.in_graph and not self.teams

    @property
    def agent_shape(self) -> tuple[int, ...]:
        """The axes of a reward after that of the environments: `(A,)`, or `()` without teams."""
        return (sum(team.num_agents for team in self.teams),) if self.teams else ()


class VectorEnvironment(Protocol):
    """B environments in NumPy, which reset themselves; shapes are for a single agent.

    A user's class is built as `C(env_indices, seed)`. All random numbers derive from (seed, global
    index, steps taken), so environment i does the same on every worker. Observations have the
    spec's `obs_dtype`.

    It may have an attribute `episode_info`: numbers by name of each episode that ended with the
    last step, in the order of the environments, whose means become metrics.
    """

    spec: EnvironmentSpec

    def reset(self) -> np.ndarray:
        """Returns to the initial state, always the same. Returns: obs `[B, ...] float32`."""

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes one step of every environment.

        Args:
            action: `[B] int32` (Discrete) or `[B, k] float32` (Box; within the bounds, and whole if
                the space is of whole numbers, see `spaces.within`).

        Returns:
            New arrays: next_obs `[B, ...] float32`, after the reset where an episode ended;
            final_obs `[B, ...] float32`, the true successor; reward `[B] float32`; terminated
            `[B] bool`; truncated `[B] bool`.
        """

    def get_state(self) -> dict[str, np.ndarray] | None:
        """Returns the whole state, leading axis B, or None if it is not available."""

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restores a state from `get_state()`. Returns: the current obs `[B, ...] float32`."""

    def close(self) -> None:
        """Closes windows and simulators."""


class GraphEnvironment(Protocol):
    """B environments in MindSpore operators: state in, state out; a user's class is built as `C()`.

    `noise_size` is the number of uniform [0, 1) numbers that one environment uses in a step or a
    reset. `state_size` is the number of float32 numbers of its state, the steps taken included. A
    class may also define its steps in C++, in a source that its attribute `native` names.

    For planners, an environment whose observations tell all may have a method `after(obs, action)`:
    of obs `[n, ...] float32` and action as in `step` it returns the next observation `[n, ...]`,
    also where the episode ends, the reward `[n]`, and `[n] float32` 1 where it ends, else 0.
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
            action: as for `VectorEnvironment.step`, but straight from the network: one beyond
                the bounds must have the effect of the nearest one within them.
            noise: `[B, noise_size] float32`, for environments that restart.

        Returns:
            The new state, then the results of `VectorEnvironment.step`, as tensors.
        """


def _graph(
    name: str,
    obs_shape: tuple[int, ...],
    actions: Discrete | Box,
    steps: int,
    reward_threshold: float | None = None,
    **more: Any,
) -> EnvironmentSpec:
    return EnvironmentSpec(
        f"graph:{name}", obs_shape, actions, steps, reward_threshold, in_graph=True, **more
    )


_BOARD: dict[str, Any] = {"action_mask": True, "two_players": True}
_HUNT = Team("adversary", 3), Team("agent", 1)
GRAPH_SPECS = {
    spec.name: spec
    for spec in (
        _graph("CartPole-v1", (4,), Discrete(2), 500, 475.0),
        _graph("Pendulum-v1", (3,), Box((1,), (-2.0,), (2.0,)), 200),
        _graph("simple_spread_v3", (3, 18), Discrete(5), 25, teams=(Team("agent", 3),)),
        _graph("simple_tag_v3", (4, 18), Discrete(5), 25, teams=_HUNT),
        _graph("TicTacToe-v0", (27,), Discrete(9), 9, **_BOARD),
        _graph("ConnectFour-v0", (91,), Discrete(7), 42, **_BOARD),
    )
}

OPPONENTS = ("random", "two_ply")
GRAPH_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "graph:simple_spread_v3": {"N": ()},
    "graph:TicTacToe-v0": {"opponent": OPPONENTS},
    "graph:ConnectFour-v0": {"opponent": OPPONENTS},
}
"""Options of the in-graph environments, with their values; without any, whole numbers.

N of spread: N agents and as many landmarks. An opponent's game is one of a single agent.
"""


def graph_spec(name: str) -> EnvironmentSpec:
    """Returns the spec of an in-graph environment of the package, made with its options.

    Raises:
        UnknownEnvironmentError: it does not have the option, or not with this value.
    """
    base, options = split_options(name)
    known = GRAPH_OPTIONS.get(base, {})
    for key, value in options.items():
        if key not in known:
            text = f"it has {', '.join(known)}" if known else "it has none"
            raise UnknownEnvironmentError(f"{base!r} has no option {key!r}; {text}")
        if known[key] and value not in known[key]:
            right = " or ".join(known[key])
            raise UnknownEnvironmentError(f"{name!r}: {key} is {value!r}, expected {right}")
        if not known[key] and (type(value) is not int or value < 1):
            raise UnknownEnvironmentError(f"{name!r}: {key} must be a whole number of 1 or more")
    found = GRAPH_SPECS[base]
    if "opponent" in options:
        moves = (found.max_episode_steps + 1) // 2
        return replace(found, name=name, max_episode_steps=moves, two_players=False)
    if "N" in options:
        size = options["N"]
        teams = (Team("agent", size),)
        return replace(found, name=name, obs_shape=(size, 6 * size), teams=teams)
    return found


def unknown(name: str, known: list[str], what: str = "environment") -> UnknownEnvironmentError:
    """Returns the error for a name that is not in `known`; it suggests the nearest names."""
    if name.endswith(".py"):
        source = Path(name).read_text(errors="replace") if Path(name).is_file() else ""
        classes = re.findall(r"^class (\w+)", source, re.M) or ["ClassName"]
        example = " or ".join(f"'{name}:{one}'" for one in classes[:5])
        return UnknownEnvironmentError(
            f"{name!r} is a file; name the {what} in it, too, as in {example}"
        )
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    some = f"some are {', '.join(known[:5])}, and `msrl envs list` prints all."
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else some
    return UnknownEnvironmentError(
        f"there is no {what} {name!r}; {hint} "
        "Your own is named by its file and class: 'path/to/file.py:ClassName'"
    )
