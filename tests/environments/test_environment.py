import sys

import numpy as np
import pytest

from mindspore_rl.environments import registry
from mindspore_rl.environments.check import check
from mindspore_rl.environments.spaces import Box, Discrete, taken
from mindspore_rl.errors import EnvironmentFailure, MissingPackageError, UnknownEnvironmentError
from tests.commands import ROOT

USERS = """
import numpy as np
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete

class Count:
    spec = EnvironmentSpec("count", (1,), Discrete(2), 12, None, in_graph=False)
    terminates = False

    def __init__(self, env_indices, seed):
        self.indices = np.array(env_indices)
        self.reset()

    def reset(self):
        self.count = np.zeros(len(self.indices), np.int64)
        return self.obs()

    def obs(self):
        return self.count.astype(np.float32)[:, None]

    def step(self, action):
        self.count += 1
        final_obs = self.obs()
        ended = self.count >= 12
        self.restart(ended)
        ends = (ended, ~ended & False) if self.terminates else (~ended & False, ended)
        return self.obs(), final_obs, np.ones(len(ended), np.float32), *ends

    def restart(self, ended):
        self.count[ended] = 0

    def get_state(self):
        return {"count": self.count.copy()}

    def set_state(self, state):
        self.count = state["count"].copy()
        return self.obs()

    def close(self):
        pass

class Merged(Count):
    terminates = True

class NeverReset(Count):
    def restart(self, ended):
        pass

class Aliased(Count):
    def get_state(self):
        return {"count": self.count}

class Placed(Count):
    def obs(self):
        return (self.count * len(self.indices)).astype(np.float32)[:, None]

class Double(Count):
    def obs(self):
        return self.count[:, None].astype(np.float64)

class Walk:
    spec = EnvironmentSpec("walk", (2,), Discrete(2), 20, None, in_graph=True)
    noise_size = 2
    state_size = 3
    first = 2.0

    def __init__(self):
        import mindspore
        from mindspore import ops

        self.ops = ops
        self.unit = mindspore.Tensor(np.array([[1, 1, 0]], np.float32))

    def reset(self, noise):
        state = self.ops.concat((noise * self.first, noise[:, 0:1] * 0), 1)
        return state, state[:, 0:2]

    def step(self, state, action, noise):
        moved = state + action.reshape((-1, 1)) * self.unit + (1 - self.unit)
        truncated = moved[:, 2] >= 20
        fresh, _ = self.reset(noise)
        state = self.ops.where(truncated.reshape((-1, 1)), fresh, moved)
        return state, state[:, 0:2], moved[:, 0:2], moved[:, 0], truncated & False, truncated

class Coupled(Walk):
    def reset(self, noise):
        return super().reset(noise - noise.mean())
"""


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users.py"
    path.write_text(USERS)
    return lambda name: f"{path}:{name}"


SLOW = ("graph:Pendulum-v1", "graph:simple_spread_v3", "graph:ConnectFour-v0,opponent=random")
"""Like other conforming ones."""
SLOW += ("gym:HalfCheetah-v4", "gym:Ant-v4", "HalfCheetah-v4", "BipedalWalker-v3", "LunarLander-v2")
SLOW += ("Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "gym:Pendulum-v1")
CONFORM = {
    *registry.graph_names(), *SLOW, "graph:TicTacToe-v0",
    f"{ROOT}/tests/environments/choices.py:GraphChoice",
    *(f"probe:{name}" for name in ("constant", "bandit", "delay", "pixels", "truncated", "choice")),
    "pettingzoo:mpe2.simple_spread_v3", "pettingzoo:mpe2.simple_tag_v3", "Taxi-v4", "gym:Taxi-v3",
    *("CartPole-v1", "gym:CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "LunarLander-v3"),
}  # fmt: skip
NEEDS = {"Ant": ("mujoco",), "HalfCheetah": ("mujoco", "imageio"), "Lunar": ("Box2D",)}
NEEDS["Biped"] = NEEDS["Lunar"]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in sorted(CONFORM)]
)
def test_they_conform(name):
    for start, packages in NEEDS.items():
        for package in packages if start in name else ():
            pytest.importorskip(package, reason=f"{package} is not installed")
    assert registry.spec(name).name == name or name.endswith("GraphChoice")
    assert check(name) == []


def test_known_names_are_listed_with_their_library():
    for name in ("CartPole-v1", "probe:constant", "pettingzoo:mpe2.simple_tag_v3", "Taxi-v3"):
        assert name in registry.names()
    assert registry.spec("Taxi-v3").library == "gym"


