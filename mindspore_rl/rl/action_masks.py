"""Action masks: the last n numbers of an observation, 1 for a valid action and 0 for another.

The mask travels with the observation, so that messages, replays and policies carry it. A network
reads `features` and masks its outputs by `masked`. With n = 0 there is no mask. For the gradient of
masked logits see Huang and Ontañón 2020 (arXiv 2006.14171).
"""

from mindspore import Tensor, int32, ops

from mindspore_rl.rl.action_distributions import inverse_cdf

INVALID = -1e9
"""Logit or value of an invalid action; with an infinity, entropies and gradients would be NaN."""


def features(obs: Tensor, n: int) -> Tensor:
    """Returns observations without their masks.

    Args:
        obs: [..., size + n] float32.
        n: entries of a mask; 0: none.

    Returns: [..., size] float32.
    """
    return obs[..., :-n] if n else obs


def masked(values: Tensor, obs: Tensor, n: int) -> Tensor:
    """Returns values of actions with `INVALID` in the places of invalid ones.

    Args:
        values: [..., n] float32, logits or values.
        obs: [..., size + n] float32, with as many rows as values.
        n: actions; 0: there is no mask.
    """
    if not n:
        return values
    return ops.where(obs[..., -n:].reshape(values.shape) > 0.5, values, INVALID)


def random_action(noise: Tensor, obs: Tensor, n: int, num_actions: int) -> Tensor:
    """Draws uniformly from the valid actions.

    Args:
        noise: [B] float32, uniform in [0, 1) with at most 24 bits.
        obs: [B, ...] float32, with masks `[B, size + n]`.
        n: entries of a mask; 0: every action is valid.
        num_actions: number of actions.

    Returns: [B] int32.
    """
    if not n:
        return (noise * num_actions).astype(int32)
    return inverse_cdf(obs[..., -n:], noise.expand_dims(-1))
