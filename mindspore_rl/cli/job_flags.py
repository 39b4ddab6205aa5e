"""Makes the flags of a job from the fields of `jobs.Job`."""

import argparse
from typing import Any

from mindspore_rl.config import parse
from mindspore_rl.jobs.job import Job
from mindspore_rl.jobs.options import Option, flag, options


def add_options(parser: argparse.ArgumentParser, *groups: str, job: type[Job] = Job) -> None:
    """Adds the options of some groups to a parser."""
    for option in options(job).values():
        if option.group in groups:
            _add(parser, option)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds --trust."""
    _add(parser, options(Job)["trust"])


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Adds --schedule."""
    _add(parser, options(Job)["schedule"])


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    """Adds the flag of an option, or its positional argument."""
    about: dict[str, Any] = {"help": option.help + _default(option)}
    if option.kind is bool and not option.default:
        parser.add_argument(flag(option.name), action="store_true", **about)
        return
    about |= {"metavar": option.metavar, "choices": option.choices, "completer": option.words}
    if option.kind is bool:
        about["type"] = _truth
    elif number := option.number:
        about["type"] = number if str(number.range) else number.kind
    if option.nargs:
        parser.add_argument(option.name, nargs=option.nargs, **about)
        return
    if option.const is not None:
        about |= {"nargs": "?", "const": option.const}
    parser.add_argument(flag(option.name), default=option.default, **about)


def _truth(text: str) -> bool:
    """Parses true or false. Raises: argparse.ArgumentTypeError: it is neither."""
    try:
        return bool(parse(text, bool))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, expected true or false") from None


def _default(option: Option) -> str:
    """Describes an option's value when it is not given, for `--help`."""
    if option.const is not None:
        return f" ({option.metavar} left out: {option.const})"
    value = option.default if option.otherwise is None else option.otherwise
    if value is None or value is False or option.nargs:
        return ""
    told = f"{value:g}" if isinstance(value, float) else value
    told = "true" if told is True else told
    return f" (default: {told}{f'; nan: {option.nan}' if option.nan else ''})"
