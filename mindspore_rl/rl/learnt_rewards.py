"""Rewards that a classifier gives (GAIL)."""

from mindspore import Tensor

from mindspore_rl.rl.action_distributions import softplus


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
