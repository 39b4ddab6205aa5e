"""Assignments: maps the user's names to variables of the graph, with copies where needed."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from mindspore_rl.compiler.frontend.builder import Draft
from mindspore_rl.compiler.frontend.records import Listed, Record, is_sequence, rebuilt
from mindspore_rl.compiler.frontend.scope import (
    THROWN_AWAY,
    Gone,
    Perhaps,
    Scope,
    Static,
    Struct,
    Var,
    is_literal,
    literal,
)
from mindspore_rl.compiler.ir.ir import Op


class Assignments:
    """Handles assignments in the body that is being read."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def give_homes(self, names: list[str], always: bool = False) -> None:
        """Makes variables in this body for names that an inner body will change.

        Constant numbers become variables. Arguments, and names made in bodies that are already
        closed, get a variable of this body.

        Args:
            names: names that the inner body assigns.
            always: also reserve a variable for names that have no value yet.
        """
        for name in names:
            struct = self.draft.frame.names.get(name)
            created = self.draft.frame.created.get(name)
            at_hand = created is self.draft.scope or self.draft.scope.inside(created)
            if struct is None or isinstance(struct, Gone):
                if always and not at_hand:
                    self.draft.frame.rename[name] = self.draft.fresh(name)
                    self.draft.frame.created[name] = self.draft.scope
            elif not at_hand or _has_numbers(struct):
                if not at_hand:
                    self.draft.frame.rename[name] = self.draft.fresh(name)
                    self.draft.frame.created[name] = self.draft.scope
                self._write([(name, struct)], {name})

    def forget(self, names: set[str]) -> dict[str, tuple[Scope, str]]:
        """Makes names local to an inner body, because nothing reads them after it.

        Returns: their variables outside of it, for `remember`.
        """
        frame = self.draft.frame
        known = names & frame.created.keys()
        return {name: (frame.created.pop(name), frame.rename[name]) for name in known}

    def remember(self, forgotten: dict[str, tuple[Scope, str]]) -> None:
        """Gives names their variables back, after the inner body."""
        for name, (scope, variable) in forgotten.items():
            self.draft.frame.created[name], self.draft.frame.rename[name] = scope, variable

    def assign(self, target: ast.expr, value: Struct) -> None:
        """Assigns the parts of a value to the names of a target."""
        # A name that occurs twice (`a, _, _ = ...`) keeps its last value.
        bindings = list(dict(self.bindings(target, value)).items())
        inner = set()
        for name, _ in bindings:
            if self.draft.scope.inside(self.draft.frame.created.get(name)):
                inner.add(name)
            else:
                # An assignment in an inner body updates the outer variable; any other makes a
                # new variable, which may have another shape.
                self.draft.frame.rename[name] = self.draft.fresh(name)
                self.draft.frame.created[name] = self.draft.scope
        self._write(bindings, inner)

    def bindings(self, target: ast.expr, value: Struct) -> Iterator[tuple[str, Struct]]:
        """Yields the names of a target, each with its part of a value."""
        if isinstance(target, ast.Name):
            if target.id != THROWN_AWAY:
                yield target.id, value
        elif isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, Static) and isinstance(value.value, (tuple, list)):
                value = tuple(map(Static, value.value))
            names, several = list(target.elts), len(target.elts)
            parts = self._rest_of_loss(names, value) or self._named_ones(names, value)
            if parts is not None:
                for element, part in parts:
                    yield from self.bindings(element, part)
                return
            for element in target.elts:
                if isinstance(element, ast.Starred):
                    several = self._several(element, value, len(names) - 1)
            if isinstance(value, Var):
                value = self.draft.unpack(value, several)
            if not is_sequence(value) or len(value) != several:
                got = len(value) if isinstance(value, (tuple, dict)) else "one"
                self.draft.fail(target, f"{len(names)} names for {got} value(s)")
            for place, element in enumerate(names):
                if isinstance(element, ast.Starred):
                    names[place] = element.value
                    end = place + several - len(names) + 1
                    value = (*value[:place], value[place:end], *value[end:])
            for name, part in zip(names, value, strict=True):
                yield from self.bindings(name, part)
        else:
            self.fail_target(target)

    def _rest_of_loss(
        self, names: list[ast.expr], value: Struct
    ) -> list[tuple[ast.expr, Struct]] | None:
        """Reads `loss, *others = means` of what a loss returns: the others stay one variable.

        None for anything else, and if the starred name is a tuple already.
        """
        *first, last = names
        if not isinstance(value, Var) or value.name not in self.draft.tuples:
            return None
        if not isinstance(last, ast.Starred) or not isinstance(last.value, ast.Name):
            return None
        held = self.draft.frame.names.get(last.value.id)
        if isinstance(held, tuple) or any(isinstance(one, ast.Starred) for one in first):
            return None
        name, reads = value.name, (value.name,)
        self.draft.temporary.discard(name)  # it is read several times
        parts = [self.draft.result("glue", f"{name}[{k}]", reads) for k in range(len(first))]
        rest = self.draft.result("glue", f"{name}[{len(first)}:]", reads)
        self.draft.tuples.add(rest.name)
        return list(zip([*first, last.value], [*parts, rest], strict=True))

    def _named_ones(
        self, names: list[ast.expr], value: Struct
    ) -> list[tuple[ast.expr, Struct]] | None:
        """Reads `first, *_, last = result`, whatever the result's length; else returns None."""
        stars = [k for k, name in enumerate(names) if isinstance(name, ast.Starred)]
        if not isinstance(value, Var) or len(stars) != 1:
            return None
        thrown_away: Any = names[stars[0]]
        if getattr(thrown_away.value, "id", "") != THROWN_AWAY:
            return None
        self.draft.temporary.discard(value.name)  # it is read several times
        places = [k if k < stars[0] else k - len(names) for k in range(len(names))]
        return [
            (name, self.draft.result("glue", f"{value.name}[{k}]", (value.name,)))
            for name, k in zip(names, places, strict=True)
            if name is not thrown_away
        ]

    def _several(self, starred: ast.Starred, value: Struct, others: int) -> int:
        """Returns the number of parts of a value that is unpacked into a target with a `*`.

        The result of a method may have an unknown length; the starred name then keeps the length
        that it has already, because a loop carries it.
        """
        if isinstance(value, tuple):
            return max(len(value), others)
        if isinstance(value, Var) and value.name in self.draft.widths:
            return max(self.draft.widths[value.name], others)
        name = starred.value
        held = self.draft.frame.names.get(name.id) if isinstance(name, ast.Name) else None
        if not isinstance(held, tuple):
            self.draft.fail(
                starred,
                "`*` in the target of an assignment, of a value whose length is not known now,",
                "a name that is a tuple before keeps its length: `state = (hidden,)`, then "
                "`action, *state = msrl.agent_act(obs, *state)`;\n  or name each part",
            )
        return others + len(held)

    def fail_target(self, target: ast.AST) -> NoReturn:
        """Refuses an assignment to an attribute or an element."""
        if isinstance(target, ast.Attribute):
            self.draft.fail(
                target,
                "an assignment to an attribute",
                "keep it in a local variable, or in a Parameter that a method changes through "
                "msrl.update(self.method, ...)",
            )
        self.draft.fail(
            target,
            "an assignment to an element",
            'make a new value: `d = {**d, "key": value}` for a dictionary, '
            "`x = ops.where(...)` for an array;\n  of a new one, `x = ops.zeros_like(y)`, elements "
            "are set before anything but operators reads it",
        )

    def _write(self, bindings: list[tuple[str, Struct]], numbers: set[str]) -> None:
        """Writes values to the variables of names, all at once as in `a, b = b, a`.

        Args:
            bindings: names and their values.
            numbers: names whose constant numbers become variables, because an inner body changes
                them.
        """
        leaves: list[tuple[str, Var]] = []
        results = {}
        for name, value in bindings:
            root = self.draft.frame.rename[name]
            results[name] = self._place(root, value, name in numbers, leaves)
        targets = {target for target, _ in leaves}
        for position, (target, value) in enumerate(leaves):
            earlier = {t for t, _ in leaves[:position]}
            if value.name in targets and value.name in earlier and value.name != target:
                own = self.draft.result("copy", value.name, (value.name,), value.name)
                leaves[position] = (target, own)
        for target, value in leaves:
            self._name_value(target, value)
        for name, struct in results.items():
            self.draft.frame.names[name] = struct
            self.name_in_source(name, struct)

    def _place(
        self, root: str, value: Struct, numbers: bool, leaves: list[tuple[str, Var]]
    ) -> Struct:
        if isinstance(value, tuple):
            keys = value.fields if isinstance(value, Record) else range(len(value))
            pairs = zip(keys, value, strict=True)
            parts = [self._place(self.part(root, k), p, numbers, leaves) for k, p in pairs]
            return rebuilt(value, parts)
        if isinstance(value, dict):
            return rebuilt(
                value,
                [
                    self._place(self.part(root, key), part, numbers, leaves)
                    for key, part in value.items()
                ],
            )
        if isinstance(value, Perhaps):
            made = self.perhaps(root)
            leaves += zip(made, (value.value, value.given), strict=True)
            return Perhaps(*map(Var, made))
        if numbers and _has_numbers(value):
            value = self.draft.result("constant", literal(value.value), ())
        if isinstance(value, Var):
            leaves.append((root, value))
            return Var(root)
        return value

    def part(self, root: str, key: Any) -> str:
        """Returns the variable of a part of a variable's tuple or dictionary."""
        if (root, key) not in self.draft.frame.parts:
            text = "".join(c if c.isalnum() else "_" for c in str(key))
            self.draft.frame.parts[root, key] = self.draft.fresh(f"{root}_{text}")
        return self.draft.frame.parts[root, key]

    def perhaps(self, root: str) -> tuple[str, str]:
        """Returns the variables of an entry that is perhaps not there, see `Perhaps`."""
        return self.part(root, "perhaps"), self.part(root, "given")

    def _name_value(self, name: str, value: Var) -> None:
        """Renames the target of the operation that computed a value, or emits a copy."""
        if value.name == name:
            return
        self.draft.follow(value.name, name)
        if value.name in self.draft.temporary and self._rename(value.name, name):
            self.draft.temporary.discard(value.name)
            self.draft.used.discard(value.name)
            # Another result may be named so.
            for known in (self.draft.arrays, self.draft.tuples, self.draft.singles):
                known.discard(value.name)
            self.draft.widths.pop(value.name, None)
            return
        self.draft.emit("copy", (name,), (value.name,), reads=(value.name,))

    def _rename(self, old: str, new: str) -> bool:
        items = self.draft.scope.items
        for position in range(len(items) - 1, -1, -1):
            item = items[position]
            if not isinstance(item, Op):
                return False
            if old in item.targets:
                targets = tuple(new if t == old else t for t in item.targets)
                items[position] = replace(item, targets=targets)
                return True
            if old in item.reads or new in item.reads or new in item.targets:
                return False
        return False

    def name_in_source(self, local: str, struct: Struct) -> None:
        """Notes of the variables in a value of `train` how its source names them."""
        if not self.draft.frame.top:
            return
        if isinstance(struct, Var):
            self.draft.locals[struct.name] = local
        elif isinstance(struct, Perhaps):
            entries, _, own = local.removesuffix("]").rpartition("[")
            self.draft.locals[struct.value.name] = f"{entries}.get({own}, 0.0)"
            self.draft.locals[struct.given.name] = f"({own} in {entries})"
        elif isinstance(struct, (tuple, dict)):
            items = struct.items() if isinstance(struct, dict) else enumerate(struct)
            for key, part in items:
                self.name_in_source(f"{local}[{key!r}]", part)


def _has_numbers(struct: Struct) -> bool:
    if isinstance(struct, (tuple, dict)):
        return any(map(_has_numbers, struct.values() if isinstance(struct, dict) else struct))
    return (
        isinstance(struct, Static)
        and is_literal(struct.value)
        and not isinstance(struct.value, (str, tuple, type(None)))
    )


def _kind(struct: Struct) -> type:
    """Returns the type of a structure; a list of the program counts as a tuple."""
    if isinstance(struct, Listed):
        return tuple
    return dict if isinstance(struct, dict) else type(struct)


def same(left: Struct, right: Struct) -> bool:
    """Returns whether two structures hold the same variables and constants."""
    if isinstance(left, Static) and isinstance(right, Static):
        if is_literal(left.value) and is_literal(right.value):
            return bool(left.value == right.value)
        return left.value is right.value
    if _kind(left) is not _kind(right):
        return False
    if isinstance(left, Record) and left.kind is not right.kind:
        return False
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return bool(left == right)
