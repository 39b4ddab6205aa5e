"""`msrl envs list` and `msrl envs check`."""

import re
import sys

import pytest

from mindspore_rl.cli import envs
from mindspore_rl.cli import main as cli
from mindspore_rl.environments import registry
from mindspore_rl.errors import install

KEEPS = """
import gymnasium
import numpy as np

class Keeps(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self):
        Keeps.made += 1

    def reset(self, *, seed=None, options=None):
        return np.float32([0, self.made]), {}

    def step(self, action):
        return np.float32([0, self.made]), 0.0, False, False, {}
"""


@pytest.mark.slow
def test_list_has_what_is_accepted_and_apart_what_an_extra_brings(monkeypatch, capsys):
    for module in [key for key in sys.modules if ".envs.box2d" in key]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    assert cli.main(["envs", "list"]) == 0
    out, err = capsys.readouterr()
    accepted = out.split()
    assert {"CartPole-v1", "gym:CartPole-v1", "Taxi-v3", "probe:bandit"} < set(accepted)
    assert len(set(accepted)) == len(accepted)
    assert all(registry.spec(name).name == name for name in accepted[::20])
    assert not {"HalfCheetah-v3", "gym:HalfCheetah-v3"} & {*accepted, *err.split()}
    assert not any("LunarLander" in name for name in accepted)
    brought = err.split(install("box2d"))[1].split("\n\n")[0].split()
    assert {"LunarLander-v2", "LunarLander-v3", "CarRacing-v3"} < set(brought)


def test_what_stands_behind_a_name_has_a_key(refused):
    assert "as KEY=VALUE, for example CartPole-v1,render_mode=rgb_array" in refused(
        "envs", "check", "CartPole-v1,human"
    )


def test_a_part_of_the_names_is_listed_in_any_case(capsys):
    assert cli.main(["envs", "list", "CARTPOLE-V1"]) == 0
    found = capsys.readouterr().out.split()
    assert {"CartPole-v1", "graph:CartPole-v1"} < set(found)
    assert all(name.endswith("CartPole-v1") for name in found)


def test_a_name_that_nothing_has(refused):
    assert (
        "'own.py' is a file; name the environment in it, too, as in 'own.py:ClassName'"
        in refused("envs", "check", "own.py")
    )
    assert "no environment has 'qqq' in its name" in refused("envs", "list", "qqq")
    assert "some are CartPole-v0, CartPole-v1, " in refused("envs", "check", "qqq")


def test_check_says_whose_it_is(capsys):
    assert cli.main(["envs", "check", "gymnasium:FrozenLake-v1"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("gymnasium:FrozenLake-v1: of gymnasium ")
    assert first.endswith("flattened to 16 numbers: one-hot of 16")
    assert last == "gymnasium:FrozenLake-v1: conforms"


def test_check_says_a_difference_in_one_line_and_counts_findings(tmp_path, capsys):
    file = tmp_path / "keeps.py"
    file.write_text(KEEPS)
    name = f"{file}:Keeps"
    assert cli.main(["envs", "check", name]) == 1
    *findings, last = capsys.readouterr().out.splitlines()
    assert last == f"{name}: {len(findings)} findings"
    assert re.fullmatch(
        r"after a second reset\(\) the first obs\[0, 1\] is [\d.]+, expected [\d.]+", findings[0]
    )
    (tmp_path / "one.py").write_text("def make():\n    return 3\n")
    assert cli.main(["envs", "check", f"{tmp_path}/one.py:make"]) == 1
    assert capsys.readouterr().out.endswith("one.py:make: 1 finding\n")


def test_a_slow_check_tells_how_far_it_is(monkeypatch, capsys):
    assert cli.main(["envs", "check", "probe:delay"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(envs, "TOLD_EVERY_S", 0.0)
    assert cli.main(["envs", "check", "Pendulum-v1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Pendulum-v1: step 1 of at most 1,155"
    assert lines[-1] == "Pendulum-v1: step 1,155 of at most 1,155"
