"""EnvPool environments: one pool per rank, stepped in C++ threads.

Weng et al. 2022, "EnvPool: A highly parallel reinforcement learning environment execution engine".
"""

import contextlib
import io
import os
import warnings
from typing import Any

import numpy as np

from mindspore_rl.environments import images
from mindspore_rl.environments.environment import EnvironmentSpec, unknown
from mindspore_rl.environments.gym.flatten import layout_of
from mindspore_rl.environments.layout import Layout
from mindspore_rl.environments.options import split_options
from mindspore_rl.environments.spaces import Box, taken
from mindspore_rl.environments.sync_vector import as_space, numbers_of
from mindspore_rl.errors import EnvironmentFailure, MissingPackageError, described, install
from mindspore_rl.platform import resources

PREFIX = "envpool:"
NO_LIMIT = 2**31 - 1
OWN_COLUMNS = ("env_id", "elapsed_step", "reward")
"""Columns that a pool gives for every task, or gives as a reward too."""
PLOTTING = ("MPLBACKEND", "MPLCONFIGDIR")
"""Variables that EnvPool's import sets for the process; with them notebooks show no figures."""


def pool_spec(name: str) -> EnvironmentSpec:
    """Returns the spec of an environment, by making one.

    Raises:
        UnknownEnvironmentError: EnvPool does not have this name.
        EnvironmentFailure: it cannot be made here, or its spaces are not supported.
    """
    pool = _make(name, [0])
    try:
        return _spec(name, pool)
    finally:
        pool.close()


class PoolVector:
    """A `VectorEnvironment` over one pool of EnvPool's.

    Each environment has its own seed, from the run's seed and its global index. EnvPool does not
    give access to states, so a resumed run starts new episodes.

    Args:
        name: "envpool:" and an id of EnvPool's, with its options.
        env_indices: global indices of the environments.
        seed: the run's seed, at least 0.

    Raises:
        See `pool_spec`.
    """

    def __init__(self, name: str, env_indices: range, seed: int) -> None:
        self._name, self.episode_info = name, list[dict[str, float]]()
        keys = ((seed, index) for index in env_indices)
        self._seeds = [int(np.random.SeedSequence(key).generate_state(1)[0] >> 1) for key in keys]
        self._rows = np.arange(len(env_indices), dtype=np.int32)
        self._pool, self._fresh = _make(name, self._seeds), True
        self._space, bounds = _spaces(self._pool)
        self.spec = _spec(name, self._pool)
        self._kind = bounds.dtype

    def reset(self) -> np.ndarray:
        """See `VectorEnvironment`; makes a new pool, whose random generators start again."""
        if not self._fresh:
            self._pool.close()
            self._pool = _make(self._name, self._seeds)
        self._fresh = False
        with _quietly():  # gymnasium warns that it rounds bounds
            obs, about = self._pool.reset()
        return self._in_order(self._arrays(obs), about)

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """See `VectorEnvironment`."""
        action = taken(self.spec.action_space, action).astype(self._kind, copy=False)
        obs, *others, about = self._pool.step(action, self._rows)
        final_obs, reward, terminated, truncated = (
            self._in_order(rows, about) for rows in (self._arrays(obs), *others)
        )
        next_obs, ended = final_obs.copy(), terminated | truncated
        self.episode_info = self._numbers(about, ended)
        if np.count_nonzero(ended):
            first, about = self._pool.reset(self._rows[ended])
            next_obs[about["env_id"]] = self._arrays(first)
        return next_obs, final_obs, reward.astype(np.float32), terminated, truncated

    def _numbers(self, about: dict[str, Any], ended: np.ndarray) -> list[dict[str, float]]:
        """Returns the numbers that a pool gives about each episode that ended."""
        if not np.count_nonzero(ended):
            return []
        rows = np.argsort(about["env_id"])[ended].tolist()
        columns = {name: about[name] for name in about if name not in OWN_COLUMNS}
        columns = {name: c for name, c in columns.items() if np.shape(c) == ended.shape}
        return [numbers_of({name: c[row] for name, c in columns.items()}) for row in rows]

    def get_state(self) -> None:
        """See `VectorEnvironment`: always None."""

    def set_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """See `VectorEnvironment`."""
        raise EnvironmentFailure(f"{self._name} gives no state, so there is none to go on from")

    def close(self) -> None:
        """Ends the pool's threads."""
        self._pool.close()

    def _in_order(self, rows: np.ndarray, about: dict[str, Any]) -> np.ndarray:
        """Sorts rows by environment; a pool returns them in any order, with their indices."""
        found = np.empty_like(rows)
        found[about["env_id"]] = rows
        return found

    def _arrays(self, obs: Any) -> np.ndarray:
        """Converts observations to the spec's arrays, `[B, ...]`."""
        if self.spec.images:
            return np.stack([images.channels_first(image) for image in obs])
        if isinstance(as_space(self._space), Box):
            return np.asarray(obs, np.float32)
        return np.concatenate(_flat(self._space, obs), axis=1, dtype=np.float32)


