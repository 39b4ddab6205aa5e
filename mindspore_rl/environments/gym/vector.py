"""A vector environment over single environments of gymnasium and gym."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np

from mindspore_rl.environments import images
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.finite_check import all_trainable, are_trainable, untrainable
from mindspore_rl.environments.gym import library, masks
from mindspore_rl.environments.gym import state as gym_state
from mindspore_rl.environments.gym.flatten import flattened
from mindspore_rl.environments.spaces import Box, Discrete, clauses, taken
from mindspore_rl.environments.sync_vector import (
    RAISED,
    LoopVector,
    as_space,
    closed,
    numbers_of,
    own,
    raised,
    seed_of,
    shape_of,
)
from mindspore_rl.errors import EnvironmentFailure, described
from mindspore_rl.platform.trial import Trial


def gym_spec(
    name: str, maker: Callable[[], Any] | None = None, watched: bool = False
) -> EnvironmentSpec:
    """Returns the spec of an environment, by building one; see `GymVector`.

    Args:
        name: the environment's.
        maker: makes one of the user's own.
        watched: whether its warning also tells what a step draws from a shared generator.

    Raises:
        UnknownEnvironmentError: no library knows the id.
        EnvironmentFailure: it cannot be built here, or its spaces are not supported.
    """
    first, mask, _ = _first(name, maker)
    env, layout = flattened(name, first, mask)
    found = library.spec_of(name, env, layout, first.observation_space)
    if watched and (drawn := library.draws_from_shared(first)):
        found = replace(found, warning=clauses(found.warning, drawn))
    closed(name, env.close)
    return found


def make_single(name: str, maker: Callable[[], Any] | None = None) -> Any:
    """Makes one environment to be stepped by hand; the arguments are those of `GymVector`.

    Returns: a gym.Env or gymnasium.Env with the observations and actions of a run.

    Raises:
        UnknownEnvironmentError: no library knows the id.
        EnvironmentFailure: it cannot be built here, or its spaces are not supported.
    """
    first, mask, begun = _first(name, maker)
    if begun:
        closed(name, first.close)
        first = _made(name, maker)
    env, _ = flattened(name, first, mask)
    space = env.action_space
    own_space = cast(Discrete | Box, as_space(space))
    module: Any = library.load(str(library.library_of(type(env))))
    if env.observation_space.dtype.kind != "f" and not images.is_image(env.observation_space):
        env = _as_floats(module, env)

    class Actions(module.ActionWrapper):
        """Converts a run's actions: counted from 0, or clipped to the bounds."""

        def action(self, action: Any) -> Any:
            if isinstance(own_space, Discrete):
                return type(space.sample())(int(action) + int(getattr(space, "start", 0)))
            return taken(own_space, np.reshape(action, own_space.size))

    return Actions(env)


def _as_floats(module: Any, env: Any) -> Any:
    """Converts whole numbers to those of a network: a one-hot is then no batch of states."""
    space = env.observation_space

    class Floats(module.ObservationWrapper):
        """Converts observations to float32."""

        def observation(self, observation: Any) -> np.ndarray:
            return np.asarray(observation, np.float32)

    env = Floats(env)
    low, high = (np.asarray(bound, np.float32) for bound in (space.low, space.high))
    env.observation_space = module.spaces.Box(low, high, dtype=np.float32)
    return env


