"""Starts training runs as real processes, and finds what they leave behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from mindspore_rl.runtime.coordinator import reaper

TRAIN = (sys.executable, "-m", "mindspore_rl.cli", "train", "--stop-return", "nan")


def start(
    folder: Path,
    *arguments: str,
    algorithm: str = "ppo",
    environment: dict[str, str] | None = None,
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


def descendants(process: subprocess.Popen, word: str) -> list[psutil.Process]:
    """Returns a process's descendants whose command line contains a word, without reapers."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if word in " ".join(child.cmdline()) and reaper.__file__ not in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def workers(process: subprocess.Popen) -> list[psutil.Process]:
    """Returns the ranks of a run."""
    found = descendants(process, "mindspore_rl.runtime.rank.worker")
    return [worker for worker in found if worker.name().startswith("python")]


def wait_for_training(process: subprocess.Popen, folder: Path) -> None:
    """Waits until the run in `folder/run` has logged an iteration."""
    log = folder / "run" / "metrics.jsonl"
    for _ in range(600):
        if log.exists() and log.stat().st_size:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("no iteration within 60 s")


def ended(process: subprocess.Popen, within_s: float) -> tuple[int, str, str]:
    """Returns exit code and output of a run that must end soon and leave nothing behind."""
    below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    began = time.monotonic()
    out, err = process.communicate(timeout=within_s)
    left = [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    _, left = psutil.wait_procs(left, timeout=max(0.5, within_s - (time.monotonic() - began)))
    assert not left, [p.cmdline() for p in left]
    return process.returncode, out, err
