"""Environments with teams of agents in the runtime."""

import dataclasses

import numpy as np
import pytest

from distribution.central import POLICY as CENTRAL
from distribution.gpu_only import POLICY as GPU_ONLY
from mindspore_rl import programs
from mindspore_rl.compiler.pipeline import environment_for
from mindspore_rl.environments.registry import spec
from mindspore_rl.environments.spaces import Box
from mindspore_rl.errors import MsrlError, PolicyError
from mindspore_rl.jobs import registry
from mindspore_rl.runtime.rank.episodes import EpisodeCounter

SPREAD = "pettingzoo:mpe2.simple_spread_v3"


def test_an_episode_returns_the_sum_of_means_over_agents():
    episodes = EpisodeCounter(2)
    episodes.count(np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([False, False]))
    episodes.count(np.array([[-1.0, 2.0], [5.0, 7.0]]), np.array([True, False]))
    assert episodes.take_finished() == [(2.5, 2)]
    np.testing.assert_array_equal(episodes.returns, [0.0, 6.0])


def test_policies_that_compile_environments_take_the_graph_form():
    assert environment_for(GPU_ONLY, SPREAD) == "graph:simple_spread_v3"
    assert environment_for(GPU_ONLY, "CartPole-v1") == "graph:CartPole-v1"
    assert environment_for(CENTRAL, SPREAD) == SPREAD
    with pytest.raises(PolicyError, match=r"simple_push_v3 has no graph form.*simple_tag_v3"):
        environment_for(GPU_ONLY, "pettingzoo:mpe2.simple_push_v3")


SPACE = Box((1,), (-1.0,), (1.0,))
CONTINUOUS = dataclasses.replace(spec("graph:simple_spread_v3"), action_space=SPACE)


@pytest.mark.parametrize(
    ("algorithm", "task", "told"),
    [
        ("ppo", "graph:simple_spread_v3", "PPOTrainer is for a single agent.* agent x3"),
        ("mappo", "CartPole-v1", "MAPPO.* is for teams of agents, and CartPole-v1 has a sin"),
        ("vdn", "graph:simple_tag_v3", "VDN is for one team"),
        ("maddpg", CONTINUOUS, "MADDPG is for discrete actions; .*: choose another"),
        ("coma", CONTINUOUS, "COMA needs several agents with discrete actions; "),
    ],
    ids=lambda part: getattr(part, "name", part),
)
def test_an_algorithm_refuses_what_it_cannot_learn(algorithm, task, told):
    cls = programs.trainer_class(registry.find_algorithm(algorithm))
    with pytest.raises(MsrlError, match=told):
        cls(cls.Config(), spec(task) if isinstance(task, str) else task)
