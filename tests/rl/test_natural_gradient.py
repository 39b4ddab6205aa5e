"""Natural gradients, against dense matrices in double precision."""

import numpy as np
from mindspore import Tensor

from mindspore_rl.rl import natural_gradient as natural
from mindspore_rl.rl.networks import MLP
from mindspore_rl.rl.operators import shaped


def test_a_tangent_is_the_change_of_the_outputs(run):
    rng = np.random.default_rng(1)
    mlp = MLP(3, (5, 4), 2, 1.0, 1, 1)
    params = [p.asnumpy().astype(float) for p in mlp.trainable_params()]
    x = rng.standard_normal((6, 3)).astype(np.float32)
    direction = [rng.standard_normal(p.shape).astype(np.float32) for p in params]

    def outputs(scale):
        h = x.astype(float)
        for i in range(0, len(params), 2):
            weight, bias = (params[j] + scale * direction[j] for j in (i, i + 1))
            h = h @ weight.T + bias
            h = np.tanh(h) if i < len(params) - 2 else h
        return h

    def both(x, *direction):
        return natural.tangent(mlp, x, direction), mlp(x)

    found, out = run(both, x, *direction)
    wanted = (outputs(1e-5) - outputs(-1e-5)) / 2e-5
    np.testing.assert_allclose(found.reshape(6, 2), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out.reshape(6, 2), outputs(0.0), rtol=1e-4, atol=1e-5)


def metrics(logits, along, log_std, mean_along, log_std_along):
    of_normal = natural.normal_metric(log_std, mean_along, log_std_along)
    return natural.categorical_metric(logits, along), *of_normal


def test_metrics_are_the_means_of_squared_scores(run):
    """The Fisher matrix is E[s s^T] with the score s; a normal's by its moments: 1 / s^2 and 2."""
    rng = np.random.default_rng(2)
    logits, along, mean_along, log_std_along = rng.standard_normal((4, 7, 3)).astype(np.float32)
    log_std = (0.3 * rng.standard_normal((7, 3))).astype(np.float32)
    found = run(metrics, logits, along, log_std, mean_along, log_std_along)
    for i in range(7):
        p = np.exp(logits[i].astype(float)) / np.exp(logits[i].astype(float)).sum()
        scores = np.eye(3) - p  # row a: the gradient of log p_a
        fisher = sum(p[a] * np.outer(scores[a], scores[a]) for a in range(3))
        np.testing.assert_allclose(found[0].reshape(7, 3)[i], fisher @ along[i], atol=1e-5)
    of_mean = mean_along / np.exp(log_std.astype(float)) ** 2
    np.testing.assert_allclose(found[1].reshape(7, 3), of_mean, rtol=1e-4)
    np.testing.assert_allclose(found[2].reshape(7, 3), 2.0 * log_std_along, rtol=1e-6)


def test_conjugate_gradients_solve_a_system():
    """In as many steps as it has unknowns; scaled to a divergence of 0.01."""
    rng = np.random.default_rng(3)
    root = rng.standard_normal((4, 4))
    a, b = root @ root.T + np.eye(4), rng.standard_normal(4)
    x = solved(a, b, 4)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-3, atol=1e-4)
    scale = natural.trust_region_scale(Tensor(np.float32(x @ a @ x)), 0.01).asnumpy()
    np.testing.assert_allclose(0.5 * scale**2 * (x @ a @ x), 0.01, rtol=1e-4)
    assert natural.trust_region_scale(Tensor(np.float32(0.0)), 0.01).asnumpy() == 0.0


def test_conjugate_gradients_keep_their_directions_apart():
    """Eigenvalues from 0.1 to 1,000: in float32, plain conjugate gradients are far off."""
    rng = np.random.default_rng(4)
    q = np.linalg.qr(rng.standard_normal((16, 16)))[0]
    a, b = (q * np.logspace(-1, 3, 16)) @ q.T, rng.standard_normal(16)
    wanted = np.linalg.solve(a, b)
    error = np.linalg.norm(solved(a, b, 16) - wanted) / np.linalg.norm(wanted)
    plain = np.linalg.norm(solved(a, b, 16, apart=False) - wanted) / np.linalg.norm(wanted)
    assert error < 1e-3 and plain > 0.1


def solved(a, b, steps, apart=True):
    state = natural.conjugate_gradient_start(Tensor(np.float32(b)), steps)
    for _ in range(steps):
        product = Tensor(np.float32(a) @ state[2].asnumpy())
        basis = state[3] if apart else 0.0 * state[3]
        state = natural.conjugate_gradient_step(*state[:3], basis, product)
    return state[0].asnumpy().astype(float)


def test_a_flat_vector_is_cut_into_arrays():
    first, second = shaped(Tensor(np.arange(7.0, dtype=np.float32)), ((2, 3), (1,)))
    np.testing.assert_array_equal(first.asnumpy(), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(second.asnumpy(), [6])
