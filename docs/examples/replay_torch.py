"""DQN in PyTorch on a replay table: one process acts, one learns; see docs/replay_tables.md."""

import copy
import sys
import tempfile

import gymnasium
import numpy as np
import torch
from torch import nn

from mindspore_rl.replay import Column, RateLimiter, Sampler, Table, TableSpec, Wait, Writer

SPEC = TableSpec(
    columns=(
        Column("obs", (4,), "float32"),
        Column("action", (), "int64"),
        Column("reward", (), "float32"),
        Column("next_obs", (4,), "float32"),
        Column("terminated", (), "bool"),
    ),
    capacity=50_000,
    weighted=True,  # records are drawn by priority
    rate_limiter=RateLimiter(min_records=500, samples_per_insert=32, slack=256),
)


def act(path, net):
    """Writes transitions of CartPole until this process is ended."""
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    with Table.open(path) as table, Writer(table, wait=Wait(60)) as writer:
        while True:
            random = np.random.random() < 0.1
            action = env.action_space.sample() if random else net(torch.as_tensor(obs)).argmax()
            next_obs, reward, terminated, truncated, _ = env.step(int(action))
            step = {"obs": [obs], "action": [int(action)], "reward": [reward]}
            # Lane 0, with priority 1. Waits while the learner is too far behind.
            writer.insert([0], step | {"next_obs": [next_obs], "terminated": [terminated]})
            obs = env.reset()[0] if terminated or truncated else next_obs


def learn(table, net, updates):
    """Makes updates with batches drawn by priority."""
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), 5e-4)
    sampler = Sampler(table, batch_size=128, seed=1, wait=Wait(60))
    buffers = table.buffers(128)
    batch = {name: torch.from_numpy(array) for name, array in buffers.items()}  # the same memory
    for update in range(updates):
        drawn = sampler.sample(buffers)  # fills the tensors; waits while too few steps are there
        with torch.no_grad():
            value = target(batch["next_obs"]).max(1).values
            wanted = batch["reward"] + 0.99 * value * ~batch["terminated"]
        errors = wanted - net(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
        loss = (torch.from_numpy(drawn.importance_weights(0.4)) * errors**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        table.update(drawn.ids, errors.detach().abs() + 0.01, exponent=0.6)
        if update % 250 == 0:
            target.load_state_dict(net.state_dict())


def play(net):
    """Returns the return of an episode without exploration."""
    env, total, ended = gymnasium.make("CartPole-v1"), 0.0, False
    obs, _ = env.reset()
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(int(net(torch.as_tensor(obs)).argmax()))
        total, ended = total + reward, terminated or truncated
    return total


if __name__ == "__main__":
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)).share_memory()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = f"{folder}/replay"
        table = Table.create(SPEC, path)
        context = torch.multiprocessing.get_context("spawn")
        context.Process(target=act, args=(path, net), daemon=True).start()
        learn(table, net, updates=int(sys.argv[1]) if sys.argv[1:] else 8_000)
    print("mean return of 10 episodes:", np.mean([play(net) for _ in range(10)]))
