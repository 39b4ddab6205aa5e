#!/usr/bin/env python3
"""Updates of a decision transformer in PyTorch, as algorithms/decision_transformer.py makes them.

    .peers/sb3/bin/python scripts/peers/transformer.py '{"batch_size": 64, "context": 20, ...}'

The argument gives the configuration. Attention is `scaled_dot_product_attention`, Adam is fused.
Windows are random and in memory: neither acting nor drawing takes time. Prints `steps N` after each
iteration.
"""

import json
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

OBS, ACTIONS = 4, 2
"""Sizes of CartPole-v1."""


class Block(nn.Module):
    """A transformer layer that normalises its inputs first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Returns: `[n, T, W]` of tokens `[n, T, W]`; hidden `[n, 1, T, T]` is added to scores."""
        n, length, width = tokens.shape
        found = self.project(self.first(tokens)).view(n, length, 3 * self.heads, -1).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(*found.chunk(3, 1), attn_mask=hidden)
        tokens = tokens + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return tokens + self.body(self.second(tokens))


class DecisionTransformer(nn.Module):
    """Reads windows of steps and predicts the action of each step."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, self.scale = config["width"], config["return_scale"]
        self.embed = nn.ModuleList(nn.Linear(size, width) for size in (1, OBS, ACTIONS))
        self.times = nn.Embedding(config["longest"], width)
        self.blocks = nn.ModuleList(Block(width, config["heads"]) for _ in range(config["layers"]))
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.head = nn.Linear(width, ACTIONS)
        later = torch.full((3 * config["context"],) * 2, -1e9).triu(1)
        self.register_buffer("later", later)

    def forward(self, left, obs, action, step, there):  # noqa: ANN001, ANN201
        """Returns: logits `[n, K, k]`; the arguments are those of ours."""
        n, length = step.shape
        when = self.times(step)
        given = left[..., None] / self.scale, obs, functional.one_hot(action, ACTIONS).float()
        parts = [embed(x) + when for embed, x in zip(self.embed, given, strict=True)]
        tokens = self.norm(torch.stack(parts, 2).view(n, 3 * length, -1))
        seen = there.repeat_interleave(3, 1).view(n, 1, 1, -1)
        hidden = self.later - 1e9 * (1.0 - seen)
        for block in self.blocks:
            tokens = block(tokens, hidden)
        return self.head(self.last(tokens).view(n, length, 3, -1)[:, :, 1])


def main() -> None:
    """Trains until it is terminated."""
    config = json.loads(sys.argv[1])
    torch.manual_seed(config["seed"])
    rows, length = config["batch_size"], config["context"]
    network = DecisionTransformer(config)
    optimizer = torch.optim.Adam(network.parameters(), config["learning_rate"], fused=True)
    action, there = torch.randint(ACTIONS, (rows, length)), torch.ones(rows, length)
    left, obs = 500.0 * torch.rand(rows, length), torch.randn(rows, length, OBS)
    step = torch.randint(config["longest"] - length, (rows, 1)) + torch.arange(length)
    steps = 0
    while True:
        for _ in range(config["updates"]):
            logits = network(left, obs, action, step, there)
            each = functional.cross_entropy(logits.transpose(1, 2), action, reduction="none")
            optimizer.zero_grad(set_to_none=True)
            ((each * there).sum(1) / there.sum(1)).mean().backward()
            nn.utils.clip_grad_norm_(network.parameters(), config["max_grad_norm"])
            optimizer.step()
        steps += config["num_envs"] * config["num_steps"]
        print(f"steps {steps}", flush=True)


if __name__ == "__main__":
    main()
