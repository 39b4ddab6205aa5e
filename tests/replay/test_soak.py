"""Runs the soak of a replay table for some seconds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "scripts" / "soak_replay.py"


@pytest.mark.kill
@pytest.mark.parametrize("kind", [[], ["--sequential"]], ids=["trajectories", "steps"])
def test_a_soak_tears_no_record(kind):
    command = [sys.executable, SOAK, "--minutes", "0.05", "--kill-every", "0.15", *kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torn records: 0\n" in done.stdout
    written, read, kills = (
        int(re.search(rf"([\d,]+) {what}", done.stdout)[1].replace(",", ""))
        for what in ("records written", "read,", "kills")
    )
    assert written > 100
    assert read > 100
    assert kills > 1
