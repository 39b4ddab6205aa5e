import sys

import numpy as np
import pytest
from mpe2 import simple_tag_v3

from mindspore_rl.environments import registry
from mindspore_rl.environments.check import check
from mindspore_rl.environments.environment import Team
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.errors import EnvironmentFailure, NumericsError

GAMES = """
import numpy as np
from gymnasium import spaces

class Game:
    possible_agents = ["red_0", "blue_0", "red_1"]
    sizes = {"red_0": (3,), "red_1": (2,), "blue_0": (2, 2)}
    actions = spaces.Discrete(4, start=7)
    fault = None
    max_cycles = 5

    def __init__(self):
        self.unwrapped = self

    def observation_space(self, agent):
        return spaces.Box(-9, 9, self.sizes[agent], np.float32)

    def action_space(self, agent):
        return self.actions

    def reset(self, seed=None):
        self.count = seed % 4
        self.start = self.count
        self.agents = list(self.possible_agents)
        return {agent: self.observed(agent) for agent in self.agents}, {}

    def observed(self, agent):
        return np.full(self.sizes[agent], self.count + 1, np.float32)

    def step(self, action):
        self.count += 1
        obs = {agent: self.observed(agent) for agent in self.agents}
        reward = {agent: float(np.sum(action[agent])) for agent in self.agents}
        cut = self.count - self.start == 5
        ends = dict.fromkeys(self.agents, False)
        if self.fault == "alone":
            ends["blue_0"] = self.count - self.start == 2
        if self.fault == "raises" and self.count - self.start == 2:
            raise ArithmeticError("no more")
        if self.fault == "nan":
            obs["red_1"][1] = np.nan
        if self.fault == "huge":
            reward["blue_0"] = -1e30
        infos = {agent: {"hits": place} for place, agent in enumerate(self.agents)}
        return obs, reward, ends, dict.fromkeys(self.agents, cut), infos

    def close(self):
        pass

def parallel_env():
    return Game()
"""
MASKED = """
plain, plain_space, plain_reset, plain_step = (
    Game.observed, Game.observation_space, Game.reset, Game.step)

def valid(game, agent):
    return [1, 0, game.count % 2, 1 - game.count % 2] if agent != "red_1" else [0, 0, 0, 1]

def apart(self, agent):
    return {"observation": plain(self, agent), "action_mask": np.array(valid(self, agent), np.int8)}

def spaces_apart(self, agent):
    return spaces.Dict(
        {"observation": plain_space(self, agent), "action_mask": spaces.MultiBinary(4)})

def told_reset(self, seed=None):
    obs, _ = plain_reset(self, seed)
    return obs, {agent: {"action_mask": valid(self, agent)} for agent in obs}

def told_step(self, action):
    *found, infos = plain_step(self, action)
    return (*found, {agent: {"action_mask": valid(self, agent)} for agent in infos})

"""
VARIANTS = {
    "games_box": "Game.actions = spaces.Box(-1, 1, (2,), np.float32)",
    "games_alone": "Game.fault = 'alone'",
    "games_raises": "Game.fault = 'raises'",
    "games_nan": "Game.fault = 'nan'",
    "games_huge": "Game.fault = 'huge'",
    "games_masked": MASKED + "Game.observed = apart; Game.observation_space = spaces_apart",
    "games_told": MASKED + "Game.reset, Game.step = told_reset, told_step",
    "games_wrong": MASKED + "Game.observed = apart; Game.observation_space = spaces_apart\n"
    "valid = lambda game, agent: [0, 0, 0, 0]",
    "games_mixed": "Game.action_space = lambda self, agent: spaces.Discrete(len(agent))",
}


