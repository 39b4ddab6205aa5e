"""Action masks of observations in NumPy: the last n numbers, 1 for a valid action, else 0."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.options import MASK

METHOD = "action_masks"
OF_METHOD, OF_INFO, OF_OBSERVATION = f"{METHOD}()", f"info[{MASK!r}]", f"observation[{MASK!r}]"
"""Where a mask comes from, in words."""


def told(actions: int, where: str) -> str:
    """Describes the mask of an environment, given its number of actions and its source."""
    return (
        f"{actions} actions are masked by {where}, the last {actions} numbers of an observation "
        f"({MASK}=false behind the name leaves it out)"
    )


def valid_actions(spec: EnvironmentSpec, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Replaces each invalid action by the next valid one; without a mask all are valid.

    Args:
        spec: the environment's spec.
        obs: `[B, ...]` in which the actions are taken.
        action: `[B]` int32, or with teams `[B, A]`.
    """
    size = spec.mask_size
    if not size:
        return action
    places = (action[..., None] + np.arange(size)) % size
    ahead = np.take_along_axis(obs[..., -size:], places, -1).argmax(-1)
    return ((action + ahead) % size).astype(action.dtype)


def wrong_mask(spec: EnvironmentSpec, obs: np.ndarray) -> tuple[int, str] | None:
    """Returns the first environment with a wrong mask and what it has, in words, or None.

    Args:
        spec: the environment's spec.
        obs: `[B, ...]` of states in which an action is taken.
    """
    if not spec.mask_size:
        return None
    masks = obs[..., -spec.mask_size :]
    right = ((masks == 0.0) | (masks == 1.0)).all(-1) & masks.any(-1)
    if right.all():
        return None
    place = tuple(np.argwhere(~right)[0].tolist())
    expected = "expected zeros and ones, one at least"
    return place[0], f"the action mask is {masks[place].tolist()}, {expected}"


def of_combinations(mask: Any, sizes: Sequence[int]) -> Any:
    """Converts a mask of the values of several choices, one after the other, to their combinations.

    sb3-contrib has it so, and gymnasium as a tuple of arrays. Any other mask is returned unchanged.

    Args:
        mask: that an environment gave.
        sizes: the number of values of each choice.
    """
    try:
        parts = mask if isinstance(mask, tuple | list) else [mask]
        flat = np.concatenate([np.ravel(part) for part in parts])
        if flat.size != sum(sizes):
            return mask
        each = np.split(flat, np.cumsum(sizes)[:-1])
        return functools.reduce(np.multiply.outer, each).ravel()
    except (TypeError, ValueError):  # of no numbers, which `checked_mask` says
        return mask


def checked_mask(mask: Any, actions: int, over: bool, where: str) -> np.ndarray:
    """Returns a mask as numbers `[actions]`, 0 or 1.

    Args:
        mask: that an environment gave.
        actions: number of actions.
        over: whether the episode has terminated; if no action is valid there, all are.
        where: the mask's source, in words.

    Raises:
        ValueError: it has another shape, entries other than 0 and 1, or no valid action.
    """
    found = np.asarray(mask)
    if found.shape != (actions,) or found.dtype.kind not in "biuf":
        raise ValueError(f"{where} is {mask!r}, expected {actions} entries, one for each action")
    valid = found.astype(np.float32)
    count = np.count_nonzero(valid)
    if np.count_nonzero(valid == 1.0) != count:
        raise ValueError(f"{where} is {mask!r}, expected entries of 0 (invalid) and 1 (valid)")
    if not count and not over:
        raise ValueError(f"{where} has no valid action, in an episode that goes on")
    return valid if count else np.ones(actions, np.float32)
