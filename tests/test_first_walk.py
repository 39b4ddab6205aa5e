"""A first-time user's path: from an environment to a policy that is compared, exported, resumed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mindspore_rl.board.reading import Board

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "first_walk.sh"


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_from_an_environment_to_a_policy_that_is_compared_exported_and_resumed(tmp_path):
    """Takes about two minutes on two idle cores, and much longer on busy ones."""
    import imageio.v3  # noqa: PLC0415

    runs = tmp_path / "walk"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", SCRIPT, runs],
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert imageio.v3.imread(runs / "shop-1" / "episode.mp4").shape[1:] == (64, 64, 3)
    assert "\nreturn " in done.stdout  # by onnxruntime alone
    for seed in (1, 2):
        text = (runs / f"shop-{seed}" / "evaluations.jsonl").read_text()
        assert len(text.splitlines()) == 4
    first = json.loads((runs / "shop-1-more" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["env_steps"] == 40960 + 1024
    names = {summary["name"] for summary in Board(runs).summaries()}
    assert {"cartpole", "shop-1", "shop-2", "shop-1-more"} <= names
