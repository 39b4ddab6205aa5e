"""Row dataflow through a compiled graph: values that depend on one row each, and what mixes rows.

This is an abstract interpretation of the graph over the lattice of `Sharding`: functions are
evaluated for the shardings of their arguments, loops until a fixed point, and a value chosen by a
condition is at least as mixed as the condition.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from mindspore_rl.compiler.analysis.row_lattice import REPLICATED, Call, Mixed, Sharding, Undecided
from mindspore_rl.compiler.analysis.row_rules import RULES
from mindspore_rl.mindir.graph import Function, Program, Type, Value
from mindspore_rl.mindir.primitives import PRIMITIVES

_ORDER = ("replicated", "sharded", "unknown", "mixed")


@dataclass(frozen=True)
class _Closure:
    """An abstract function value.

    Attributes:
        choices: the functions that it may be, each with its bound arguments.
        chosen_by: the sharding of the condition that chooses among them.
    """

    choices: frozenset
    chosen_by: Sharding = REPLICATED


class Dependence:
    """Abstract interpreter that finds the sharding of a function's values.

    Args:
        function: the main function of a graph.
        count: number of rows.
        known: the shardings of its arguments.
    """

    def __init__(self, function: Function, count: int, known: dict[Value, Sharding]) -> None:
        self._function, self._count, self._arguments = function, count, known
        self._known: dict[tuple, Any] = {}
        self._asked: set[tuple] = set()
        self._changed = False

    def of(self, result: Value) -> Any:
        """Returns the sharding of a value: a `Sharding`, or a tuple of them."""
        needed = needs(result)
        nodes = [node for node in self._function.nodes if node in needed]
        self._changed = True
        while self._changed:  # iterates to a fixed point, for loops
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
            return None  # a loop whose result is not known in this round
        if op == "call":
            return self._called(given[0], tuple(given[1:]))
        if op == "Partial":
            choices = {(f, (*bound, *given[1:])) for f, bound in given[0].choices}
            return replace(given[0], choices=frozenset(choices))
        if op == "Switch":
            return self._switched(given)
        if op in ("MakeTuple", "MakeList", "make_list"):  # the last one before MindSpore's passes
            return tuple(given)
        if op in ("TupleGetItem", "ListGetItem"):
            at = node.args[1].data
            if isinstance(given[0], tuple) and at is not None:
                return given[0][at]
            return _worst((given[0],))
        if op in ("Depend", "Load", "Return"):
            return given[0]
        if PRIMITIVES[op].rows == "constant":
            return REPLICATED
        return self._primitive(node, tuple(given))

    def _primitive(self, node: Value, given: tuple) -> Any:
        worst = _worst(given)
        if worst.kind == "sharded":
            try:
                worst = RULES[PRIMITIVES[node.op].rows](Call(node, given, self._count))
            except Mixed:
                worst = Sharding("mixed", by=node.op)
            except (Undecided, LookupError, TypeError, ValueError):  # or an unknown call form
                worst = Sharding("unknown", by=node.op)
        types = node.type if isinstance(node.type, tuple) else (node.type,)
        if worst.kind == "unknown" and not any(self._has_room(t) for t in types):
            return Sharding("mixed", by=worst.by)
        if worst.kind == "sharded" and not all(self._has_room(t, worst) for t in types):
            return Sharding("mixed", by=node.op)
        return worst

    def _has_room(self, kind: Any, sharding: Sharding | None = None) -> bool:
        """Returns whether an array's shape can hold all rows along an axis.

        Args:
            kind: its type.
            sharding: the place of the rows; None: any axis.
        """
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
        """Returns the sharding of a function's result in this round; None if not known yet."""
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
    """Returns the join of two abstract values: the sharding of a value that is either one."""
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
    """Returns the sharding of a value chosen by a condition: at least as mixed as that."""
    by = _worst((condition,))
    if by == REPLICATED or value is None:
        return value
    if isinstance(value, tuple):
        return tuple(_tainted(part, by) for part in value)
    if isinstance(value, _Closure):
        return replace(value, chosen_by=_worst((value, by)))
    return _worst((value, replace(by, kind="unknown" if by.kind == "unknown" else "mixed")))


def random_primitive(value: Any) -> str:
    """Returns the primitive that draws random numbers for a value; empty if none does."""
    return next((v.op for v in needs(value) if isinstance(v, Value) and _draws(v)), "")


def has_loop(value: Any) -> bool:
    """Returns whether a value is computed in a loop, which is a function that calls itself."""
    functions = [found for found in needs(value) if isinstance(found, Function)]
    return any(function in needs(function.result) for function in functions)


def changed_in_place(program: Program) -> str:
    """Returns the primitive that changes an array in place that is read elsewhere; else empty.

    An array with no other reader may be changed in place.
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


def _draws(value: Value) -> bool:
    return bool(value.attrs.get("side_effect_hidden")) or value.op.startswith(("Rand", "Generator"))


def needs(value: Any) -> set:
    """Returns the values and functions that a value is computed from, across functions."""
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
