"""An exported policy acts like the trained one, without this project."""

import re
import subprocess
import sys

import numpy as np
import pytest
from mindspore import Tensor

from mindspore_rl import load, train
from mindspore_rl.cli import main as cli
from mindspore_rl.errors import MsrlError
from mindspore_rl.trained import export

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
    command = ["export", str(trained.path), "--output", str(file), "--batch", "4"]
    assert cli.main(command) == 0
    told = re.search(r"takes 4 observations at a time.* on (\d+) of them", capsys.readouterr().out)
    assert told and int(told[1]) > export.RANDOM_OBS
    obs = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    code = (
        "import sys, numpy as np, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "name = session.get_inputs()[0].name\n"
        "np.save(sys.argv[3], session.run(None, {name: np.load(sys.argv[2])})[0])\n"
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
    monkeypatch.setattr(export, "_read", lambda *of: lambda obs: real(*of)(obs) + 0.1)
    with pytest.raises(MsrlError, match="gives other actions than the policy for"):
        export.export(trained, "onnx", tmp_path / "wrong.onnx")
    assert not list(tmp_path.iterdir())


def test_a_name_says_its_form(trained, tmp_path, capsys):
    with pytest.raises(MsrlError, match="format is 'tflite', expected one of onnx, mindir"):
        trained.export("tflite")
    command = ["export", str(trained.path), "--output"]
    assert cli.main([*command, str(tmp_path / "policy.v2")]) == 2
    assert "policy.v2 is to be a file of onnx; expected an ending of .onnx" in (
        capsys.readouterr().err
    )
    assert cli.main([*command, str(tmp_path / "none" / "policy.onnx")]) == 1
    assert "choose another --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("remembers", "depends on more than the observation"),
        ("greedily", "has no act_greedily"),
    ],
)
def test_policies_that_are_no_function_of_the_observation(trained, source, message, monkeypatch):
    policy = load(trained.path).policy
    if source == "remembers":
        monkeypatch.setattr(policy, "remembers", True)
    else:
        monkeypatch.delattr(type(policy._trained[0].actor), "act_greedily")
    run = load(trained.path)
    vars(run)["policy"] = policy
    with pytest.raises(MsrlError, match=message):
        export.export(run)


def test_arguments_that_are_the_same_for_all_observations_are_kept(trained, monkeypatch):
    """As the agents' numbers, which IPPO's act gets; a state would differ."""
    policy, numbers = load(trained.path).policy, np.arange(3, dtype=np.float32)
    given = [lambda obs: numbers, lambda obs: obs[:, 0]]
    for other in given:
        asked = lambda obs, other=other: [((Tensor(obs), Tensor(other(obs))), {})]  # noqa: E731
        monkeypatch.setattr(policy, "_asked", asked)
        monkeypatch.setattr(
            type(policy._trained[0].actor),
            "act_greedily",
            lambda self, obs, numbers: obs[:, :1] * numbers.sum(),
        )
        if other is given[0]:
            assert policy.greedy_cell()(Tensor(policy.some_obs(5))).shape == (5, 1)
        else:
            with pytest.raises(MsrlError, match="beside it, what is the same for all"):
                policy.greedy_cell()
