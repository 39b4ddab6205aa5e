"""A vector environment over parallel environments of PettingZoo."""

import contextlib
import functools
import importlib
import io
import itertools
import pkgutil
import warnings
from collections import defaultdict
from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np

from mindspore_rl.environments.action_mask import OF_INFO, OF_OBSERVATION, checked_mask, told
from mindspore_rl.environments.environment import EnvironmentSpec, Team, unknown
from mindspore_rl.environments.finite_check import are_trainable, untrainable
from mindspore_rl.environments.options import MASK, mask_option, split_options
from mindspore_rl.environments.spaces import Box, Discrete, clauses, digits_lost
from mindspore_rl.environments.sync_vector import (
    RAISED,
    LoopVector,
    as_space,
    closed,
    numbers_of,
    raised,
    shape_of,
)
from mindspore_rl.errors import (
    EnvironmentFailure,
    MissingPackageError,
    UnknownEnvironmentError,
    described,
    install,
)

PREFIX = "pettingzoo:"
# Particle worlds whose whole state is positions, velocities and steps taken.
_PARTICLES = {f"{PREFIX}mpe2.{name}" for name in ("simple_v3", "simple_spread_v3", "simple_tag_v3")}


def pettingzoo_spec(name: str, maker: Callable[[], Any] | None = None) -> EnvironmentSpec:
    """Returns the spec of an environment, by building one.

    Raises:
        UnknownEnvironmentError: the module does not exist.
        EnvironmentFailure: it cannot be built here, or its agents or spaces are not supported.
    """
    env = _make(name, maker)
    found = _spec(name, env)
    closed(name, env.close)
    return found


class PettingZooVector(LoopVector):
    """A `VectorEnvironment` with teams, over environments with PettingZoo's parallel interface.

    Agents whose names differ only in the number at the end are a team: adversary_0, adversary_1.

    Args:
        name: "pettingzoo:" and a module with a function `parallel_env`; with a maker, any.
        env_indices: global indices of the environments.
        seed: the run's seed, at least 0.
        maker: makes an environment of the user's own.

    Raises:
        UnknownEnvironmentError: the module does not exist.
        EnvironmentFailure: it cannot be built here, or its first reset fails.
    """

    def __init__(
        self, name: str, env_indices: range, seed: int, maker: Callable[[], Any] | None = None
    ) -> None:
        envs = [_make(name, maker) for _ in env_indices]
        self._agents = _in_teams(envs[0].possible_agents)
        space = envs[0].action_space(self._agents[0])
        super().__init__(_spec(name, envs[0]), env_indices, seed, envs, space)
        self._marks = _marks(self.spec)
        self.reset()

    def reset(self) -> np.ndarray:
        """Returns to the initial state, always the same. Returns: obs `[B, A, O] float32`.

        Raises:
            EnvironmentFailure: an environment raised, or its observation is wrong.
        """
        return np.stack([self._row(i, obs) for i, obs in enumerate(self._begin())])

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes one step of every environment; see `VectorEnvironment.step`.

        Raises:
            EnvironmentFailure: the action is of the wrong shape, an environment raised or gave a
                wrong observation or reward, or its agents ended one by one.
        """
        rows = self._as_their_actions(action)
        self._actions = [dict(zip(self._agents, row, strict=True)) for row in rows]
        size = len(self._envs)
        final_obs = np.empty((size, *self.spec.obs_shape), np.float32)
        reward = np.empty((size, *self.spec.agent_shape), np.float32)
        terminated, truncated = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        infos: list[Any] = [None] * size
        for i in range(size):
            final_obs[i], reward[i], terminated[i], truncated[i], infos[i] = self._step_one(i)
        self._counters += 1
        next_obs = final_obs.copy()
        ended = np.flatnonzero(terminated | truncated).tolist()
        self.episode_info = [self._means(infos[i]) for i in ended]
        for i in ended:
            self._elapsed[i] = 0
            next_obs[i] = self._row(i, self._reset_one(i))
        return next_obs, final_obs, reward, terminated, truncated

    def get_state(self) -> dict[str, np.ndarray] | None:
        """Returns physics and steps taken, leading axis B; None except for some particle worlds."""
        if split_options(self.spec.name)[0] not in _PARTICLES:
            return None
        return {
            "physics": np.stack([_get_physics(env.unwrapped.world) for env in self._envs]),
            "elapsed": self._elapsed.copy(),
            "total": self._total.copy(),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restores a state from `get_state()`. Returns: the current obs `[B, A, O] float32`."""
        self._take_counters(state)
        rows = []
        for i, env in enumerate(self._envs):
            inner = env.unwrapped
            _set_physics(inner.world, state["physics"][i])
            inner.steps = int(self._elapsed[i])
            rows.append(self._row(i, {agent: inner.observe(agent) for agent in self._agents}))
        return np.stack(rows)

    def _means(self, infos: Any) -> dict[str, float]:
        """Returns the means over agents of the numbers in their infos, by name."""
        found = defaultdict(list)
        for agent in self._agents if isinstance(infos, dict) else ():
            for name, value in numbers_of(infos.get(agent)).items():
                found[name].append(value)
        return {name: fmean(values) for name, values in found.items()}

    def _step_one(self, i: int) -> tuple[np.ndarray, list[float], bool, bool, Any]:
        self.at_work[0] = i
        try:
            obs, rewards, ends, cuts, infos = self._envs[i].step(self._actions[i])
        except RAISED as error:
            raise self._failure(i, f"step {raised(error)}") from error
        missing = [agent for agent in self._agents if agent not in obs or agent not in rewards]
        over = {agent for agent in self._agents if ends.get(agent) or cuts.get(agent)}
        if missing or len(over) not in (0, len(self._agents)):
            raise self._failure(
                i,
                f"{', '.join(sorted(over) or missing)} ended before the other agents, "
                "expected the episode to end for all together: let those that are gone observe "
                "zeros and get rewards of 0 until then, as SuperSuit's black_death does",
            )
        for agent in self._agents:
            if not are_trainable(rewards[agent]):
                raise self._failure(i, untrainable(f"the reward of {agent}", rewards[agent]))
        reward = [rewards[agent] for agent in self._agents]
        return self._row(i, obs), reward, any(ends.values()), any(cuts.values()), infos

    def _row(self, i: int, obs: dict[str, Any]) -> np.ndarray:
        """Joins all agents' observations, padded and with the one-hots of their teams."""
        row = self._marks.copy()
        for a, agent in enumerate(self._agents):
            if agent not in obs:
                raise self._failure(i, f"no observation of {agent}, got {sorted(obs)}")
            found = self._envs[i].observation_space(agent).shape
            if shape_of(obs[agent]) != found:
                raise self._failure(
                    i, f"{agent} observes {obs[agent]!r}, expected an array of shape {found}"
                )
            if not are_trainable(obs[agent]):
                text = untrainable(f"the observation of {agent}", obs[agent])
                raise self._failure(i, text)
            flat, size = np.ravel(obs[agent]), self.spec.mask_size
            own = flat.size - size
            row[a, :own] = flat[:own]
            if size:
                row[a, -size:] = flat[own:]
        return row


