"""Completion of `msrl` in a shell, as argcomplete's shell function calls it."""

import os
import subprocess
import sys

CODE = """
import os, sys
from mindspore_rl.cli import main as cli
folder, *lines = sys.argv[1:]
sys.argv = ["msrl"]
for number, line in enumerate(lines):
    if not os.fork():
        os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
        os.dup2(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY, 0o600), 8)
        cli.main()
    assert os.wait()[1] == 0, line
"""
EXPECTED = {
    "msrl tr": {"train"},
    "msrl train p": {"ppg", "ppo", "popart="},
    "msrl train ppo --policy Mul": {"MultipleLearners"},
    "msrl train ppo --device g": {"gpu"},
    "msrl train ppo gae": {"gae_lambda="},
    "msrl check ppo --policy Mul": {"MultipleLearners"},
}
"""The completions of the last words of lines."""


def test_words_are_completed(tmp_path):
    environ = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash"}
    environ |= {**os.environ, "COMP_TYPE": "63"}
    command = [sys.executable, "-c", CODE, tmp_path, *EXPECTED]
    subprocess.run(command, env=environ, check=True)
    found = [(tmp_path / str(number)).read_text().split("\n") for number in range(len(EXPECTED))]
    words = [{word.strip() for word in words} for words in found]
    assert dict(zip(EXPECTED, words, strict=True)) == EXPECTED