@pytest.fixture
def games(tmp_path, monkeypatch):
    for name, change in {"games": "", **VARIANTS}.items():
        (tmp_path / f"{name}.py").write_text(f"{GAMES}\n{change}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("games", *VARIANTS):
        sys.modules.pop(name, None)


def test_teams_padding_and_marks(games):
    name = "pettingzoo:games"
    spec = registry.spec(name)
    assert spec.teams == (Team("red", 2), Team("blue", 1))
    assert (spec.obs_shape, spec.action_space) == ((3, 6), Discrete(4))
    assert (spec.agent_shape, spec.max_episode_steps) == ((3,), 5)
    env = registry.make_vector(name, range(2), 0)
    first = env.reset()[0]
    n = first[0, 0]
    wanted = [[n, n, n, 0, 1, 0], [n, n, 0, 0, 1, 0], [n, n, n, n, 0, 1]]
    np.testing.assert_array_equal(first, wanted)
    _, final_obs, reward, *_ = env.step(np.array([[0, 1, 2], [3, 3, 3]], np.int32))
    # red_0, red_1, blue_0, with the space's first action added
    np.testing.assert_array_equal(reward, [[7, 8, 9], [10, 10, 10]])
    np.testing.assert_array_equal(final_obs[0, 2], [n + 1] * 4 + [0, 1])
    assert (env.episode_info, env.get_state()) == ([], None)
    for _ in range(4):
        env.step(np.zeros((2, 3), np.int32))
    assert env.episode_info == [{"hits": 1.0}] * 2  # means over the agents
    assert check(name) == []


@pytest.mark.parametrize("module", ["games_masked", "games_told"])
def test_masks_follow_an_agents_features_and_team(games, module):
    name = f"pettingzoo:{module}"
    spec = registry.spec(name)
    assert (spec.obs_shape, spec.action_mask, spec.mask_size) == ((3, 10), True, 4)
    env = registry.make_vector(name, range(2), 0)
    plain = registry.make_vector("pettingzoo:games", range(2), 0)
    first = env.reset()
    np.testing.assert_array_equal(first[..., :6], plain.reset())
    odd = (first[0, 0, 0] - 1) % 2
    wanted = [[1, 0, odd, 1 - odd], [0, 0, 0, 1], [1, 0, odd, 1 - odd]]
    np.testing.assert_array_equal(first[0, :, 6:], wanted)
    assert check(name) == []
    unmasked = registry.spec("pettingzoo:games_told,action_mask=false")
    assert (unmasked.obs_shape, unmasked.action_mask) == ((3, 6), False)


def test_a_wrong_mask_names_its_agent(games):
    with pytest.raises(EnvironmentFailure, match="of red_0 has no valid action"):
        registry.make_vector("pettingzoo:games_wrong", range(1), 0)


@pytest.mark.parametrize("name", ["Own", "parallel_env"])
def test_a_file_may_have_one(name, tmp_path):
    """A class was called with the numbers of its environments, a function refused."""
    own = "class Own(Game, ParallelEnv):\n    __init__ = object.__init__\n"
    own += "def parallel_env():\n    return Own()\n"
    file = tmp_path / "own.py"
    file.write_text(f"from pettingzoo import ParallelEnv\n{GAMES}\n{own}")
    assert check(f"{file}:{name}") == []


def test_box_actions_are_clipped(games):
    assert registry.spec("pettingzoo:games_box").action_space == Box((2,), (-1, -1), (1, 1))
    env = registry.make_vector("pettingzoo:games_box", range(1), 0)
    _, _, reward, *_ = env.step(np.array([[[9, 0.5], [0, 0], [-9, -9]]], np.float32))
    np.testing.assert_array_equal(reward, [[1.5, 0, -2]])
    with pytest.raises(NumericsError, match="the policy has diverged"):
        env.step(np.full((1, 3, 2), np.nan, np.float32))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("games_alone", "environment 4, .* blue_0 ended before .*until then, .* last action"),
        ("games_raises", "environment 4, after 1 steps: step raised ArithmeticError: no more"),
        ("games_nan", r"environment 4, .* the observation of red_1\[1\] is nan"),
        ("games_huge", r"environment 4, .* the reward of blue_0 is -1e\+30, expected .*1.8e\+19"),
        ("games_mixed", "the same Discrete or Box for all agents"),
    ],
)
def test_failures_name_environment_and_agent(games, module, text):
    def play():
        env = registry.make_vector(f"pettingzoo:{module}", range(4, 6), 0)
        for _ in range(3):
            env.step(np.ones((2, 3), np.int32))

    with pytest.raises(EnvironmentFailure, match=text):
        play()


def test_wrong_actions_are_refused():
    env = registry.make_vector("pettingzoo:mpe2.simple_spread_v3", range(2), 0)
    with pytest.raises(EnvironmentFailure, match=r"int64 \(2,\), expected int32 \(2, 3\)"):
        env.step(np.ones(2, np.int64))


def test_simple_tag_is_as_pettingzoo_steps_it():
    ours = registry.make_vector("pettingzoo:mpe2.simple_tag_v3", range(3, 4), 11)
    theirs = simple_tag_v3.parallel_env()
    seed = int(np.random.SeedSequence((11, 3, 0)).generate_state(1)[0])
    obs, _ = theirs.reset(seed=seed)
    rows = ours.reset()[0]
    rng = np.random.default_rng(0)
    agents = ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
    assert theirs.possible_agents == agents
    for t in range(25):
        for a, agent in enumerate(agents):
            size = len(obs[agent])
            np.testing.assert_array_equal(rows[a, :size], obs[agent])
            np.testing.assert_array_equal(rows[a, size:16], 0)
            np.testing.assert_array_equal(rows[a, 16:], [agent != "agent_0", agent == "agent_0"])
        action = rng.integers(0, 5, 4)
        obs, reward, _, cut, _ = theirs.step(dict(zip(agents, action.tolist(), strict=True)))
        next_obs, final_obs, got, terminated, truncated = ours.step(action[None].astype(np.int32))
        rows = final_obs[0]
        np.testing.assert_array_equal(got[0], np.array([reward[a] for a in agents], np.float32))
        assert not terminated[0] and truncated[0] == cut["agent_0"] == (t == 24)
    assert (next_obs[0] != rows).any()
