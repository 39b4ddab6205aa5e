"""The study of latency: its page shows the measured values."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STUDY = [sys.executable, ROOT / "scripts/latency_study.py", "--from", ROOT / "docs/latency.csv"]


def test_table_of_the_page_is_of_the_measurements():
    done = subprocess.run(STUDY, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("| policy | 0 ms | 1 ms | 5 ms |")
    assert done.stdout in (ROOT / "docs/cluster.md").read_text()


def test_plot(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    file = tmp_path / "latency.svg"
    subprocess.run([*STUDY, "--plot", file], check=True, capture_output=True)
    assert "<svg" in file.read_text()
