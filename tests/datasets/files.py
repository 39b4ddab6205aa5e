"""Makes episodes whose numbers identify episode and step, and files of such episodes."""

import numpy as np

from mindspore_rl.datasets.build import Part, write
from mindspore_rl.datasets.dataset import About, Dataset
from mindspore_rl.datasets.episodes import Episode, Recorder, columns_of, of_environment
from mindspore_rl.environments import registry
from mindspore_rl.environments.check import random_actions
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.replay.spec import Column

COLUMNS = columns_of((2,), Column("action", (), "int32"))
ABOUT = About("CartPole-v1", Discrete(3))


def episode(number, steps):
    at = np.arange(steps)
    ends = at == steps - 1
    return Episode(
        obs=np.stack([np.full(steps, number), at], axis=1).astype(np.float32),
        action=((number + at) % 3).astype(np.int32),
        reward=(number + at / 4).astype(np.float32),
        terminated=ends & (number % 2 == 0),
        truncated=ends & (number % 2 == 1),
    )


def made(path, lengths, length=None, append=False, name="made"):
    """A data set of episodes with these lengths."""
    episodes = (episode(number, steps) for number, steps in enumerate(lengths))
    write(path, COLUMNS, ABOUT, [Part(name, lengths, episodes)], length, append)
    return Dataset(path)


def flat(lengths, ends=("terminals", "timeouts")):
    """The arrays in D4RL's form."""
    parts = [episode(number, steps) for number, steps in enumerate(lengths)]
    names = {"obs": "observations", "action": "actions", "reward": "rewards"}
    names |= dict(zip(("terminated", "truncated"), ends, strict=True))
    return {
        name: np.concatenate([getattr(part, key) for part in parts]) for key, name in names.items()
    }


def grouped(lengths):
    """The arrays of each episode with Minari's names; one more observation than steps."""
    arrays = {}
    for number, steps in enumerate(lengths):
        for name, array in flat([0] * number + [steps], ("terminations", "truncations")).items():
            more = array[-1:] if name == "observations" else array[:0]
            arrays[f"episode_{number}/{name}"] = np.concatenate([array, more])
    return arrays


def played(path, environment, episodes=12, steps=40):
    """A data set of random actions in an environment."""
    env, spec = registry.make_vector(environment, range(episodes), 1), registry.spec(environment)
    recorder, under_way, obs = Recorder(spec.action_space), np.ones(episodes, bool), env.reset()
    for action in random_actions(spec, steps, episodes):
        next_obs, _, reward, terminated, truncated = env.step(action)
        recorder.watch(obs, action, reward, terminated, truncated, under_way)
        under_way = under_way & ~(terminated | truncated)
        obs = next_obs
    env.close()
    found = recorder.episodes()
    part = Part("random", [len(one.reward) for one in found], found)
    write(path, of_environment(spec), About(environment, spec.action_space), [part])
    return path
