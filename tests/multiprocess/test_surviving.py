"""Failures of real workers: the first failure wins, is reported, and no process remains."""

import contextlib
import re
import signal
import time

import psutil
import pytest
from runs import descendants, ended, start, wait_for_training, workers

from mindspore_rl.runtime.checkpoint import list_checkpoints, load


@pytest.mark.multiprocess
@pytest.mark.kill
def test_killed_worker_ends_the_job(tmp_path, cells):
    run = start(tmp_path, "--cells", cells, "--policy", "MultipleLearners", "--workers", "2")
    wait_for_training(run, tmp_path)
    workers(run)[0].send_signal(signal.SIGKILL)
    code, _, err = ended(run, 6.0)
    assert code == 1
    assert "actor+learner" in err
    assert "killed by signal 9" in err
    assert "Last good checkpoint" in err


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.kill
def test_killed_scheduler_ends_the_job(tmp_path):
    place = ("--policy", "MultipleLearners", "--workers", "2", "--cells", "mindspore")
    run = start(tmp_path, *place)
    wait_for_training(run, tmp_path)
    scheduler = descendants(run, "communication.init()")
    assert len(scheduler) == 1
    scheduler[0].send_signal(signal.SIGKILL)
    code, _, err = ended(run, 6.0)
    assert code == 1
    assert "scheduler" in err


@pytest.mark.multiprocess
@pytest.mark.kill
def test_killed_coordinator_leaves_nothing(tmp_path, cells):
    run = start(tmp_path, "--cells", cells, "--policy", "SingleLearnerCoarse", "--workers", "1")
    wait_for_training(run, tmp_path)
    below = psutil.Process(run.pid).children(recursive=True)
    assert len(below) >= 3
    run.send_signal(signal.SIGKILL)
    run.communicate()
    _, left = psutil.wait_procs(below, timeout=5.0)
    assert not left, [p.cmdline() for p in left]


@pytest.mark.multiprocess
@pytest.mark.kill
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_interrupted_run_stops_with_a_checkpoint(tmp_path, cells, number):
    run = start(tmp_path, "--cells", cells, "--policy", "SingleLearnerCoarse", "--workers", "1")
    wait_for_training(run, tmp_path)
    run.send_signal(number)
    code, out, _ = ended(run, 8.0)
    assert code == 130
    assert "interrupted" in out
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert load(newest)[1]["iteration"] > 0


@pytest.mark.multiprocess
@pytest.mark.kill
def test_interrupted_single_process(tmp_path, cells):
    run = start(tmp_path, "--cells", cells, "--policy", "MultipleLearners")
    wait_for_training(run, tmp_path)
    run.send_signal(signal.SIGINT)
    code, out, _ = ended(run, 8.0)
    assert code == 130
    assert "interrupted" in out


@pytest.mark.multiprocess
@pytest.mark.kill
def test_nan_stops_and_keeps_the_last_good_checkpoint(tmp_path, cells):
    run = start(tmp_path, "--cells", cells, "learning_rate=1e30", "--policy", "SingleLearnerCoarse")
    code, _, err = ended(run, 60.0)
    assert code == 2, err
    assert "iteration 0" in err
    assert "nan" in err
    assert "Last good checkpoint" in err
    assert load(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])[1]["iteration"] == 0


@pytest.mark.multiprocess
@pytest.mark.kill
@pytest.mark.slow
def test_restarted_run_ends_bit_equal_to_an_undisturbed_one(tmp_path, cells):
    options = (
        "--cells",
        cells,
        "--policy",
        "GPUOnly",
        "--workers",
        "2",
        "--env",
        "graph:CartPole-v1",
        "--checkpoint-every",
        "0.3",
        "num_steps=16",
        "--max-restarts",
        "3",
    )
    iterations = {"native": 3000, "mindspore": 150}[cells]
    final = []
    for name, kills in (("undisturbed", 0), ("killed", 2)):
        folder = tmp_path / name
        folder.mkdir()
        run = start(folder, *options, "--total-steps", str(16 * 8 * iterations))
        for _ in range(kills):
            before = (
                len((folder / "run" / "metrics.jsonl").read_text())
                if (folder / "run" / "metrics.jsonl").exists()
                else 0
            )
            for _ in range(600):
                log = folder / "run" / "metrics.jsonl"
                if log.exists() and log.stat().st_size > before:
                    break
                time.sleep(0.1)
            victim = [
                p
                for p in descendants(run, "mindspore_rl.runtime.rank.worker")
                if p.name().startswith("python")
            ]
            if victim:
                victim[-1].send_signal(signal.SIGKILL)
        code, _, err = ended(run, 120.0)
        assert code == 0, err
        assert err.count("restarting from") == kills
        final.append(load(list_checkpoints(folder / "run" / "checkpoints")[-1]))
    (arrays, meta), (others, other_meta) = final
    assert meta["iteration"] == other_meta["iteration"] == iterations
    assert arrays.keys() == others.keys()
    for name in arrays:
        assert arrays[name].tobytes() == others[name].tobytes(), name


