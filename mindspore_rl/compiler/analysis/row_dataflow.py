"""Row dataflow through a compiled graph: values that depend on one row each, and what mixes rows.

The graph is evaluated with what is known of each value (`Sharding`) in the place of its numbers:
functions by what their arguments are, loops until nothing more is found, and what a condition
chooses is as mixed as the condition.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mindspore_rl.compiler.analysis.row_lattice import REPLICATED, Call, Mixed, Sharding, Undecided
from mindspore_rl.compiler.analysis.row_rules import ROW_RULES, SHAPE_ONLY
from mindspore_rl.mindir.graph import Function, Program, Type, Value

_ORDER = ("replicated", "sharded", "unknown", "mixed")


@dataclass(frozen=True)
class _Closure:
    """Functions of which one is called, each with its first arguments, and what chooses it."""

    choices: frozenset
    chosen_by: Sharding = REPLICATED


class Dependence:
    """What a value of a function is made of.

    Args:
        function: the main one of a graph.
        count: how many rows there are.
        known: what its arguments are made of.
    """

    def __init__(self, function: Function, count: int, known: dict[Value, Sharding]) -> None:
        self._function, self._count, self._arguments = function, count, known
        self._known: dict[tuple, Any] = {}
        self._asked: set[tuple] = set()
        self._changed = False

    def of(self, result: Value) -> Any:
        """A `Sharding`, or a tuple of them."""
        needed = _needs(result)
        nodes = [node for node in self._function.nodes if node in needed]
        self._changed = True
        while self._changed:  # of a loop more is known in each round
            self._changed = False
            self._asked.clear()
            known = self._run(nodes, dict(self._arguments))
        return self._look(result, known)

    def _run(self, nodes: list[Value], known: dict) -> dict:
        for node in nodes:
            known[node] = self._node(node, [self._look(arg, known) for arg in node.args])
        return known

    def _look(self, value: Any, known: dict) -> Any:
        if isinstance(value, Function):
            return _Closure(frozenset({(value, ())}))
        if value.op in ("constant", "weight") or value.type is None:
            return known.get(value, REPLICATED)
        return known.get(value, Sharding("unknown", by=value.op))

    def _node(self, node: Value, given: list) -> Any:
        op = node.op
        if op == "UpdateState":
            return REPLICATED
        if any(part is None for part in given):
            return None  # of a loop that has not ended yet
        if op == "call":
            return self._called(given[0], tuple(given[1:]))
        if op == "Partial":
            choices = {(f, (*bound, *given[1:])) for f, bound in given[0].choices}
            return replace(given[0], choices=frozenset(choices))
        if op == "Switch":
            return self._switched(given)
        if op in ("MakeTuple", "MakeList"):
            return tuple(given)
        if op in ("TupleGetItem", "ListGetItem"):
            at = node.args[1].data
            if isinstance(given[0], tuple) and at is not None:
                return given[0][at]
            return _worst((given[0],))
        if op in ("Depend", "Load", "Return"):
            return given[0]
        if op in SHAPE_ONLY:
            return REPLICATED
        return self._primitive(node, tuple(given))

    def _primitive(self, node: Value, given: tuple) -> Any:
        worst = _worst(given)
        if worst.kind == "sharded":
            try:
                worst = ROW_RULES[node.op](Call(node, given, self._count))
            except Mixed:
                worst = Sharding("mixed", by=node.op)
            except (Undecided, LookupError, TypeError, ValueError):  # or a form that is not known
                worst = Sharding("unknown", by=node.op)
        types = node.type if isinstance(node.type, tuple) else (node.type,)
        if worst.kind == "unknown" and not any(self._has_room(t) for t in types):
            return Sharding("mixed", by=worst.by)
        if worst.kind == "sharded" and not all(self._has_room(t, worst) for t in types):
            return Sharding("mixed", by=node.op)
        return worst

    def _has_room(self, kind: Any, sharding: Sharding | None = None) -> bool:
        """Whether an entry of it can be of one row and another entry of another."""
        shape = kind.shape if isinstance(kind, Type) else ()
        if sharding is None:
            return any(extent % self._count == 0 for extent in shape)
        places = range(len(shape))
        return (
            sharding.axis in places and shape[sharding.axis] % (sharding.inner * self._count) == 0
        )

    def _switched(self, given: list) -> Any:
        condition, *sides = given
        if all(isinstance(side, _Closure) for side in sides):
            choices = frozenset().union(*(side.choices for side in sides))
            return _Closure(choices, _worst((condition, *(side.chosen_by for side in sides))))
        return _tainted(_joined(*sides), condition)

    def _called(self, closure: _Closure, args: tuple) -> Any:
        result = None
        for function, bound in closure.choices:
            result = _joined(result, self._result(function, (*bound, *args)))
        return _tainted(result, closure.chosen_by)

    def _result(self, function: Function, args: tuple) -> Any:
        """What a function gives, as far as is known in this round; nothing yet is None."""
        key = (function, args)
        if key not in self._asked:
            self._asked.add(key)
            known = self._run(function.nodes, dict(zip(function.params, args, strict=False)))
            result = _joined(self._known.get(key), self._look(function.result, known))
            if result != self._known.get(key):
                self._known[key], self._changed = result, True
        return self._known.get(key)


def _flat(given: Any) -> Iterator[Sharding]:
    if isinstance(given, Sharding):
        yield given
    elif isinstance(given, tuple):
        for part in given:
            yield from _flat(part)
    elif isinstance(given, _Closure):
        yield given.chosen_by


def _worst(given: tuple) -> Sharding:
    return max(_flat(given), key=lambda sharding: _ORDER.index(sharding.kind), default=REPLICATED)


def _joined(left: Any, right: Any) -> Any:
    """What is one or the other."""
    if left is None or right is None or left == right:
        return right if left is None else left
    if isinstance(left, tuple) and isinstance(right, tuple):
        return tuple(map(_joined, left, right))
    if isinstance(left, _Closure) and isinstance(right, _Closure):
        return _Closure(left.choices | right.choices, _worst((left, right)))
    one, other = _worst((left,)), _worst((right,))
    if one.kind == other.kind == "sharded":
        return Sharding("mixed", by="rows in different places")
    return _worst((one, other))


def _tainted(value: Any, condition: Any) -> Any:
    """A value that a condition chose: as mixed as that is."""
    by = _worst((condition,))
    if by == REPLICATED or value is None:
        return value
    if isinstance(value, tuple):
        return tuple(_tainted(part, by) for part in value)
    if isinstance(value, _Closure):
        return replace(value, chosen_by=_worst((value, by)))
    return _worst((value, replace(by, kind="unknown" if by.kind == "unknown" else "mixed")))


def random_primitive(value: Any) -> str:
    """The primitive that draws random numbers for a value; empty if none does."""
    return next((v.op for v in _needs(value) if isinstance(v, Value) and _draws(v)), "")


def changed_in_place(program: Program) -> str:
    """The primitive that changes an array which others read; empty if none does.

    What nobody else reads may be worked on in place.
    """
    nodes = [node for function in program.functions.values() for node in function.nodes]
    readers = Counter(arg for node in nodes if node.op != "UpdateState" for arg in set(node.args))
    for node in nodes:
        if not node.args or not node.op.startswith("Inplace"):
            continue
        target = node.args[0]
        while isinstance(target, Value) and target.op in ("Depend", "Load"):
            if readers[target] > 1:
                return node.op
            target = target.args[0]
        if target.op in ("argument", "constant", "weight") or readers[target] > 1:
            return node.op
    return ""


def branch_without_value(program: Program) -> str:
    """The function of the user's with a branch on an array that gives nothing; empty if none has.

    MindSpore 2.10 compiles such a branch in front and fails behind, without a line.
    """
    for function in program.functions.values():
        result = function.result
        while isinstance(result, Value) and result.op == "Depend":
            result = result.args[0]
        branch = re.search(r"[✓✗](\w+?)_\d+$", function.name)
        if branch and isinstance(result, Value) and result.op == "constant" and result.data is None:
            return branch[1]
    return ""


def _draws(value: Value) -> bool:
    return bool(value.attrs.get("side_effect_hidden")) or value.op.startswith(("Rand", "Generator"))


def _needs(value: Any) -> set:
    """The values and functions from which a value is computed, in every function."""
    seen: set = set()
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        if isinstance(here, Function):
            waiting.append(here.result)
        elif isinstance(here, Value) and here.op != "UpdateState":
            waiting += here.args[:1] if here.op in ("Depend", "Load") else here.args
    return seen
