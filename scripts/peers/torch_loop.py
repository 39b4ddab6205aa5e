#!/usr/bin/env python3
"""PPO on CartPole-v1 in PyTorch, everything on one device, for comparison in benchmark_gpu.py.

    python scripts/peers/torch_loop.py '{"num_envs": 64}'

The same work as algorithms/ppo.py under GPUOnly: 128 steps, 4 epochs of 4 minibatches, two 64-64
tanh networks, Adam. Uses a GPU if there is one. Prints `steps N` after each iteration.
"""

import json
import math
import sys

import torch
from torch import nn
from torch.nn import functional

STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
RATE, GAMMA, LAMBDA, CLIP, ENTROPY, NORM = 1e-3, 0.99, 0.95, 0.2, 0.01, 0.5


def network(outputs, gain):
    """Makes a 64-64 network."""
    layers = []
    for rows, columns, scale in ((4, 64, 2**0.5), (64, 64, 2**0.5), (64, outputs, gain)):
        layer = nn.Linear(rows, columns)
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def environment_step(state, action):
    """One step of CartPole-v1. Returns: new state, true successor, terminated and truncated."""
    x, x_dot, theta, theta_dot, elapsed = state.unbind(1)
    sine, cosine = theta.sin(), theta.cos()
    force = 20.0 * action - 10.0
    temp = (force + 0.05 * theta_dot**2 * sine) / 1.1
    theta_acc = (9.8 * sine - cosine * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * cosine / 1.1
    moved = torch.stack(
        [
            x + 0.02 * x_dot,
            x_dot + 0.02 * x_acc,
            theta + 0.02 * theta_dot,
            theta_dot + 0.02 * theta_acc,
            elapsed + 1,
        ],
        1,
    )
    terminated = (moved[:, 0].abs() > 2.4) | (moved[:, 2].abs() > 12 * 2 * math.pi / 360)
    truncated = moved[:, 4] >= 500
    fresh = functional.pad(torch.rand_like(moved[:, :4]) * 0.1 - 0.05, (0, 1))
    state = torch.where((terminated | truncated)[:, None], fresh, moved)
    return state, moved[:, :4], terminated, truncated


@torch.no_grad()
def rollout(policy, critic, state):
    """Returns: the state, the flat batch to learn from, and the number of ended episodes."""
    steps = []
    for _ in range(STEPS):
        obs = state[:, :4]
        log_probs = policy(obs).log_softmax(1)
        action = torch.multinomial(log_probs.exp(), 1)
        state, final_obs, terminated, truncated = environment_step(state, action[:, 0])
        log_prob = log_probs.gather(1, action)[:, 0]
        steps.append((obs, action[:, 0], log_prob, final_obs, terminated, truncated))
    obs, action, log_prob, final_obs, terminated, truncated = map(
        torch.stack, zip(*steps, strict=True)
    )
    value, final_value = critic(obs)[..., 0], critic(final_obs)[..., 0]
    delta = 1.0 + GAMMA * final_value * ~terminated - value
    trace = GAMMA * LAMBDA * ~(terminated | truncated)
    advantage, later = torch.empty_like(delta), torch.zeros_like(delta[0])
    for t in reversed(range(STEPS)):
        later = advantage[t] = delta[t] + trace[t] * later
    returns = advantage + value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    batch = [a.flatten(0, 1) for a in (obs, action, log_prob, advantage, returns)]
    return state, batch, (terminated | truncated).sum()


def update(policy, critic, optimizer, obs, action, old_log_prob, advantage, returns):
    """Makes one update from a minibatch."""
    log_probs = policy(obs).log_softmax(1)
    ratio = (log_probs.gather(1, action[:, None])[:, 0] - old_log_prob).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    surrogate = -torch.minimum(ratio * advantage, clipped * advantage)
    error = 0.5 * (critic(obs)[:, 0] - returns) ** 2
    entropy = -(log_probs.exp() * log_probs).sum(1)
    optimizer.zero_grad(set_to_none=True)
    (surrogate + 0.5 * error - ENTROPY * entropy).mean().backward()
    nn.utils.clip_grad_norm_([*policy.parameters(), *critic.parameters()], NORM)
    optimizer.step()


def main() -> None:
    """Trains until it is terminated."""
    num_envs = json.loads(sys.argv[1])["num_envs"]
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    policy, critic = network(2, 0.01), network(1, 1.0)
    parameters = [*policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, RATE, eps=1e-5, fused=device == "cuda")
    state = functional.pad(torch.rand(num_envs, 4) * 0.1 - 0.05, (0, 1))
    steps = 0
    while True:
        state, batch, ended = rollout(policy, critic, state)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(batch[0])).chunk(MINIBATCHES):
                update(policy, critic, optimizer, *(a[rows] for a in batch))
        steps += num_envs * STEPS
        mean = num_envs * STEPS / max(1, int(ended))  # waits for the device
        print(f"steps {steps} mean return {mean:.1f} on {device}", flush=True)


if __name__ == "__main__":
    main()