@pytest.mark.parametrize(
    ("name", "obs_shape", "in_graph"),
    [
        ("pettingzoo:mpe2.simple_spread_v3,N=5,local_ratio=0.2", (5, 30), None),
        ("pettingzoo:mpe2.simple_spread_v3,N=5", (5, 30), "graph:simple_spread_v3,N=5"),
        ("graph:simple_spread_v3,N=5", (5, 30), None),
        ("gymnasium:FrozenLake-v1,map_name=8x8,is_slippery=False", (64,), None),
    ],
)
def test_an_environment_is_made_with_the_options_behind_its_name(name, obs_shape, in_graph):
    assert registry.spec(name).obs_shape == obs_shape
    assert registry.spec(name).name == name
    assert registry.graph_name(name) == in_graph


def test_a_users_own_environments(users):
    name = users("Count")
    assert registry.spec(name).action_space == Discrete(2)
    env = registry.make_vector(name, range(2, 4), 0)
    np.testing.assert_array_equal(env.indices, [2, 3])
    assert check(name) == []
    assert registry.spec(users("Walk")).in_graph
    assert check(users("Walk")) == []
    assert registry.make_graph(users("Walk")).state_size == 3


@pytest.mark.parametrize(
    ("class_name", "text"),
    [
        ("Merged", "sets terminated"),
        ("NeverReset", "not reset"),
        ("Aliased", "after set_state"),
        ("Placed", "as a share"),
        ("Double", "obs is float64"),
        ("Coupled", "depend on"),
    ],
)
def test_check_finds_what_is_wrong(users, class_name, text):
    found = check(users(class_name))
    assert any(text in finding for finding in found), found


def test_kinds_are_not_confused(users):
    for name in (users("Walk"), "graph:CartPole-v1"):
        with pytest.raises(UnknownEnvironmentError, match="expected a Python one"):
            registry.make_vector(name, range(2), 0)
    with pytest.raises(UnknownEnvironmentError, match="expected an in-graph one"):
        registry.make_graph(users("Count"))


ALE = "needs ale-py, which is not inst"
MUJOCO = r"needs MuJoCo, .*pip install '\.\[mujoco\]'"
BOX2D = r"pip install '\.\[box2d\]'"


@pytest.mark.parametrize(
    ("name", "package", "extra", "text"),
    [
        ("HalfCheetah-v5", "mujoco", "mujoco", MUJOCO),
        ("gym:HalfCheetah-v4", "mujoco", "mujoco", MUJOCO),
        ("LunarLander-v2", "Box2D", "box2d", BOX2D),
        ("LunarLander-v3", "Box2D", "box2d", BOX2D),
        ("gymnasium:CartPole-v1", "gymnasium", "", r"gymnasium is not .* pip install '\.'"),
        ("gym:CartPole-v1", "gym", "", r"gym is not .* pip install '\.'"),
        ("ALE/Pong-v5", "ale_py", "atari", ALE),
        ("atari:Pong-v5", "ale_py", "atari", ALE),
        ("envpool:CartPole-v1", "envpool", "pool", "needs envpool, which is not ins"),
        ("pettingzoo:pistons_v6", "pymunk", "", "the package pymunk.*add it with pip"),
    ],
)
def test_a_missing_package_says_what_to_install(monkeypatch, tmp_path, name, package, extra, text):
    (tmp_path / "pistons_v6.py").write_text("import pymunk")
    monkeypatch.syspath_prepend(str(tmp_path))

    def of_package():
        return [key for key in sys.modules if f".envs.{package.lower()}" in key]

    for module in of_package():
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=text) as found:
        registry.spec(name)
    assert found.value.extra == extra
    for module in of_package():
        del sys.modules[module]  # imported without the package, for the tests that follow


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("graph:simple_spread_v3,N=0", "N must be a whole number of 1 or more"),
        ("graph:simple_spread_v3,agents=4", "has no option 'agents'; it has N"),
        ("graph:CartPole-v1,N=4", "has no option 'N'; it has none"),
        ("graph:TicTacToe-v0,opponent=perfect", "expected random or two_ply"),
        ("CartPole-v1,gravity=1", "unexpected keyword argument 'gravity'"),
        ("CartPole-v1,gravity", "stands behind its name as KEY=VALUE"),
        ("atari:Pong-v5,lives=3", "unexpected keyword argument 'lives'"),
        ("envpool:CartPole-v1,foo=3", "unexpected keyword argument 'foo'"),
        ("CartPol-v1", "CartPole-v1"),
        ("CartPole-v7", "mean 'CartPole-v1' or 'CartPole-v0'"),
        ("LunarLander-v4", "did you mean 'LunarLander-v3'"),
        ("gymnasium:LunarLander-v2", "gymnasium:LunarLander-v3"),
        ("graph:CartPole-v0", "graph:CartPole-v1"),
        ("probe:delayed", "probe:delay"),
        ("nowhere/env.py:Env", "no file"),
        ("atari:Pog-v5", "did you mean 'atari:Pong-v5'"),
        ("envpool:CartPol-v1", "did you mean 'envpool:CartPole-v1'"),
        ("pettingzoo:nowhere.game_v0", "needs the package nowhere"),
        ("pettingzoo:mpe2.simple_spred_v3", "pettingzoo:mpe2.simple_spread_v3"),
        ("pettingzoo:mpe2._mpe_utils.core", "no parallel_env"),
        ("HalfCheetah-v3", "mujoco_py, which is no longer maintained"),
        ("gymnasium:HalfCheetah-v3", "gymnasium could not make .*gymnasium-robotics"),
    ],
)
def test_names_and_options_that_are_none(name, said):
    with pytest.raises((UnknownEnvironmentError, EnvironmentFailure), match=said):
        registry.spec(name)
    with pytest.raises((UnknownEnvironmentError, EnvironmentFailure)):
        registry.make_vector(name, range(1), 0)