RAISING = '''
import numpy as np
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete
import time

class Broken:
    """Raises or hangs after some steps in environment 5."""
    mode = "MODE"

    def __init__(self, env_indices, seed):
        self.indices = env_indices
        self.spec = EnvironmentSpec("broken", (3,), Discrete(2), 100, None, False)
        self.count = 0

    def reset(self):
        return np.zeros((len(self.indices), 3), np.float32)

    def step(self, action):
        self.count += 1
        if self.count == 40 and 5 in self.indices:
            if self.mode == "hang":
                time.sleep(1000)
            raise ValueError("the wheel fell off")
        n = len(self.indices)
        obs = np.full((n, 3), self.count % 7, np.float32)
        return obs, obs, np.ones(n, np.float32), np.zeros(n, bool), np.zeros(n, bool)

    def get_state(self):
        return None

    def set_state(self, state):
        raise AssertionError

    def close(self):
        pass
'''


GYM = """
import os, time
import gym
import numpy as np

class Broken(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    stepped = 0
    count = 0

    def reset(self, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        if self.count == 0:  # some are made for a look at their spaces, and never stepped
            self.number, Broken.stepped = Broken.stepped, Broken.stepped + 1
        self.count += 1
        if self.count == 100 and self.number == 1:
            time.sleep(1000) if "MODE" == "hang" else os.abort()
        return np.zeros(3, np.float32), 1.0, False, False, {}

gym.register("Broken-v0", entry_point=Broken)
"""


@pytest.mark.multiprocess
@pytest.mark.kill
@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("raise", "after 39 steps: step raised ValueError: the wheel fell off"),
        ("hang", "the environment: no progress"),
    ],
)
def test_batch_that_raises_or_hangs(tmp_path, mode, said):
    file = tmp_path / "broken.py"
    file.write_text(RAISING.replace("MODE", mode))
    place = ("--policy", "SingleLearnerCoarse", "--workers", "2", "--env", f"{file}:Broken")
    small = ("num_steps=16", "update_epochs=1", "--timeout", "5")
    code, _, err = ended(start(tmp_path, *place, *small), 200.0)
    assert code == 1
    assert "rank 1 (actor[1])" in err
    assert said in err
    assert "environments 4..7 are one batch; the last action was [" in err
    assert ("Traceback" in err and "broken.py" in err) == (mode == "raise")


@pytest.mark.multiprocess
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hang", "abort"])
@pytest.mark.parametrize("name", ["broken_gym:Broken-v0", "broken_gym.py:Broken"])
def test_gym_environment_that_hangs_or_crashes(tmp_path, name, mode):
    (tmp_path / "broken_gym.py").write_text(GYM.replace("MODE", mode))
    place = ("--policy", "SingleLearnerCoarse", "--env", name, "num_envs=4")
    code, _, err = ended(start(tmp_path, *place, "num_steps=16", "--timeout", "5"), 200.0)
    assert code == 1
    assert "rank 0 (actor[0]), iteration 6, the environment: " in err
    assert re.search(r"it was environment 1; the last action was [01]$", err, re.M)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_two_jobs_at_once_share_no_core(tmp_path):
    place = ("--policy", "SingleLearnerCoarse", "num_steps=16", "update_epochs=1")
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        runs.append(start(tmp_path / name, *place, "--total-steps", str(16 * 8 * 20)))
    pinned: list[set[int]] = [set(), set()]
    while any(run.poll() is None for run in runs):
        for run, cores in zip(runs, pinned, strict=True):
            with contextlib.suppress(psutil.Error):  # it has ended
                for worker in workers(run):
                    allowed = set(worker.cpu_affinity())
                    cores.update(allowed if len(allowed) == 1 else ())
        time.sleep(0.2)
    for run in runs:
        code, out, err = ended(run, 10.0)
        assert code == 0, err
        assert "steps: 2560 environment steps" in out
    assert not pinned[0] & pinned[1]  # a job that finds too few free cores pins nothing
