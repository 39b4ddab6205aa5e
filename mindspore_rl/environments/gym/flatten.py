"""Wraps environments of gymnasium and gym so that observations are one array, actions one kind."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mindspore_rl.environments import images
from mindspore_rl.environments.action_mask import told
from mindspore_rl.environments.gym import masks
from mindspore_rl.environments.gym.library import library_of, load
from mindspore_rl.environments.spaces import Box, clauses
from mindspore_rl.environments.sync_vector import as_space
from mindspore_rl.errors import EnvironmentFailure

_OBSERVATIONS = (
    "a Box of one number at least, or Discrete, MultiBinary, MultiDiscrete, Dict and Tuple spaces "
    "of such"
)
_MOST_CHOICES = 1024  # each is one output of a network
_ACTIONS = f"Discrete, Box, or MultiDiscrete or MultiBinary of up to {_MOST_CHOICES} combinations"


def flattened(name: str, env: Any, mask: str = "") -> tuple[Any, str]:
    """Wraps an environment so that its observations are one array and its actions one kind.

    Args:
        name: the name that the user gave.
        env: an environment with its own spaces.
        mask: the source of its action mask, which is appended to observations; empty: none.

    Returns:
        The environment, wrapped if its spaces are others; and the layout of its spaces, in
        words.

    Raises:
        EnvironmentFailure: a space is of an unsupported kind.
    """
    module = load(str(library_of(type(env))))
    if mask:
        found, layout = flattened(name, masks.given_apart(module, env))
        if images.is_image(found.observation_space):
            raise EnvironmentFailure(
                f"{name!r} has images and an action mask, expected numbers with it: leave the mask "
                f"out, as in '{name},action_mask=false'"
            )
        masked = told(int(found.action_space.n), mask)
        sizes = _sizes(module, env.action_space).ravel().tolist()
        found = masks.appended(module, found, mask, sizes)
        return found, clauses(layout, masked)
    env, choices = _as_choices(module, env)
    if as_space(env.action_space) is None:
        raise EnvironmentFailure(
            f"{name!r} has the action space {env.action_space}, expected {_ACTIONS}: "
            f"{_foreign(module, env.action_space) or 'wrap it, or write a class of your own'}"
        )
    space = env.observation_space
    if images.is_image(space):
        env, layout = _as_images(module, env)
        return env, clauses(layout, choices)
    if isinstance(as_space(space), Box) or _is_booleans(module, space):
        return env, clauses(_shape_lost(space), choices)
    try:
        wrapped = module.wrappers.FlattenObservation(env)
        flat = as_space(wrapped.observation_space)
    except NotImplementedError:
        flat = None
    if not isinstance(flat, Box):
        raise EnvironmentFailure(
            f"{name!r} has the observation space {space}, expected {_OBSERVATIONS}: "
            + (_foreign(module, space) or "wrap it, or write a class of your own that gives arrays")
        )
    parts = ", ".join(layout_of(space, module.spaces.utils.flatdim))
    layout = f"observations are flattened to {flat.shape[0]} numbers: {parts}"
    return wrapped, clauses(layout, choices)


def _foreign(module: Any, space: Any) -> str:
    """Explains a space of the other library; empty for others."""
    if isinstance(space, module.spaces.Space):
        return ""
    return (
        f"it is a space of {type(space).__module__.partition('.')[0]}, and the environment is one "
        f"of {module.__name__}: take both of one library"
    )


def _is_booleans(module: Any, space: Any) -> bool:
    return isinstance(space, module.spaces.Box) and space.dtype == bool and 0 not in space.shape


def _shape_lost(space: Any) -> str:
    """Explains the treatment of numbers that may be an image; empty if they cannot be one."""
    if len(space.shape) != 3:
        return ""
    return (
        f"observations {list(space.shape)} are {math.prod(space.shape)} numbers without neighbours "
        "to a network; of an image, give bytes, Box(0, 255, dtype=uint8), for torso=cnn"
    )


def _as_choices(module: Any, env: Any) -> tuple[Any, str]:
    """Numbers the combinations of several choices, if they are few. Returns: see `flattened`."""
    space = env.action_space
    sizes, first = _sizes(module, space), getattr(space, "start", 0)
    count = math.prod(sizes.ravel().tolist())
    if not sizes.size or count > _MOST_CHOICES:
        return env, ""

    class Choices(module.ActionWrapper):
        """Converts one number to several choices, the last one changing fastest."""

        def action(self, action: int) -> np.ndarray:
            chosen = np.unravel_index(action, sizes.ravel())
            return (np.reshape(chosen, sizes.shape) + first).astype(space.dtype)

    wrapped = Choices(env)
    wrapped.action_space = module.spaces.Discrete(count)
    each = " x ".join(map(str, sizes.ravel().tolist()))
    return wrapped, f"actions are {count} choices: {each}, the last changing fastest"


def _sizes(module: Any, space: Any) -> np.ndarray:
    """Returns the number of values of each of several choices; empty for other actions."""
    if isinstance(space, module.spaces.MultiDiscrete):
        return np.array(space.nvec)
    return np.full(space.shape if isinstance(space, module.spaces.MultiBinary) else (0,), 2)


def _as_images(module: Any, env: Any) -> tuple[Any, str]:
    """Moves the channels first, and joins those of stacked images. Returns: see `flattened`."""
    space = env.observation_space
    shape = images.image_shape(space.shape)

    class Images(module.ObservationWrapper):
        """Converts observations to images `[C, H, W]`."""

        def observation(self, observation: Any) -> np.ndarray:
            return images.channels_first(np.asarray(observation))

    if shape != space.shape:
        env = Images(env)
        env.observation_space = module.spaces.Box(0, 255, shape, np.uint8)
    return env, f"observations are images, uint8 [C, H, W] = {list(shape)}"


def layout_of(space: Any, flatdim: Any, path: str = "") -> Iterator[str]:
    """Describes the order in which a library's `flatten` lays out the parts of a space.

    Args:
        space: a space of gym or gymnasium.
        flatdim: the library's function of this name.
        path: the path to the space within another one.
    """
    parts = getattr(space, "spaces", None)  # a Dict or a Tuple has parts
    if parts is not None:
        keys = parts if hasattr(parts, "keys") else range(len(parts))
        for key in keys:
            yield from layout_of(parts[key], flatdim, f"{path}[{key!r}]")
        return
    size = flatdim(space)
    how = {"Discrete": f"one-hot of {size}", "MultiDiscrete": f"one-hots, {size} numbers"}.get(
        type(space).__name__, f"{size} number{'s' * (size != 1)}"
    )
    if images.is_image(space):
        how += " of an image without its neighbourhoods (alone it would be one for torso=cnn)"
    yield f"{path} {how}".lstrip()
