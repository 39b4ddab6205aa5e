"""Natural gradients by conjugate gradients on Fisher products (Schulman et al. 2015, appendix C.1).

The Fisher matrix of a policy is the mean over samples of ``J^T M J``: J is the Jacobian of the
policy's outputs by its parameters, M the Fisher matrix of the distribution by these outputs. So a
product with a vector has three parts: the outputs' derivative along the vector (`tangent`), M for
each sample alone (`categorical_metric`, `normal_metric`), and the gradient of a loss that is linear
in the outputs. Only the last one sums over samples.
"""

from mindspore import Tensor, float32, ops

from mindspore_rl.rl.networks import MLP

_TINY = 1e-30


def tangent(mlp: MLP, x: Tensor, direction: tuple) -> Tensor:
    """Returns the derivative of an MLP's outputs along a direction of its parameters.

    Forward mode: ``z' = W h' + W' h + b'`` for a layer, ``h' = (1 - h^2) z'`` for a tanh.

    Args:
        mlp: with tanh between its layers.
        x: [N, in_size] float32.
        direction: one array for each of its parameters, in their order.

    Returns:
        tangent: [N, out_size] float32.
    """
    layers = mlp.layers.cell_list
    along = layers[0].matmul(x, direction[0]) + direction[1]
    for i in range(2, len(layers), 2):  # at odd places are activations
        x = layers[i - 1](layers[i - 2](x))
        along = along * (1.0 - ops.square(x))
        own = layers[i].matmul(x, direction[i]) + direction[i + 1]
        along = own + layers[i].matmul(along, layers[i].weight)
    return along


def categorical_metric(logits: Tensor, along: Tensor) -> Tensor:
    """Returns ``M t = p (t - sum_i p_i t_i)`` for the Fisher matrix M of a categorical by logits.

    Args:
        logits: [N, n] float32.
        along: [N, n] float32, the vectors t.

    Returns:
        product: [N, n] float32.
    """
    probs = ops.softmax(logits, -1)
    return probs * (along - ops.sum(probs * along, -1).expand_dims(-1))


def normal_metric(log_std: Tensor, mean_along: Tensor, log_std_along: Tensor) -> tuple:
    """Returns M t for the Fisher matrix M of a diagonal Gaussian by mean and log_std.

    It is diagonal: ``1 / s^2`` for the mean, 2 for log s.

    Args:
        log_std: [N, k] float32.
        mean_along: [N, k] float32, the vectors' components for the mean.
        log_std_along: [N, k] float32, those for log_std.

    Returns:
        (of_mean, of_log_std): each [N, k] float32.
    """
    return mean_along * ops.exp(-2.0 * log_std), 2.0 * log_std_along


def conjugate_gradient_start(b: Tensor, steps: int) -> tuple:
    """Returns the arguments of `conjugate_gradient_step` before the first step.

    Args:
        b: [P] float32, the right side of ``A x = b``.
        steps: n, the steps that will be made.

    Returns:
        (x, residual, direction, basis): x, 0 at the start, the residual ``b - A x`` and the
            direction of the step are [P]; basis [n, P] has the residuals so far, of norm 1.
    """
    unit = b * ops.rsqrt(ops.maximum(ops.sum(b * b), _TINY))
    basis = ops.concat((ops.zeros((steps - 1, b.shape[0]), float32), unit.expand_dims(0)))
    return 0.0 * b, b, b, basis


def conjugate_gradient_step(
    x: Tensor, residual: Tensor, direction: Tensor, basis: Tensor, product: Tensor
) -> tuple:
    """Improves a solution of ``A x = b`` by a step (Hestenes and Stiefel 1952).

    A residual is made orthogonal to all before it, which it is without rounding. Otherwise a
    difference of 1e-6 in A moves the products of later steps by 1e-2, where A has eigenvalues from
    0.1 to 100; with it by 1e-7, and fewer steps are needed.

    Args:
        x: see `conjugate_gradient_start`, as the next ones.
        residual: [P] float32.
        direction: [P] float32.
        basis: [n, P] float32.
        product: [P] float32, A times the direction.

    Returns:
        (x, residual, direction, basis): of the next step.
    """
    before = ops.sum(residual * residual)
    size = before / ops.maximum(ops.sum(direction * product), _TINY)
    x, residual = x + size * direction, residual - size * product
    shares = ops.sum(basis * residual, 1).expand_dims(1)
    residual = residual - ops.sum(shares * basis, 0)
    after = ops.sum(residual * residual)
    unit = residual * ops.rsqrt(ops.maximum(after, _TINY))
    basis = ops.concat((basis[1:], unit.expand_dims(0)))
    return x, residual, residual + (after / ops.maximum(before, _TINY)) * direction, basis


def trust_region_scale(curvature: Tensor, max_kl: float) -> Tensor:
    """Returns the factor of a step x with a divergence of max_kl, ``sqrt(2 max_kl / x^T A x)``.

    The divergence is the quadratic one; without curvature, where the gradient is 0, it is 0.

    Args:
        curvature: 0-d float32, ``x^T A x``.
        max_kl: nats, > 0.
    """
    scale = ops.sqrt(2.0 * max_kl / ops.maximum(curvature, _TINY))
    return ops.where(curvature > _TINY, scale, 0.0)