def test_errors_of_a_users_file(users, tmp_path):
    with pytest.raises(UnknownEnvironmentError, match="it has Count"):
        registry.spec(users("Cuont"))
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(EnvironmentFailure, match="ZeroDivisionError"):
        registry.spec(f"{tmp_path / 'broken.py'}:Env")


def test_spaces_of_gym():
    spec = registry.spec("Pendulum-v1")
    assert spec.action_space == Box((1,), (-2.0,), (2.0,))
    graph = registry.spec("graph:Pendulum-v1")
    assert (graph.obs_shape, graph.action_space) == (spec.obs_shape, spec.action_space)
    assert graph.max_episode_steps == spec.max_episode_steps


def test_actions_are_taken_within_bounds_in_the_spaces_type_and_shape():
    given = np.float32([[-7.0, 0.4, 0.6, 9.0]])
    for dtype, expected in (
        ("float32", [[-1.0, 0.4], [0.6, 2.1]]),
        ("float64", [[-1.0, 0.4], [0.6, 2.1]]),
        ("int32", [[-1, 0], [1, 2]]),
    ):
        high = 2 if dtype == "int32" else 2.1
        found = taken(Box((2, 2), (-1,) * 4, (high,) * 4, dtype), given)
        assert (found.dtype, found.shape) == (np.dtype(dtype), (1, 2, 2))
        np.testing.assert_allclose(found[0], expected, rtol=1e-6)
        assert found.max() <= np.array(high, dtype)
    one = Box((), (-1.0,), (1.0,))
    assert taken(one, np.float32([[3.0], [0.5]])).tolist() == [1.0, 0.5]
    chosen = np.int32([3, 1])
    assert taken(Discrete(4), chosen) is chosen
    largest = float(np.finfo(np.float32).max)
    assert not Box((1,), (-largest,), (largest,)).bounded


PUSHES = """
from mindspore import nn, ops
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Box

class Pushes(nn.Cell):
    spec = EnvironmentSpec("pushes", (1,), Box((1,), (-1.0,), (1.0,)), 9, None, in_graph=True)
    noise_size, state_size = 1, 2

    def reset(self, noise):
        return ops.concat((noise, 0.0 * noise), 1), noise

    def step(self, state, action, noise):
        place, steps = state[:, 0:1] + ACTION, state[:, 1:2] + 1.0
        over = steps[:, 0] >= 9.0
        at = ops.where(over.expand_dims(1), noise, place)
        state = ops.concat((at, ops.where(over.expand_dims(1), 0.0 * steps, steps)), 1)
        return state, at, place, place[:, 0], ops.zeros_like(over), over
"""


def test_one_in_the_graph_clips_its_actions(tmp_path):
    file = tmp_path / "own.py"
    for action, wrong in (("action", ["an action beyond"]), ("ops.clamp(action, -1.0, 1.0)", [])):
        file.write_text(PUSHES.replace("ACTION", action))
        found = check(f"{file}:Pushes")
        assert [text.split(": ")[1][:16] for text in found[:1]] == wrong
