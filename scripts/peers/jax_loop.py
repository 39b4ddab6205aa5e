#!/usr/bin/env python3
"""PPO and MAPPO in JAX with the environment in the graph: the same loops as algorithms/*.py.

    .peers/jax/bin/python scripts/peers/jax_loop.py '{"env": "graph:CartPole-v1", "num_envs": 64}'

Training is one compiled function, with scans over iterations, steps, epochs and minibatches, as in
PureJaxRL. Values that do not depend on the loop are computed for all steps at once: random numbers,
values and advantages. The argument gives keys of the algorithm's configuration; others are PPO's
defaults. Prints `steps N` after each call: the environment steps so far.
"""

import functools
import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

DEFAULTS: dict[str, Any] = {
    "env": "graph:CartPole-v1", "seed": 1, "num_envs": 8, "num_steps": 128, "total_steps": 10**9,
    "learning_rate": 1e-3, "adam_eps": 1e-5, "gamma": 0.99, "gae_lambda": 0.95, "update_epochs": 4,
    "num_minibatches": 4, "clip_coef": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
    "hidden": [64, 64],
}  # fmt: skip
STEPS_A_CALL = 2**16
"""About the steps of one call of the compiled training: often enough to measure short runs."""


# ---- environments: state in, state out, for all of them at once ---------------------------------


class Environment(NamedTuple):
    """One of the project's in-graph environments.

    Args:
        obs_shape: the observation shape of one environment.
        actions: the number of discrete actions; 0: one continuous action.
        noise: the number of uniform numbers that a reset uses.
        start: returns a state from noise `[B, noise]`.
        observe: returns the obs of a state.
        move: returns the new state, reward, terminated and truncated from a state and an action.
    """

    obs_shape: tuple[int, ...]
    actions: int
    noise: int
    start: Callable
    observe: Callable
    move: Callable

    def step(self, state, action, noise):
        """Returns: the new state, the true successor's obs, reward, terminated, truncated."""
        moved, reward, terminated, truncated = self.move(state, action)
        ended = (terminated | truncated)[:, None]
        return (
            jnp.where(ended, self.start(noise), moved),
            self.observe(moved),
            reward,
            terminated,
            truncated,
        )


def cartpole_move(state, action):
    """One step of CartPole-v1."""
    x, x_dot, theta, theta_dot, elapsed = state.T
    sine, cosine = jnp.sin(theta), jnp.cos(theta)
    force = jnp.where(action == 1, 10.0, -10.0)
    temp = (force + 0.05 * theta_dot**2 * sine) / 1.1
    theta_acc = (9.8 * sine - cosine * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * cosine / 1.1
    x, x_dot = x + 0.02 * x_dot, x_dot + 0.02 * x_acc
    theta, theta_dot = theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc
    moved = jnp.stack([x, x_dot, theta, theta_dot, elapsed + 1], 1)
    terminated = (abs(x) > 2.4) | (abs(theta) > 12 * 2 * math.pi / 360)
    return moved, jnp.ones_like(x), terminated, elapsed >= 499


def pendulum_start(noise):
    """Initial state of Pendulum-v1: cosine and sine of the angle, speed, steps taken."""
    angle, speed = math.pi * (2 * noise[:, 0] - 1), 2 * noise[:, 1] - 1
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed, jnp.zeros_like(speed)], 1)


def pendulum_move(state, action):
    """One step of Pendulum-v1."""
    cosine, sine, speed, elapsed = state.T
    angle, torque = jnp.arctan2(sine, cosine), jnp.clip(action[:, 0], -2, 2)
    reward = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
    speed = jnp.clip(speed + (15.0 * sine + 3.0 * torque) * 0.05, -8, 8)
    angle = angle + speed * 0.05
    moved = jnp.stack([jnp.cos(angle), jnp.sin(angle), speed, elapsed + 1], 1)
    return moved, reward, jnp.zeros(len(speed), bool), elapsed >= 199


def corridor_move(state, action):
    """One step of the corridor of docs/examples/corridor.py."""
    place, elapsed = state[:, 0] + 0.1 * (2.0 * action - 1), state[:, 1] + 1
    terminated = abs(place) > 1
    reward = jnp.where(terminated, jnp.sign(place), -0.01)
    return jnp.stack([place, elapsed], 1), reward, terminated, (elapsed >= 50) & ~terminated


