"""Entries of dictionaries that a condition of the run may leave out: `metrics["loss"] = loss`.

Such an entry is two variables, its number and whether it is there; a report of it is a condition.
"""

import ast
from typing import Any

from mindspore_rl.compiler.frontend.records import Entries, rebuilt
from mindspore_rl.compiler.frontend.scope import Perhaps, Scope, Static, Struct, Var
from mindspore_rl.compiler.ir.ir import Branch, Expr, paths

Carried = dict[tuple[str, int, int], set[tuple[str, Any]]]
"""The names and keys of entries that loops carry round, though they may be set first in them, and
the names of lists that conditions make longer; by the places of loops and conditions."""


LIST = None
"""Stands for a key: the name is of a list, to which one branch of a condition appends."""

NUMBER = ...
"""Stands for a key: the name is a number that one branch of a condition sets before it is read."""


class Again(Exception):  # noqa: N818
    """Ends a reading that is to be repeated, because a statement begins with more than was known.

    Attributes:
        place: of the loop or condition.
        entries: names and keys, see `Carried`.
    """

    def __init__(self, place: tuple[str, int, int], entries: set[tuple[str, Any]]) -> None:
        super().__init__()
        self.place, self.entries = place, entries


class Choices:
    """Joins the dictionaries of two sides of a condition.

    Args:
        reader: the reader of expressions.

    Attributes:
        carried: what earlier readings have found that loops carry.
    """

    carried: Carried

    def __init__(self, reader: Any) -> None:
        self.reader, self.draft = reader, reader.draft
        self._set_in_turn: dict[ast.For, list[tuple[str, Any]]] = {}

    # ---- loops -----------------------------------------------------------------------------

    def begin(self, loop: ast.For) -> None:
        """Writes before a loop that entries which it carries are not there."""
        frame = self.draft.frame
        for name, key in sorted(self.carried.get(frame.place(loop), ()), key=str):
            struct = frame.names.get(name)
            if isinstance(struct, Entries) and key is not LIST and key not in struct:
                made = self._new(self.reader.assignments.part(frame.rename[name], key))
                self._absent(made)
                frame.names[name] = Entries.of({**struct, key: made}, struct)
                self.reader.assignments.name_in_source(name, frame.names[name])

    def end(self, loop: ast.For, name: str, before: Struct) -> Struct:
        """Makes the entries of a name at the end of a turn what they are at its beginning.

        Returns: its value at the beginning, without entries that each turn sets before it reads
        them: these are there after the loop.

        Raises:
            Again: entries were not there at the beginning.
        """
        frame, scope = self.draft.frame, self.draft.scope
        after = frame.names[name]
        if not isinstance(before, Entries) or not isinstance(after, Entries):
            return before
        place = frame.place(loop)
        known, found = self.carried.get(place, set()), {(name, key) for key in after}
        if new := {(name, key) for _, key in found if key not in before}:
            if not new <= known and all(_may_lack(after[key]) for _, key in new):
                raise Again(place, new)
            return before
        items = (item for item, _ in paths(tuple(scope.items)))
        reads = {read for item in items for read in getattr(item, "reads", ())}
        set_first = {
            key: after[key]
            for key, part in before.items()
            if isinstance(part, Perhaps)
            and not isinstance(after[key], Perhaps)
            and (name, key) in known
            and self.draft.loops[-1].count
            and part.given.name not in reads
        }
        if self.draft.loops[-1].count:
            pairs = ((key, after[key]) for key, part in before.items() if isinstance(part, Perhaps))
            keys = [key for key, part in pairs if not isinstance(part, Perhaps)]
            self._set_in_turn.setdefault(loop, []).extend((name, key) for key in keys)
        before = Entries.of({**before, **set_first}, before)
        frame.names[name] = self.level(frame.rename[name], (before, after), (Scope(), scope))[1]
        return before

    def behind(self, loop: ast.For) -> None:
        """Makes the entries that each turn of a loop sets, after it may have read them, known."""
        names = self.draft.frame.names
        for name, key in self._set_in_turn.pop(loop, ()):
            if isinstance(part := names[name][key], Perhaps):
                made = Entries.of({**names[name], key: part.value}, names[name])
                self.reader.assignments.assign(ast.Name(name, ast.Store()), made)

    # ---- conditions ------------------------------------------------------------------------

    def begin_condition(self, node: ast.If) -> None:
        """Makes arrays of the lists that only one branch of a condition makes longer."""
        found = self.carried.get(self.draft.frame.place(node), ())
        if chosen := {name for name, key in found if key is LIST}:
            self.reader.grown.begin(node, self.reader.changes.holders, chosen)

    def end_condition(self, node: ast.If, name: str) -> None:
        """Reads a condition again whose branches differ in a list, if they append to it.

        Raises:
            Again: it has not been read so.
        """
        place = self.draft.frame.place(node)
        known = (name, LIST) in self.carried.get(place, ())
        if not known and self.reader.grown.appends(node, name):
            raise Again(place, {(name, LIST)})

    def level(
        self, root: str, sides: tuple[Struct, Struct], scopes: tuple[Scope, Scope]
    ) -> tuple[Struct, Struct]:
        """Gives the dictionaries in two values the same keys: what only one side has is `Perhaps`.

        Args:
            root: the variable that the values belong to.
            sides: the values at the ends of the two sides.
            scopes: the bodies of the sides.
        """
        one, other = sides
        if isinstance(one, dict) and isinstance(other, dict):
            keys: Any = {**one, **other}
        elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            keys = getattr(one, "fields", range(len(one)))
        else:
            return sides
        found: tuple[dict, dict] = {}, {}
        for place, key in enumerate(keys):
            at = key if isinstance(one, dict) else place
            pair = tuple(
                side.get(at) if isinstance(side, dict) else side[at] for side in (one, other)
            )
            part = self.reader.assignments.part(root, key)
            if isinstance(pair[0], Perhaps) is not isinstance(pair[1], Perhaps) or None in pair:
                if all(map(_may_lack, pair)):
                    pair = tuple(map(self._perhaps, (part, part), pair, scopes))
            else:
                pair = self.level(part, pair, scopes)  # type: ignore[arg-type]
            for side, value in zip(found, pair, strict=True):
                if value is not None:
                    side[key] = value
        return tuple(map(_like, sides, found))  # type: ignore[return-value]

    def _perhaps(self, part: str, value: Struct, scope: Scope) -> Perhaps:
        """Writes an entry, or that it is not there, at the end of a side."""
        if isinstance(value, Perhaps):
            return value
        made = self._new(part)
        outer, self.draft.scope = self.draft.scope, scope
        self._absent(made, value is not None)
        if value is not None:
            (text,), reads = self.reader.texts([value], self.draft.frame.node)
            number = self.draft.imported("mindspore_rl.rl.operators", "number")
            self.draft.emit("glue", (made.value.name,), (f"{number}('float', {text})",), reads)
        self.draft.scope = outer
        return made

    def _new(self, part: str) -> Perhaps:
        return Perhaps(*map(Var, self.reader.assignments.perhaps(part)))

    def _absent(self, entry: Perhaps, given: bool = False) -> None:
        """Writes whether an entry is there, and the number 0.0 of one that is not."""
        self.draft.emit("constant", (entry.given.name,), (str(given),))
        if not given:
            self.draft.emit("constant", (entry.value.name,), ("0.0",))

    def got(self, call: ast.Call) -> Struct | None:
        """Reads `metrics.get("loss", 0.0)`; returns None for any other call."""
        frame = self.draft.frame
        match call:
            case ast.Call(ast.Attribute(owner, "get"), [key, *rest], []) if len(rest) < 2:
                entries = frame.part(owner)
            case _:
                return None
        if not isinstance(entries, dict):
            return None
        part = entries.get(frame.known(key))
        if part is not None and not isinstance(part, Perhaps):
            return part
        if part is not None and not rest:
            hint = f"give a number for then: {ast.unparse(call)[:-1]}, 0.0)"
            self.draft.fail(call, f"`{ast.unparse(call)}`, which is perhaps None,", hint)
        other = self.reader.expression(rest[0]) if rest else Static(None)
        return other if part is None else self._chosen(part, other)

    def known_in(self, test: ast.expr, holds: bool) -> dict[str, Struct]:
        """Returns what a dictionary is where `"loss" in metrics` holds, or does not: all known."""
        asked, names = self.draft.frame.asked(test), self.draft.frame.names
        if asked is None or asked[2] is not holds:
            return {}
        name, key, _ = asked
        return {name: Entries.of({**names[name], key: names[name][key].value}, names[name])}

    def merged(self, old: dict[Any, Struct], new: dict[Any, Struct]) -> dict[Any, Struct]:
        """Returns `old | new`, where entries that are perhaps not there leave the old ones."""
        result = {**old, **new}
        for key in old.keys() & new.keys():
            if isinstance(new[key], Perhaps):
                result[key] = self._chosen(new[key], old[key])
        return result

    def _chosen(self, new: Perhaps, old: Struct) -> Struct:
        """Writes the one of two entries that counts, as a branch. Returns: its variables."""
        draft = self.draft
        before = old if isinstance(old, Perhaps) else Perhaps(old, Static(True))
        if not isinstance(before.value, Var) and not _may_lack(before.value):
            hint = "give it a key of its own"
            draft.fail(draft.frame.node, "an entry that is a tuple, and perhaps a number,", hint)
        parts = ("value", "given") if isinstance(old, Perhaps) else ("value",)
        made = {part: Var(draft.fresh("entry")) for part in parts}
        bodies = []
        for entry in (Perhaps(new.value, Static(True)), before):
            outer, draft.scope = draft.scope, Scope(outer=draft.scope)
            for part, target in made.items():
                value = getattr(entry, part)
                kind = "copy" if isinstance(value, Var) else "constant"
                (text,), reads = self.reader.texts([value], draft.frame.node)
                draft.emit(kind, (target.name,), (text,), reads)
            bodies.append(tuple(draft.scope.items))
            draft.scope = outer
        self._branch(new.given.name, *bodies)
        return Perhaps(**made) if isinstance(old, Perhaps) else made["value"]

    def _branch(self, given: str, body: tuple, orelse: tuple = ()) -> None:
        frame, name = self.draft.frame, self.draft.name_op("if")
        where = frame.where(frame.node)
        self.draft.scope.items.append(Branch(name, Expr(given), (given,), body, orelse, where))

    def reported(self, entries: dict[Any, Struct]) -> None:
        """Reads `msrl.report(entries)`: what is perhaps not there is reported under a condition."""
        draft = self.draft
        groups: dict[str, dict[Any, Struct]] = {"": {}}
        for key, part in entries.items():
            perhaps = isinstance(part, Perhaps)
            group = groups.setdefault(part.given.name if perhaps else "", {})
            group[key] = part.value if perhaps else part
        for given, group in groups.items():
            outer, draft.scope = draft.scope, Scope(outer=draft.scope) if given else draft.scope
            texts, reads = self.reader.texts(list(group.values()), draft.frame.node)
            attrs = (("keys", tuple(map(str, group))),)
            draft.emit("report", (), tuple(texts), reads=tuple(reads), attrs=attrs)
            body, draft.scope = tuple(draft.scope.items), outer
            if given:
                self._branch(given, body)


def _may_lack(value: Struct) -> bool:
    """Returns whether an entry may be left out: it is a number, an array of one, or left out."""
    number = isinstance(value, Static) and type(value.value) in (bool, int, float)
    return value is None or number or isinstance(value, (Var, Perhaps))


def _like(side: Struct, parts: dict) -> Struct:
    """Makes a value like a side's with some parts, in a dictionary perhaps with more keys."""
    if not isinstance(side, dict):
        return rebuilt(side, parts.values())
    return Entries.of(parts, side) if isinstance(side, Entries) else parts


def has_perhaps(struct: Struct) -> bool:
    """Returns whether a value has entries that are perhaps not there."""
    if not isinstance(struct, (tuple, dict)):
        return isinstance(struct, Perhaps)
    return any(map(has_perhaps, struct.values() if isinstance(struct, dict) else struct))
