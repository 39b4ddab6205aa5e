import importlib

import gym
import gymnasium
import numpy as np
import pytest

from mindspore_rl.environments import registry
from mindspore_rl.environments.check import random_actions
from mindspore_rl.environments.gym.vector import GymVector
from mindspore_rl.environments.spaces import Discrete
from mindspore_rl.errors import EnvironmentFailure, MissingPackageError, NumericsError
from tests.environments.by_hand import ends_by_hand, reset_seed


def upright(obs):
    """Keeps the pole up for 500 steps."""
    return (obs @ np.array([0.1, 0.5, 3.0, 1.0]) > 0).astype(np.int32)


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize(
    ("name", "library"), [("CartPole-v1", gymnasium), ("gym:CartPole-v1", gym)]
)
def test_cartpole_is_a_hand_loop_over_its_library(name, library, balance):
    vector = registry.make_vector(name, range(3, 6), 7)
    assert all(isinstance(env, library.Env) for env in vector._envs)
    envs = [library.make("CartPole-v1", disable_env_checker=True) for _ in range(3)]
    actions = [upright] * 520 if balance else random_actions(vector.spec, 520, 3)
    terminated, truncated = ends_by_hand(vector, envs, 7, actions)
    assert (terminated, truncated) == (0, 3) if balance else terminated > 10


def test_halfcheetah_is_gym_with_clipped_actions(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log in the bare gym.make below
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    vector = registry.make_vector("HalfCheetah-v4", range(1), 0)
    assert vector.spec.obs_shape == (17,)
    assert (vector.spec.max_episode_steps, vector.spec.reward_threshold) == (1000, 4800.0)
    envs = [gym.make("HalfCheetah-v4", disable_env_checker=True)]
    actions = 2 * random_actions(vector.spec, 1000, 1)
    ends = ends_by_hand(vector, envs, 0, actions, 0, lambda action: np.clip(action, -1, 1))
    assert ends == [0, 1]


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads):
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    one, other = (registry.make_vector("HalfCheetah-v4", range(2, 7), 5) for _ in range(2))
    other.threads = other._concurrent = threads  # always, not only if it is faster
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 5, 6)).astype(np.float32)
    for action in actions:
        for expected, found in zip(one.step(action), other.step(action), strict=True):
            np.testing.assert_array_equal(found, expected)
    other._steps[3] = lambda action: 1 / 0
    with pytest.raises(EnvironmentFailure, match="environment 5, after 12 steps: step raised Zero"):
        other.step(actions[0])
    one.close()
    other.close()


