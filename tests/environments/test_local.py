"""Messages about invalid environments of users before a job starts."""

import mindspore as ms
import pytest

from mindspore_rl.environments import registry
from mindspore_rl.environments.tensor_env import LocalEnvironment
from mindspore_rl.errors import EnvironmentFailure

HEAD = """
import gym, numpy as np
from mindspore import ops
from mindspore_rl.environments.environment import EnvironmentSpec, Team
from mindspore_rl.environments.spaces import Box, Discrete

def spec_of(**given):
    fields = {"name": "odd", "obs_shape": (4,), "action_space": Discrete(2)}
    rest = {"max_episode_steps": 9, "reward_threshold": None, "in_graph": False}
    return EnvironmentSpec(**(fields | rest | given))
"""
PYTHON = """
class Odd:
    def __init__(self, env_indices, seed):
        self.spec = spec_of(SPEC)
        self.size = len(env_indices)

    def reset(self):
        obs = np.zeros((self.size, 4), np.float32)
        return RESET

    def step(self, action):
        obs, over = np.zeros((self.size, 4), np.float32), np.zeros(self.size, bool)
        reward = np.ones(self.size, np.float32)
        return STEP

    def get_state(self):
        return None

    def close(self):
        pass
"""
GRAPH = """
class Odd:
    noise_size, state_size = 4, 4
    spec = spec_of(in_graph=True, SPEC)

    def reset(self, obs):
        return RESET

    def step(self, state, action, noise):
        obs, reward = state, state[:, 0]
        over = reward > 2.0
        return STEP
"""
PARTS = {"SPEC": "", "RESET": "obs", "STEP": "obs, obs.copy(), reward, over, over.copy()"}
GRAPH_PARTS = {"SPEC": "", "RESET": "(obs, obs)", "STEP": "(state, obs, obs, reward, over, over)"}


def written(folder, text, parts):
    for name, part in parts.items():
        text = text.replace(name, part)
    (folder / "odd.py").write_text(HEAD + text)
    return f"{folder / 'odd.py'}:Odd"


def played(name):
    spec = registry.spec(name)
    env = LocalEnvironment(name, spec.in_graph, range(3), 0)
    noise = ms.ops.zeros((3, 4), ms.float32) if spec.in_graph else None
    env.reset(noise)
    env.step(ms.Tensor([0, 1, 0], ms.int32), noise)


def test_as_they_must_be(tmp_path):
    (tmp_path / "graph").mkdir()
    played(written(tmp_path, PYTHON, PARTS))
    played(written(tmp_path / "graph", GRAPH, GRAPH_PARTS))


SPECS = {
    "action_space=(Discrete(2), Discrete(3))": r"action_space is \(Discrete\(n=2\), .*a Discrete",
    "action_space=gym.spaces.Discrete(2)": r"action_space is Discrete\(2\), expected a Discrete",
    "action_space={'a': Discrete(2)}": r"action_space is \{'a'.*expected a Discrete",
    "action_space=Discrete(0)": r"Discrete\(n=0\), expected a whole number",
    "action_space=Box((2,), -1.0, 1.0)": r"Box\(low=-1.0\), expected a tuple of 2 numbers",
    "action_space=Box(2, (0.0,), (1.0,))": r"Box\(shape=2\), expected a tuple of whole",
    "obs_shape={'a': (4,)}": r"obs_shape is \{'a': \(4,\)\}, expected a tuple of whole numbers",
    "obs_shape=((4,), (2,))": r"obs_shape is \(\(4,\), \(2,\)\), expected a tuple of whole",
    "obs_shape=4": "obs_shape is 4, expected a tuple",
    "teams=('a', 'b')": r"teams is \('a', 'b'\), expected a tuple of Team",
    "teams=(Team('a', 2),)": r"obs_shape is \(4,\), expected \(agents, features\), with the 2",
    "max_episode_steps=None": "max_episode_steps is None, expected a whole number",
}


