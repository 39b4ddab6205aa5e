"""What the command line takes: numbers in their range, and flags by their names."""

import argparse
import difflib
import re
from collections.abc import Callable
from typing import NoReturn

from mindspore_rl.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """One whose errors are a line, as all of this program's are."""

    def error(self, message: str) -> NoReturn:
        """See the base class. Raises: ConfigError: always."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def number(kind: type, least: float, above: bool = False) -> Callable[[str], float]:
    """A type of arguments: `int` or `float` from a least number on, or only above it."""

    def read(text: str) -> float:
        try:
            found = kind(text)
        except ValueError:
            words = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r}, expected {words}") from None
        if not (found > least or (found == least and not above)):
            words = "more than" if above else "at least"
            raise argparse.ArgumentTypeError(f"{text}, expected {words} {least:g}")
        return found

    return read


def check_words(words: list[str], command: argparse.ArgumentParser, keys: bool) -> None:
    """Refuses what a command does not know.

    Args:
        words: that are left over.
        command: which they were given to.
        keys: whether it takes KEY=VALUE, which may stand between flags.

    Raises:
        ConfigError: there is such a word; with the flag that it is nearest to.
    """
    strange = [word for word in words if word.startswith("-") or "=" not in word or not keys]
    if not strange:
        return
    flags = set(re.findall(r"(?<![\w-])--[a-z-]+", command.format_help()))
    name = strange[0].partition("=")[0]
    near = difflib.get_close_matches(name.replace("_", "-"), sorted(flags), 1)
    hint = f"did you mean {near[0]}?" if near else f"see {command.prog} --help"
    raise ConfigError(f"{command.prog} does not know {strange[0]}; {hint}")
