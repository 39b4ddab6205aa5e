"""What the command line takes: numbers in their range, and flags by their names."""

import argparse
import difflib
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from mindspore_rl.config import Range, parse
from mindspore_rl.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """One whose errors are a line, as all of this program's are, and whose help shows ranges."""

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """See the base class."""
        if isinstance(kind := settings.get("type"), Number):
            settings["help"] = f"{settings['help']}; {kind.range}"
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """See the base class. Raises: ConfigError: always."""
        raise ConfigError(f"{message}; see {self.prog} --help")


@dataclass(frozen=True)
class Number:
    """A type of arguments: int or float, of a range."""

    kind: type
    range: Range

    def __call__(self, text: str) -> float:
        """Reads one. Raises: argparse.ArgumentTypeError: it is none, or out of the range."""
        try:
            found = parse(text, self.kind)
        except (ValueError, ArithmeticError):
            words = "a whole number" if self.kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r}, expected {words}") from None
        if found not in self.range:
            raise argparse.ArgumentTypeError(f"{text}, expected {self.range}")
        return found


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
