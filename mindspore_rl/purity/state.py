"""Compares the Python state that code can reach before and after it ran."""

import contextlib
import inspect
import os
from itertools import zip_longest
from types import CodeType, FunctionType
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
FROZEN = (
    "MindSpore computes that once, at compilation, if the object is no nn.Cell (make it a method, "
    "`{name}()`, or the class an nn.Cell)"
)
_MINDSPORE = os.path.dirname(mindspore.__file__)


class State(Walk):
    """Snapshot of everything that is reachable from names, without the values of parameters.

    Attributes:
        found: paths, each with a text of the value there.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        for name, value in names.items():
            self.add(value, name)

    def say(self, *words: Any) -> None:
        """Records what was found at the current path, see `Walk`."""
        self.found.append((self.path, repr(words)))

    def unknown(self, kind: str) -> None:
        """Records the kind of a value that cannot be seen, see `Walk`."""
        self.say(kind)

    def changed(self, other: "State") -> str:
        """Returns the first path at which another state differs; empty if none does."""
        for one, two in zip_longest(self.found, other.found):
            if one != two:
                return (one or two)[0]
        return ""

    def misread(self) -> dict[CodeType, list[tuple[Any, str]]]:
        """Finds reached functions that MindSpore would compile as something else.

        Its parser gets the source from `inspect`, which follows `functools.wraps`: it compiles the
        decorated function without its decorator. That is intended for MindSpore's own decorators
        and for caches. It keeps the value that a property of an object that is no cell has at
        compilation.

        Returns: for the code of each such function, texts that say so, each with the decorated
            function by which a call is told from another of the same decorator, or None.
        """
        found: dict[CodeType, list[tuple[Any, str]]] = {}
        for function in self.functions:
            code, behind = function.__code__, inspect.unwrap(function)
            if code.co_filename.startswith(_MINDSPORE) or behind is function:
                continue
            where = f"{code.co_filename}:{code.co_firstlineno}"
            text = f"calls {behind.__qualname__} by its decorator of {where}: {DECORATED}"
            decorated = function.__wrapped__  # type: ignore[attr-defined]
            known = decorated if _holds(function, decorated) else None
            found.setdefault(code, []).append((known, text))
        for getter in self.frozen:
            code = getter.__code__
            where = (
                f"the property {getter.__qualname__} of {code.co_filename}:{code.co_firstlineno}"
            )
            text = f"reads {where}: {FROZEN.format(name=code.co_name)}"
            found.setdefault(code, []).append((None, text))
        return found


def _holds(function: FunctionType, value: Any) -> bool:
    """Returns whether a value is in a function's closure."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is in the cell yet
            if cell.cell_contents is value:
                return True
    return False
