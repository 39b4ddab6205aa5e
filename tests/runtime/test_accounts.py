"""The runtime's bulk operations equal the same operations one by one, over steps and iterations."""

import math
from types import SimpleNamespace

import numpy as np

from mindspore_rl.rl import random
from mindspore_rl.runtime.rank.episodes import MEAN_EPISODES, EpisodeCounter, Goal, RecentEpisodes
from mindspore_rl.runtime.rank.fragment_runtime import FragmentRuntime
from mindspore_rl.runtime.rank.noise_tables import RandomTables
from mindspore_rl.runtime.rank.shard_runtime import Parts, ShareRuntime


def test_steps_counted_at_once_are_those_counted_one_by_one():
    rng = np.random.default_rng(1)
    at_once, one_by_one = EpisodeCounter(5), EpisodeCounter(5)
    for share in (0.0, 0.1, 0.6):
        reward = rng.integers(-9, 9, (40, 5)).astype(np.float32)
        ended = rng.random((40, 5)) < share
        at_once.count_all(reward, ended)
        for row, ends in zip(reward, ended, strict=True):
            one_by_one.count(row, ends)
    finished = one_by_one.take_finished()
    assert len(finished) > MEAN_EPISODES
    assert at_once.take_finished() == finished[-MEAN_EPISODES:]
    np.testing.assert_array_equal(at_once.returns, one_by_one.returns)
    np.testing.assert_array_equal(at_once.lengths, one_by_one.lengths)


def test_a_mean_return_is_settled_with_its_hundredth_episode():
    recent, goal = RecentEpisodes(), Goal(10.0)
    first, last = [(99.0, 5)] * 99, [(10.0, 7)] * 100
    for episodes, settled in ((first, None), ([(9.0, 5)], 98.1), (last, 10.0)):
        recent.add(episodes)
        assert recent.settled_return == settled
        assert goal.reached(episodes) == (settled is not None)
    assert (recent.mean_return, recent.mean_length) == (10.0, 7.0)
    assert goal.reached([(9.9, 7)]) is Goal(math.nan).reached([(9.0, 1)] * 100) is False


def test_tables_of_random_numbers_are_those_of_each_iteration(monkeypatch):
    draws = []
    real = random.uniform
    monkeypatch.setattr(random, "uniform", lambda *args: draws.append(1) or real(*args))
    tables = RandomTables(3, range(2, 6), None)
    # Forwards, and back as after a resume.
    for iteration in (*range(200), 7, 8, 9, 150):
        steps = np.arange(iteration * 8, iteration * 8 + 8)
        expected = real(3, random.stream("a"), steps, np.arange(2, 6), 2)
        np.testing.assert_array_equal(
            tables.uniform("a", iteration, 8, 2, by_agent=False), expected
        )
        rounds = np.arange(iteration * 2, iteration * 2 + 2)
        order = random.permutations(3, random.stream("b"), rounds, np.arange(2, 6), 8)
        expected = order * 4 + np.arange(4)
        np.testing.assert_array_equal(tables.permutations("b", iteration, 2, 8, 1), expected)
    assert len(draws) < 20


def test_what_a_chunk_reports_is_told_in_every_iteration():
    told = []
    link = SimpleNamespace(send_soon=lambda kind, **fields: told.append(fields["metrics"]))
    plan = SimpleNamespace(seed=1, num_envs=2)
    counts = {"number": 0, "iteration": 0, "env_steps": 0}
    nothing = dict.fromkeys(("agents", "profile", "goal"))
    rank = SimpleNamespace(plan=plan, link=link, **nothing, **counts)
    parts = {"replay": None, "kept": None, "named": {}, "episodes": EpisodeCounter(2)}
    share = SimpleNamespace(rank=rank, env_indices=range(2), **parts)
    whole = object.__new__(FragmentRuntime)
    whole.rank, whole.share, whole.iterations_here, whole._metrics = rank, share, 50, {}
    chunk = ShareRuntime(share, Parts(None, None, None, None, None, whole._metrics))
    assert chunk.env_steps == whole.env_steps == 0
    for loss in (1.0, 2.0):
        chunk.report({"loss": np.float32(loss)})
        whole._report_iteration()
    assert told == [{"loss": 1.0}, {"loss": 2.0}]
