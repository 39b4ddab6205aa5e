"""Parses an environment's options after its name: `LunarLander-v3,continuous=True`."""

import ast
import re
from typing import Any

from mindspore_rl.errors import UnknownEnvironmentError

_OPTION = re.compile(r",([A-Za-z_]\w*)=([^,]*)")
_OPTIONS = re.compile(rf"(?:{_OPTION.pattern})*\Z")
MASK = "action_mask"
_WORDS = {"true": True, "false": False, "none": None}


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """Splits a name into the name without options, and the options: numbers, booleans and words.

    `action_mask` is not one of the environment's options, see `mask_option`.
    """
    found = _OPTIONS.search(name)
    assert found is not None
    options = {key: _value(text) for key, text in _OPTION.findall(found[0])}
    options.pop(MASK, None)
    return name[: found.start()], options


def mask_option(name: str) -> bool | None:
    """Returns whether a name asks for the action mask, or for none; None: it does not say.

    Raises:
        UnknownEnvironmentError: the option is neither true nor false.
    """
    found = dict(_OPTION.findall(name)).get(MASK)
    if found is None or isinstance(value := _value(found), bool):
        return None if found is None else value
    raise UnknownEnvironmentError(f"{name!r}: {MASK} is {found}, expected true or false")


def with_options(base: str, name: str) -> str:
    """Returns a name with the options of another name."""
    return base + name.removeprefix(split_options(name)[0])


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _WORDS.get(text.lower(), text)
