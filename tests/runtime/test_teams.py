"""Environments with teams of agents in the runtime."""

from types import SimpleNamespace

import numpy as np
import pytest

from distribution.central import POLICY as CENTRAL
from distribution.gpu_only import POLICY as GPU_ONLY
from mindspore_rl.api import Trainer
from mindspore_rl.compiler.pipeline import environment_for
from mindspore_rl.environments.registry import spec
from mindspore_rl.errors import ConfigError, PolicyError
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


def test_algorithms_for_one_agent_and_for_teams_refuse_the_other():
    class Many(Trainer):
        multi_agent = True

    config = SimpleNamespace()
    with pytest.raises(ConfigError, match="Trainer is for a single agent.* agent x3"):
        Trainer(config, spec("graph:simple_spread_v3"))
    with pytest.raises(ConfigError, match="Many is for teams of agents, and CartPole-v1 has a sin"):
        Many(config, spec("CartPole-v1"))
    Many(config, spec("graph:simple_tag_v3"))