class GymVector(LoopVector):
    """A `VectorEnvironment` over gym's or gymnasium's; both ends may be set at the limit, as there.

    If the library only adds checks and a time limit, the bare environment is stepped and the time
    limit counted here: the wrappers cost as much as a CartPole.

    Args:
        name: an id, or the name of the user's own environment.
        env_indices: global indices of the environments.
        seed: the run's seed, at least 0.
        maker: makes one of the user's own environments at each call.

    Raises:
        UnknownEnvironmentError: no library knows the id.
        EnvironmentFailure: it cannot be built here, or its first reset fails.
    """

    def __init__(
        self, name: str, env_indices: range, seed: int, maker: Callable[[], Any] | None = None
    ) -> None:
        one, mask, begun = _first(name, maker, seed_of(seed, env_indices[0], 0))
        if begun:  # plain wrappers are left out below, and change no result
            masks.begin_with(one.unwrapped if library.is_plain(one) else one, begun)
        self._make = lambda: flattened(name, _made(name, maker), mask)
        first, layout = flattened(name, one, mask)
        made = [(first, layout), *(self._make() for _ in env_indices[1:])]
        self._plain = library.is_plain(first)
        for i, (other, _) in zip(env_indices[1:], made[1:], strict=True):
            if other.action_space != first.action_space:
                raise EnvironmentFailure(
                    f"{name}: environment {env_indices[0]} has the action space "
                    f"{first.action_space}, and environment {i} {other.action_space}: expected "
                    "the same of all"
                )
        envs = [self._bare(env) for env, _ in made]
        spec = library.spec_of(name, first, layout, one.observation_space)
        super().__init__(spec, env_indices, seed, envs, first.action_space)
        kind = gym_state.state_kind(envs[0]) if self._plain else None
        self._complete = kind is not None
        if kind == "classic" and isinstance(spec.action_space, Discrete):
            self._as_int = True
            known = range(self._first_action, self._first_action + spec.action_space.n)
            for env in envs:  # gymnasium's own check takes a quarter of a step
                env.action_space.contains = known.__contains__
        self._steps = [env.step for env in envs]
        # They compute without Python's lock, and each environment has its own state.
        atari = library.is_atari(first)
        in_c = kind == "mujoco" or (atari and library.has_own_wrappers(first))
        # A seed makes the game load its ROM anew: 90 ms, a quarter of an episode of Pong.
        self._seeds_resets = not atari
        self._concurrent = library.declared(name, first) or int(in_c)
        self._pool: ThreadPoolExecutor | None = None
        self._trial: Trial | None = None
        self._limit = (self.spec.max_episode_steps if self._plain else 0) or math.inf
        self._obs_shape = (len(made), *self.spec.obs_shape)
        self._obs_dtype = np.dtype(self.spec.obs_dtype)
        self._start()

    def reset(self) -> np.ndarray:
        """Returns to the initial state, always the same. Returns: obs `[B, ...] float32`.

        Raises:
            EnvironmentFailure: an environment raised, or its observation is wrong.
        """
        if self._used:
            if not self._complete:
                self._build_anew()
            self._start()
        return self._obs.copy()

    def _start(self) -> None:
        self._used = False
        first = self._begin()
        self._obs = self._batch(first)
        if not all_trainable(self._obs):
            self._report(first, [0.0] * len(first))

    def _build_anew(self) -> None:
        """Rebuilds environments such as Box2D's, whose worlds keep state over a reset."""
        for env in self._envs:
            env.close()
        self._envs = [self._bare(self._make()[0]) for _ in self._envs]
        self._steps = [env.step for env in self._envs]

    def _bare(self, env: Any) -> Any:
        return env.unwrapped if self._plain else env

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes one step of every environment; see `VectorEnvironment.step`.

        Raises:
            EnvironmentFailure: the action is of the wrong shape, or an environment raised or gave
                a wrong observation or reward.
        """
        self._actions = self._as_their_actions(action)
        self._used = True
        obs_rows, rewards, ends, cuts, infos = [], [], [], [], []
        at_work = self.at_work.data  # a third of the time of the array itself
        try:
            threads = self._begin_step() if self._concurrent else 1
            if threads > 1:
                outcomes = self._on_threads(threads)
            else:
                outcomes = zip(self._steps, self._actions, strict=True)
            for i, (step, one) in enumerate(outcomes):
                at_work[0] = i
                obs, reward, end, cut, info = step(one)
                obs_rows.append(own(obs))
                rewards.append(reward)
                ends.append(end)
                cuts.append(cut)
                infos.append(info)
            if self._trial is not None:
                self._trial.end()
        except RAISED as error:
            text = f"step {raised(error)}"
            here = error.__traceback__
            if here and here.tb_next is None and "unpack" in str(error):  # of what it returned
                text = f"step returned something else than {_RESULT}: {error}"
            raise self._failure(len(obs_rows), text) from error
        final_obs = self._batch(obs_rows)
        try:
            reward = np.array(rewards, np.float32)
        except (TypeError, ValueError):
            self._report(obs_rows, rewards)
        if reward.ndim != 1 or not (all_trainable(final_obs) and all_trainable(reward)):
            self._report(obs_rows, rewards)
        terminated, cut_short = self._truths("terminated", ends), self._truths("truncated", cuts)
        self._counters += 1
        truncated = cut_short | (self._elapsed >= self._limit)
        next_obs = final_obs.copy()
        ended = terminated | truncated
        self.episode_info = []
        if np.count_nonzero(ended):
            rows = np.flatnonzero(ended).tolist()
            self.episode_info = [numbers_of(infos[i]) for i in rows]
            self._restart(rows, next_obs)
        self._obs = next_obs.copy()
        return next_obs, final_obs, reward, terminated, truncated

    def _begin_step(self) -> int:
        """Returns the number of threads of the next step."""
        if self._concurrent > 1 or self.threads == 1:
            return max(self.threads, self._concurrent)
        if self._trial is None:
            self._trial = Trial(self.threads)
        return self._trial.begin()

    def _on_threads(self, threads: int) -> Iterator[tuple[Callable[[Any], Any], Any]]:
        """Takes the steps on several threads. Returns: in order, a function for each result."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads - 1, "environments")
        self.at_work[0] = -1  # several at once
        each = -(-len(self._steps) // threads)
        starts = range(0, len(self._steps), each)
        others = [self._pool.submit(self._some, start, start + each) for start in starts[1:]]
        found = self._some(0, each)
        for other in others:
            found += other.result()
        return iter(found)

    def _some(self, start: int, stop: int) -> list[tuple[Callable[[Any], Any], Any]]:
        found: list[tuple[Callable[[Any], Any], Any]] = []
        for step, one in zip(self._steps[start:stop], self._actions[start:stop], strict=True):
            try:
                obs, *rest = step(one)
                found.append((_given, (own(obs), *rest)))
            except RAISED as error:
                found.append((_raise, error))
        return found

    def close(self) -> None:
        """Closes every environment and ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()
        super().close()

    def get_state(self) -> dict[str, np.ndarray] | None:
        """Returns physics, steps, random generators and obs, leading axis B.

        None if the state is not known to be complete: for all but classic control and MuJoCo
        environments, and for environments with other wrappers.
        """
        if not self._complete:
            return None
        return {
            "physics": np.stack([gym_state.get_physics(env) for env in self._envs]),
            "physics_type": np.array([gym_state.physics_type(env) for env in self._envs], np.int64),
            "elapsed": self._elapsed.copy(),
            "total": self._total.copy(),
            "random": np.stack([gym_state.get_random(env) for env in self._envs]),
            "obs": self._obs.copy(),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Restores a state from `get_state()`. Returns: the current obs `[B, ...] float32`."""
        self._take_counters(state)
        self._used = True
        for env, physics, kind, random in zip(
            self._envs, state["physics"], state["physics_type"], state["random"], strict=True
        ):
            gym_state.set_physics(env, physics, int(kind))
            gym_state.set_random(env, random)
        self._obs = state["obs"].copy()
        return self._obs.copy()

    def _restart(self, rows: list[int], next_obs: np.ndarray) -> None:
        """Resets the environments `rows` and writes their first obs to `next_obs`."""
        for i in rows:
            self._elapsed[i] = 0
            obs = self._reset_one(i)
            if not self.spec.images:
                obs = np.asarray(obs, np.float32)
            if not self._is_right(obs):
                self._report([obs], [0.0], i)
            next_obs[i] = obs

    def _is_right(self, obs: Any) -> bool:
        """Returns whether an observation has the shape, type and range of the spec."""
        kind = getattr(obs, "dtype", None)
        if kind != self._obs_dtype or obs.shape != self.spec.obs_shape:
            return False
        return all_trainable(obs)

    def _batch(self, rows: list[Any]) -> np.ndarray:
        try:
            obs = np.array(rows)
            if self.spec.images and obs.dtype != np.uint8:
                self._report(rows, [0.0] * len(rows))
            if obs.dtype != self._obs_dtype:
                with np.errstate(over="ignore"):  # to inf, which is reported by name
                    obs = obs.astype(np.float32)
        except (TypeError, ValueError):
            self._report(rows, [0.0] * len(rows))
        if obs.shape != self._obs_shape:
            self._report(rows, [0.0] * len(rows))
        return obs

    def _truths(self, name: str, values: list[Any]) -> np.ndarray:
        try:
            found = np.array(values)
            if found.ndim == 1 and found.dtype.kind in "biuf":
                return found.astype(np.bool_)
        except (TypeError, ValueError):
            pass
        right = [shape_of(one) == () and np.array(one).dtype.kind in "biuf" for one in values]
        i = right.index(False)
        raise self._failure(i, f"{name} is {values[i]!r}, expected one truth value, True or False")

    def _report(self, obs_rows: list[Any], rewards: list[Any], first: int = 0) -> NoReturn:
        """Raises the error of the first environment, from row `first` on, with a wrong result."""
        expected = self.spec.obs_shape
        for i, (obs, reward) in enumerate(zip(obs_rows, rewards, strict=True), first):
            if (shape := shape_of(obs)) != expected:
                text = f"got an observation of shape {shape}, expected {expected}: {obs!r}"
                raise self._failure(i, text)
            if self.spec.images and getattr(obs, "dtype", None) != np.uint8:
                kind = getattr(obs, "dtype", type(obs).__name__)
                raise self._failure(i, f"got an observation of {kind}, expected an image of uint8")
            if not are_trainable(obs):
                raise self._failure(i, untrainable("the observation", obs))
            if shape_of(reward) != ():
                raise self._failure(i, f"the reward is {reward!r}, expected one number")
            if not are_trainable(reward):
                raise self._failure(i, untrainable("the reward", reward))
        raise AssertionError("reported a failure, but every row is right")


_RESULT = "the five obs, reward, terminated, truncated, info"


def _given(outcome: Any) -> Any:
    return outcome


def _raise(error: BaseException) -> NoReturn:
    raise error


def _made(name: str, maker: Callable[[], Any] | None) -> Any:
    """Makes an environment with its own spaces."""
    return library.make(name) if maker is None else _of_user(name, maker)


def _first(name: str, maker: Callable[[], Any] | None, seed: int = 0) -> tuple[Any, str, Any]:
    """Makes an environment and finds its action mask.

    Returns: it; and the mask's source and the result of a reset, see `masks.source`.
    """
    env = _made(name, maker)
    module = library.load(str(library.library_of(type(env))))
    return env, *masks.source(module, name, env, seed)


def _of_user(name: str, maker: Callable[[], Any]) -> Any:
    try:
        env = maker()
    except RAISED as error:  # the user's own code
        hint = ""
        if isinstance(error, TypeError) and "argument" in str(error):
            hint = "; it is called with the options behind its name alone: name a function"
        text = f"{name} could not be made: {described(error)}{hint}"
        raise EnvironmentFailure(text) from error
    if library.library_of(type(env)) is None:
        raise EnvironmentFailure(
            f"{name} gave {env!r}, expected an environment: a gym.Env or a gymnasium.Env (one of "
            "PettingZoo's parallel ones is named by its class or by a function parallel_env)"
        )
    missing = [key for key in ("observation_space", "action_space") if not hasattr(env, key)]
    if missing:
        raise EnvironmentFailure(f"{name} has no {' and no '.join(missing)}")
    return env
