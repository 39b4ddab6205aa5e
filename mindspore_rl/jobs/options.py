"""Declares the options of a job: `option` makes a field of `Job` from its description."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mindspore_rl import config, programs
from mindspore_rl.config import REQUIRED, Range, parse
from mindspore_rl.errors import ConfigError, MsrlError
from mindspore_rl.jobs import registry

PLAIN = (bool, int, float, str, NoneType)
"""Types that a flag and a YAML file can give."""


@dataclass(frozen=True)
class Number:
    """The type of an argument: an int or a float in a range."""

    kind: type
    range: Range

    def __str__(self) -> str:
        """Describes the type in words."""
        words = "a whole number" if self.kind is int else "a number"
        return ", ".join(filter(None, (words, str(self.range))))

    def __call__(self, text: object) -> float:
        """Parses a number. Raises: argparse.ArgumentTypeError: not a number, or out of range."""
        try:
            found = parse(text, self.kind)
        except (ValueError, ArithmeticError):
            raise argparse.ArgumentTypeError(f"{text!r}, expected {self}") from None
        if found not in self.range:
            raise argparse.ArgumentTypeError(f"{text}, expected {self.range}")
        return found


def algorithm_keys(algorithm: str) -> list[str]:
    """Returns the keys of an algorithm's configuration; none if there is no such algorithm."""
    try:
        cls: Any = programs.trainer_class(registry.find_algorithm(algorithm))
        return list(config.keys_of(cls.Config))
    except MsrlError:
        return []


@dataclass(frozen=True)
class Option:
    """The declaration of an option, a field of `Job`.

    Attributes:
        group: the commands that take it.
        text: the text for `--help` and for errors, or a function that returns it.
        metavar: the placeholder for its value in `--help`.
        nargs: argparse's, for a positional argument.
        range: the range of its number.
        choices: the allowed texts.
        otherwise: the value, or words for it, if it is not given and its default is None or "".
        const: the value of a flag without one.
        nan: the meaning of the value NaN, which is refused without one.
        in_file: True if it is also a key of a YAML file; its default is then None.
        words: returns its completions, given the arguments so far.
        name, kind, default: the field's.
    """

    group: str
    text: str | Callable[[], str]
    metavar: str | None = None
    nargs: str | None = None
    range: Range = Range()
    choices: tuple[str, ...] | None = None
    otherwise: Any = None
    const: Any = None
    nan: str = ""
    in_file: bool = False
    words: Callable[[Any], Sequence[str]] | None = None
    name: str = ""
    kind: Any = None
    default: Any = None

    @property
    def help(self) -> str:
        """Returns the text for `--help`."""
        return self.text if isinstance(self.text, str) else self.text()

    @property
    def number(self) -> Number | None:
        """Returns the type of its number, or None if it is not a number."""
        if self.name in REQUIRED:  # read together with the algorithm's keys
            return None
        parts = get_args(self.kind) or (self.kind,)
        return next((Number(kind, self.range) for kind in (int, float) if kind in parts), None)

    def checked(self, value: Any) -> Any:
        """Returns a given value in the field's type. Raises: ConfigError: it has another."""
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if value is None or value == self.default:
            return self.default
        if value == "" and self.default is None:
            raise ConfigError(
                f"{flag(self.name)} is empty (a variable of the shell that has no value?), "
                f"expected: {self.help}; or leave it out"
            )
        if self.choices and value not in self.choices:
            expected = f"one of {', '.join(self.choices)}"
            raise ConfigError(f"{self.name} is {value!r}, expected {expected}")
        if self.nan and (not isinstance(value, int | float) or isinstance(value, bool)):
            expected = f"a number, or nan: {self.nan}"
            raise ConfigError(f"{self.name} is {value!r}, expected {expected}")
        if self.name in REQUIRED or self.nan or isinstance(value, Mapping):
            return value  # read together with the algorithm's or the policy's keys
        known = {self.name: config.key_of(self.kind, self.default, self.range)}
        return config.checked(self.name, value, known, "config", f"{self.name}=")

    def read(self, file: Path, value: object) -> Any:
        """Returns a value from a YAML file. Raises: ConfigError: it is of another type or range."""
        if (number := self.number) is None:
            return str(value)
        try:
            return number(value)
        except argparse.ArgumentTypeError:
            expected = f"{value!r}, expected {number}"
            raise ConfigError(f"{file}: {self.name} is {expected}") from None


def option(
    group: str,
    default: Any,
    text: str | Callable[[], str],
    metavar: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    **more: Any,
) -> Any:
    """Declares a field of `Job`, see `Option`; `ge` and `gt` bound its number."""
    about = Option(group, text, metavar, range=Range(ge, gt=gt), **more)
    assert default is None or not about.in_file  # a flag's default would hide the file's
    return dataclasses.field(default=default, metadata={"option": about})


def options(job: type) -> dict[str, Option]:
    """Returns the options of a class of jobs, by name."""
    hints = get_type_hints(job)
    return {
        field.name: dataclasses.replace(
            field.metadata["option"],
            name=field.name,
            kind=_plain(hints[field.name]),
            default=field.default,
        )
        for field in dataclasses.fields(job)
        if "option" in field.metadata
    }


def check(job: Any) -> None:
    """Checks the options of a new job, and gives each its field's type. Raises: ConfigError."""
    for name, one in options(type(job)).items():
        object.__setattr__(job, name, one.checked(getattr(job, name)))


def flag(name: str) -> str:
    """Returns the flag of an option."""
    return f"--{name.replace('_', '-')}"


def _plain(hint: Any) -> Any:
    """Returns the part of a type that a flag can give."""
    if get_origin(hint) is tuple:
        return hint
    parts = tuple(part for part in get_args(hint) or (hint,) if part in PLAIN)
    return Union[parts]  # noqa: UP007  (of types that are found here)
