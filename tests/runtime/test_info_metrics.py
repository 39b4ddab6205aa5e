"""Numbers in the `info` of ended episodes become metrics, under every policy."""

import json
import math

import numpy as np
import pytest

from mindspore_rl import train
from mindspore_rl.environments.registry import make_vector
from mindspore_rl.environments.sync_vector import MOST_NUMBERS, numbers_of
from mindspore_rl.runtime.coordinator.messages import check
from mindspore_rl.runtime.coordinator.metrics import Metrics
from mindspore_rl.runtime.coordinator.metrics_file import read_lines
from mindspore_rl.runtime.rank.episodes import EpisodeCounter
from tests.runtime.test_metrics import scalars
from tests.tiers import quick

WALK = """
import gymnasium
import numpy as np

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.episode = int(self.np_random.integers(2, 7)), self.episode + 1
        self.info = {"distance": float(self.np_random.normal()), "is_success": self.left > 4}
        return np.zeros(2, np.float32), {"distance": 99.0}

    def step(self, action):
        self.left -= 1
        ended = self.left == 0
        info = {**self.info, "map": "a"} if ended else {"distance": 99.0}
        if ended and self.episode % 2:
            info["odd"] = np.float32(self.episode)
        return np.zeros(2, np.float32), 1.0, ended, False, info
"""


def test_numbers_and_truths_are_taken_and_nothing_else():
    info = {"a": 1, "b": np.float32(0.5), "is_success": np.bool_(True), "c": np.array(2)}
    odd = {"x": "word", "y": [1.0], "z": math.nan, "e": {"r": 1.0}, 3: 4.0, "n": None, "i": 1j}
    odd["TimeLimit.truncated"] = True
    assert numbers_of(info | odd) == {"a": 1.0, "b": 0.5, "is_success": 1.0, "c": 2.0}
    assert numbers_of(None) == numbers_of([1.0]) == {}
    assert len(numbers_of({f"n{i}": i for i in range(999)})) == MOST_NUMBERS


def test_an_iteration_has_the_means_of_its_episodes(tmp_path):
    episodes = EpisodeCounter(3)
    ended = np.array([True, False, True])
    episodes.count(np.ones(3), ended, [{"success": 1.0, "far": 0.1}, {"success": 0.0}])
    episodes.count(np.ones(3), np.array([True, False, False]))
    found = episodes.take_finished()
    assert found == [(1.0, 1, {"success": 1.0, "far": 0.1}), (1.0, 1, {"success": 0.0}), (1.0, 1)]
    fields = {"iteration": 1, "env_steps": 8, "metrics": {}, "rank": 0, "kind": "iteration"}
    check({**fields, "episodes": json.loads(json.dumps(found))}, 0, [], 1, 1)
    for wrong in ([1.0, 1, {"a": "b"}], [1.0, 1, {}, 1], [1.0, 1, 2]):
        with pytest.raises(ValueError, match="'episodes' is"):
            check({**fields, "episodes": [wrong]}, 0, [], 1, 1)
    metrics = Metrics(tmp_path, 100, progress=False)
    told = metrics.log(1, 8, {"loss": 2.0}, found)
    metrics.close()
    assert told["values"] == {"loss": 2.0, "info/far": 0.1, "info/success": 0.5}
    assert next(read_lines(tmp_path / "metrics.jsonl"))["values"] == told["values"]
    assert {("info/success", 8, 0.5), ("train/loss", 8, 2.0)} < set(scalars(tmp_path))


POLICIES = [("SingleLearnerFine", 2), ("SingleLearnerCoarse", 1), ("Central", 2)]


@pytest.mark.parametrize(("policy", "workers"), quick(POLICIES, 0))
def test_the_metrics_are_those_of_a_plain_loop_under_every_policy(tmp_path, policy, workers):
    file = tmp_path / "walk.py"
    file.write_text(WALK)
    name, size, steps, iterations = f"{file}:Walk", 4, 8, 3
    vector = make_vector(name, range(size), 3)
    wanted = []
    for _ in range(iterations):
        ended: list[dict] = []
        for _ in range(steps):
            vector.step(np.zeros(size, np.int32))
            ended += vector.episode_info
        names = sorted({name for one in ended for name in one})
        assert names == ["distance", "is_success", "odd"]
        columns = {name: [one[name] for one in ended if name in one] for name in names}
        wanted.append({f"info/{n}": math.fsum(c) / len(c) for n, c in columns.items()})
    vector.close()
    assert max(one["info/distance"] for one in wanted) < 99.0
    words = {"policy": policy, "workers": workers, "num_envs": size, "seed": 3, "quiet": True}
    words |= {"config": {"num_steps": steps, "hidden": "4"}, "run_dir": tmp_path / "run"}
    words |= {"total_steps": iterations * size * steps, "backend": "inproc"}
    run = train("a2c", env=name, **words)
    taken = [{n: v for n, v in line["values"].items() if "/" in n} for line in run.metrics]
    assert taken == wanted
