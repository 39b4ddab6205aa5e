"""The argument parser: numbers with ranges, and flags with suggestions for typos."""

import argparse
import difflib
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from mindspore_rl.config import Range, keys_of, parse
from mindspore_rl.errors import ConfigError, MsrlError
from mindspore_rl.jobs.registry import find_algorithm
from mindspore_rl.programs import trainer_class


class Parser(argparse.ArgumentParser):
    """One whose errors are a line, as all of this program's are, and whose help shows ranges."""

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """See the base class."""
        if isinstance(kind := settings.get("type"), Number):
            settings["help"] = f"{settings['help']}; {kind.range}"
        return super().add_argument(*names, **settings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses what is no choice, with the nearest one."""
        choices = [] if action.choices is None else [str(choice) for choice in action.choices]
        if not choices or value in choices:
            return
        near = difflib.get_close_matches(str(value), choices, 1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"{value!r}: {hint}")

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


def check_words(words: list[str], args: argparse.Namespace) -> None:
    """Refuses what a command does not know; KEY=VALUE may stand between flags.

    Args:
        words: that are left over.
        args: what could be read, with the `command` that it was given to.

    Raises:
        ConfigError: there is such a word; with the flag or the key that it is nearest to.
    """
    taken = hasattr(args, "assignments")
    strange = [word for word in words if word.startswith("-") or "=" not in word or not taken]
    if not strange:
        return
    known = {key.replace("_", "-"): f"{key}=VALUE" for key in _keys(args)}
    flags = re.findall(r"(?<![\w-])--([a-z-]+)", args.command.format_help())
    known |= {flag: f"--{flag}" for flag in flags}
    name = strange[0].partition("=")[0].strip("-").replace("_", "-")
    near = difflib.get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {known[near[0]]}?" if near else f"see {args.command.prog} --help"
    raise ConfigError(f"{args.command.prog} does not know {strange[0]}; {hint}")


def _keys(args: argparse.Namespace) -> list[str]:
    """The keys of the algorithm that is named, if one is."""
    if not getattr(args, "algorithm", None):
        return []
    try:
        cls: Any = trainer_class(find_algorithm(args.algorithm))
        return list(keys_of(cls.Config))
    except MsrlError:
        return []  # the word that is not known is told, not this
