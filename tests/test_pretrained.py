"""Policies of the package are played like any run."""

import pytest

from mindspore_rl import load
from mindspore_rl.errors import MsrlError
from mindspore_rl.trained.pretrained import names


def test_a_policy_of_the_package_is_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = load("pretrained:ppo/Acrobot-v1")
    assert run.evaluate(3).mean() > -120
    assert load("pretrained:ppo/Acrobot-v1").path == run.path
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.path.name]
    with pytest.raises(MsrlError, match=f"Acrobt-v1: no such policy; there are {names()[0]}"):
        load("pretrained:ppo/Acrobt-v1")
    assert names() == [f"pretrained:ppo/{env}-v1" for env in ("Acrobot", "CartPole", "Pendulum")]