class Faulty(gym.Env):
    """Fails in the third step of environment 1 (the second one)."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(3, start=5)
    built = 0

    def __init__(self, fault):
        self.fault = fault
        self.faulty = Faulty.built % 2 == 1
        Faulty.built += 1
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action):
        self.actions.append(action)
        obs, reward = np.zeros(2), 0.5
        if self.faulty and len(self.actions) == 3:
            if self.fault == "raises":
                raise ZeroDivisionError("by zero")
            obs = {
                "nan obs": np.array([0, np.nan]),
                "shape": np.zeros(1),
                "huge obs": np.array([0, 1e300]),
                "large obs": np.array([3e38, 0], np.float32),
                "none": None,
            }.get(self.fault, obs)
            bad = {"inf reward": np.inf, "large reward": -2e19, "array reward": np.zeros(1)}
            reward = bad.get(self.fault, reward)
        return obs, reward, False, False, {}


@pytest.fixture
def make_faulty():
    Faulty.built = 0

    def make(fault):
        gym.register("Faulty-v0", entry_point=lambda: Faulty(fault), max_episode_steps=50)
        return registry.make_vector("Faulty-v0,action_mask=false", range(6, 8), 0)

    yield make
    gym.envs.registration.registry.pop("Faulty-v0", None)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raises", "raised ZeroDivisionError: by zero"),
        ("nan obs", r"the observation\[1\] is nan"),
        ("huge obs", r"the observation\[1\] is 1e\+300"),
        ("large obs", r"the observation\[0\] is 3e\+38"),
        ("shape", r"shape \(1,\), expected \(2,\)"),
        ("none", r"shape \(\), expected \(2,\)"),
        ("inf reward", "the reward is inf"),
        ("large reward", r"the reward is -2e\+19, expected finite numbers up to 1.8e\+19"),
        ("array reward", "reward"),
    ],
)
def test_a_faulty_environment_is_named(make_faulty, fault, text):
    env = make_faulty(fault)
    for _ in range(2):
        env.step(np.array([0, 1], np.int32))
    with pytest.raises(EnvironmentFailure, match=text) as failure:
        env.step(np.array([0, 2], np.int32))
    assert "environment 7" in str(failure.value)
    assert "last action was 7" in str(failure.value)  # actions of this one start at 5
    assert env.get_state() is None


@pytest.mark.parametrize(
    ("name", "action", "text"),
    [
        ("CartPole-v1", np.zeros((2, 1), np.int32), "expected int32"),
        ("CartPole-v1", np.zeros(2, np.float32), "expected int32"),
        ("CartPole-v1", np.array([0, 2], np.int32), "environment 1.*invalid"),
        ("CartPole-v1", np.array([0, -1], np.int32), "environment 1.*invalid"),
        ("Pendulum-v1", np.zeros(2, np.float32), "expected float32"),
        ("Pendulum-v1", np.array([[0], [np.nan]], np.float32), "environment 1.*diverged"),
    ],
)
def test_a_wrong_action_is_refused(name, action, text):
    fault = NumericsError if "diverged" in text else EnvironmentFailure
    with pytest.raises(fault, match=text):
        registry.make_vector(name, range(2), 0).step(action)


def test_observations_of_other_spaces_are_flattened_and_said():
    env = registry.make_vector("gymnasium:FrozenLake-v1", range(3), 0)
    assert env.spec.notes.endswith("observations are flattened to 16 numbers: one-hot of 16")
    np.testing.assert_array_equal(env.reset(), np.eye(16, dtype=np.float32)[[0, 0, 0]])
    hand = gymnasium.make("FrozenLake-v1")
    hand.reset(seed=reset_seed(0, 0, 0))
    for action in [1, 1, 2, 2]:
        _, final_obs, *_ = env.step(np.full(3, action, np.int32))
        place, _, end, _, _ = hand.step(action)
        assert final_obs[0].tolist() == np.eye(16)[place].tolist()
        if end:
            break
    tuples = registry.spec("Blackjack-v1")
    assert tuples.obs_shape == (45,)
    assert tuples.notes.endswith(": [0] one-hot of 32, [1] one-hot of 11, [2] one-hot of 2")


@pytest.mark.parametrize("library", [gym, gymnasium])
def test_unsupported_spaces_say_so(library):
    spaces = library.spaces
    many, one = spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2)
    for seen, done, text in ((many, one, "observation space"), (one, many, "action space")):
        kind = type("Odd", (library.Env,), {"observation_space": seen, "action_space": done})
        with pytest.raises(EnvironmentFailure, match=text):
            GymVector("mine", range(1), 0, kind)


@pytest.mark.parametrize("library", [gym, gymnasium])
def test_several_choices_become_one_and_are_said(library):
    spaces = library.spaces

    class Panel(library.Env):
        observation_space = spaces.Box(-9, 9, (2,), np.float32)
        action_space = spaces.MultiDiscrete([3, 2])

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            assert self.action_space.contains(action)
            return np.ravel(action).astype(np.float32), 0.0, False, False, {}

    vector = GymVector("panel", range(6), 0, Panel)
    assert vector.spec.action_space == Discrete(6)
    assert vector.spec.notes.endswith("; actions are 6 choices: 3 x 2, the last changing fastest")
    seen = vector.step(np.arange(6, dtype=np.int32))[0].tolist()
    assert seen == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
    Panel.action_space = spaces.MultiBinary(2)
    vector = GymVector("panel", range(4), 0, Panel)
    seen = vector.step(np.arange(4, dtype=np.int32))[0].tolist()
    assert seen == [[0, 0], [0, 1], [1, 0], [1, 1]]
    Panel.action_space = spaces.MultiBinary(11)
    with pytest.raises(EnvironmentFailure, match="up to 1024 combinations"):
        GymVector("panel", range(4), 0, Panel)


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("FrozenLake-v1", "gymnasium"),
        ("gym:FrozenLake-v1", "gym"),
        ("gymnasium:FrozenLake-v1", "gymnasium"),
        ("Taxi-v4", "gymnasium"),
        ("Taxi-v3", "gym"),  # gymnasium no longer has it
    ],
)
def test_a_plain_id_is_gymnasiums_where_gymnasium_has_it(name, library):
    version = importlib.import_module(library).__version__
    spec = registry.spec(name)
    assert (spec.name, spec.notes.split(";")[0]) == (name, f"of {library} {version}")
    assert spec.library == library


@pytest.mark.parametrize(
    ("prefix", "when"), [("", ""), ("gymnasium:", ""), ("", "def register_envs():\n    ")]
)
def test_a_module_is_not_looked_for_in_the_working_folder_and_says_so(
    prefix, when, tmp_path, monkeypatch
):
    module = f"ours_{len(prefix)}_{len(when)}"
    (tmp_path / f"{module}.py").write_text(
        "import gymnasium\n"
        "entry = 'gymnasium.envs.classic_control:CartPoleEnv'\n"
        f"{when}gymnasium.register('Ours-v0', entry_point=entry, max_episode_steps=9)\n"
    )
    monkeypatch.chdir(tmp_path)
    name = f"{prefix}{module}:Ours-v0"
    text = rf"no module {module}, .*not in the working folder.*as in '{module}\.py:ClassName'"
    with pytest.raises(MissingPackageError, match=text):
        registry.spec(name)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry.spec(name).max_episode_steps == 9
    gymnasium.registry.pop("Ours-v0")