AGENTS = 3
MOVES = ((0.0, 0.0), (-5.0, 0.0), (5.0, 0.0), (0.0, -5.0), (0.0, 5.0))


def spread_start(noise):
    """Initial state of simple_spread: agents' positions, speeds, landmarks' positions, steps."""
    place = 2 * noise - 1
    half, rest = place.shape[1] // 2, jnp.zeros((len(place), 1))
    return jnp.concatenate(
        [place[:, :half], jnp.zeros_like(place[:, :half]), place[:, half:], rest], 1
    )


def spread_parts(state):
    """Agents' positions and speeds and landmarks' positions `[B, 3, 2]`, and steps taken `[B]`."""
    parts = (state[:, i : i + 6].reshape(-1, AGENTS, 2) for i in (0, 6, 12))
    return *parts, state[:, -1]


def spread_observe(state):
    """Each agent's observation, `[B, 3, 18]`: itself, landmarks, the others, zeros."""
    place, speed, landmark, _ = spread_parts(state)
    others = jnp.array([[b for b in range(AGENTS) if b != a] for a in range(AGENTS)])
    size = len(state)
    seen = (
        speed,
        place,
        (landmark[:, None] - place[:, :, None]).reshape(size, AGENTS, -1),
        (place[:, others] - place[:, :, None]).reshape(size, AGENTS, -1),
        jnp.zeros((size, AGENTS, 4)),
    )
    return jnp.concatenate(seen, 2)


def spread_distance(place, other):
    """Differences and distances between agents and others, `[B, 3, 3, 2]` and `[B, 3, 3]`."""
    delta = place[:, :, None] - other[:, None]
    return delta, (delta**2).sum(3)


def spread_move(state, action):
    """One step of simple_spread_v3, local_ratio 0.5."""
    place, speed, landmark, elapsed = spread_parts(state)
    itself = jnp.eye(AGENTS)
    delta, square = spread_distance(place, place)
    distance = jnp.sqrt(square + itself)
    soft = jax.nn.softplus((0.3 - distance) / 1e-3) * 1e-3 * (1 - itself)
    force = (delta * (100 * soft / distance)[..., None]).sum(2) + jnp.array(MOVES)[action]
    place, speed = place + speed * 0.1, speed * 0.75 + force * 0.1
    near = jnp.sqrt(spread_distance(place, place)[1] + itself) < 0.3
    uncovered = jnp.sqrt(spread_distance(place, landmark)[1]).min(1).sum(1)
    reward = -0.5 * near.sum(2) - 0.5 * uncovered[:, None]
    parts = [part.reshape(len(state), -1) for part in (place, speed, landmark, elapsed + 1)]
    truncated = elapsed >= 24
    return jnp.concatenate(parts, 1), reward, jnp.zeros_like(truncated), truncated


ENVIRONMENTS = {
    "graph:CartPole-v1": Environment(
        (4,),
        2,
        4,
        lambda noise: jnp.pad(noise * 0.1 - 0.05, ((0, 0), (0, 1))),
        lambda state: state[:, :4],
        cartpole_move,
    ),
    "graph:Pendulum-v1": Environment(
        (3,), 0, 2, pendulum_start, lambda state: state[:, :3], pendulum_move
    ),
    "docs/examples/corridor.py:GraphCorridor": Environment(
        (1,),
        2,
        1,
        lambda noise: jnp.pad(noise - 0.5, ((0, 0), (0, 1))),
        lambda state: state[:, :1],
        corridor_move,
    ),
    "graph:simple_spread_v3": Environment(
        (AGENTS, 18), 5, 12, spread_start, spread_observe, spread_move
    ),
}


# ---- networks and their update ------------------------------------------------------------------


def network(key, sizes, gain):
    """Orthogonal weights and zero biases, one pair per layer."""
    gains = [math.sqrt(2)] * (len(sizes) - 2) + [gain]
    layers = []
    for rows, columns, scale in zip(sizes[:-1], sizes[1:], gains, strict=True):
        key, part = jax.random.split(key)
        weight = jax.nn.initializers.orthogonal(scale)(part, (rows, columns))
        layers.append((weight, jnp.zeros(columns)))
    return layers


