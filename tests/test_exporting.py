"""An exported policy acts like the trained one, without this project."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from mindspore import Tensor, int32, ops

from mindspore_rl import load, train
from mindspore_rl.api import Actor
from mindspore_rl.cli import main as cli
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.layout import Layout
from mindspore_rl.environments.spaces import Box, Discrete
from mindspore_rl.errors import MsrlError
from mindspore_rl.trained import export, onnx_file
from mindspore_rl.trained.greedy_cell import GreedyCell
from tests.runtime.test_coordinator import make_plan

SMALL = {"num_envs": 2, "num_steps": 8, "update_epochs": 1, "num_minibatches": 1}
HERE = {"stop_return": float("nan"), "quiet": True, "total_steps": 32, "backend": "inproc"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with observations that are numbers and are normalised."""
    folder = tmp_path_factory.mktemp("exporting") / "run"
    config = {**SMALL, "normalise_obs": True}
    words = {"policy": "MultipleLearners", "workers": 1, "config": config, **HERE}
    return train("ppo", env="Pendulum-v1,max_episode_steps=20", run_dir=folder, **words)


def test_an_onnx_file_gives_the_policys_actions(trained, tmp_path, capsys):
    file = tmp_path / "pendulum.onnx"
    command = ["export", str(trained.path), "--output", str(file)]
    assert cli.main(command) == 0
    told = re.search(r"takes any number of obs.* on (\d+) of them", capsys.readouterr().out)
    assert told and int(told[1]) > export.RANDOM_OBS
    obs = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    code = (
        "import sys, numpy as np, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "obs = np.load(sys.argv[2])\n"
        "np.save(sys.argv[3], session.run(['action'], {'obs': obs})[0])\n"
        "assert session.run(['action'], {'obs': obs[:1]})[0].shape == (1, 1)\n"
        "assert 'mindspore' not in sys.modules\n"
    )
    files = [str(file), str(tmp_path / "obs.npy"), str(tmp_path / "actions.npy")]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    actions = np.load(tmp_path / "actions.npy")
    np.testing.assert_allclose(actions, trained.policy(obs), rtol=1e-4, atol=1e-4)
    assert np.ptp(actions) > 0


@pytest.mark.slow
def test_a_mindir_file_is_read_again(trained):
    path = trained.export("mindir")
    assert path == trained.path / "policy.mindir"
    assert path.stat().st_size > 1000


def test_a_file_that_gives_other_actions_is_not_kept(trained, tmp_path, monkeypatch):
    real = export._read
    monkeypatch.setattr(export, "_read", lambda *of: lambda obs: [real(*of)(obs)[0] + 0.1])
    with pytest.raises(MsrlError, match="gives other actions than the policy for"):
        export.export(trained, "onnx", tmp_path / "wrong.onnx")
    assert not list(tmp_path.iterdir())


def test_a_name_says_its_form(trained, tmp_path, capsys, refused):
    with pytest.raises(MsrlError, match="format is 'tflite', expected one of onnx, mindir"):
        trained.export("tflite")
    command = ["export", str(trained.path), "--output"]
    assert "policy.v2 is to be a file of onnx; expected an ending of .onnx" in refused(
        *command, tmp_path / "policy.v2"
    )
    assert cli.main([*command, str(tmp_path / "none" / "policy.onnx")]) == 1
    assert "choose another --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("remembers", "depend on more than the observation and one recurrent state"),
        ("changes", "is not given the observation as it is"),
        ("rows", "beside it, what is the same for all"),
        ("greedily", "has no act_greedily"),
    ],
)
def test_policies_that_are_no_function_of_the_observation(trained, source, message, monkeypatch):
    policy = load(trained.path).policy
    obs = policy.some_obs(2)
    actor, spec = policy._trained[0].actor, policy.spec
    first, second = policy._asked(obs)
    more = policy._asked(policy.some_obs(3))[0]
    if source == "remembers":
        second = ((*second[0], Tensor(1.0)), second[1])
        first, more = (((*args, Tensor(0.0)), named) for args, named in (first, more))
    elif source == "rows":  # as the environments' numbers
        first, second, more = (((*a, a[0][:, 0]), named) for a, named in (first, second, more))
    elif source == "changes":
        obs = obs + 1
    else:
        monkeypatch.delattr(type(actor), "act_greedily")
    with pytest.raises(MsrlError, match=message):
        GreedyCell(actor, spec, obs, [first, second], more)


def test_arguments_that_are_the_same_for_all_observations_are_kept(trained, monkeypatch):
    """As the agents' numbers, which IPPO's act gets."""
    policy, numbers = load(trained.path).policy, np.arange(3, dtype=np.float32)
    actor, obs = policy._trained[0].actor, policy.some_obs(2)
    several = lambda self, obs, numbers: obs[:, :1] * numbers.sum()  # noqa: E731
    monkeypatch.setattr(type(actor), "act_greedily", several)
    of_two, of_three = (((Tensor(rows), Tensor(numbers)), {}) for rows in (obs, policy.some_obs(3)))
    cell = GreedyCell(actor, policy.spec, obs, [of_two, of_two], of_three)
    expected = np.clip(3.0 * policy.some_obs(5)[:, :1], -2.0, 2.0)
    assert np.allclose(cell(Tensor(policy.some_obs(5))), expected)


