"""Compares the Python state that code can reach before and after it ran."""

import inspect
import os
from itertools import zip_longest
from types import CodeType
from typing import Any

import mindspore

from mindspore_rl.purity.reached import Walk

KEPT = (
    "Python keeps that, where no rank sends it, no checkpoint has it and compiled code does not "
    "see it change (keep it in a Parameter that msrl.update changes, or carry it through the loop)"
)
DECORATED = (
    "MindSpore compiles what stands under a decorator alone (write what it does into the function)"
)
_MINDSPORE = os.path.dirname(mindspore.__file__)


class State(Walk):
    """All that can be reached from some names, as it is now; parameters' values left out.

    Attributes:
        found: paths and what is there.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        for name, value in names.items():
            self.add(value, name)

    def say(self, *words: Any) -> None:
        """See `Walk`."""
        self.found.append((self.path, repr(words)))

    def unknown(self, kind: str) -> None:
        """See `Walk`."""
        self.say(kind)

    def changed(self, other: "State") -> str:
        """The first path at which another state differs; empty: none does."""
        for one, two in zip_longest(self.found, other.found):
            if one != two:
                return (one or two)[0]
        return ""

    def decorated(self) -> dict[CodeType, str]:
        """Functions that stand in the place of others, which MindSpore would compile, by code.

        Its parser asks `inspect` for the source, which looks behind `functools.wraps`. MindSpore's
        own decorators, and caches, are meant for that.
        """
        found = {}
        for function in self.functions:
            code, behind = function.__code__, inspect.unwrap(function)
            if behind is not function and not code.co_filename.startswith(_MINDSPORE):
                where = f"{code.co_filename}:{code.co_firstlineno}"
                found[code] = f"calls {behind.__qualname__} by its decorator of {where}"
        return found
