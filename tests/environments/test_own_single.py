"""Users' own environments with the interface of gym or gymnasium, named by file."""

import importlib
import os
import re

import numpy as np
import pytest

from mindspore_rl.cli import main as cli
from mindspore_rl.environments import registry
from mindspore_rl.environments.check import check, random_actions
from mindspore_rl.errors import EnvironmentFailure, UnknownEnvironmentError
from mindspore_rl.platform.user_modules import load_module
from tests.commands import ROOT, python
from tests.environments.by_hand import ends_by_hand

OWN = """
import numpy as np
import LIBRARY as library
from LIBRARY.wrappers import RescaleAction, TimeLimit

class Drift(library.Env):
    observation_space = library.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = library.spaces.Box(-1, 1, (2,), np.float32)
    fails_at = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=2), 0
        return self.place, {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails_at:
            raise RuntimeError("lost")
        self.place = self.place + action + self.np_random.normal(size=2)
        return self.place, float(self.place[0]), bool(self.place[1] > 4), False, {}

class Loses(Drift):
    fails_at = 3

class Given(Drift):
    def __init__(self, size):
        self.size = size

class Unseeded(Drift):
    def reset(self, *, seed=None, options=None):
        return super().reset()

class Shared(Drift):
    def step(self, action):
        np.random.random()
        return super().step(action)

class OfClass(Drift):
    generator = np.random.default_rng(3)

    def step(self, action):
        self.generator.random()
        return super().step(action)

class Interrupts(Drift):
    def step(self, action):
        raise KeyboardInterrupt

class Counted(Drift):
    def __init__(self):
        with open(__file__ + ".made", "a") as file:
            file.write("1")

class Numbers(Drift):
    observation_space = library.spaces.Dict(
        time=library.spaces.Box(0, 2**24 + 1, (), np.int64),
        place=library.spaces.Box(-(2**24), 2**24, (2,), np.int64),
        kind=library.spaces.Discrete(3),
    )

class Neither:
    pass

class OldReset(Drift):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]

def wrapped():
    return TimeLimit(RescaleAction(Drift(), np.float32(-3), np.float32(3)), 9)

def made_by_id():
    return library.make("CartPole-v1", max_episode_steps=8)

def bare():
    return library.make("CartPole-v1").unwrapped

def number():
    return 3

def normalised():
    wrappers = library.wrappers
    return wrappers.NormalizeReward(wrappers.NormalizeObservation(wrapped()))

def frozen():
    env = library.wrappers.NormalizeObservation(wrapped())
    env.update_running_mean = False
    return env
"""


def test_they_are_a_hand_loop_seeded_by_index(own):
    vector = registry.make_vector(own("wrapped"), range(3, 6), 7)
    maker = load_module(own.path).wrapped
    actions = random_actions(vector.spec, 60, 3)
    envs = [maker() for _ in range(3)]
    assert sum(ends_by_hand(vector, envs, 7, actions, taken=lambda x: np.clip(x, -3, 3))) > 15
    assert len(np.unique(vector.reset())) == 6


@pytest.mark.parametrize("name", ["Drift", "wrapped", "made_by_id"])
def test_they_conform(own, name):
    version = importlib.import_module(own.library).__version__
    assert registry.spec(own(name)).notes == f"of {own.library} {version}"
    assert check(own(name)) == []


def test_the_limit_is_that_of_the_wrappers(own):
    limits = [registry.spec(own(name)).max_episode_steps for name in ("made_by_id", "wrapped")]
    assert limits == [8, 9]
    assert registry.spec(own("bare")).max_episode_steps == 0
    vector = registry.make_vector(own("made_by_id"), range(1), 0)
    vector.reset()
    kept_up = [vector.step(np.array([t % 2], np.int32))[4][0] for t in range(8)]
    assert kept_up == [False] * 7 + [True]


def test_what_fails_is_named(own):
    vector = registry.make_vector(own("Loses"), range(4, 6), 0)
    vector.reset()
    for _ in range(2):
        vector.step(np.zeros((2, 2), np.float32))
    with pytest.raises(EnvironmentFailure, match="Loses, environment 4, after 2 steps.*lost"):
        vector.step(np.ones((2, 2), np.float32))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Given", "'size'.*options behind its name alone: name a function"),
        ("OldReset", "reset returned array.*expected a pair"),
        ("Neither", "could not be made.*no gymnasium.Env.*an AECEnv: name a function"),
        ("number", "gave 3, expected an environment: a gym.Env or a gymnasium.Env"),
    ],
)
def test_what_cannot_be_made_says_why(own, name, text):
    with pytest.raises(EnvironmentFailure, match=text):
        registry.make_vector(own(name), range(1), 0)


def test_a_name_that_is_none_offers_classes_and_functions(own):
    with pytest.raises(UnknownEnvironmentError, match="no class or function 'Drft'.*Drift.*bare"):
        registry.spec(own("Drft"))


