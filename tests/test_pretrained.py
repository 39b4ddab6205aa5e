"""Policies of the package are played like any run."""

import json

import numpy as np
import pytest

from mindspore_rl import load
from mindspore_rl.board.reading import Board
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import registry
from mindspore_rl.trained.pretrained import ABOUT, names, save


def test_a_policy_of_the_package_is_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = load("pretrained:ppo/Acrobot-v1")
    assert run.evaluate(3).mean() > -120
    assert load("pretrained:ppo/Acrobot-v1").path == run.path
    assert [about["state"] for about in Board(tmp_path / "runs").summaries()] == ["ended"]
    save(run.path, tmp_path / "again" / "own.npz")
    file = registry.folder("algorithms") / "pretrained" / "ppo" / "Acrobot-v1.npz"
    with np.load(file) as wanted, np.load(tmp_path / "again" / "own.npz") as found:
        assert wanted.files == found.files
        assert json.loads(str(found[ABOUT])) == json.loads(str(wanted[ABOUT]))
        for name in set(wanted.files) - {ABOUT}:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.path.name]
    with pytest.raises(MsrlError, match=f"Acrobt-v1: no such policy; there are {names()[0]}"):
        load("pretrained:ppo/Acrobt-v1")
    assert names() == [f"pretrained:ppo/{env}-v1" for env in ("Acrobot", "CartPole", "Pendulum")]
