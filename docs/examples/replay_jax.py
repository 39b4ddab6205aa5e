"""DQN in JAX on replay tables: one process acts, one learns; see docs/replay_tables.md.

The learner's parameters come to the actor through a second table, whose newest record it reads.
"""

import multiprocessing
import sys
import tempfile

import gymnasium
import jax
import numpy as np
from jax import numpy as jnp

from mindspore_rl.replay import Column, Order, RateLimiter, Sampler, Table, TableSpec, Wait, Writer

TRANSITIONS = TableSpec(
    columns=(
        Column("obs", (4,), "float32"),
        Column("action", (), "int32"),
        Column("reward", (), "float32"),
        Column("next_obs", (4,), "float32"),
        Column("terminated", (), "bool"),
    ),
    capacity=50_000,
    weighted=True,  # records are drawn by priority
    rate_limiter=RateLimiter(min_records=500, samples_per_insert=32, slack=256),
)
SHAPES = {"w1": (4, 128), "b1": (128,), "w2": (128, 2), "b2": (2,)}
PARAMETERS = TableSpec(tuple(Column(name, x, "float32") for name, x in SHAPES.items()), capacity=4)


def values(parameters, obs):
    """Returns the value of each action; of NumPy or JAX arrays."""
    hidden = (obs @ parameters["w1"] + parameters["b1"]).clip(0)
    return hidden @ parameters["w2"] + parameters["b2"]


def act(transitions, parameters):
    """Writes transitions of CartPole until this process is ended."""
    env, steps, wait = gymnasium.make("CartPole-v1"), 0, Wait(60)
    obs, _ = env.reset(seed=1)
    newest = Sampler(Table.open(parameters), 1, Order.LIFO, wait=wait)
    with Table.open(transitions) as table, Writer(table, wait=wait) as writer:
        while True:
            if steps % 50 == 0:
                net = {name: array[0] for name, array in newest.sample().columns.items()}
            random = np.random.random() < 0.1
            action = env.action_space.sample() if random else values(net, obs).argmax()
            next_obs, reward, terminated, truncated, _ = env.step(int(action))
            step = {"obs": [obs], "action": [int(action)], "reward": [reward]}
            writer.insert([0], step | {"next_obs": [next_obs], "terminated": [terminated]})
            obs, steps = env.reset()[0] if terminated or truncated else next_obs, steps + 1


def learn(transitions, parameters, updates):
    """Makes updates with batches drawn by priority, and returns the parameters."""
    @jax.jit
    def update(net, target, velocity, batch, weights):
        def loss(net):
            value = values(target, batch["next_obs"]).max(1)
            wanted = batch["reward"] + 0.99 * value * ~batch["terminated"]
            chosen = jnp.take_along_axis(values(net, batch["obs"]), batch["action"][:, None], 1)
            errors = wanted - chosen[:, 0]
            return (weights * errors**2).mean(), jnp.abs(errors)

        gradients, errors = jax.grad(loss, has_aux=True)(net)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradients)
        return jax.tree.map(lambda p, v: p - 1e-3 * v, net, velocity), velocity, errors

    random = np.random.default_rng(1)
    net = {
        name: jnp.asarray(random.normal(size=x) / x[0] ** 0.5 * (len(x) > 1), jnp.float32)
        for name, x in SHAPES.items()
    }
    target, velocity = net, jax.tree.map(jnp.zeros_like, net)
    sampler = Sampler(transitions, batch_size=128, seed=1, wait=Wait(60))
    writer = Writer(parameters)
    for number in range(updates):
        if number % 50 == 0:  # JAX's arrays are written as they are
            writer.insert([0], {name: array[None] for name, array in net.items()})
        drawn = sampler.sample()  # waits while too few steps are there
        batch = {name: jax.dlpack.from_dlpack(x) for name, x in drawn.columns.items()}  # no copy
        weights = drawn.importance_weights(0.4)
        net, velocity, errors = update(net, target, velocity, batch, weights)
        # This waits for the update: the next batch comes into the same memory.
        transitions.update(drawn.ids, errors + 0.01, exponent=0.6)
        if number % 250 == 0:
            target = net
    return {name: np.asarray(array) for name, array in net.items()}


def play(net):
    """Returns the return of an episode without exploration."""
    env, total, ended = gymnasium.make("CartPole-v1"), 0.0, False
    obs, _ = env.reset()
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(int(values(net, obs).argmax()))
        total, ended = total + reward, terminated or truncated
    return total


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        paths = f"{folder}/transitions", f"{folder}/parameters"
        tables = Table.create(TRANSITIONS, paths[0]), Table.create(PARAMETERS, paths[1])
        context = multiprocessing.get_context("spawn")
        context.Process(target=act, args=paths, daemon=True).start()
        net = learn(*tables, updates=int(sys.argv[1]) if sys.argv[1:] else 8_000)
    print("mean return of 10 episodes:", np.mean([play(net) for _ in range(10)]))