def test_statistics_of_a_wrapper_are_told(own):
    (found,) = check(own("normalised"))
    assert found.startswith("NormalizeReward and NormalizeObservation: running statistics of its")
    assert "normalise_obs=true" in found
    if own.library == "gymnasium":  # gym's continue in any case
        assert registry.spec(own("frozen")).warning == ""


def test_draws_from_a_generator_that_environments_share_are_told(own):
    assert registry.warning(own("Shared")).startswith("it draws from `random` or `np.random`")
    assert registry.warning(own("OfClass")).startswith("it draws from a generator of its class or")
    assert registry.warning(own("Drift")) == ""


def test_it_is_built_once_for_what_a_command_asks(own):
    made = own.path.with_name("own.py.made")
    for builds in (1, 2):
        with registry.built_once():
            for _ in range(2):
                assert registry.spec(own("Counted")).warning == registry.warning(own("Counted"))
        assert made.read_text() == "1" * builds


def test_whole_numbers_that_float32_rounds_are_told(own):
    found = registry.warning(own("Numbers"))
    assert found.startswith("observations['time'] are int64 up to 16,777,217, and networks take")
    assert found.count("observations[") == 1


def test_an_interruption_of_its_own_is_no_ctrl_c(own, capsys):
    assert cli.main(["envs", "check", own("Interrupts")]) == 2
    assert "own.py:48: raised KeyboardInterrupt, which is for Ctrl-C" in capsys.readouterr().err


def test_check_finds_one_that_ignores_its_seed(own):
    assert any("after a second reset()" in text for text in check(own("Unseeded")))


