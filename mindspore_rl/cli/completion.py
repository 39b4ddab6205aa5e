"""Shell completion of `msrl` (see README.md)."""

import argparse
import os
from collections.abc import Callable

ASKED = "_ARGCOMPLETE"
"""Environment variable that the shell sets when it runs this program to complete a line."""


def complete(parser_of: Callable[[list[str]], argparse.ArgumentParser]) -> None:
    """Prints the completions of a line's last word and exits, if the shell asks for them.

    Args:
        parser_of: makes the parser for the words of a line.
    """
    if ASKED not in os.environ:
        return
    import argcomplete  # noqa: PLC0415  (only a shell that has it asks)

    argcomplete.autocomplete(parser_of([]))
