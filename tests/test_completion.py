"""Completion of `msrl` in a shell, as argcomplete's shell function calls it."""

import os
import subprocess
import sys

import pytest


def completed(line: str) -> set[str]:
    """Returns the completions of the last word of a line."""
    read, write = os.pipe()
    environ = {**os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    environ |= {"COMP_TYPE": "63", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash"}
    code = f"""
import os, sys
os.dup2({write}, 8)
from mindspore_rl.cli import main as cli
sys.argv = ["msrl"]
cli.main()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, pass_fds=[write], capture_output=True, check=False)
    os.close(write)
    with os.fdopen(read) as told:
        words = told.read().split("\n")
    assert done.returncode == 0, done.stderr
    return {word.strip() for word in words}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("msrl tr", {"train"}),
        ("msrl train p", {"ppg", "ppo", "popart="}),
        ("msrl train ppo --policy Mul", {"MultipleLearners"}),
        ("msrl train ppo --device g", {"gpu"}),
        ("msrl train ppo gae", {"gae_lambda="}),
        ("msrl check ppo --policy Mul", {"MultipleLearners"}),
    ],
)
def test_words_are_completed(line, expected):
    assert completed(line) == expected
