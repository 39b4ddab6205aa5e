"""Cells on a GPU against the same cells on the CPU, and learning there (design, section 6)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from mindspore_rl.errors import MsrlError
from mindspore_rl.platform import gpu
from tests.commands import ROOT, msrl, python

RTOL, ATOL = 1e-3, 1e-5
SMALL = {"num_envs": 8, "num_steps": 16, "num_minibatches": 2, "update_epochs": 2}


def _why_not() -> str:
    try:
        gpu.choose("gpu")
    except MsrlError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(_why_not()), reason=_why_not())]


def _records(device: str, folder: Path, case: tuple) -> dict[str, np.ndarray]:
    script, exact = ROOT / "tests" / "gpu" / "one_run.py", {"NVIDIA_TF32_OVERRIDE": "0"}
    done = python(script, device, folder, json.dumps(case), env=exact)
    assert done.returncode == 0, done.stderr
    (file,) = (folder / "records").glob("*.npz")
    return dict(np.load(file))


@pytest.mark.parametrize(
    "case",
    [
        ("ppo", "MultipleLearners", "CartPole-v1", SMALL),
        ("ppo", "GPUOnly", "graph:CartPole-v1", SMALL),
        ("ppo", "GPUOnly", "graph:Pendulum-v1", SMALL),
        ("ppo", "GPUOnly", "graph:Pendulum-v1", {**SMALL, "normalise_obs": True}),
        ("a2c", "GPUOnly", "graph:CartPole-v1", {}),
        ("mappo", "GPUOnly", "graph:simple_spread_v3", SMALL),
        ("mappo", "GPUOnly", "graph:simple_tag_v3", SMALL),
    ],
    ids=lambda case: "-".join([*case[:3], *(["normalised"] if len(case[3]) > 4 else [])]),
)
def test_an_iteration_gives_the_numbers_of_the_cpu(case, tmp_path):
    """Actions, advantages and the gradients of every minibatch, without TF32."""
    cpu, got = (_records(device, tmp_path / device, case) for device in ("CPU", "GPU"))
    assert cpu.keys() == got.keys()
    assert {re.split("[:#]", key)[1] for key in cpu} >= {"action", "gradient"}
    for key, expected in cpu.items():
        np.testing.assert_allclose(got[key], expected, RTOL, ATOL, err_msg=key)


def test_a_gpu_reads_a_table_in_place():
    done = python("-m", "tests.gpu.gather", env=gpu.environment(), cwd=ROOT)
    assert done.stdout.strip() == "equal", done.stderr


@pytest.mark.learning
@pytest.mark.parametrize("policy", ["MultipleLearners", "GPUOnly", "SingleLearnerCoarse"])
def test_cartpole_is_learnt(policy, tmp_path):
    words = ("--device", "gpu", "--total-steps", "500000", "--quiet")
    done = msrl("train", "ppo", "--policy", policy, *words, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("threshold"), done.stdout
