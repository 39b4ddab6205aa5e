"""Action masks of single environments, which become the last numbers of their observations.

An environment gives them as `info["action_mask"]`, by a method `action_masks()` (the convention of
sb3-contrib), or in observations that are a Dict with the key "action_mask".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mindspore_rl.environments.action_mask import (
    METHOD,
    OF_INFO,
    OF_METHOD,
    checked_mask,
    of_combinations,
)
from mindspore_rl.environments.options import MASK, mask_option
from mindspore_rl.environments.sync_vector import RAISED, layers
from mindspore_rl.errors import UnknownEnvironmentError


def source(module: Any, name: str, env: Any, seed: int = 0) -> tuple[str, Any]:
    """Finds where an environment's mask comes from.

    Args:
        module: the environment's library.
        name: the name that the user gave.
        env: an environment with its own spaces.
        seed: of its reset, if it is reset to find the mask in its `info`.

    Returns: the source, in words; empty: it has no mask; and what the reset returned, or None.

    Raises:
        UnknownEnvironmentError: the name asks for a mask, and there is none.
    """
    wanted = mask_option(name)
    found, begun = "", None
    if wanted is not False and _may_have_one(module, env):
        if _method(module, env) is not None:
            found = OF_METHOD
        elif _in_observations(env.observation_space):
            found = OF_INFO  # `given_apart` moves it there
        else:
            begun = _begun(env, seed)
            found = OF_INFO if begun is not None and MASK in begun[1] else ""
    if wanted and not found:
        raise UnknownEnvironmentError(
            f"{name!r} has no action mask, expected {OF_INFO}, a method {OF_METHOD} or Dict "
            f"observations with the key {MASK!r}, for actions that are choices"
        )
    return found, begun


def _may_have_one(module: Any, env: Any) -> bool:
    """Returns False where that is certain, without a reset: of the library, only toys have one."""
    kinds = [type(layer).__module__ for layer in layers(module, env)]
    own = all(kind.partition(".")[0] in (module.__name__, "ale_py") for kind in kinds)
    box = isinstance(env.action_space, module.spaces.Box)
    return not box and (not own or ".toy_text." in kinds[-1])


def _method(module: Any, env: Any) -> Callable[[], Any] | None:
    found = (getattr(layer, METHOD, None) for layer in layers(module, env))
    return next(filter(callable, found), None)


def _in_observations(space: Any) -> bool:
    parts = getattr(space, "spaces", None)
    return isinstance(parts, Mapping) and MASK in parts and len(parts) > 1


def _begun(env: Any, seed: int) -> tuple[Any, dict[str, Any]] | None:
    """Resets an environment. Returns: the result; None if it is wrong, which a run reports."""
    try:
        obs, info = env.reset(seed=seed)
    except RAISED + (TypeError, ValueError):
        return None
    return (obs, info) if isinstance(info, dict) else None


def begin_with(env: Any, begun: tuple[Any, dict[str, Any]]) -> None:
    """Lets an environment's first reset return what a reset just done has returned.

    Args:
        env: the environment that was reset, on which nothing was called since.
        begun: the result.
    """
    own = vars(env).get("reset")

    def reset(**_: Any) -> tuple[Any, dict[str, Any]]:
        if own is None:
            del env.reset
        else:
            env.reset = own
        return begun

    env.reset = reset


def given_apart(module: Any, env: Any) -> Any:
    """Moves a mask from the observations of an environment to its `info`, if it is there."""
    space = env.observation_space
    if not _in_observations(space):
        return env

    def apart(obs: Any, info: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {k: v for k, v in obs.items() if k != MASK}, {**info, MASK: obs[MASK]}

    class Apart(module.Wrapper):
        """Observations without the mask."""

        def reset(self, **options: Any) -> Any:
            return apart(*self.env.reset(**options))

        def step(self, action: Any) -> Any:
            obs, *rest, info = self.env.step(action)
            obs, info = apart(obs, info)
            return (obs, *rest, info)

    env = Apart(env)
    env.observation_space = module.spaces.Dict(
        {key: part for key, part in space.spaces.items() if key != MASK}
    )
    return env


def appended(module: Any, env: Any, where: str, sizes: Sequence[int]) -> Any:
    """Wraps an environment so that its mask follows the numbers of its observations.

    Args:
        module: the environment's library.
        env: an environment with observations in a Box and discrete actions.
        where: the mask's source.
        sizes: the number of values of each choice, if its own actions are several choices.
    """
    method = _method(module, env)
    actions, shape = int(env.action_space.n), env.observation_space.shape

    def joined(obs: Any, info: Any, over: bool) -> np.ndarray:
        if np.shape(obs) != shape:
            raise ValueError(f"the observation has shape {np.shape(obs)}, expected {shape}")
        mask = method() if method is not None and where == OF_METHOD else info.get(MASK)
        mask = of_combinations(mask, sizes) if sizes else mask
        return np.concatenate([np.ravel(obs), checked_mask(mask, actions, over, where)])

    class Masked(module.Wrapper):
        """Appends the mask to observations."""

        action_mask_of = where

        def reset(self, **options: Any) -> Any:
            obs, info = self.env.reset(**options)
            return joined(obs, info, False), info

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = self.env.step(action)
            return joined(obs, info, bool(terminated)), reward, terminated, truncated, info

    env = Masked(env)
    size = int(np.prod(shape)) + actions
    env.observation_space = module.spaces.Box(-np.inf, np.inf, (size,), np.float32)
    return env
