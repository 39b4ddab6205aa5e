"""`msrl list`, and the names of algorithms in the documentation."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from mindspore_rl.cli.main import main
from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs import registry
from mindspore_rl.jobs.suitable import suggested

ROOT = Path(__file__).parent.parent
NO_TRAINER = "open('trap', 'w').close()\n"
MINE = '''"""Mine, a small one (Somebody 1999). More about it."""
from algorithms.a2c import A2CTrainer, Config
class MyTrainer(A2CTrainer):
    """As A2C."""
'''


@pytest.fixture(scope="module", name="rows")
def listed() -> dict[str, dict]:
    """The built-in algorithms and configurations, by name; all names differ but `impala`."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert main(["list", "--json"]) == 0
    return {row["name"]: row for row in reversed(json.loads(told.getvalue()))}


def plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def test_each_algorithm_tells_what_it_needs(rows):
    assert set(registry.algorithms()) <= set(rows)
    found = {name: (row["needs"], row["options"]) for name, row in rows.items() if "needs" in row}
    assert found["dqn"] == (["discrete"], {"goals": "her=STEPS"})
    assert found["sac"] == (["continuous"], {"goals": "her=STEPS"})
    assert found["bc"] == (["discrete", "continuous", "data"], {})
    assert found["td3"] == (["continuous"], {"goals": "her=STEPS", "data": "dataset=FILE"})
    assert found["r2d2"][0] == ["discrete", "recurrent"]
    assert found["mappo"][0] == ["discrete", "agents"]
    options = {"images": "torso=cnn", "recurrent": "torso=gru"}
    assert found["ppo"] == (["discrete", "continuous"], options)
    assert rows["ppo"]["action_masks"] and not rows["sac"]["action_masks"]
    assert rows["a3c"]["algorithm"] == "a2c"
    assert rows["dqn"]["about"] == "Deep Q-learning from a replay"
    assert all(row["about"] for row in rows.values())


FREE = """
import gymnasium
from gymnasium.spaces import Box

class Free(gymnasium.Env):
    observation_space, action_space = Box(-1, 1, (2,)), Box(-float("inf"), 1, (2,))
"""


def test_an_algorithm_that_does_not_take_the_actions_names_others(tmp_path):
    more = r"For continuous ones: .*ppo, sac, .*; see msrl list"
    dqn = registry.find_algorithm("dqn")
    with pytest.raises(ConfigError, match=more), suggested(dqn, "Pendulum-v1"):
        raise ConfigError("DQN takes discrete actions")
    (tmp_path / "free.py").write_text(FREE)
    sac, free = registry.find_algorithm("sac"), f"{tmp_path}/free.py:Free"
    with pytest.raises(ConfigError, match="For unbounded ones: .*ppo, "), suggested(sac, free):
        raise ConfigError("SAC takes bounded continuous actions")
    with pytest.raises(ConfigError, match="^another reason$"), suggested(dqn, "CartPole-v1"):
        raise ConfigError("another reason")


def test_files_and_folders_of_a_user(tmp_path, capsys, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "script.py").write_text(NO_TRAINER)
    assert main(["list", str(tmp_path)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"{tmp_path / 'mine.py'}  discrete, (images), action masks  Mine, a small one"
    assert rest == ["", "in brackets: images with torso=cnn"]
    assert not (tmp_path / "trap").exists()
    assert "expected one subclass of mindspore_rl.api.Trainer" in refused("list", "script.py")
    assert "unknown algorithm 'absent'" in refused("list", "absent")


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("docs/compared.md", r"\n\| Algorithms \| ([^|;]*)"),
        ("README.md", r"\nAlgorithms \(\[list.*?\): (.*?)\.\n"),
    ],
)
def test_no_algorithm_is_named_that_is_not_there(file, part, rows):
    docstrings = [
        registry.find_algorithm(name).read_text().split('"""')[1] for name in registry.algorithms()
    ]
    known = plain(" ".join([*rows, *(row["about"] for row in rows.values()), *docstrings]))
    names = re.sub(r"\s+", " ", re.search(part, (ROOT / file).read_text(), re.DOTALL)[1])
    names = re.sub("from data sets|for several agents|the|for discrete actions", " ", names)
    for name in re.split(r"[,;/]| and ", names):
        assert plain(name) in known, name


def test_each_file_is_in_the_table_of_algorithms():
    table = (ROOT / "algorithms" / "README.md").read_text()
    for name in registry.algorithms():
        assert f"`{name}.py`" in table, name
