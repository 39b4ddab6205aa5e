"""Environments of gym, in a plain loop over single ones."""

import contextlib
import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np

# gym prints a notice when it is imported; errors still come through.
with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import gym
    from gym.wrappers.order_enforcing import OrderEnforcing
    from gym.wrappers.time_limit import TimeLimit

from mindspore_rl import install
from mindspore_rl.environments.environment import EnvironmentSpec, unknown
from mindspore_rl.environments.loop_vector import LoopVector, as_space
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.environments.trainable import all_trainable, are_trainable, untrainable
from mindspore_rl.errors import EnvironmentFailure

_MASK64 = (1 << 64) - 1
# What gym's MuJoCo environments read before the next step computes it anew.
_MUJOCO_DERIVED = ("xpos", "xipos", "site_xpos", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")


def gym_names() -> list[str]:
    """Returns the ids in gym's registry."""
    return list(gym.envs.registration.registry)


def gym_spec(name: str) -> EnvironmentSpec:
    """Finds out the shapes of a gym environment by building one.

    Raises:
        UnknownEnvironmentError: gym knows no such id.
        EnvironmentFailure: it cannot be built here, or its spaces are not supported.
    """
    env = _make(name)
    found = _spec(name, env)
    env.close()
    return found


class GymVector(LoopVector):
    """A `VectorEnvironment` of gym environments; at the time limit both ends may be set, as in gym.

    Where gym adds nothing but its order check and time limit, the bare environment is stepped
    and the time limit kept here: gym's wrappers cost as much as a CartPole.

    Args:
        name: a gym id.
        env_indices: global indices of the environments.
        seed: the run's seed, not negative.

    Raises:
        UnknownEnvironmentError: gym knows no such id.
        EnvironmentFailure: it cannot be built here, or fails in its first reset.
    """

    def __init__(self, name: str, env_indices: range, seed: int) -> None:
        made = [_make(name) for _ in env_indices]
        self._plain = _is_plain(made[0])
        envs = [env.unwrapped if self._plain else env for env in made]
        super().__init__(_spec(name, made[0]), env_indices, seed, envs, made[0].action_space)
        self._steps = [env.step for env in envs]
        # MuJoCo computes without Python's lock, and each environment has a state of its own.
        self._shares = self._plain and _state_kind(envs[0]) == "mujoco"
        self._pool: ThreadPoolExecutor | None = None
        self._limit = (self.spec.max_episode_steps if self._plain else 0) or math.inf
        self._obs_shape = (len(made), *self.spec.obs_shape)
        self.reset()

    def reset(self) -> np.ndarray:
        """Goes back to the very beginning, the same each time. Returns: obs `[B, ...] float32`.

        Raises:
            EnvironmentFailure: an environment raised, or its observation is wrong.
        """
        first = self._begin()
        obs = self._batch(first)
        if not all_trainable(obs):
            self._report(first, [0.0] * len(first))
        self._obs = obs.copy()
        return obs

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Takes one step of every environment; see `VectorEnvironment.step`.

        Raises:
            EnvironmentFailure: the action is of the wrong shape, or an environment raised or gave
                a wrong observation or reward.
        """
        self._actions = self._as_their_actions(action)
        obs_rows, rewards, ends, cuts = [], [], [], []
        at_work = self.at_work.data  # a third of the time that the array itself takes
        try:
            if self.threads > 1 and self._shares:
                outcomes = self._on_threads()
            else:
                outcomes = zip(self._steps, self._actions, strict=True)
            for i, (step, one) in enumerate(outcomes):
                at_work[0] = i
                obs, reward, end, cut, _ = step(one)
                obs_rows.append(obs)
                rewards.append(reward)
                ends.append(end)
                cuts.append(cut)
        except Exception as error:
            what = f"step raised {type(error).__name__}: {error}"
            raise self._failure(len(obs_rows), what) from error
        final_obs = self._batch(obs_rows)
        try:
            reward = np.array(rewards, np.float32)
        except (TypeError, ValueError):
            self._report(obs_rows, rewards)
        if reward.ndim != 1 or not (all_trainable(final_obs) and all_trainable(reward)):
            self._report(obs_rows, rewards)
        self._counters += 1
        terminated = np.array(ends, np.bool_)
        truncated = np.array(cuts, np.bool_) | (self._elapsed >= self._limit)
        next_obs = final_obs.copy()
        ended = terminated | truncated
        if np.count_nonzero(ended):
            self._restart(np.flatnonzero(ended).tolist(), next_obs)
        self._obs = next_obs.copy()
        return next_obs, final_obs, reward, terminated, truncated

    def _on_threads(self) -> Iterator[tuple[Callable[[Any], Any], Any]]:
        """Takes the steps on several threads. Gives, in order, what returns or raises each one."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, "environments")
        self.at_work[0] = -1  # several at once
        each = -(-len(self._steps) // self.threads)
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
                found.append((_given, step(one)))
            except Exception as error:  # noqa: BLE001  (raised again, by who asked)
                found.append((_raise, error))
        return found

    def close(self) -> None:
        """Closes every environment, and ends their threads."""
        if self._pool is not None:
            self._pool.shutdown()
        super().close()

    def get_state(self) -> dict[str, np.ndarray] | None:
        """Returns physics, steps, random generators and obs, leading axis B.

        None for environments whose state is not known to be complete: all but gym's classic
        control and MuJoCo ones, and whatever has wrappers of its own.
        """
        if not self._plain or _state_kind(self._envs[0]) is None:
            return None
        return {
            "physics": np.stack([_get_physics(env) for env in self._envs]),
            "physics_type": np.array([_physics_type(env) for env in self._envs], np.int64),
            "elapsed": self._elapsed.copy(),
            "total": self._total.copy(),
            "random": np.stack([_get_random(env) for env in self._envs]),
            "obs": self._obs.copy(),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """Goes on from `get_state()`. Returns: the current obs `[B, ...] float32`."""
        self._take_counters(state)
        for env, physics, kind, random in zip(
            self._envs, state["physics"], state["physics_type"], state["random"], strict=True
        ):
            _set_physics(env, physics, int(kind))
            _set_random(env, random)
        self._obs = state["obs"].copy()
        return self._obs.copy()

    def _restart(self, rows: list[int], next_obs: np.ndarray) -> None:
        """Resets the environments `rows` and writes their first obs into `next_obs`."""
        for i in rows:
            self._elapsed[i] = 0
            obs = np.asarray(self._reset_one(i), np.float32)
            if obs.shape != self.spec.obs_shape or not all_trainable(obs):
                self._report([obs], [0.0], i)
            next_obs[i] = obs

    def _batch(self, rows: list[Any]) -> np.ndarray:
        try:
            obs = np.array(rows)
            if obs.dtype != np.float32:
                with np.errstate(over="ignore"):  # to inf, which is reported by name
                    obs = obs.astype(np.float32)
        except (TypeError, ValueError):
            self._report(rows, [0.0] * len(rows))
        if obs.shape != self._obs_shape:
            self._report(rows, [0.0] * len(rows))
        return obs

    def _report(self, obs_rows: list[Any], rewards: list[Any], first: int = 0) -> NoReturn:
        """Raises for the first environment, counted from `first`, that gave what is wrong."""
        expected = self.spec.obs_shape
        for i, (obs, reward) in enumerate(zip(obs_rows, rewards, strict=True), first):
            if np.shape(obs) != expected:
                text = f"got an observation of shape {np.shape(obs)}, expected {expected}: {obs!r}"
                raise self._failure(i, text)
            if not are_trainable(obs):
                raise self._failure(i, untrainable("the observation", obs))
            if np.shape(reward) != ():
                raise self._failure(i, f"the reward is {reward!r}, expected one number")
            if not are_trainable(reward):
                raise self._failure(i, untrainable("the reward", reward))
        raise AssertionError("reported a failure, but every row is right")


def _given(outcome: Any) -> Any:
    return outcome


def _raise(error: Exception) -> NoReturn:
    raise error


def _make(name: str) -> Any:
    gym.logger.set_level(gym.logger.ERROR)  # its advice to upgrade is not the user's concern
    try:
        with _without_mujoco_advice(name):
            return gym.make(name, disable_env_checker=True)
    except gym.error.DependencyNotInstalled as error:
        raise EnvironmentFailure(_missing_dependency(name, error)) from error
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        raise unknown(name, gym_names()) from error
    except Exception as error:  # the environment's own code
        text = f"gym could not make {name!r}: {type(error).__name__}: {error}"
        raise EnvironmentFailure(text) from error


@contextlib.contextmanager
def _without_mujoco_advice(name: str) -> Iterator[None]:
    """Keeps MuJoCo from printing, and logging to a file, that gym's models are old."""
    entry = getattr(gym.envs.registration.registry.get(name), "entry_point", None)
    if not str(entry).startswith("gym.envs.mujoco") or importlib.util.find_spec("mujoco") is None:
        yield
        return
    import mujoco  # noqa: PLC0415 (optional)

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _missing_dependency(name: str, error: Exception) -> str:
    if "mujoco_py" in str(error):
        return f"{name!r} needs mujoco_py, which is no longer maintained: use its version v4"
    if "mujoco" in str(error):
        return f"{name!r} needs MuJoCo, which is not installed; {install('mujoco')}"
    return f"{name!r} needs a package that is not installed: {error}"


def _spec(name: str, env: Any) -> EnvironmentSpec:
    if not isinstance(env.observation_space, gym.spaces.Box):
        raise EnvironmentFailure(
            f"{name!r} has the observation space {env.observation_space}, expected a Box: "
            "wrap it in a class of your own that gives arrays"
        )
    return EnvironmentSpec(
        name=name,
        obs_shape=tuple(int(size) for size in env.observation_space.shape),
        action_space=_action_space(name, env.action_space),
        max_episode_steps=env.spec.max_episode_steps or 0,
        reward_threshold=env.spec.reward_threshold,
        in_graph=False,
    )


def _action_space(name: str, space: Any) -> Discrete | Box:
    found = as_space(space)
    if found is None:
        raise EnvironmentFailure(
            f"{name!r} has the action space {space}, expected Discrete or Box: "
            "wrap it in a class of your own"
        )
    return found


def _is_plain(env: Any) -> bool:
    while isinstance(env, gym.Wrapper):
        if type(env) not in (OrderEnforcing, TimeLimit):
            return False
        env = env.env
    return True


def _state_kind(env: Any) -> str | None:
    module = type(env).__module__
    if module.startswith("gym.envs.classic_control."):
        return "classic"
    # Old versions go through mujoco_py, whose data cannot be had in this way.
    if module.startswith("gym.envs.mujoco.") and hasattr(env.data, "qacc_warmstart"):
        return "mujoco"
    return None


def _physics_type(env: Any) -> int:
    """Returns 0 for a tuple, else the bytes of an array's numbers: arithmetic depends on it."""
    state = getattr(env, "state", None)
    return state.itemsize if isinstance(state, np.ndarray) else 0


def _get_physics(env: Any) -> np.ndarray:
    if _state_kind(env) == "classic":
        return np.array(env.state, np.float64)
    mujoco, kind = _mujoco_state()
    state = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, state, kind)
    derived = [getattr(env.data, field).ravel() for field in _MUJOCO_DERIVED]
    return np.concatenate([state, *derived])


def _set_physics(env: Any, physics: np.ndarray, kind: int) -> None:
    if _state_kind(env) == "classic":
        dtype = np.float32 if kind == 4 else np.float64
        env.state = tuple(physics) if kind == 0 else physics.astype(dtype)
        if hasattr(env, "steps_beyond_terminated"):
            env.steps_beyond_terminated = None
        return
    mujoco, signature = _mujoco_state()
    at = mujoco.mj_stateSize(env.model, signature)
    mujoco.mj_setState(env.model, env.data, np.ascontiguousarray(physics[:at]), signature)
    for field in _MUJOCO_DERIVED:
        array = getattr(env.data, field)
        array[:] = physics[at : at + array.size].reshape(array.shape)
        at += array.size


def _mujoco_state() -> tuple[Any, Any]:
    import mujoco  # noqa: PLC0415 (optional)

    # The integrator's state: with positions and velocities alone the solver, which starts from
    # its last solution, would not give the same bits.
    return mujoco, mujoco.mjtState.mjSTATE_INTEGRATION


def _get_random(env: Any) -> np.ndarray:
    """Returns the state of a PCG64 as 6 uint64: state, increment (high, low), the spare half."""
    full = env.np_random.bit_generator.state
    state, inc = full["state"]["state"], full["state"]["inc"]
    words = (state >> 64, state & _MASK64, inc >> 64, inc & _MASK64)
    return np.array([*words, full["has_uint32"], full["uinteger"]], np.uint64)


def _set_random(env: Any, words: np.ndarray) -> None:
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in words)
    env.np_random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