@pytest.mark.parametrize("given", SPECS)
def test_specs(given, tmp_path):
    name = written(tmp_path, PYTHON, {**PARTS, "SPEC": given})
    with pytest.raises(
        EnvironmentFailure, match=rf"odd\.py:Odd could not be made: .*{SPECS[given]}"
    ):
        registry.spec(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("self.spec = ", "self.other = ", "odd.py:Odd: its spec is None, expected an Environ"),
        ("spec_of()", "{}", "odd.py:Odd: its spec is {}, expected an Environ"),
        ("def reset", "def other", "odd.py:Odd has no reset, expected such methods"),
        ("def close", "def other", "odd.py:Odd has no close, expected"),
    ],
)
def test_classes(old, new, message, tmp_path):
    text = PYTHON.replace("SPEC", "")
    assert old in text
    name = written(tmp_path, text.replace(old, new), PARTS)
    with pytest.raises(EnvironmentFailure, match=message):
        registry.spec(name)


PYTHON_RESULTS, GRAPH_RESULTS = (
    [
        ("RESET", "{'a': obs}", r"odd, .* reset: obs is dict \(\), expected float32 \(3, 4\)"),
        ("RESET", "(obs, obs)", r"reset: obs is tuple \(2, 3, 4\), expected float32"),
        ("RESET", "obs.tolist()", r"reset: obs is list \(3, 4\), expected float32"),
        ("RESET", "None", "reset: obs is NoneType"),
        ("RESET", "obs[:, :2]", r"reset: obs is float32 \(3, 2\), expected float32 \(3, 4\)"),
        ("STEP", "{'obs': obs}", "step returned a dict, expected a tuple of next_obs"),
        ("STEP", "obs, 1.0", "step returned a tuple of 2, expected"),
        ("STEP", "obs, {'a': obs}, reward, over, over", r"step: final_obs is dict \(\)"),
        (
            "STEP",
            "obs, obs * 1.0, reward.astype(float), over, over",
            "reward is float64 .* float32",
        ),
        ("STEP", "obs, obs * 1, reward[:, None], over, over", r"float32 \(3, 1\), .* \(3,\)"),
        ("STEP", "obs, obs * 1, reward, over.tolist(), over", r"terminated is list \(3,\), .*bool"),
        ("STEP", "None", "step returned a NoneType, expected a tuple of next_obs"),
        ("STEP", "nowhere", "step raised NameError"),
    ],
    [
        ("RESET", "obs", "odd.py:Odd: reset returned Float32.*, expected a tuple of state, obs"),
        ("RESET", "(obs, {'a': obs})", r"reset: obs is a dict, expected Float32 \(3, 4\)"),
        ("RESET", "(obs, (obs, obs))", r"reset: obs is a tuple of 2, expected Float32 \(3, 4\)"),
        ("STEP", "(state, obs)", "step returned a tuple of 2, expected a tuple of state, next_obs"),
        ("STEP", "(state, obs, obs, obs, over, over)", r"reward is Float32 \(3, 4\), expected"),
        ("STEP", "(state, obs, obs, reward, reward, over)", "terminated is Float32 .* Bool"),
        ("STEP", "nowhere", "odd.py:Odd: step raised NameError"),
    ],
)
KINDS = [(PYTHON, PARTS, *case) for case in PYTHON_RESULTS]
KINDS += [(GRAPH, GRAPH_PARTS, *case) for case in GRAPH_RESULTS]


@pytest.mark.parametrize(("source", "parts", "part", "text", "message"), KINDS)
def test_results_of_environments(source, parts, part, text, message, tmp_path):
    with pytest.raises(EnvironmentFailure, match=message):
        played(written(tmp_path, source, {**parts, part: text}))


def test_the_command_says_it_in_one_line(tmp_path, refused):
    name = written(tmp_path, PYTHON, {**PARTS, "RESET": "{'a': obs}"})
    error = refused("graph", "ppo", "--env", name)
    assert error.startswith("msrl: odd, after 0 steps: reset: obs is dict (), expected float32")
    assert error.count("\n") == 1


def test_what_failed_before_a_close_that_fails_is_told(tmp_path):
    parts = PARTS | {"STEP": "1 / 0", "SPEC": ""}
    name = written(tmp_path, PYTHON.replace("pass\n", "raise OSError('gone')\n"), parts)
    env = LocalEnvironment(f"{name}", False, range(3), 0)
    env.reset(None)
    with pytest.raises(EnvironmentFailure, match="step raised ZeroDivisionError"), env:
        env.step(ms.Tensor([0, 1, 0], ms.int32), None)
    with pytest.raises(EnvironmentFailure, match="close raised OSError: gone"), env:
        env.reset(None)