def test_importing_gym_prints_nothing(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN.replace("LIBRARY", "gym"))
    code = f"from mindspore_rl.environments.registry import spec; spec({f'{path}:wrapped'!r})"
    done = python("-c", code, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


WAITING = """
import threading

import gymnasium

TOGETHER = threading.Barrier(3, timeout=20)

class Waiting(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"concurrent": 3}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        TOGETHER.wait()
        return self.observation_space.sample() * 0, float(action), False, False, {}
"""


def test_environments_that_may_be_stepped_at_once_are(tmp_path):
    """They wait for each other, on a rank with one core."""
    file = tmp_path / "waiting.py"
    file.write_text(WAITING)
    vector = registry.make_vector(f"{file}:Waiting", range(3), 1)
    for action in ([0, 1, 1], [1, 0, 0]):
        assert vector.step(np.array(action))[2].tolist() == action
    vector.close()


def test_concurrent_must_be_a_number(tmp_path):
    file = tmp_path / "waiting.py"
    file.write_text(WAITING.replace('"concurrent": 3', '"concurrent": "yes"'))
    with pytest.raises(
        EnvironmentFailure, match=r"metadata\['concurrent'\] = 'yes', expected True"
    ):
        registry.make_vector(f"{file}:Waiting", range(3), 1)


COUNTED = """
import numpy as np
import LIBRARY as library

class Counted(library.Env):
    observation_space = library.spaces.Box(-1, 1, (1,), np.float32)
    action_space = library.spaces.Discrete(2, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), False, False, {}

class Bounded(Counted):
    action_space = library.spaces.Box(-2, 3, (1, 1), np.float32)

    def step(self, action):
        return super().step(action[0, 0])
"""


@pytest.mark.parametrize("library", ["gym", "gymnasium"])
def test_one_to_be_stepped_by_hand_takes_actions_as_a_run_has_them(library, tmp_path):
    (tmp_path / "own.py").write_text(COUNTED.replace("LIBRARY", library))
    for name, action, taken in (
        ("Counted", np.int32(1), 6.0),
        ("Bounded", np.float32([7.0]), 3.0),
        ("Bounded", np.float32([-0.5]), -0.5),
    ):
        env = registry.make_single(f"{tmp_path}/own.py:{name}")
        env.reset(seed=1)
        assert env.step(action)[1] == taken
    assert registry.make_single("graph:CartPole-v1").spec.id == "CartPole-v1"
    for name in ("probe:bandit", f"{ROOT}/docs/examples/corridor.py:Corridor"):
        with pytest.raises(UnknownEnvironmentError, match="is neither of gym nor of gymnasium"):
            registry.make_single(name)


ODD = """
import os
import sys

import gym
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

ALL = np.zeros((1, 2), np.float32)

class Shared(gymnasium.Env):
    observation_space, action_space = Box(-9, 9, (2,)), Discrete(3, start=4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        ALL[0] = self.place, self.steps = self.np_random.uniform(), 0
        return ALL[0], {}

    def step(self, action):
        self.steps += action.item() - 4
        ALL[0] = self.place, self.steps
        return ALL[0], float(self.place), False, self.steps > 20, {}

class Listed(Shared):
    def step(self, action):
        *others, info = super().step(action)
        return others[0], others[1], np.array([False]), others[3], info

class Ragged(Shared):
    def step(self, action):
        return [[1.0, 2.0], [3.0]], 0.0, False, False, {}

class Closes(Shared):
    def close(self):
        raise RuntimeError("no")

class Exits(Shared):
    def step(self, action):
        sys.exit(0)

class ExitsAtOnce(Shared):
    def __init__(self):
        sys.exit(3)

class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Unsayable(Shared):
    def step(self, action):
        raise Silent

class UnsayableAtOnce(Shared):
    def __init__(self):
        raise Silent

class Empty(Shared):
    observation_space = Box(-9, 9, (0,))

class Booleans(Shared):
    observation_space = Box(0, 1, (2, 3), bool)

    def reset(self, *, seed=None, options=None):
        return np.eye(2, 3, dtype=bool), super().reset(seed=seed)[1]

    def step(self, action):
        _, *others = super().step(action)
        return np.eye(2, 3, action.item() - 4, dtype=bool), *others

class NoEnd(Shared):
    def step(self, action):
        obs, reward, _, *others = super().step(action)
        return obs, reward, None, *others

class OldStep(Shared):
    def step(self, action):
        return super().step(action)[1:]

class OldReset(Shared):
    def reset(self):
        return super().reset()

class Moves(Shared):
    def reset(self, *, seed=None, options=None):
        os.chdir("/")
        return super().reset(seed=seed)

class Differs(Shared):
    made = 2

    def __init__(self):
        Differs.made += 1
        self.action_space = Discrete(self.made)

class Mixed(Shared):
    observation_space = gym.spaces.Dict({"a": gym.spaces.Box(-9, 9, (2,))})

class MixedActions(Shared):
    action_space = gym.spaces.MultiDiscrete([3, 2])
"""


@pytest.fixture
def odd(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    return f"{tmp_path / 'odd.py'}:"


def test_observations_may_all_live_in_one_array(odd):
    """An action is the number that gymnasium passes, which has `item()`."""
    vector = registry.make_vector(f"{odd}Shared", range(3), 1)
    places = vector.reset()[:, 0]
    assert len(np.unique(places)) == 3
    next_obs, _, reward, _, _ = vector.step(np.array([0, 1, 2], np.int32))
    np.testing.assert_array_equal(reward, places)
    np.testing.assert_array_equal(next_obs, np.stack([places, [0, 1, 2]], 1))
    assert check(f"{odd}Shared") == []


def test_a_process_stays_in_its_folder(odd):
    before = os.getcwd()
    assert registry.warning(f"{odd}Moves") == ""
    assert os.getcwd() == before


def test_a_box_of_booleans_gives_numbers(odd):
    vector = registry.make_vector(f"{odd}Booleans", range(2), 1)
    np.testing.assert_array_equal(vector.reset(), np.stack([np.eye(2, 3, dtype=np.float32)] * 2))
    next_obs = vector.step(np.array([1, 2], np.int32))[0]
    np.testing.assert_array_equal(next_obs, np.stack([np.eye(2, 3, 1), np.eye(2, 3, 2)]))
    assert next_obs.dtype == np.float32 and check(f"{odd}Booleans") == []
    take = vector.spec.layout.flat
    assert take(np.eye(2, 3, dtype=bool))[0].tolist() == [[1, 0, 0, 0, 1, 0]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Listed", r"step.*: terminated is array\(\[False\]\), expected one truth value"),
        ("Ragged", r"of shape none \(its parts differ in length\), expected \(2,\): \[\[1"),
        ("Closes", "odd.py:Closes: close raised RuntimeError: no"),
        ("Exits", r"after 0 steps: step called sys.exit\(0\); the last action was"),
        ("ExitsAtOnce", "could not be made: SystemExit: 3"),
        ("NoEnd", "terminated is None, expected one truth value"),
        ("OldStep", "step returned something else than the five obs, reward, .*got 4"),
        ("OldReset", r"keyword argument 'seed'; expected reset\(self, \*, seed=None, options="),
        ("Differs", "0 has the action space .*, and environment 1 .*: expected the same of all"),
        ("Unsayable", r"step raised Silent: its text cannot be told: its __str__ raised Runtime"),
        ("UnsayableAtOnce", "could not be made: Silent: its text cannot be told: its __str__"),
        ("Empty", r"has the observation space Box\(\[\], \[\], \(0,\).*of one number at least"),
        ("Mixed", "it is a space of gym, and the environment is one of gymnasium: take both of"),
        ("MixedActions", r"MultiDiscrete\(\[3 2\]\), expected .* it is a space of gym, and"),
    ],
)
def test_what_is_odd_is_a_finding_in_words(odd, name, text):
    (found,) = check(odd + name)
    assert re.search(text, found)
