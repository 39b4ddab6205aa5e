"""Real runs where the machine is unlike the one they were written on."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from runs import TRAIN

ROOT = Path(__file__).parents[2]
TINY = ("num_steps=16", "num_envs=4", "update_epochs=1", "--stop-return", "nan")
PRINTS = """
import numpy as np
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete

class Tells:
    def __init__(self, env_indices, seed):
        self.size = len(env_indices)
        self.spec = EnvironmentSpec("tells", (4,), Discrete(2), 10, None, False)

    def reset(self):
        print("grüße \\ud800")
        return np.zeros((self.size, 4), np.float32)

    def step(self, action):
        obs = np.zeros((self.size, 4), np.float32)
        no = np.zeros(self.size, bool)
        return obs, obs.copy(), np.ones(self.size, np.float32), no, no

    def get_state(self):
        return None

    def close(self):
        pass
"""


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["SingleLearnerCoarse", "GPUOnly"])  # two ranks, and one
def test_a_path_of_any_letters_in_a_locale_that_knows_none(tmp_path, policy):
    folder = tmp_path / "später 日本"
    (folder / "tmp").mkdir(parents=True)
    shutil.copy(ROOT / "algorithms" / "ppo.py", folder)
    (folder / "umgebung_ä.py").write_text(PRINTS, encoding="utf-8")
    environment = str(folder / "umgebung_ä.py:Tells")
    if policy == "GPUOnly":
        environment = "CartPole-v1"
    variables = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }

    def msrl(*command: str) -> str:
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, timeout=200, check=False
        )
        error = done.stderr.decode()
        assert done.returncode == 0, error
        return done.stdout.decode() + error

    place = (str(folder / "ppo.py"), "--policy", policy, "--env", environment, *TINY)
    said = msrl(*TRAIN, *place, "--run-dir", str(folder / "run"), "--total-steps", "640")
    assert f"run directory: {folder / 'run'}" in said
    again = ("--resume", str(folder / "run"), "--run-dir", "again", "--total-steps", "1280")
    msrl(*TRAIN, *again)
    assert "over 2 episodes" in msrl(*TRAIN[:3], "eval", "again", "--episodes", "2")
    # The same run where the locale knows them.
    variables |= {"LC_ALL": "C.UTF-8"}
    msrl(*TRAIN, "--resume", "again", "--run-dir", "third", "--total-steps", "1920")
