"""Valid names: for paths, command options, hosts and generated source."""

import re

from mindspore_rl.errors import MsrlError

RULE = "at most 100 letters (a to z), digits, `_`, `-`, `.` and `=`, the first no `-`, `.` or `=`"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,99}")


def is_name(text: object) -> bool:
    """Returns whether a name of a fragment, policy, algorithm, mark, host or run obeys `RULE`."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(what: str, name: object, error: type[MsrlError] = MsrlError) -> None:
    """Refuses a name that does not obey `RULE`.

    Args:
        what: the thing that has this name, for the message.
        name: the name.
        error: the exception to raise.

    Raises:
        MsrlError: the name is invalid.
    """
    if not is_name(name):
        raise error(f"{what} has the name {name!r}, expected {RULE}")


def unused(wanted: str, used: set[str]) -> str:
    """Makes a name unique: the wanted one, or with the first number that makes it new.

    Args:
        wanted: the name.
        used: names in use; the result is added.
    """
    name, number = wanted, 1
    while name in used:
        number += 1
        name = f"{wanted}_{number}"
    used.add(name)
    return name


def name_from(text: str) -> str:
    """Makes part of a name from a text, such as an environment's; a file loses its folder."""
    text = re.sub(r"^(?:.*/)?([^/]+)\.py:", r"\1-", text)
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[-40:]
