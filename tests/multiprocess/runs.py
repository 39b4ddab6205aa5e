"""Starts training runs as real processes, and finds what they leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

TRAIN = (sys.executable, "-m", "mindspore_rl.cli", "train", "--stop-return", "nan")


def start(
    folder: Path, *arguments: str, algorithm: str = "ppo", environment: dict[str, str] | None = None
) -> subprocess.Popen:
    """Starts a training run in the background, in `folder/run` by default."""
    steps = () if "--total-steps" in arguments else ("--total-steps", "100000000")
    place = () if "--run-dir" in arguments else ("--run-dir", str(folder / "run"))
    return subprocess.Popen(
        [*TRAIN, algorithm, *place, *steps, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **(environment or {})},
    )


def ended(process: subprocess.Popen, within_s: float) -> tuple[int, str, str]:
    """Returns exit code and output of a run that must end soon and leave nothing behind."""
    below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    began = time.monotonic()
    out, err = process.communicate(timeout=within_s)
    left = [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    _, left = psutil.wait_procs(left, timeout=max(0.5, within_s - (time.monotonic() - began)))
    assert not left, [p.cmdline() for p in left]
    return process.returncode, out, err