def _make(name: str, maker: Callable[[], Any] | None = None) -> Any:
    """Builds one environment, by its maker or of a module.

    Raises:
        UnknownEnvironmentError: the module does not exist, or has no `parallel_env`.
        EnvironmentFailure: a package is missing, or the environment could not be made.
    """
    what = name if maker else f"{split_options(name)[0].removeprefix(PREFIX)}.parallel_env"
    maker = maker or _of_module(name)
    try:
        env = maker()
        begun = env.reset(seed=0)
    except RAISED as error:  # the environment's own code
        raise EnvironmentFailure(f"{what} could not be made: {described(error)}") from error
    return _Masked(env) if _has_mask(name, env, begun) else env


def _of_module(name: str) -> Callable[[], Any]:
    base, options = split_options(name)
    path = base.removeprefix(PREFIX)
    package = path.split(".")[0]
    if not all(part.isidentifier() for part in path.split(".")):
        raise unknown(name, [f"{PREFIX}mpe2.simple_spread_v3", f"{PREFIX}mpe2.simple_tag_v3"])
    try:
        # pygame and others print a greeting when they are imported.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != package and path.startswith(f"{error.name}"):
            found = importlib.import_module(package)
            modules = pkgutil.iter_modules(getattr(found, "__path__", []))
            siblings = [f"{PREFIX}{package}.{module.name}" for module in modules]
            raise unknown(name, siblings) from error
        extra = "marl" if error.name in ("mpe2", "pettingzoo") else ""
        hint = install(extra) if extra else "add it with pip"
        text = f"{name!r} needs the package {error.name}, which is not installed; {hint}"
        raise MissingPackageError(text, extra) from error
    if not hasattr(module, "parallel_env"):
        raise UnknownEnvironmentError(
            f"the module {path} (from the environment {name!r}) has no parallel_env, "
            "as in 'pettingzoo:mpe2.simple_spread_v3'"
        )
    return functools.partial(module.parallel_env, **options)


