"""Episodes whose numbers say which step of which they are of, and files of them."""

import numpy as np

from mindspore_rl.datasets.build import Part, write
from mindspore_rl.datasets.dataset import About, Dataset
from mindspore_rl.datasets.episodes import Episode, columns_of
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
    """A data set of episodes of such lengths."""
    episodes = (episode(number, steps) for number, steps in enumerate(lengths))
    write(path, COLUMNS, ABOUT, [Part(name, lengths, episodes)], length, append)
    return Dataset(path)


def flat(lengths, ends=("terminals", "timeouts")):
    """D4RL's arrays."""
    parts = [episode(number, steps) for number, steps in enumerate(lengths)]
    names = {"obs": "observations", "action": "actions", "reward": "rewards"}
    names |= dict(zip(("terminated", "truncated"), ends, strict=True))
    return {
        name: np.concatenate([getattr(part, key) for part in parts]) for key, name in names.items()
    }


def grouped(lengths):
    """The arrays of each episode as Minari names them, with an observation more than steps."""
    arrays = {}
    for number, steps in enumerate(lengths):
        for name, array in flat([0] * number + [steps], ("terminations", "truncations")).items():
            more = array[-1:] if name == "observations" else array[:0]
            arrays[f"episode_{number}/{name}"] = np.concatenate([array, more])
    return arrays
