"""`train(env=...)` takes what makes an environment, if other processes can find it."""

import functools
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from mindspore_rl import load
from mindspore_rl.environments.by_callable import name_of
from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs.job import Job
from tests.commands import python

HERE = Path(__file__).resolve()
SCRIPT = """
import gymnasium

from mindspore_rl import train

class Short(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Box(-9, 9, (2,)), "b": gymnasium.spaces.Discrete(3)}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.5), False, {}

if __name__ == "__main__":
    keys = {"num_envs": 4, "num_steps": 4}
    kind = {"policy": "SingleLearnerFine", "workers": 2, "stop_return": float("nan")}
    run = train("a2c", env=Short, config=keys, total_steps=32, run_dir="run", **kind)
    print("trained", run.env_steps, run.evaluate(2, env=Short).shape)
"""


def make():
    """Makes an environment."""
    return gymnasium.make("CartPole-v1")


class Own(gymnasium.Env):
    """Has methods that are no names."""

    def inside(self):
        """Is found nowhere."""


def test_a_function_and_a_class_become_names():
    assert name_of(make) == f"{HERE}:make"
    assert Job("a2c", env=Own).env == f"{HERE}:Own"
    assert [name_of(other) for other in ("CartPole-v1", None, 3)] == ["CartPole-v1", None, 3]
    assert name_of(CartPoleEnv) == f"{sys.modules[CartPoleEnv.__module__].__file__}:CartPoleEnv"


def test_what_other_processes_cannot_find_is_refused_with_the_way_out(tmp_path, monkeypatch):
    def local():
        return None

    here = sys.modules[__name__]
    notebook = type("Cell", (), {"__module__": "__main__", "__qualname__": "Cell"})
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    script = tmp_path / "script.py"
    for env, text in (
        (lambda: None, "env is a lambda, which other processes cannot find: define it at the top"),
        (local, "env is test_what_.*local, inside another one"),
        (Own.inside, "env is Own.inside, inside another one"),
        (functools.partial(make), r"what it is made with stands behind its name"),
        (make(), "one environment, expected what makes one .*: give its id, env='CartPole-v1', or"),
        (notebook, "env is Cell of __main__, which is no file .*%%writefile makes one"),
    ):
        with pytest.raises(ConfigError, match=text):
            Job("a2c", env=env)
    before = make
    monkeypatch.setattr(here, "make", Own)
    with pytest.raises(ConfigError, match="env is not the make that .*test_by_callable.py has"):
        name_of(before)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "Cell", notebook, raising=False)
    script.write_text("class Cell: ...\ntrain(env=Cell)\n")
    with pytest.raises(
        ConfigError, match="importing that file would train again: put its training"
    ):
        name_of(notebook)
    script.write_text("class Cell: ...\nif __name__ == '__main__':\n    train(env=Cell)\n")
    assert name_of(notebook) == f"{script}:Cell"


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_script_s_class_is_trained_on_ranks_and_kept_with_the_run(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    found = python(script, cwd=tmp_path)
    assert "trained 32 (2,)" in found.stdout, found.stderr
    script.unlink()
    run = load(tmp_path / "run")
    assert str(run.plan.layout) == "Dict(a: Box(2,), b: Discrete(3))"
    assert run.policy({"a": [0.5, 1.0], "b": 2}).shape == ()
