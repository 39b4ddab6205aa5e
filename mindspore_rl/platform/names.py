"""Valid names: for paths, command options, hosts and generated source."""

import re

from mindspore_rl.errors import MsrlError

RULE = "at most 100 letters (a to z), digits, `_`, `-`, `.` and `=`, the first no `-`, `.` or `=`"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,99}")


def is_name(text: object) -> bool:
    """Whether a name keeps the rule: of fragments, policies, algorithms, marks, hosts and runs."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(what: str, name: object, error: type[MsrlError] = MsrlError) -> None:
    """Refuses a name that does not keep the rule.

    Args:
        what: has this name, for the message.
        name: the name.
        error: what is raised.

    Raises:
        MsrlError: it does not.
    """
    if not is_name(name):
        raise error(f"{what} has the name {name!r}, expected {RULE}")


def unused(wanted: str, used: set[str]) -> str:
    """The wanted name, or it with the first number that makes it new; it counts as used from now.

    Args:
        wanted: the name.
        used: names that are taken; the result is added.
    """
    name, number = wanted, 1
    while name in used:
        number += 1
        name = f"{wanted}_{number}"
    used.add(name)
    return name


def name_from(text: str) -> str:
    """A part of a name that is like a text, such as an environment's; a file without its folder."""
    text = re.sub(r"^(?:.*/)?([^/]+)\.py:", r"\1-", text)
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[-40:]
