"""Shell completion of `msrl` (see README.md)."""

import argparse
import os
from collections.abc import Callable

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

    argcomplete.autocomplete(parser_of([]))
