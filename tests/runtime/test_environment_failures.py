"""Environments that give what cannot be trained on: who is told to be at fault."""

import dataclasses
import re

import numpy as np
import pytest

from mindspore_rl.errors import EnvironmentFailure, NumericsError
from mindspore_rl.rl import random
from mindspore_rl.runtime.rank import worker
from tests.lowering.inproc import PROGRAMS, request
from tests.runtime.test_worker import run

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


@pytest.mark.parametrize("policy", ["GPUOnly", "SingleLearnerCoarse", "SingleLearnerFine"])
@pytest.mark.parametrize(
    ("what", "bad"), [("reward", "nan"), ("obs", "nan"), ("reward", "1e+30"), ("obs", "3e+38")]
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


@pytest.mark.parametrize("policy", ["GPUOnly", "SingleLearnerFine"])
def test_every_step_counts_wherever_the_environment_is(tmp_path, monkeypatch, policy):
    """Under `SingleLearnerFine` a call of the environment's cell is one step, not an iteration."""
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