class _Masked:
    """A parallel environment whose agents' masks follow the numbers of their observations.

    Args:
        env: gives observations with the keys "observation" and "action_mask", as PettingZoo's
            classic games do, or `info["action_mask"]` of each agent.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._apart = _has_mask_apart(env)
        self.where = OF_OBSERVATION if self._apart else OF_INFO

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def observation_space(self, agent: str) -> Any:
        """Returns a Box of the observation and the mask."""
        space = self._env.observation_space(agent)
        inner = space["observation"] if self._apart else space
        if not isinstance(as_space(inner), Box):
            return space
        size = int(np.prod(inner.shape)) + int(self._env.action_space(agent).n)
        return type(inner)(-np.inf, np.inf, (size,), np.float32)

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """See PettingZoo's `ParallelEnv`."""
        obs, infos = self._env.reset(**options)
        return self._joined(obs, infos, {}), infos

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """See PettingZoo's `ParallelEnv`."""
        obs, rewards, ends, cuts, infos = self._env.step(actions)
        return self._joined(obs, infos, ends), rewards, ends, cuts, infos

    def _joined(self, obs: Any, infos: Any, ends: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for agent, one in obs.items():
            mask = (one if self._apart else infos[agent]).get(MASK)
            own, size = one["observation"] if self._apart else one, self.action_space(agent).n
            where = f"{self.where} of {agent}"
            valid = checked_mask(mask, int(size), bool(ends.get(agent)), where)
            found[agent] = np.concatenate([np.ravel(own), valid])
        return found


def _has_mask_apart(env: Any) -> bool:
    """Returns whether all agents observe a Dict of an observation and a mask."""
    spaces = [getattr(env.observation_space(agent), "spaces", {}) for agent in env.possible_agents]
    return all(set(parts) == {"observation", MASK} for parts in spaces)


def _has_mask(name: str, env: Any, begun: Any) -> bool:
    """Returns whether an environment gives masks, and its name does not leave them out."""
    if mask_option(name) is False:
        return False
    infos = begun[1] if isinstance(begun, tuple) and len(begun) == 2 else {}
    in_infos = all(MASK in (infos.get(agent) or {}) for agent in env.possible_agents)
    discrete = all(hasattr(env.action_space(agent), "n") for agent in env.possible_agents)
    return discrete and (_has_mask_apart(env) or in_infos)


def _team(agent: str) -> str:
    return agent.rstrip("0123456789").rstrip("_")


def _in_teams(agents: list[str]) -> list[str]:
    """Orders the agents by team; teams are in the order of their first agents."""
    order = list(dict.fromkeys(map(_team, agents)))
    return sorted(agents, key=lambda agent: order.index(_team(agent)))


def _spec(name: str, env: Any) -> EnvironmentSpec:
    agents = _in_teams(env.possible_agents)
    teams = tuple(
        Team(team, len(list(members))) for team, members in itertools.groupby(agents, _team)
    )
    spaces = {agent: env.observation_space(agent) for agent in agents}
    if not all(isinstance(as_space(space), Box) for space in spaces.values()):
        raise EnvironmentFailure(
            f"{name!r} has the observation spaces {spaces}, expected Boxes of one number at least"
        )
    own = max(int(np.prod(space.shape)) for space in spaces.values())
    masked = isinstance(env, _Masked)
    return EnvironmentSpec(
        name=name,
        obs_shape=(len(agents), own + (len(teams) if len(teams) > 1 else 0)),
        action_space=_action_space(name, [env.action_space(agent) for agent in agents]),
        max_episode_steps=int(getattr(env.unwrapped, "max_cycles", None) or 0),
        reward_threshold=None,
        in_graph=False,
        teams=teams,
        warning=clauses(*dict.fromkeys(map(digits_lost, spaces.values()))),
        notes=told(env.action_space(agents[0]).n, env.where) if masked else "",
        action_mask=masked,
    )


def _action_space(name: str, spaces: list[Any]) -> Discrete | Box:
    found = as_space(spaces[0])
    if found is None or any(space != spaces[0] for space in spaces):
        raise EnvironmentFailure(
            f"{name!r} has the action spaces {spaces}, expected the same Discrete or Box for all "
            "agents: wrap it in a class of your own"
        )
    return found


def _marks(spec: EnvironmentSpec) -> np.ndarray:
    """Returns the rows before the agents' own parts are written: zeros, and the teams' one-hots."""
    marks = np.zeros(spec.obs_shape, np.float32)
    if len(spec.teams) > 1:
        team = np.repeat(np.arange(len(spec.teams)), [team.num_agents for team in spec.teams])
        marks[np.arange(len(team)), team - len(spec.teams) - spec.mask_size] = 1.0
    return marks


def _get_physics(world: Any) -> np.ndarray:
    """Returns agents' positions, agents' velocities and landmarks' positions, float64."""
    places = [agent.state.p_pos for agent in world.agents]
    speeds = [agent.state.p_vel for agent in world.agents]
    marks = [landmark.state.p_pos for landmark in world.landmarks]
    return np.concatenate([*places, *speeds, *marks], dtype=np.float64)


def _set_physics(world: Any, physics: np.ndarray) -> None:
    # New arrays: mpe2 adds to them in place.
    points = iter(physics.astype(np.float64).reshape(-1, 2))
    for agent in world.agents:
        agent.state.p_pos = next(points).copy()
    for agent in world.agents:
        agent.state.p_vel = next(points).copy()
    for landmark in world.landmarks:
        landmark.state.p_pos = next(points).copy()
