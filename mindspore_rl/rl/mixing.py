"""The value of a team, made of its agents' values."""

from mindspore import Tensor, ops


def monotonic_mix(
    values: Tensor, first_weight: Tensor, first_bias: Tensor, last_weight: Tensor, last_bias: Tensor
) -> Tensor:
    """Returns QMIX's team value (Rashid et al. 2018, figure 2a): it falls with no agent's value.

    ``elu(values |first_weight| + first_bias) . |last_weight| + last_bias``, with weights of each
    sample's own, which are functions of its state.

    Args:
        values: [N, A] float32, each agent's, reward units.
        first_weight: [N, A, k] float32.
        first_bias: [N, k] float32.
        last_weight: [N, k] float32.
        last_bias: [N] float32.

    Returns:
        value: [N] float32, reward units.
    """
    hidden = (ops.expand_dims(values, -1) * ops.abs(first_weight)).sum(1) + first_bias
    hidden = ops.where(hidden > 0, hidden, ops.exp(ops.minimum(hidden, 0.0)) - 1.0)
    return (hidden * ops.abs(last_weight)).sum(-1) + last_bias
