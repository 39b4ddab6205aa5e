"""Training from Python: `from mindspore_rl import train, load`."""

import json
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

import mindspore_rl
from mindspore_rl import Run, load, train
from mindspore_rl.cli import main as cli
from mindspore_rl.errors import MsrlError
from mindspore_rl.runtime.checkpoint import list_checkpoints
from tests.commands import python

NEVER = float("nan")
SMALL = {"num_envs": 2, "num_steps": 8}
HERE = {"config": SMALL, "stop_return": NEVER, "backend": "inproc", "quiet": True}


@pytest.mark.parametrize(
    "code",
    [
        'import mindspore_rl; assert "mindspore_rl.trained.run" not in sys.modules\n'
        "from mindspore_rl import Run, load, train",
        "import mindspore_rl.cli",
        "import mindspore_rl.runtime.coordinator.metrics",
        "import mindspore_rl.runtime.rank.worker",
        "from mindspore_rl.environments import registry\n"
        "for name in ('CartPole-v1', 'CartPole-v0', 'probe:bandit', 'graph:CartPole-v1'):\n"
        "    registry.spec(name)\n"
        "registry.make_vector('CartPole-v1', range(2), 0)",
    ],
)
def test_mindspore_is_not_imported_by(code):
    """Its import takes a second, and a rank may need no tensors."""
    done = python("-c", f"import sys\nsys.modules['mindspore'] = None\n{code}", timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_name_that_the_package_does_not_have():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = mindspore_rl.trian


def test_trains_on_workers_and_shows_every_iteration(tmp_path, capfd):
    seen = []
    words = {"policy": "MultipleLearners", "workers": 2, "total_steps": 256, "quiet": False}
    words |= {"config": {"num_envs": 4, "num_steps": 16}, "run_dir": tmp_path / "run"}
    run = train("a2c", env="CartPole-v1", **{**HERE, **words}, on_iteration=seen.append)
    assert (run.stopped, run.env_steps) == ("steps", 256)
    assert seen == run.metrics
    assert [line["iteration"] for line in seen] == [1, 2, 3, 4]
    assert run.plan.workers == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "env_steps 256/256" in err
    again = load(run.path)
    assert isinstance(again, Run)
    assert again.evaluate(episodes=3).shape == (3,)
    figure = again.plot("loss", output=tmp_path / "loss.svg")
    assert figure.axes[0].get_ylabel() == "loss"
    assert (tmp_path / "loss.svg").stat().st_size > 1000


def test_one_rank_ends_after_the_iteration_that_reaches_the_threshold(tmp_path):
    """A command would come up to 50 ms later, and never after the same iteration."""
    words = {"policy": "MultipleLearners", "stop_return": -1.0, "run_dir": tmp_path / "run"}
    run = train("a2c", env="probe:bandit", **HERE | words)
    assert (run.stopped, run.env_steps) == ("threshold", 112)  # 16 episodes an iteration, of 100


def test_gym_is_imported_only_where_it_is_asked_for(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "gym", None)  # importing it fails
    command = ["train", "a2c", "num_envs=2", "num_steps=8", "--env", "CartPole-v1", "--quiet"]
    more = ["--backend", "inproc", "--total-steps", "16", "--run-dir", str(tmp_path / "r")]
    assert cli.main(command + more) == 0
    run = load(tmp_path / "r")
    assert len(run.evaluate(1)) == 1
    assert run.make_env().unwrapped.spec.id == "CartPole-v1"
    assert cli.main(["envs", "check", "CartPole-v1"]) == 0
    assert "unmaintained" not in "".join(capfd.readouterr())
    folders = [Path(__file__).parents[1] / name for name in ("mindspore_rl", "algorithms", "docs")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    assert len(files) > 200
    imports = re.compile(r"^\s*(import|from) gym\b", re.MULTILINE)
    assert [file for file in files if imports.search(file.read_text())] == []


def test_a_function_ends_the_run_and_reaches_nothing_in_it(tmp_path):
    threads = []

    def enough(metrics):
        threads.append(threading.current_thread())
        metrics["values"].clear()
        metrics["env_steps"] = 0
        return metrics["iteration"] < 3

    run = train("a2c", **HERE, run_dir=tmp_path / "run", on_iteration=enough)
    assert (run.stopped, len(threads)) == ("on_iteration", 3)
    lines = run.metrics
    assert all(line["env_steps"] == 16 * line["iteration"] and line["values"] for line in lines)
    assert f"{lines[-1]['iteration']:08d}" in list_checkpoints(run.path / "checkpoints")[-1].name


def test_an_error_in_the_function_is_raised_after_a_checkpoint(tmp_path):
    def wrong(metrics):
        raise KeyError(metrics["iteration"])

    with pytest.raises(KeyError, match="1"):
        train("a2c", **HERE, run_dir=tmp_path / "run", on_iteration=wrong)
    done = load(tmp_path / "run").metrics[-1]["iteration"]
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert newest.name == f"checkpoint-{done:08d}.npz"


def test_ctrl_c_ends_the_run_with_a_checkpoint(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def interrupt(metrics):
        if metrics["iteration"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    run = train("a2c", **HERE, run_dir=tmp_path / "run", on_iteration=interrupt)
    assert run.stopped == "interrupted"
    done = run.metrics[-1]["iteration"]
    assert list_checkpoints(run.path / "checkpoints")[-1].name == f"checkpoint-{done:08d}.npz"
    assert signal.getsignal(signal.SIGINT) is before
    assert len(run.evaluate(2)) == 2


ODD = """
import gymnasium
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

made = []

class Odd(gymnasium.Env):
    observation_space = Dict(place=Box(-1, 1, (2,)), kind=Discrete(3))
    action_space = MultiDiscrete([2, 3], start=[4, 0])

    def __init__(self):
        made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, False, True, {}
"""


def test_a_policy_is_played_by_hand_in_an_environment_of_other_spaces(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    name = f"{tmp_path}/odd.py:Odd"
    run = train("a2c", env=name, **HERE, total_steps=16, run_dir=tmp_path / "run")
    env = run.make_env()
    obs, _ = env.reset(seed=1)
    assert obs.shape == (5,)
    assert env.step(run.policy(obs))[3]
    made = sys.modules[type(env.unwrapped).__module__].made
    before = len(made)
    train(
        "a2c", env=name, **HERE, policy="MultipleLearners", total_steps=16, run_dir=tmp_path / "b"
    )
    assert len(made) - before == 1 + SMALL["num_envs"]  # analysed before; built for its spec once


def test_generators_of_the_process_are_seeded(tmp_path):
    """Many environments draw from them."""
    drawn = ODD.replace("1.0, False", "random.random() + np.random.random(), False")
    (tmp_path / "odd.py").write_text(f"import random\nimport numpy as np\n{drawn}")
    words = {"policy": "MultipleLearners", "total_steps": 64, **HERE}
    runs = [
        train("a2c", env=f"{tmp_path}/odd.py:Odd", **words, run_dir=tmp_path / name)
        for name in ("first", "second")
    ]
    first, second = ([line["mean_return"] for line in run.metrics] for run in runs)
    assert first == second and len(set(first)) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"algorithm": "pppo"}, "unknown algorithm 'pppo': did you mean ppo"),
        ({"config": {"num_step": 8}}, "config: unknown key num_step; did you mean num_steps?"),
        ({"config": {"gamma": 2}}, "config: gamma is 2.0, expected 0 to 1"),
        ({"num_envs": 0}, "config: num_envs is 0, expected at least 1"),
        ({"workers": 0}, "config: workers is 0, expected at least 1"),
        ({"workers": "two"}, "config: workers is 'two' (str), expected int or none"),
        ({"policy": "GPUOnli"}, "unknown policy 'GPUOnli': did you mean GPUOnly"),
        ({"device": "tpu"}, "device is 'tpu', expected one of auto, cpu, gpu"),
        ({"schedule": {"order": "arival"}}, "order is 'arival'"),
        ({"timeout": 0}, "config: timeout is 0.0, expected more than 0"),
        ({"stop_return": "high"}, "stop_return is 'high', expected a number, or nan: never"),
        ({"resume": "runs/none"}, "runs/none is not a run directory; expected one that"),
        ({"resume": "tests"}, "tests is not a run directory; expected one that"),
        ({"on_iteration": 5}, "on_iteration is 5, expected a function of an iteration's metrics"),
        ({"config": {"policy": "Central"}}, "config: policy is no key of a configuration; give it"),
        ({"config": {"start_timeout": 3}}, "give it as --start-timeout, from Python as start_time"),
    ],
)
def test_mistakes_are_told_in_a_line(words, message):
    with pytest.raises(MsrlError) as raised:
        train(**{"algorithm": "ppo", **words})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_key_of_the_algorithm_among_the_jobs_is_told():
    told = r"train: gamma is a key of the algorithm: config=\{'gamma': 0.9\}"
    for words in ({"algorithm": "ppo"}, {"algorithm": "dqn"}):
        with pytest.raises(TypeError, match=told):
            train(**words, gamma=0.9)
    with pytest.raises(TypeError, match="train: unknown key gama; "):
        train("ppo", gama=0.9)


def test_what_is_no_run_is_told(tmp_path):
    with pytest.raises(MsrlError, match="is not a run directory; expected one that `msrl train`"):
        load(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({}))
    tmp_path.chmod(0o777)
    with pytest.raises(MsrlError, match="can be written by others"):
        load(tmp_path)


def test_training_belongs_in_the_main_thread(tmp_path):
    told = []

    def elsewhere():
        try:
            train("a2c", **HERE, run_dir=tmp_path / "run")
        except MsrlError as error:
            told.append(str(error))

    thread = threading.Thread(target=elsewhere, name="other")
    thread.start()
    thread.join()
    assert told == [
        "a job is started from the thread other, expected the main one, which alone hears of "
        "Ctrl-C; train there"
    ]
    assert not (tmp_path / "run").exists()
