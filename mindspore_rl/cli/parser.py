"""The argument parser: numbers with ranges, and flags with suggestions for typos."""

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mindspore_rl.errors import ConfigError
from mindspore_rl.jobs.options import Number, algorithm_keys
from mindspore_rl.platform.other_names import meant


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line, and whose help shows ranges."""

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """See the base class."""
        if isinstance(kind := settings.get("type"), Number):
            settings["help"] = f"{settings['help']}; {kind.range}"
        words = settings.pop("completer", None)
        action = super().add_argument(*names, **settings)
        if words:  # argcomplete asks for these
            action.completer = lambda parsed_args, **_: words(parsed_args)  # type: ignore[attr-defined]
        return action

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses words; KEY=VALUE is a value only of a flag that always takes one."""
        if args is None or not any(action.dest == "assignments" for action in self._actions):
            return super().parse_known_args(args, namespace)
        sides: tuple[list[str], list[str]] = [], []
        for before, word in zip(["", *args], args, strict=False):
            sides[self._is_key(word, before)].append(word)
        found, rest = super().parse_known_args(self._freed(sides[False]), namespace)
        found.assignments = [*found.assignments, *sides[True]]
        return found, rest

    def _is_key(self, word: str, before: str) -> bool:
        """Returns whether a word is KEY=VALUE and no value of the flag before it."""
        if not re.match(r"[A-Za-z]\w*=", word) or Path(word).exists():
            return False
        flag = self._option_string_actions.get(before)
        return not before.startswith("-") or (flag is not None and flag.nargs is not None)

    def _freed(self, words: list[str]) -> list[str]:
        """Puts what is no value of a flag of several, as an algorithm is, in front of the flags."""
        found: list[str] = []
        flag, place = None, 0
        front = next((i for i, word in enumerate(words) if word.startswith("-")), 0)
        for word in words:
            if word.startswith("-"):
                flag, place = self._option_string_actions.get(word), len(found)
            elif flag and flag.nargs == "+" and len(found) > place + 1 and not word[:1].isdigit():
                try:
                    self._get_value(flag, word)  # type: ignore[attr-defined]
                except argparse.ArgumentError:
                    found.insert(front, word)
                    place += 1
                    continue
            found.append(word)
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is not among the choices, and names the nearest choice."""
        choices = [] if action.choices is None else [str(choice) for choice in action.choices]
        if not choices or value in choices:
            return
        near = difflib.get_close_matches(str(value), choices, 1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"{value!r}: {hint}")

    def error(self, message: str) -> NoReturn:
        """See the base class. Raises: ConfigError: always."""
        message = re.sub(r"(required: .*), KEY=VALUE$", r"\1", message)  # any number, also none
        raise ConfigError(f"{message}; see {self.prog} --help")


def add_command(subparsers: Any, name: str, run: Any, text: str, **more: Any) -> Any:
    """Adds a subcommand that a function runs; `more` has further arguments of its parser."""
    parser = subparsers.add_parser(name, help=text, description=text, **more)
    parser.set_defaults(run=run)
    return parser


def check_words(words: list[str], args: argparse.Namespace) -> None:
    """Refuses words that a command does not know; KEY=VALUE may stand between flags.

    Raises:
        ConfigError: a word is unknown; the message names the nearest flag or key.
    """
    taken = hasattr(args, "assignments")
    strange = [word for word in words if word.startswith("-") or "=" not in word or not taken]
    if not strange:
        return
    known = {
        key.replace("_", "-"): f"{key}=VALUE"
        for key in algorithm_keys(getattr(args, "algorithm", None) or "")
    }
    flags = re.findall(r"(?<![\w-])--([a-z-]+)", args.command.format_help())
    known |= {flag: f"--{flag}" for flag in flags}
    name = strange[0].partition("=")[0].strip("-").replace("_", "-")
    near = meant(name, known) or difflib.get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {known[near[0]]}?" if near else f"see {args.command.prog} --help"
    raise ConfigError(f"{args.command.prog} does not know {strange[0]}; {hint}")
