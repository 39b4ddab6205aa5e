"""Parses an environment's options after its name: `LunarLander-v3,continuous=True`."""

import ast
import re
from typing import Any

_OPTION = re.compile(r",([A-Za-z_]\w*)=([^,]*)")
_OPTIONS = re.compile(rf"(?:{_OPTION.pattern})*\Z")
_WORDS = {"true": True, "false": False, "none": None}


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """Splits a name into the name without options, and the options: numbers, booleans and words."""
    found = _OPTIONS.search(name)
    assert found is not None
    options = {key: _value(text) for key, text in _OPTION.findall(found[0])}
    return name[: found.start()], options


def with_options(base: str, name: str) -> str:
    """Returns a name with the options of another name."""
    return base + name.removeprefix(split_options(name)[0])


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return _WORDS.get(text.lower(), text)
