"""Values of a task are found by the environment's id and told; what the user gives wins."""

import json

import gymnasium
import pytest

from mindspore_rl import programs
from mindspore_rl.config import resolve
from mindspore_rl.environments.gym import atari
from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.job import Job, request
from mindspore_rl.jobs.run_directory import write_job
from mindspore_rl.platform.yaml_files import read_yaml

FILES = sorted((registry.folder("algorithms") / "configs" / registry.TUNED).glob("*.yaml"))
TASKS = [(file.stem, env) for file in FILES for env in read_yaml(file)]


@pytest.mark.parametrize(("algorithm", "env"), TASKS)
def test_every_one_is_a_configuration_of_a_known_task(algorithm, env):
    others = (atari.PREFIX, "minatar.gym:")  # of packages that tests do not have
    known = env == "LunarLander-v2" or env.startswith(others)  # the former of gym
    assert known or env in gymnasium.registry
    cls = programs.trainer_class(registry.find_algorithm(algorithm)).Config
    found = resolve(cls, registry.tuned(algorithm, env), {"env": env}, [])
    assert found != resolve(cls, None, {"env": env}, [])


def test_they_are_found_by_name_told_and_recorded(tmp_path, capsys):
    found = request(Job("ppo", env="Acrobot-v1", total_steps=100, assignments=("gamma=0.5",)))
    said = capsys.readouterr().err
    assert said.startswith("msrl: tuned for Acrobot-v1: ")
    assert said.endswith("configs/tuned/ppo.yaml, taken; --config none does without\n")
    config = found.config
    assert (config.num_envs, config.num_steps, config.normalise_obs) == (16, 256, True)
    assert (config.gamma, config.total_steps) == (0.5, 100)  # what is given wins
    write_job(tmp_path, found)
    assert json.loads((tmp_path / "job.json").read_text())["config_file"] == str(found.config_file)


@pytest.mark.parametrize(
    "more",
    [
        {"config": "none"},
        {"config": {}},
        {"env": "Acrobot-v1,max_episode_steps=50"},
        {"env": "probe:choice"},
        {"algorithm": "a2c"},
        {"algorithm": str(registry.find_algorithm("ppo"))},
    ],
)
def test_without_them_the_defaults_are_taken_silently(more, capsys):
    found = request(Job(**{"algorithm": "ppo", "env": "Acrobot-v1"} | more))
    defaults = type(found.config)()
    assert found.config.num_envs == defaults.num_envs
    assert found.config_file == ""
    assert "tuned" not in capsys.readouterr().err


def test_the_graph_form_is_the_same_task_and_misfits_are_told():
    assert request(Job("ppo", env="graph:Pendulum-v1")).config.gamma == 0.9
    with pytest.raises(ConfigError, match="num_steps=100; .*tuned for this task: --config none"):
        request(Job("ppo", env="Acrobot-v1", assignments=("num_steps=100",)))


def test_of_a_key_and_its_flag_it_is_told_which_is_taken(capsys):
    found = request(Job("a2c", seed="1", total_steps="100", assignments=("seed=2",)))
    assert (found.config.seed, found.config.total_steps) == (2, 100)
    assert capsys.readouterr().err == "msrl: seed=2 is taken, and not --seed 1\n"