class Counts(Actor):
    """Sums what it observes, and acts by the sum."""

    noise_size = 1

    def act(self, obs, *, state, noise):
        seen = (state[0] + obs.reshape((-1, 2)),)
        return (ops.where(seen[0][:, 0] < noise[:, 0], 0, 1), *seen)

    def act_greedily(self, obs, *, state):
        return (state[0] + obs.reshape((-1, 2))).argmax(-1).astype(int32)


def test_a_recurrent_state_is_an_input_and_an_output(tmp_path):
    pytest.importorskip("onnxruntime")
    spec = EnvironmentSpec("own", (2,), Discrete(2), 0, None, False)
    obs, zeros = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
    asked = [((Tensor(obs),), {"state": (Tensor(state),)}) for state in (zeros, obs)]
    cell = GreedyCell(Counts(), spec, obs, asked, asked[0])
    given = [np.zeros((onnx_file.FREE, *shape), np.float32) for shape in [(2,), *cell.state_shapes]]
    path = export._written(cell, given, "onnx", tmp_path)
    onnx_file.finish(path, make_plan(tmp_path), spec, onnx_file.FREE)
    action, state = onnx_file.read(path)(np.float32([[0, 1], [3, 0]]), np.float32([[0, 0], [0, 5]]))
    assert action.tolist() == [1, 1] and state.tolist() == [[0, 1], [3, 5]]


@pytest.mark.slow
def test_a_recurrent_policy_is_exported_with_its_state(tmp_path):
    """The export compares it with the policy in episodes of several lengths; half a minute."""
    config = {"num_envs": 2, "num_steps": 16, "torso": "lstm", "num_minibatches": 1}
    words = {"backend": "inproc", "config": config, **HERE}
    run = train("ppo", env="probe:memory", run_dir=tmp_path / "run", **words)
    onnxruntime = pytest.importorskip("onnxruntime")
    file = onnxruntime.InferenceSession(run.export())
    given = {one.name: one.shape for one in file.get_inputs()}
    assert given == {"obs": ["batch", 2], "state_0": ["batch", 64], "state_1": ["batch", 64]}
    assert [one.name for one in file.get_outputs()] == ["action", "next_state_0", "next_state_1"]
    assert "zeros at the start" in file.get_modelmeta().custom_metadata_map["state"]


TEAMS = {
    "own networks": (
        "mappo",
        {"num_minibatches": 1, "shared": False, "central": False},
        "graph:simple_tag_v3",
    ),
    "shared": ("mappo", {"num_minibatches": 1}, "graph:simple_tag_v3"),
    "vdn": ("vdn", {"learning_starts": 16}, "graph:simple_spread_v3"),
    "qmix": ("vdn", {"learning_starts": 16, "mixing": True}, "graph:simple_spread_v3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TEAMS)
def test_the_agents_of_an_environment_are_exported_together(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    algorithm, config, env = TEAMS[case]
    words = {"config": {"num_envs": 2, "num_steps": 8, **config}, **HERE}
    run = train(algorithm, env=env, run_dir=tmp_path / "run", **words)
    file = onnxruntime.InferenceSession(run.export())
    shape = run.policy.spec.obs_shape
    obs = np.random.default_rng(1).standard_normal((5, *shape)).astype(np.float32)
    (action,) = file.run(["action"], {"obs": obs})
    assert action.shape == (5, shape[0])
    assert np.array_equal(action, run.policy(obs))
    assert len(np.unique(action)) > 1
    teams = [[team.name, team.num_agents] for team in run.policy.spec.teams]
    assert json.loads(file.get_modelmeta().custom_metadata_map["agents"]) == teams


def test_a_file_says_what_its_columns_and_actions_are(tmp_path):
    onnx = pytest.importorskip("onnx")
    goal, room = Layout("box", (2,)), Layout("discrete", (), (3,), (1,))
    layout = Layout("dict", keys=("goal", "at"), parts=(goal, Layout("tuple", parts=(room,))))
    space = Box((2,), (-1.0, -math.inf), (1.0, math.inf))
    spec = EnvironmentSpec("own.py:Own", (5,), space, 0, None, False, layout=layout)
    kind = onnx.TensorProto.FLOAT
    values = [onnx.helper.make_tensor_value_info(name, kind, [4, 5]) for name in "xy"]
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    path = tmp_path / "policy.onnx"
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", values[:1], values[1:])), path
    )
    onnx_file.finish(path, make_plan(tmp_path, environment="own.py:Own"), spec, 0)
    found = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert json.loads(found["obs"]) == [
        {"path": "obs['goal']", "kind": "box", "shape": [2], "columns": [0, 2]},
        {
            "path": "obs['at'][0]", "kind": "discrete", "shape": [], "choices": [3], "starts": [1],
            "columns": [2, 5],
        },
    ]  # fmt: skip
    action = {"kind": "box", "shape": [2], "dtype": "float32"}
    action |= {"low": [-1.0, None], "high": [1.0, None]}
    assert json.loads(found["action"]) == action
    assert found["environment"] == "own.py:Own"
