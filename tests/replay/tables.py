"""Makes small tables for tests of replay."""

import numpy as np

from mindspore_rl.replay.spec import Column
from mindspore_rl.replay.table import Table
from mindspore_rl.replay.writer import writing

COLUMNS = (Column("obs", (3,), "float32"), Column("reward", (), "float32"))


def records(numbers, length=4):
    """Records whose values identify record and step."""
    shape = (len(numbers), length) if length > 1 else (len(numbers),)
    reward = np.broadcast_to(np.reshape(numbers, (-1, *[1] * (len(shape) - 1))), shape)
    reward = reward + np.arange(length) / 8 if length > 1 else reward
    obs = reward[..., None] + np.array([0.0, 100.0, 200.0])
    return {"obs": obs.astype(np.float32), "reward": reward.astype(np.float32)}


def filled(numbers, spec, lanes=None):
    table = Table.create(spec)
    lanes = np.arange(len(numbers)) % spec.lanes if lanes is None else lanes
    with writing(table, range(spec.lanes)) as writer:
        ids = writer.insert(lanes, records(numbers, spec.length))
    return table, ids
