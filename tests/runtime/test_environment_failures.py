"""Environments with untrainable results: the error names the environment at fault."""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest

from mindspore_rl.errors import EnvironmentFailure, NumericsError
from mindspore_rl.rl import random
from mindspore_rl.runtime.rank import worker
from tests.chaos import odd
from tests.chaos.cases import SHORT
from tests.compiler.inproc import PROGRAMS, request
from tests.multiprocess.runs import ended, start
from tests.runtime.test_worker import run
from tests.tiers import quick

SOURCE = '''
from mindspore import nn, ops
from mindspore_rl.environments.environment import EnvironmentSpec
from mindspore_rl.environments.spaces import Discrete

class Broken(nn.Cell):
    """Where the first number drawn is above LIMIT, BAD is added to WHAT in the sixth step."""

    spec = EnvironmentSpec("broken", (1,), Discrete(2), 100, None, True)
    noise_size, state_size = 1, 2

    def __init__(self):
        super().__init__(auto_prefix=False)

    def reset(self, noise):
        state = ops.concat((noise, ops.zeros_like(noise)), 1)
        return state, state[:, 1:2]

    def step(self, state, action, noise):
        start, steps = state[:, 0:1], state[:, 1:2] + 1.0
        spoilt = ops.logical_and(start > LIMIT, steps == 6.0)
        spoil = ops.where(spoilt, BAD * ops.ones_like(start), ops.zeros_like(start))
        reward, obs = ops.ones_like(start), steps
        WHAT = WHAT + spoil
        ended = (start < 0.0)[:, 0]
        return ops.concat((start, steps), 1), obs, obs, reward[:, 0], ended, ended
'''


@pytest.mark.parametrize(
    ("policy", "what", "bad"),
    quick(
        [
            (policy, *spoilt)
            for policy in ("GPUOnly", "SingleLearnerCoarse", "SingleLearnerFine")
            for spoilt in (("reward", "nan"), ("obs", "nan"), ("reward", "1e+30"), ("obs", "3e+38"))
        ],
        0,
        11,
    ),
)
def test_environment_in_the_graph_is_named(tmp_path, policy, what, bad):
    job = request(PROGRAMS / "two_phase.py", policy, 1, num_steps=8)
    indices = np.arange(job.config.num_envs)
    purpose = random.stream("env_reset_noise#1")
    drawn = random.uniform(job.config.seed, purpose, [0], indices, 1).reshape(-1)
    victim, limit = int(drawn.argmax()), float(np.sort(drawn)[-2:].mean())
    file = tmp_path / "broken.py"
    source = SOURCE.replace("LIMIT", str(limit)).replace("WHAT", what)
    file.write_text(source.replace("BAD", f'float("{bad}")'))
    config = dataclasses.replace(job.config, env=f"{file}:Broken")
    with pytest.raises((EnvironmentFailure, NumericsError)) as caught:
        run(dataclasses.replace(job, config=config), tmp_path / "run")
    text = str(caught.value)
    assert "iteration 0, " in text
    found = f"{'reward' if what == 'reward' else 'obs[0]'} is {bad}, expected finite numbers up"
    assert re.search(rf"step 5: (next_|final_)?{re.escape(found)}", text)
    assert f"it was environment {victim}" in text
    assert ("the last action was " in text) == (policy != "SingleLearnerFine")
    assert caught.type is EnvironmentFailure


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("policy", ["SingleLearnerCoarse", "Central"])
def test_the_worker_is_named_whose_environment_it_was(tmp_path, policy):
    words = (*SHORT[1:], "--policy", policy, "--env", f"{odd.__file__}:Odd")
    job = start(tmp_path, *words, environment={odd.VARIABLE: f"7 {16 + 14} spoil"})
    code, _, err = ended(job, 240.0)
    assert code == 1
    name = r"rank \d \(\w+\[1\]\), iteration 1, the environment: step 13: odd, after 29 steps: "
    said = name + r"step: reward is 1e\+30, expected finite numbers up to"
    assert re.search(f"^msrl: {said}", err, re.MULTILINE)  # others' jobs may cause a note before it
    assert "scale or clip it in the environment; it was environment 7; the last action was" in err


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_worker_is_named_whose_rewards_spoilt_the_loss_of_all(tmp_path):
    """All ranks leave the cell together after the collectives, and all losses are NaN."""
    purpose = random.stream("env_reset_noise#1")
    drawn = [random.uniform(seed, purpose, [0], np.arange(8), 1).reshape(-1) for seed in range(9)]
    seed = next(seed for seed, noise in enumerate(drawn) if noise.argmax() >= 4)
    victim, limit = int(drawn[seed].argmax()), float(np.sort(drawn[seed])[-2:].mean())
    source = SOURCE.replace("LIMIT", str(limit)).replace("WHAT", "reward").replace("BAD", "1e30")
    (tmp_path / "broken.py").write_text(source)
    place = ("--policy", "GPUOnly", "--workers", "2", "--env", "broken.py:Broken", "--quiet")
    small = ("num_envs=8", "num_steps=16", "update_epochs=1", f"seed={seed}")
    code, _, err = ended(start(tmp_path, *place, *small), 240.0)
    assert code == 1
    said = r"^msrl: rank 1 \(\w+\[1\]\), iteration 0, cell iteration of \w+: "
    assert re.search(said, err, re.MULTILINE)
    assert "step 5: reward is 1e+30, expected" in err
    assert f"it was environment {victim}; the last action was" in err


@pytest.mark.parametrize("cause", [None, ValueError("theirs")])
def test_a_traceback_is_shown_where_the_environments_code_raised(cause):
    """A reward that is nan was told after twenty lines of ours."""
    told = {}
    link = SimpleNamespace(send=lambda _, **fields: told.update(fields))
    try:
        raise EnvironmentFailure("the reward is nan") from cause
    except EnvironmentFailure as error:
        worker._report(link, 0, error)
    assert ("ValueError: theirs" in told["traceback"]) == bool(told["traceback"]) == bool(cause)


@pytest.mark.parametrize(
    "policy", ["GPUOnly", pytest.param("SingleLearnerFine", marks=pytest.mark.slow)]
)
def test_every_step_counts_wherever_the_environment_is(tmp_path, monkeypatch, policy):
    """Under `SingleLearnerFine`, a call of the environment's cell is one step, not an iteration."""
    finished = []

    class Spy(worker.FragmentRuntime):
        def _report_iteration(self):
            finished.extend(self.share.episodes.take_finished())
            super()._report_iteration()

    monkeypatch.setattr(worker, "FragmentRuntime", Spy)
    source = SOURCE.replace("WHAT = WHAT + spoil", "").replace("LIMIT", "2.0")
    source = source.replace("BAD", "0.0")
    file = tmp_path / "short.py"
    file.write_text(
        source.replace("(start < 0.0)", "(steps == 5.0)").replace(
            "ops.concat((start, steps), 1), obs", "ops.concat((start, steps % 5.0), 1), obs"
        )
    )
    job = request(PROGRAMS / "two_phase.py", policy, 1, num_steps=8)
    config = dataclasses.replace(job.config, env=f"{file}:Broken")
    run(dataclasses.replace(job, config=config), tmp_path / "run")
    two_iterations = 16 // 5 * job.config.num_envs
    assert [tuple(episode) for episode in finished] == [(5.0, 5)] * two_iterations
