"""Commands as processes of their own, and what they say."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python(*words: object, check: bool = False, **how: object) -> subprocess.CompletedProcess:
    """Runs Python with some words, this project on its path.

    Args:
        words: its arguments.
        check: True: it must succeed.
        how: as for `subprocess.run`; `env` has variables besides those of this process.
    """
    env = os.environ | {"PYTHONPATH": str(ROOT)} | how.pop("env", {})
    how = {"capture_output": True, "text": True} | how
    done = subprocess.run([sys.executable, *map(str, words)], check=False, env=env, **how)
    assert not check or done.returncode == 0, done.stderr
    return done


def started(*words: object, **how: object) -> subprocess.Popen:
    """Starts Python with some words, this project on its path; see `python`."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, words)], env=env, **(pipes | how))


def msrl(*words: object, **how: object) -> subprocess.CompletedProcess:
    """Runs `msrl`; see `python`."""
    return python("-m", "mindspore_rl.cli", *words, **how)