def forward(layers, x):
    """Returns a network's outputs, with tanh between layers."""
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def central(obs):
    """Returns a critic's input: obs `[..., O]`, with several agents joined with all agents' obs."""
    if obs.ndim < 3:
        return obs
    joint = obs.reshape(*obs.shape[:-2], 1, -1)
    seen = jnp.broadcast_to(joint, (*obs.shape[:-1], joint.shape[-1]))
    return jnp.concatenate([obs, seen], -1)


def log_prob_entropy(params, head, action):
    """Returns log-probability and entropy of discrete actions, or of normal ones."""
    if "log_std" not in params:
        log_probs = jax.nn.log_softmax(head)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
        return jnp.take_along_axis(log_probs, action[..., None], -1)[..., 0], entropy
    log_std = params["log_std"]
    scaled = (action - head) * jnp.exp(-log_std)
    log_prob = -0.5 * scaled**2 - log_std - 0.5 * math.log(2 * math.pi)
    return log_prob.sum(-1), (0.5 + 0.5 * math.log(2 * math.pi) + log_std).sum()


class Loop(NamedTuple):
    """A training loop: an environment and a configuration."""

    env: Environment
    config: dict[str, Any]

    @property
    def agents(self):
        """The axis of agents, if there is one."""
        return self.env.obs_shape[:-1]

    def begin(self):
        """Returns: the values carried from iteration to iteration."""
        env, config = self.env, self.config
        key, policy, critic, start = jax.random.split(jax.random.key(config["seed"]), 4)
        obs, hidden = env.obs_shape[-1], config["hidden"]
        seen = central(jnp.zeros((1, *env.obs_shape))).shape[-1] if self.agents else obs
        params = {
            "policy": network(policy, [obs, *hidden, env.actions or 1], 0.01),
            "critic": network(critic, [seen, *hidden, 1], 1.0),
        }
        if not env.actions:
            params["log_std"] = jnp.zeros(1)
        zeros = jax.tree.map(jnp.zeros_like, params)
        state = env.start(jax.random.uniform(start, (config["num_envs"], env.noise)))
        return (params, zeros, jax.tree.map(jnp.copy, zeros), 0), state, key

    def value(self, params, obs):
        """Returns the values of obs `[T, B, ...]`."""
        seen = central(obs) if self.agents else obs
        return forward(params["critic"], seen)[..., 0]

    def loss(self, params, batch):
        """Returns PPO's loss."""
        config = self.config
        obs, action, old_log_prob, advantage, returns = batch
        log_prob, entropy = log_prob_entropy(params, forward(params["policy"], obs), action)
        ratio, clip = jnp.exp(log_prob - old_log_prob), config["clip_coef"]
        surrogate = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
        error = 0.5 * (self.value(params, obs) - returns) ** 2
        return (surrogate + config["vf_coef"] * error - config["ent_coef"] * entropy).mean()

    def clipped(self, grads):
        """Limits the norm of all gradients, or with several agents that of each network's."""
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
        scale = jnp.minimum(1.0, self.config["max_grad_norm"] / (norm + 1e-6))
        return jax.tree.map(lambda g: g * scale, grads)

    def update(self, learner, batch, rate):
        """Takes one step of Adam."""
        params, first, second, count = learner
        grads = jax.grad(self.loss)(params, batch)
        if self.agents:
            grads = {name: self.clipped(part) for name, part in grads.items()}
        else:
            grads = self.clipped(grads)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
        count = count + 1
        size = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        params = jax.tree.map(
            lambda p, m, v: p - size * m / (jnp.sqrt(v) + self.config["adam_eps"]),
            params,
            first,
            second,
        )
        return params, first, second, count

    def rollout(self, params, state, key):
        """Plays `num_steps`. Returns: the state, and the trajectory."""
        env, steps, size = self.env, self.config["num_steps"], self.config["num_envs"]
        draw, reset = jax.random.split(key)
        starts = jax.random.uniform(reset, (steps, size, env.noise))
        noise_shape = (steps, size, *self.agents, env.actions or 1)
        if env.actions:
            noise = jax.random.gumbel(draw, noise_shape)
        else:
            noise = jax.random.normal(draw, noise_shape) * jnp.exp(params["log_std"])

        def step(state, noises):
            noise, start = noises
            obs = env.observe(state)
            head = forward(params["policy"], obs)
            action = jnp.argmax(head + noise, -1) if env.actions else head + noise
            state, final_obs, reward, terminated, truncated = env.step(state, action, start)
            return state, (obs, head, action, final_obs, reward, terminated, truncated)

        return lax.scan(step, state, (noise, starts))

    def advantages(self, params, obs, final_obs, reward, terminated, truncated):
        """Generalised advantage estimation. Returns: advantages and returns `[T, B, ...]`."""
        config = self.config
        if self.agents:
            terminated, truncated = terminated[..., None], truncated[..., None]
        value, final_value = self.value(params, obs), self.value(params, final_obs)
        delta = reward + config["gamma"] * jnp.where(terminated, 0.0, final_value) - value
        trace = jnp.where(terminated | truncated, 0.0, config["gamma"] * config["gae_lambda"])

        def accumulate(later, now):
            advantage = now[0] + now[1] * later
            return advantage, advantage

        _, advantage = lax.scan(
            accumulate, jnp.zeros_like(delta[0]), (delta, trace), reverse=True, unroll=16
        )
        return advantage, advantage + value

    def iteration(self, carry, _):
        """Rolls out, computes advantages, updates. Returns: carried values, the reward sum."""
        config = self.config
        (learner, state, key), params = carry, carry[0][0]
        key, play = jax.random.split(key)
        state, rollout = self.rollout(params, state, play)
        obs, head, action, final_obs, reward, terminated, truncated = rollout
        log_prob, _ = log_prob_entropy(params, head, action)
        advantage, returns = self.advantages(params, obs, final_obs, reward, terminated, truncated)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        batch = [a.reshape(-1, *a.shape[2:]) for a in (obs, action, log_prob, advantage, returns)]
        samples, minibatches = len(batch[0]), config["num_minibatches"]
        done = learner[3] // (config["update_epochs"] * minibatches) * samples
        rate = config["learning_rate"] * (1 - done / config["total_steps"])

        def epoch(learner, order):
            shuffled = [a[order].reshape(minibatches, -1, *a.shape[1:]) for a in batch]
            return lax.scan(lambda c, b: (self.update(c, b, rate), None), learner, shuffled)

        key, shuffle = jax.random.split(key)
        learner, _ = lax.scan(epoch, learner, self.orders(shuffle))
        return (learner, state, key), (reward.sum(), (terminated | truncated).sum())

    def orders(self, key):
        """Draws for each epoch and environment a permutation of its steps: samples `[E, T * B]`.

        It sorts random bits with the step in the low ones: for 64 environments 20 times faster than
        `jax.random.permutation` of all samples, which sorts pairs, more than once.
        """
        config = self.config
        epochs, size, steps = (config[k] for k in ("update_epochs", "num_envs", "num_steps"))
        mask = jnp.uint32(2 ** (steps - 1).bit_length() - 1)
        bits = jax.random.bits(key, (epochs, size, steps), jnp.uint32)
        step = jnp.sort((bits & ~mask) | jnp.arange(steps, dtype=jnp.uint32), -1) & mask
        rows = jnp.swapaxes(step.astype(jnp.int32), 1, 2) * size + jnp.arange(size)
        return rows.reshape(epochs, -1)

    def train(self, carry, iterations):
        """Runs a number of iterations as one computation."""
        return lax.scan(self.iteration, carry, length=iterations)


def main() -> None:
    """Trains until it is terminated."""
    config = DEFAULTS | json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")
    loop = Loop(ENVIRONMENTS[config["env"]], config)
    steps = config["num_envs"] * config["num_steps"]
    iterations = max(1, STEPS_A_CALL // steps)
    train = functools.partial(jax.jit, static_argnums=1, donate_argnums=0)(loop.train)
    carry, done = loop.begin(), 0
    print(f"device {jax.devices()[0]}", flush=True)
    while done < config["total_steps"]:
        carry, (reward, ended) = train(carry, iterations)
        ended = int(ended.sum())  # waits for the device
        done += iterations * steps
        print(f"steps {done} mean return {float(reward.sum()) / max(1, ended):.2f}", flush=True)


if __name__ == "__main__":
    main()
