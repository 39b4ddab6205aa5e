"""Shell completion of `msrl` (see README.md)."""

import argparse
import os
from collections.abc import Callable
from typing import Any

from mindspore_rl import config, programs
from mindspore_rl.errors import MsrlError
from mindspore_rl.jobs import registry

ASKED = "_ARGCOMPLETE"
"""A variable that is set where the shell has started this program to complete a line."""


def complete(parser_of: Callable[[list[str]], argparse.ArgumentParser]) -> None:
    """Prints what the last word of a line may become and ends the process, if the shell asks.

    Args:
        parser_of: makes the parser of a line's words.
    """
    if ASKED not in os.environ:
        return
    import argcomplete  # noqa: PLC0415  (only a shell that has it asks)

    parser = parser_of([])
    for action, words in _known(parser):
        action.completer = words  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _known(parser: argparse.ArgumentParser) -> Any:
    """Arguments whose words are known here, each with what lists them."""
    words = {
        "algorithm": lambda **_: registry.algorithms(),
        "policy": lambda **_: ["auto", *registry.policies()],
        "policies": lambda **_: registry.policies(),
        "assignments": _keys,
    }
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _known(inner)
        elif action.dest in words:
            yield action, words[action.dest]


def _keys(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """`key=` for each key of the algorithm that the line names."""
    try:
        file = registry.find_algorithm(getattr(parsed_args, "algorithm", None) or "ppo")
        cls: Any = programs.trainer_class(file)
    except MsrlError:
        return []
    return [f"{key}=" for key in config.keys_of(cls.Config)]
