"""A first-time user's path: from an environment to a trained, filmed, exported policy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "first_walk.sh"


@pytest.mark.multiprocess
@pytest.mark.slow
def test_from_an_environment_to_a_policy_that_is_filmed_and_exported(tmp_path):
    import imageio.v3  # noqa: PLC0415
    import onnxruntime  # noqa: PLC0415

    run = tmp_path / "walk"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", SCRIPT, run],
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    frames = imageio.v3.imread(run / "episode.mp4")
    assert frames.shape[1:] == (64, 64, 3)
    session = onnxruntime.InferenceSession(run / "policy.onnx")
    (given,) = session.get_inputs()
    cold, warm = np.zeros((2, 1, given.shape[1]), np.float32)
    for obs, degrees in ((cold, -8.0), (warm, 8.0)):
        obs[0, :2] = degrees, 1.0  # gymnasium's order: room, then weather
    actions = [int(np.ravel(session.run(None, {given.name: obs})[0])[0]) for obs in (cold, warm)]
    assert actions == [1, 0]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["mean_return"] > lines[5]["mean_return"]
