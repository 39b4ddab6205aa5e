#!/usr/bin/env python3
"""PPO on CartPole-v1 in JAX, one compiled function an iteration: a measure for benchmark_gpu.py.

    python scripts/ppo_jax.py --num-envs 64 --seconds 5

The same work as algorithms/ppo.py under GPUOnly: 128 steps, 4 epochs of 4 minibatches, two 64-64
tanh networks, Adam. Prints environment steps a second after the compilation, and the mean return.
"""

import argparse
import functools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
RATE, GAMMA, LAMBDA, CLIP, ENTROPY, NORM = 1e-3, 0.99, 0.95, 0.2, 0.01, 0.5


def network(key, outputs, gain):
    """Weights and biases of a 64-64 network."""
    layers = []
    for rows, columns, scale in ((4, 64, 2**0.5), (64, 64, 2**0.5), (64, outputs, gain)):
        key, part = jax.random.split(key)
        weight = jax.nn.initializers.orthogonal(scale)(part, (rows, columns))
        layers.append((weight, jnp.zeros(columns)))
    return layers


def forward(layers, x):
    """Its outputs."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def environment_step(state, action, fresh):
    """CartPole-v1. Returns: the new state, the true successor, terminated and truncated."""
    x, x_dot, theta, theta_dot, elapsed = state.T
    sine, cosine = jnp.sin(theta), jnp.cos(theta)
    force = jnp.where(action == 1, 10.0, -10.0)
    temp = (force + 0.05 * theta_dot**2 * sine) / 1.1
    theta_acc = (9.8 * sine - cosine * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * cosine / 1.1
    moved = jnp.stack(
        [
            x + 0.02 * x_dot,
            x_dot + 0.02 * x_acc,
            theta + 0.02 * theta_dot,
            theta_dot + 0.02 * theta_acc,
            elapsed + 1,
        ],
        1,
    )
    terminated = (abs(moved[:, 0]) > 2.4) | (abs(moved[:, 2]) > 12 * 2 * math.pi / 360)
    truncated = moved[:, 4] >= 500
    start = jnp.pad(fresh * 0.1 - 0.05, ((0, 0), (0, 1)))
    state = jnp.where((terminated | truncated)[:, None], start, moved)
    return state, moved[:, :4], terminated, truncated


def loss(params, batch):
    """PPO's."""
    obs, action, old_log_prob, advantage, returns = batch
    log_probs = jax.nn.log_softmax(forward(params["policy"], obs))
    log_prob = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
    ratio = jnp.exp(log_prob - old_log_prob)
    surrogate = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    error = 0.5 * (forward(params["critic"], obs)[:, 0] - returns) ** 2
    entropy = -(jnp.exp(log_probs) * log_probs).sum(1)
    return (surrogate + 0.5 * error - ENTROPY * entropy).mean()


def update(carry, batch):
    """One step of Adam with the gradient's norm bounded."""
    params, first, second, count = carry
    grads = jax.grad(loss)(params, batch)
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, NORM / (norm + 1e-6)), grads)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    count += 1
    rate = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(
        lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-5), params, first, second
    )
    return (params, first, second, count), None


@functools.partial(jax.jit, donate_argnums=0)
def iteration(carry):
    """Rollout, advantages, all updates. Returns: what goes on, and the episodes that ended."""
    learner, state, key = carry
    params = learner[0]

    def step(carry, _):
        state, key = carry
        key, draw, reset = jax.random.split(key, 3)
        obs = state[:, :4]
        logits = forward(params["policy"], obs)
        action = jax.random.categorical(draw, logits)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        fresh = jax.random.uniform(reset, (len(obs), 4))
        state, final_obs, terminated, truncated = environment_step(state, action, fresh)
        return (state, key), (obs, action, chosen, final_obs, terminated, truncated)

    (state, key), rollout = lax.scan(step, (state, key), length=STEPS)
    obs, action, log_prob, final_obs, terminated, truncated = rollout
    value, final_value = (forward(params["critic"], o)[..., 0] for o in (obs, final_obs))
    delta = 1.0 + GAMMA * jnp.where(terminated, 0.0, final_value) - value
    trace = jnp.where(terminated | truncated, 0.0, GAMMA * LAMBDA)

    def accumulate(later, now):
        advantage = now[0] + now[1] * later
        return advantage, advantage

    _, advantage = lax.scan(accumulate, jnp.zeros(delta.shape[1]), (delta, trace), reverse=True)
    returns = advantage + value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    batch = [a.reshape(-1, *a.shape[2:]) for a in (obs, action, log_prob, advantage, returns)]
    for _ in range(EPOCHS):
        key, shuffle = jax.random.split(key)
        order = jax.random.permutation(shuffle, len(batch[0])).reshape(MINIBATCHES, -1)
        learner, _ = lax.scan(lambda c, rows: update(c, [a[rows] for a in batch]), learner, order)
    return (learner, state, key), (terminated | truncated).sum()


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    key, policy, critic, start = jax.random.split(jax.random.key(1), 4)
    params = {"policy": network(policy, 2, 0.01), "critic": network(critic, 1, 1.0)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    learner = (params, zeros, jax.tree.map(jnp.zeros_like, params), 0.0)
    state = jnp.pad(jax.random.uniform(start, (args.num_envs, 4)) * 0.1 - 0.05, ((0, 0), (0, 1)))
    carry, ended = iteration((learner, state, key))
    ended.block_until_ready()
    times, began = [], time.perf_counter()
    while (now := time.perf_counter()) - began < args.seconds or len(times) < 3:
        carry, ended = iteration(carry)
        ended.block_until_ready()
        times.append(time.perf_counter() - now)
    steps = args.num_envs * STEPS
    print(f"{steps / np.median(times):.0f} {steps / max(1, int(ended)):.1f} {jax.devices()[0]}")


if __name__ == "__main__":
    main()
