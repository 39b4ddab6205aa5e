"""Rewards that a classifier gives (GAIL, DIAYN)."""

import math

from mindspore import Tensor

from mindspore_rl.rl.action_distributions import categorical_log_prob, softplus


def discriminator_loss(logit: Tensor, expert_logit: Tensor) -> Tensor:
    """Returns the loss of a classifier of policy and expert (Ho and Ermon 2016, eq. 17, negated).

    ``-log D - log(1 - D_expert)`` where ``D = sigmoid(-logit)`` is the probability that a pair of
    state and action is the policy's: the gradient of the paper's algorithm 1, line 4.

    Args:
        logit: [N] float32, of the policy's pairs; large where they seem the expert's.
        expert_logit: [N] float32, of the expert's.

    Returns:
        loss: [N] float32.
    """
    return softplus(logit) + softplus(-expert_logit)


def imitation_reward(logit: Tensor) -> Tensor:
    """Returns ``-log D``, the negated cost of Ho and Ermon 2016 (algorithm 1, line 5).

    Args:
        logit: [...] float32, see ``discriminator_loss``.

    Returns:
        reward: [...] float32, above 0.
    """
    return softplus(logit)


def skill_reward(logits: Tensor, skill: Tensor) -> Tensor:
    """Returns ``log q(skill | state) - log p(skill)`` (Eysenbach et al. 2019, eq. 3).

    Here q is the softmax of the logits, and p is uniform.

    Args:
        logits: [N, skills] float32, a discriminator's, of the state after a step.
        skill: [N] int32, 0 to skills - 1.

    Returns:
        reward: [N] float32, nats, at most log(skills); 0 where q tells nothing.
    """
    return categorical_log_prob(logits, skill) + math.log(logits.shape[-1])
