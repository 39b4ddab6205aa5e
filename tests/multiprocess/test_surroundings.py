"""Real runs on machines with unusual surroundings: locales, folders, limits, variables."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mindspore_rl.platform import resources
from mindspore_rl.runtime.coordinator import admission
from tests.multiprocess.runs import TRAIN, ended, start

ROOT = Path(__file__).parents[2]
TINY = ("num_steps=16", "num_envs=4", "update_epochs=1", "--stop-return", "nan")
PRINTS = """
from tests.environments.still import Still

class Tells(Still):
    max_episode_steps = 10

    def reset(self):
        print("grüße \\ud800")
        return super().reset()

    def step(self, action):
        obs, final_obs, reward, never, over = super().step(action)
        return obs, final_obs, reward, ~never, over
"""


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(1500)
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
            command, cwd=folder, env=variables, capture_output=True, timeout=400, check=False
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
    # The same run in a locale that has them.
    variables |= {"LC_ALL": "C.UTF-8"}
    msrl(*TRAIN, "--resume", "again", "--run-dir", "third", "--total-steps", "1920")


LATE = """

class Late(Tells):
    def __init__(self, env_indices, seed):
        super().__init__(env_indices, seed)
        self.late, self.steps = 0 not in env_indices, 0

    def step(self, action):
        self.steps += 1
        if self.late and self.steps == 20:  # in the second iteration, when all is compiled
            time.sleep(40.0)
        return super().step(action)
"""


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_replica_waits_for_another_in_mindspores_collective(tmp_path):
    """MindSpore's own deadline there is 30 s; here the second replica comes 40 s later."""
    (tmp_path / "late.py").write_text(f"import time\n{PRINTS}{LATE}")
    place = ("--policy", "MultipleLearners", "--workers", "2", "--env", "late.py:Late", *TINY)
    job = start(tmp_path, *place, "--cells", "mindspore", "--total-steps", "128")
    code, _, error = ended(job, 600.0)
    assert code == 0, error


ENDLESS = """

class Endless(Tells):
    def __init__(self, env_indices, seed):
        super().__init__(env_indices, seed)
        self.fail("built")

    def reset(self):
        self.fail("reset")
        return super().reset()

    def step(self, action):
        self.fail("step")
        return super().step(action)

    def fail(self, what):
        import os
        if os.environ["WHERE"] == what and os.path.exists(os.environ["ONCE"]):
            raise ValueError("it began" + 50_000_000 * "x" + "and ended")
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("where", "once", "policy", "workers"),
    [
        ("built", ".", "SingleLearnerCoarse", 1),  # by the planner
        pytest.param("built", "plan.json", "SingleLearnerCoarse", 1, marks=pytest.mark.slow),
        pytest.param("reset", "plan.json", "SingleLearnerCoarse", 1, marks=pytest.mark.slow),
        pytest.param("step", "plan.json", "SingleLearnerCoarse", 1, marks=pytest.mark.slow),
        # In one process:
        pytest.param("step", "plan.json", "MultipleLearners", 1, marks=pytest.mark.slow),
    ],
)
def test_an_endless_error_is_told_in_short(tmp_path, where, once, policy, workers):
    (tmp_path / "odd.py").write_text(PRINTS + ENDLESS, encoding="utf-8")
    run = start(
        tmp_path,
        *("--policy", policy, "--workers", str(workers), "--env", f"{tmp_path}/odd.py:Endless"),
        *TINY,
        environment={"WHERE": where, "ONCE": str(tmp_path / "run" / once)},
    )
    code, _, err = ended(run, 100.0)
    assert code in (1, 2), err
    assert len(err) < 100_000
    assert "it beganxxx" in err
    log = tmp_path / "run" / "workers.log"
    assert not log.exists() or log.stat().st_size < 100_000


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", ["MultipleLearners", "SingleLearnerCoarse"])
def test_many_more_workers_than_cores_start_slowly(tmp_path, policy):
    if resources.available_memory() < 33 * admission.STARTING_BYTES:
        pytest.skip("33 ranks need more memory")
    run = start(
        tmp_path, "--policy", policy, "--workers", "32", "--num-envs", "64", "num_steps=16",
        "--total-steps", "4096",
    )  # fmt: skip
    code, _, err = ended(run, 1700.0)
    assert code == 0, err
