"""Sequences of known length: loops over them and comprehensions are unrolled while reading."""

import ast
from collections.abc import Iterator
from typing import Any

from mindspore_rl.compiler.frontend.scope import Static, Struct
from mindspore_rl.compiler.ir.operations import LOOPS

ITERATORS = (enumerate, list, range, reversed, tuple, zip)
KNOWN = (
    "its length must be known now: a tuple, a list, range(n), or zip, enumerate, reversed and "
    "d.items() of\n  such; unpack first what a function returns: a, b = ..."
)


class Sequences:
    """Reads the expressions that loops and comprehensions go over.

    Args:
        reader: the reader of expressions.
    """

    def __init__(self, reader: Any) -> None:
        self.reader, self.draft = reader, reader.draft

    def of(self, node: ast.expr, construct: str) -> tuple[Struct, ...]:
        """Reads an expression as the tuple of what a loop over it gives in its turns.

        Args:
            node: the expression.
            construct: of what it is part, for the error if its length is not known.
        """
        if isinstance(node, ast.Call):
            found = self._of_dictionary(node) if not node.args else self._of_iterator(node)
            if found is not None:
                return found
        value = self.reader.expression(node)
        if isinstance(value, Static) and isinstance(value.value, (tuple, list, range, dict)):
            return tuple(map(Static, value.value))
        if isinstance(value, dict):
            return tuple(map(Static, value))
        if not isinstance(value, tuple):
            self.draft.fail(node, construct, KNOWN)
        return value

    def made(self, call: ast.Call) -> tuple[Struct, ...] | None:
        """Reads `d.values()` and `list(zip(a, b))` as tuples; returns None for any other call.

        An iterator itself is no tuple: it would be empty the second time.
        """
        if not call.args:
            return self._of_dictionary(call)
        if not any(self.draft.frame.static(call.func)[1] is kind for kind in (list, tuple)):
            return None
        inner = call.args[0]
        if not isinstance(inner, ast.Call):
            return None
        return self._of_iterator(inner) if inner.args else self._of_dictionary(inner)

    def _of_iterator(self, call: ast.Call) -> tuple[Struct, ...] | None:
        """Reads `zip(a, b)` and such; returns None for any other call."""
        kind = self.draft.frame.static(call.func)[1]
        if not any(kind is one for one in ITERATORS):
            return None
        named = {item.arg: self.draft.frame.known(item.value) for item in call.keywords}
        if kind is range:
            return tuple(map(Static, range(*map(self.draft.frame.known, call.args))))
        if kind is zip:
            parts = [self.of(arg, "`zip` of this") for arg in call.args]
            if named.get("strict") and len({*map(len, parts)}) > 1:
                lengths = ", ".join(str(len(part)) for part in parts)
                self.draft.fail(call, f"strict `zip` of {lengths} parts", "give equally many")
            return tuple(zip(*parts, strict=False))
        if kind is enumerate:
            first = self.draft.frame.known(call.args[1]) if call.args[1:] else named.get("start", 0)
            parts_of = self.of(call.args[0], "`enumerate` of this")
            return tuple((Static(place), part) for place, part in enumerate(parts_of, first))
        if isinstance(call.args[0], ast.GeneratorExp):
            return self.comprehended(call.args[0])
        found = self.of(call.args[0], f"`{kind.__name__}` of this in a loop")
        return found[::-1] if kind is reversed else found

    def _of_dictionary(self, call: ast.Call) -> tuple[Struct, ...] | None:
        """Reads `d.items()`, `d.keys()` and `d.values()`; returns None for any other call."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in ("items", "keys", "values"):
            return None
        given = self.draft.frame.part(func.value)
        made = isinstance(func.value, (ast.Dict, ast.DictComp))
        if given is None and (made or self.draft.frame.static(func.value)[0]):
            given = self.reader.expression(func.value)
        if isinstance(given, Static) and isinstance(given.value, dict):
            given = {key: Static(value) for key, value in given.value.items()}
        if not isinstance(given, dict):
            return None
        pairs = tuple((Static(key), part) for key, part in given.items())
        return pairs if func.attr == "items" else tuple(p[func.attr == "values"] for p in pairs)

    def comprehended(
        self, made: ast.ListComp | ast.GeneratorExp | ast.DictComp
    ) -> tuple[Struct, ...]:
        """Unrolls a comprehension. Returns: its elements; of a dictionary, keys and values."""
        before = dict(self.draft.frame.names)
        found = tuple(self._elements(made, made.generators))
        self.draft.frame.names = before
        return found

    def _elements(self, made: Any, loops: list[ast.comprehension]) -> Iterator[Struct]:
        if not loops:
            if isinstance(made, ast.DictComp):
                yield self.draft.frame.known(made.key), self.reader.expression(made.value)
            else:
                yield self.reader.expression(made.elt)
            return
        loop = loops[0]
        parts = self.of(loop.iter, "a comprehension over this")
        several = len(parts) > 1
        for part in parts:
            self.draft.unrolled += several
            for name, value in self.reader.assignments.bindings(loop.target, part):
                self.draft.frame.names[name] = value
            holds = [self.draft.frame.holds(condition) for condition in loop.ifs]
            if None in holds and False not in holds:
                self.draft.fail(
                    made,
                    "a comprehension with a condition that is known only at run time",
                    "its length must be known now: choose values with ops.where",
                )
            if all(holds):
                yield from self._elements(made, loops[1:])
            self.draft.unrolled -= several


def is_unrolled(loop: ast.For) -> bool:
    """Returns whether a loop goes over a sequence, so that it may have no turns."""
    func = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    if isinstance(func, ast.Name):
        return func.id != "range"
    return not isinstance(func, ast.Attribute) or func.attr not in LOOPS