def _flat(space: Any, obs: Any) -> list[np.ndarray]:
    """Yields the parts of observations `[B, ...]`, in the order of gymnasium's `flatten`."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return [flat for key, part in parts.items() for flat in _flat(part, obs[key])]
    if isinstance(as_space(space), Box):
        return [np.reshape(obs, (len(obs), -1))]
    return [np.eye(space.n)[np.reshape(obs, -1) - space.start]]


def _spec(name: str, pool: Any) -> EnvironmentSpec:
    space, theirs = _spaces(pool)
    own = as_space(theirs)
    if own is None:
        raise EnvironmentFailure(
            f"{name!r} has the action space {theirs}, expected Discrete or Box"
        )
    notes = [f"of envpool {_library(name).__version__}"]
    image = images.is_image(space)
    shape = images.image_shape(space.shape) if image else space.shape
    if not image and not isinstance(as_space(space), Box):
        from gymnasium.spaces.utils import flatdim  # noqa: PLC0415 (EnvPool needs it)

        odd = [kind for kind in _kinds(space) if kind not in ("Box", "Discrete")]
        if odd:
            raise EnvironmentFailure(
                f"{name!r} observes {space}, expected Box and Discrete spaces, or a Dict of such"
            )
        shape = (flatdim(space),)
        parts = ", ".join(layout_of(space, flatdim))
        notes.append(f"observations are flattened to {shape[0]} numbers: {parts}")
    elif image:
        notes.append(f"observations are images, uint8 [C, H, W] = {list(shape)}")
    limit = int(pool.spec.config.max_episode_steps)
    if limit < NO_LIMIT:
        notes.append(
            f"what ends at the limit of {limit:,} steps is truncated, also where the task ended "
            "with this very step: EnvPool does not say"
        )
    return EnvironmentSpec(
        name=name,
        obs_shape=tuple(int(size) for size in shape),
        action_space=own,
        max_episode_steps=limit,
        reward_threshold=pool.spec.reward_threshold,
        in_graph=False,
        notes="; ".join(notes),
        obs_dtype="uint8" if image else "float32",
        layout=Layout.of(space),
    )


def _spaces(pool: Any) -> tuple[Any, Any]:
    """Returns the observation space and the action space."""
    with _quietly():
        return pool.observation_space, pool.action_space


def _kinds(space: Any) -> list[str]:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict):
        return [kind for part in parts.values() for kind in _kinds(part)]
    return [type(space).__name__]


def _make(name: str, seeds: list[int]) -> Any:
    """Makes a pool with one thread per core, but no more threads than environments."""
    library = _library(name)
    base, options = split_options(name)
    own_id = base.removeprefix(PREFIX)
    known = library.list_all_envs()
    if own_id not in known:
        raise unknown(name, [f"{PREFIX}{known_id}" for known_id in known])
    threads = min(len(seeds), resources.available_cores())
    try:
        with _quietly():
            return library.make_gymnasium(
                own_id, **{"num_threads": threads, **options}, num_envs=len(seeds), seed=seeds
            )
    except Exception as error:  # the environment's own code
        text = f"envpool could not make {name!r}: {described(error)}"
        raise EnvironmentFailure(text) from error


def _library(name: str) -> Any:
    plotting = {key: os.environ.get(key) for key in PLOTTING}
    try:
        with _quietly():
            import envpool  # noqa: PLC0415 (optional)
    except ModuleNotFoundError as error:
        text = f"{name!r} needs {error.name}, which is not installed; {install('pool')}"
        raise MissingPackageError(text, extra="pool") from error
    finally:
        for key, value in plotting.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
    return envpool


@contextlib.contextmanager
def _quietly() -> Any:
    """Suppresses the greetings of EnvPool and of the packages that it imports."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
