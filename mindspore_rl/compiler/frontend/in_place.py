"""Changes of lists and dictionaries in place: `xs.append(x)` and `d["key"] = x`.

They are read as assignments of a new value to the name, `xs = [*xs, x]`, as long as no other name
holds the same list or dictionary; likewise `x[t] = y` of a new array (`filled_arrays`). Assignments
inside expressions (`:=`) become statements before.
"""

# ruff: noqa: D102  (the visitors of `ast`, whose names say what they take)

import ast
import copy
from collections.abc import Iterator
from typing import Any

from mindspore_rl.compiler.frontend.break_to_flag import at
from mindspore_rl.compiler.frontend.functions import Inner, Partial
from mindspore_rl.compiler.frontend.grown import GROWS, Grown
from mindspore_rl.compiler.frontend.records import Entries, Listed, parts_of, rebuilt
from mindspore_rl.compiler.frontend.scope import Frame, Static, Struct, Var
from mindspore_rl.platform.syntax import children, nodes_of

METHODS = ("append", "clear", "extend", "insert", "pop", "reverse", "update")
COPIES = ("range", "tuple", "list", "sorted", "len")
"""Functions whose result does not follow later changes of their argument."""


def as_assignments(function: ast.FunctionDef, frame: Frame) -> None:
    """Rewrites the changes in place of a function's body, and its `:=`."""
    filled = set(filled_arrays(function))
    function.body = _Rewriter(frame).block(function.body)
    for part in nodes_of(function):
        kind, name = getattr(part, "in_place", ("", ""))
        if kind == "entry" and name in filled:
            part.filled = True  # type: ignore[attr-defined]


NEW = ("zeros_like", "ones_like", "zeros", "ones", "full", "full_like", "copy", "clone")
"""Functions whose result is an array that nothing else holds."""

HOLDERS = (ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Lambda, ast.NamedExpr, ast.ListComp)


def filled_arrays(function: ast.FunctionDef) -> Iterator[str]:
    """Yields the names of new arrays that are filled in place, `x = ops.zeros_like(y)`, `x[t] = y`.

    Until they are full, nothing else reads them but operators, whose results are new arrays too:
    there is then no view of them, and no second name.
    """
    for block in _blocks(function):
        for place, statement in enumerate(block):
            for name in _new_arrays(statement):
                last = max((k for k, one in enumerate(block) if _fills(one, name)), default=0)
                then = block[place + 1 : last + 1]
                fills = sum(_fills(one, name) for one in then)
                if 0 < fills == _fills(function, name) and not any(
                    _stores(one, name) or _may_keep(one, name) for one in then
                ):
                    yield name


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for part in nodes_of(node):
        for name in ("body", "orelse"):
            if isinstance(found := getattr(part, name, None), list):
                yield found


def _new_arrays(statement: ast.stmt) -> Iterator[str]:
    """Yields the names to which a statement assigns new arrays."""
    match statement:
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            pairs = list(zip(targets, values, strict=False))
        case ast.Assign([target], value):
            pairs = [(target, value)]
        case _:
            return
    for pair in pairs:
        match pair:
            case ast.Name(name), ast.Call(ast.Attribute(ast.Name(), function)) if function in NEW:
                yield name


def _stores(node: ast.AST, name: str) -> bool:
    found = (part for part in nodes_of(node) if isinstance(part, (ast.Name, ast.arg)))
    return any(
        part.arg == name if isinstance(part, ast.arg) else _is_named(part, name, ast.Store)
        for part in found
    )


def _is_named(node: ast.AST, name: str, context: type[ast.expr_context]) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, context)


def _fills(node: ast.AST, name: str) -> int:
    """Counts the assignments to elements of a name."""
    return sum(
        isinstance(part, ast.Subscript)
        and isinstance(part.ctx, ast.Store)
        and _is_named(part.value, name, ast.Load)
        for part in nodes_of(node)
    )


def _may_keep(node: ast.AST, name: str) -> bool:
    """Returns whether something may hold an array, or a view of it, after a statement."""
    if _is_named(node, name, ast.Load):
        return True
    if isinstance(node, (ast.BinOp, ast.Compare)):  # an operator makes a new array
        return any(
            _is_named(part, name, ast.Load)
            for holder in nodes_of(node)
            if isinstance(holder, HOLDERS)
            for part in nodes_of(holder)
        )
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return _may_keep(node.slice, name)
    return any(_may_keep(part, name) for part in children(node))


class _Rewriter(ast.NodeTransformer):
    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in statements:
            found += _hoisted(statement)
            found += map(self.visit, _entries_apart(statement))
        return found

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:  # noqa: N802
        return node

    def visit_If(self, node: ast.If) -> ast.If:  # noqa: N802
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> ast.For:  # noqa: N802
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        copied = isinstance(node.iter, ast.Call) and (
            _called(node.iter) in COPIES or self.frame.msrl_call(node.iter) is not None
        )
        names = set() if copied else {n.id for n in nodes_of(node.iter) if isinstance(n, ast.Name)}
        owners = {
            ast.unparse(owner.value)
            for owner in nodes_of(node.iter)
            if isinstance(owner, ast.Subscript)
        }
        for part in nodes_of(node):
            changed = getattr(part, "in_place", ("", ""))[1]
            if hasattr(part, "part") and changed not in owners:
                continue  # `for key in d: d[key].append(x)` changes no part of what it goes over
            if changed in names and not _is_current(part, node):
                self.frame.fail(
                    part,
                    f"a change of `{changed}` in a loop over it",
                    f"loop over a copy: tuple({ast.unparse(node.iter)})",
                )
        return node

    def visit_While(self, node: ast.While) -> ast.While:  # noqa: N802
        node.body = self.block(node.body)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:  # noqa: N802
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return node
        method, base, key = call.func.attr, call.func.value, None
        match call.args:
            case [asked, value] if method == "setdefault" and isinstance(base, ast.Name):
                there = ast.Compare(asked, [ast.NotIn()], [base])
                entry = ast.Subscript(ast.Name(base.id, ast.Load()), asked, ast.Store())
                return self.visit_If(at(node, ast.If(there, [ast.Assign([entry], value)], [])))
        if _is_entry(base):  # `d["key"].append(x)`
            base, key = base.value, base.slice  # type: ignore[attr-defined]
        if method not in METHODS or not isinstance(base, ast.Name):
            return node
        given = list(call.args)
        if method == "update" and call.keywords and len(given) < 2:
            names: list[Any] = [ast.Constant(k.arg) if k.arg else None for k in call.keywords]
            more: list[Any] = [None] * len(given)
            given = [ast.Dict([*more, *names], [*given, *(k.value for k in call.keywords)])]
        elif call.keywords:
            return node
        if method == "insert":  # at the front alone
            given = given[1:] if [ast.unparse(one) for one in given[:1]] == ["0"] else []
        if method == "pop":
            given = given or [at(node, ast.Constant(-1))]
        expected = 0 if method in ("reverse", "clear") else 1
        return node if len(given) != expected else _assignment(node, method, base.id, given, key)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:  # noqa: N802
        target: Any = node.targets[0]
        if len(node.targets) > 1 or not _is_entry(target):
            return node
        return _assignment(node, "entry", target.value.id, [target.slice, node.value])

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:  # noqa: N802
        target: Any = node.target
        if isinstance(target, ast.Name) and isinstance(node.op, ast.BitOr):
            return _assignment(node, "update", target.id, [node.value])
        lists = isinstance(node.value, (ast.List, ast.ListComp))
        if isinstance(target, ast.Name) and isinstance(node.op, ast.Add) and lists:
            return _assignment(node, "extend", target.id, [node.value])
        if not _is_entry(target):
            return node
        read = ast.Subscript(target.value, target.slice, ast.Load())
        read.in_change = True  # type: ignore[attr-defined]
        value = at(node, ast.BinOp(copy.deepcopy(read), node.op, node.value))
        return _assignment(node, "entry", target.value.id, [target.slice, value])


def _entries_apart(statement: ast.stmt) -> list[ast.stmt]:
    """Splits `grads, d["loss"] = ...` into an assignment to names and one to each entry.

    Likewise `d["loss"] = loss = ...`, `x = d.pop("loss")`, `d.setdefault("loss", []).append(x)`.
    """
    match statement:
        case ast.Assign(targets, ast.Call(ast.Attribute(ast.Name() as owner, "pop"), key, [])) if (
            len(key) < 2 and not any(_stores(target, owner.id) for target in targets)
        ):
            place = key[0] if key else ast.Constant(-1)
            taken = at(statement, ast.Assign(targets, ast.Subscript(owner, place, ast.Load())))
            return [*_entries_apart(taken), at(statement, ast.Expr(statement.value))]
        case ast.Expr(
            ast.Call(
                ast.Attribute(
                    ast.Call(
                        ast.Attribute(ast.Name() as owner, "setdefault"), [key, _], []
                    ) as first,
                    method,
                ),
                args,
                [],
            )
        ):
            entry = ast.Attribute(ast.Subscript(owner, key, ast.Load()), method, ast.Load())
            after = at(statement, ast.Expr(ast.Call(entry, args, [])))
            return [at(statement, ast.Expr(first)), after]
        case ast.Delete(several):
            return [_deleted(one) for one in several]
    if not isinstance(statement, ast.Assign):
        return [statement]
    if len(statement.targets) > 1:
        return _one_by_one(statement)
    entries: list[Any] = []

    def named(target: ast.expr) -> ast.expr:
        if isinstance(target, (ast.Tuple, ast.List)):
            return ast.Tuple(list(map(named, target.elts)), ast.Store())
        if not _is_entry(target):
            return target
        entries.append(target)
        return ast.Name(f"{entries[-1].value.id}_entry_{len(entries)}", ast.Store())

    names = named(statement.targets[0])
    set_now = {node.id for node in nodes_of(names) if isinstance(node, ast.Name)}
    read = {n.id for part in entries for n in nodes_of(part) if isinstance(n, ast.Name)}
    if not entries or not isinstance(names, ast.Tuple) or read & set_now:  # sets its own key
        return [statement]
    texts = (
        ast.Name(f"{part.value.id}_entry_{k}", ast.Load()) for k, part in enumerate(entries, 1)
    )
    rest = [ast.Assign([part], text) for part, text in zip(entries, texts, strict=True)]
    return [at(statement, made) for made in (ast.Assign([names], statement.value), *rest)]


def _deleted(target: Any) -> ast.stmt:
    """Returns `del d["loss"]` as `d.pop("loss")`."""
    if not _is_entry(target):
        return at(target, ast.Delete([target]))
    pop = ast.Attribute(ast.Name(target.value.id, ast.Load()), "pop", ast.Load())
    return at(target, ast.Expr(ast.Call(pop, [target.slice], [])))


def _one_by_one(statement: ast.Assign) -> list[ast.stmt]:
    """Splits `d["loss"] = loss = ...`: the name first, whose value the entries get."""
    names = [target for target in statement.targets if isinstance(target, ast.Name)]
    entries = [target for target in statement.targets if _is_entry(target)]
    read = {node.id for part in entries for node in nodes_of(part) if isinstance(node, ast.Name)}
    if len(names) + len(entries) < len(statement.targets) or not entries or not names:
        return [statement]
    if read & {name.id for name in names}:
        return [statement]
    value = ast.Name(names[0].id, ast.Load())
    made = [ast.Assign([*names], statement.value), *(ast.Assign([e], value) for e in entries)]
    return [at(statement, one) for one in made]


def _is_entry(target: Any) -> bool:
    entry = isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
    return entry and not isinstance(target.slice, ast.Slice)


def _is_current(change: Any, loop: ast.For) -> bool:
    """Returns whether a change sets the entry of the current turn, as in `for k in d: d[k] = x`.

    Notes at the change, as `current`, the type that its base must have then.
    """
    (kind, name), key, first = change.in_place, change.given[0], loop.target
    if isinstance(first, ast.Tuple):
        first = first.elts[0]
    if kind != "entry" or ast.unparse(first) != ast.unparse(key):
        return False
    over, several = ast.unparse(loop.iter), isinstance(loop.target, ast.Tuple)
    change.current = Listed if over == f"enumerate({name})" else Entries
    if several:
        keyed = over.startswith(f"zip({name}, ") and over.count(name) == 1
        return keyed or over in (f"enumerate({name})", f"{name}.items()")
    return over in (name, f"{name}.keys()")


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _assignment(
    node: ast.stmt, kind: str, name: str, given: list[ast.expr], key: ast.expr | None = None
) -> ast.Assign:
    """Returns an assignment to a name whose value shows what the change reads.

    Args:
        node: the change.
        kind: the method, or `entry`.
        name: what is changed.
        given: what the change reads.
        key: of an entry of what has the name, if this entry is changed.
    """
    keys = [] if key is None else [key]
    read = ast.Tuple([ast.Name(name, ast.Load()), *given, *keys], ast.Load())
    made = at(node, ast.Assign([ast.Name(name, ast.Store())], read))
    made.in_place = (kind, name)  # type: ignore[attr-defined]
    made.given = given  # type: ignore[attr-defined]
    made.before = node  # type: ignore[attr-defined]
    if key is not None:
        made.part = key  # type: ignore[attr-defined]
    return made


# ---- `:=` ----------------------------------------------------------------------------------


def _hoisted(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Takes `:=` out of a statement's expression. Yields: assignments to run before it.

    Only where it is evaluated in any case, and nothing before it reads the name or calls a
    function. Any other is left, and refused when it is read.
    """
    for name in ("test", "value"):
        found = getattr(statement, name, None)
        if isinstance(statement, ast.While) or not isinstance(found, ast.expr):
            continue
        while (first := _first(found)) is not None:
            yield at(statement, ast.Assign([ast.Name(first.target.id, ast.Store())], first.value))
            found = _Replaced(first).visit(found)
        setattr(statement, name, found)


def _first(node: ast.expr) -> ast.NamedExpr | None:
    """Returns the `:=` that is evaluated before any other call or read of a name, else None."""
    if isinstance(node, ast.NamedExpr):
        return None if any(isinstance(n, ast.NamedExpr) for n in nodes_of(node.value)) else node
    parts: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        parts = [node.left, node.comparators[0]]
    elif isinstance(node, ast.BoolOp):
        parts = node.values[:1]
    elif isinstance(node, ast.IfExp):
        parts = [node.test]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
        parts = list(node.args)
    for part in parts:
        if (found := _first(part)) is not None:
            return found
        if not isinstance(part, ast.Constant):
            return None
    return None


class _Replaced(ast.NodeTransformer):
    def __init__(self, given: ast.NamedExpr) -> None:
        self.given = given

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:  # noqa: N802
        name = ast.Name(node.target.id, ast.Load())
        return at(node, name) if node is self.given else node


# ---- values --------------------------------------------------------------------------------


class Changes:
    """Reads changes in place.

    Args:
        reader: the reader of expressions.

    Attributes:
        changed: the marks of lists and dictionaries that were changed, with the last change.
    """

    def __init__(self, reader: Any) -> None:
        self.reader, self.draft = reader, reader.draft
        self.changed: dict[object, Any] = {}

    def read(self, node: Any) -> bool:
        """Reads an assignment that stands for a change. Returns: False if it was an assignment."""
        kind, name = node.in_place
        frame = self.draft.frame
        whole = struct = frame.names.get(name)
        if hasattr(node, "part"):
            key = frame.known(node.part) if isinstance(whole, Entries) else None
            struct = whole.get(key) if isinstance(whole, Entries) else None
            if struct is None and isinstance(whole, Entries) and whole.default:
                struct = self.reader.default(whole)
                whole = Entries.of({**whole, key: struct}, whole)
            name = ast.unparse(node.before.value.func.value)
        if isinstance(struct, Grown) and kind in GROWS:
            self._grow(struct, node)
            return True
        if isinstance(struct, Var) and hasattr(node, "filled"):
            return self._fill(struct, node)
        if not isinstance(struct, (Listed, Entries)):
            return False
        if not struct.mark:
            frame.fail(
                node,
                f"a change in place of `{name}`, which a condition or a loop may make another one,",
                _instead(node, struct),
            )
        if not isinstance(struct, getattr(node, "current", (Listed, Entries))):
            frame.fail(node, f"a change of `{name}` in a loop over it", "loop over a copy of it")
        self.check_alone(struct, node)
        self.changed |= dict.fromkeys(struct.mark, node)
        value = self._changed(kind, struct, node)
        if hasattr(node, "part"):
            value = rebuilt(whole, ({**whole, key: value}).values())
        self.reader.assignments.assign(node.targets[0], value)
        return True

    def check_alone(self, struct: Any, node: Any) -> None:
        """Refuses a change of a list or dictionary that something else holds, too."""
        name = node.in_place[1]
        found = list(self.holders(struct.mark, name))
        if hasattr(node, "part"):
            name = ast.unparse(node.before.value.func.value)
        for other in found:
            text = f"a change in place of `{name}`, which {other} too,"
            self.draft.fail(node, text, _instead(node, struct))

    def end_turn(self, name: str, before: Struct, turn: object) -> None:
        """Notes that a name may be what it was before a loop, or what its last turn has made.

        Raises:
            ProgramError: the loop changes it in place, and something else holds it at the end.
        """
        struct = self.draft.frame.names.get(name)
        if not isinstance(struct, (Listed, Entries)) or not struct.mark:
            return
        if turn in self.changed:
            self.check_alone(struct, self.changed[turn])
        mark: frozenset[object] = getattr(before, "mark", frozenset())
        struct.mark = struct.mark | mark if mark else frozenset()

    def _fill(self, array: Var, node: Any) -> bool:
        """Reads `x[:, t] = value` of an array. Returns: False if the place is another one."""
        place, value = node.given
        parts = place.elts if isinstance(place, ast.Tuple) else [place]
        before = [part for part in parts[:-1] if ast.unparse(part) == ":"]
        if (
            len(before) + 1 < len(parts)
            or isinstance(parts[-1], (ast.Slice, ast.Constant))
            and (not isinstance(getattr(parts[-1], "value", None), int))
        ):
            return False
        reads = [array.name]
        args = [ast.Name(array.name, ast.Load()), ast.Constant(len(before))]
        args += [self.reader.substituted(part, reads) for part in (parts[-1], value)]
        function = ast.Name(self.draft.imported("mindspore_rl.rl.operators", "filled"), ast.Load())
        made = self.draft.result("glue", ast.Call(function, args, []), reads)
        self.reader.assignments.assign(node.targets[0], made)
        return True

    def _grow(self, grown: Grown, node: Any) -> None:
        (value,) = node.given
        if node.in_place[0] == "append":
            self.reader.grown.append(grown, self.reader.expression(value), node)
            return
        for part in self.reader.sequences.of(value, "`extend` by this"):
            self.reader.grown.append(grown, part, node)

    def _changed(self, kind: str, struct: Any, node: Any) -> Struct:
        if kind == "entry":
            key = self.draft.frame.known(node.given[0])
            value = self.reader.expression(node.given[1])
            if isinstance(struct, Entries):
                return Entries.of({**struct, key: value}, struct)
            if not isinstance(key, int) or not -len(struct) <= key < len(struct):
                self.draft.fail(node, f"element {key!r} of what has {len(struct)} parts")
            parts = list(struct)
            parts[key] = value
            return Listed.of(parts, struct)
        if kind == "clear":
            return rebuilt(struct, ()) if isinstance(struct, Listed) else Entries.of({}, struct)
        if kind == "pop":
            key, left = self.draft.frame.known(node.given[0]), dict(_items(struct))
            if isinstance(struct, Listed) and isinstance(key, int) and key < 0:
                key += len(struct)
            if left.pop(key, None) is None:
                self.draft.fail(node, f"`pop` of {key!r}, which is not there,", "pop what is")
            if isinstance(struct, Entries):
                return Entries.of(left, struct)
            return rebuilt(struct, left.values())
        if kind == "reverse" and isinstance(struct, Listed):
            return Listed.of(struct[::-1], struct)
        if (kind == "update") != isinstance(struct, Entries):
            what = "dictionary" if isinstance(struct, Entries) else "list"
            self.draft.fail(node, f"`{kind}` of a {what}", "")
        if kind == "insert":
            return Listed.of([self.reader.expression(node.given[0]), *struct], struct)
        if kind == "append":
            return Listed.of([*struct, self.reader.expression(node.given[0])], struct)
        if kind == "extend":
            more = self.reader.sequences.of(node.given[0], "`extend` by this")
            return Listed.of([*struct, *more], struct)
        more = self.reader.dictionary([(None, node.given[0])])
        return Entries.of(self.reader.perhaps.merged(struct, more), struct)

    def holders(self, mark: frozenset[object], own: str = "") -> Iterator[str]:
        """Yields what else holds the list or dictionary with a mark, beside one name, its own."""
        found = [
            f"`{name}` is"
            if isinstance(struct, (Listed, Entries)) and struct.mark & mark
            else f"`{name}` holds"
            for frame in self.draft.frames
            for name, struct in frame.names.items()
            for _ in range(_held(struct, mark))
        ]
        if (name := f"`{own}` is") in found:
            found.remove(name)
            yield from found
        else:
            yield from found[1:]


def _items(struct: Any) -> Any:
    return struct.items() if isinstance(struct, dict) else enumerate(struct)


def _instead(node: Any, struct: Any) -> str:
    (kind, name), given = node.in_place, [ast.unparse(part) for part in node.given]
    if kind == "entry" and isinstance(struct, Entries):
        return f"make a new value: {name} = {{**{name}, {given[0]}: {given[1]}}}"
    if kind == "entry":
        return "make a new list of all its parts"
    if kind in ("clear", "pop"):
        return "make a new value of what stays"
    if kind == "reverse":
        return f"make a new value: {name} = {name}[::-1]"
    new = {"append": f"[*{name}, {given[0]}]", "extend": f"[*{name}, *{given[0]}]"}
    new["insert"] = f"[{given[0]}, *{name}]"
    return f"make a new value: {name} = {new.get(kind, f'{{**{name}, **{given[0]}}}')}"


def _held(struct: Struct, mark: frozenset[object]) -> int:
    """Counts how often a value may hold a list or dictionary with a mark."""
    parts: Any = ()
    if isinstance(struct, Static):
        value = struct.value
        if isinstance(value, Inner):
            parts = value.defaults.values()
        elif isinstance(value, Partial):
            parts = (*value.args, *value.keywords.values(), Static(value.function))
    elif isinstance(struct, (tuple, dict)):
        parts = parts_of(struct)
    own = bool(getattr(struct, "mark", frozenset()) & mark)
    return own + sum(_held(part, mark) for part in parts)


def joined(one: Struct, other: Struct) -> Struct:
    """Returns the value of one branch, whose lists and dictionaries may be those of the other."""
    if not isinstance(one, (tuple, dict)):
        return one
    others = [other[key] for key in one] if isinstance(one, dict) else other
    made = rebuilt(one, map(joined, parts_of(one), others))
    if isinstance(made, (Listed, Entries)):
        mark: frozenset[object] = getattr(other, "mark", frozenset())
        made.mark = made.mark | mark if made.mark and mark else frozenset()
    return made


def carried_by(struct: Struct, turn: object) -> Struct:
    """Returns a value that is a list or a dictionary of an earlier turn, or that before the loop.

    Args:
        struct: the value before the loop.
        turn: stands for all lists and dictionaries that are made in an earlier turn.
    """
    made = unmarked(struct)
    if isinstance(struct, (Listed, Entries)) and struct.mark:
        made.mark = struct.mark | {turn}
    return made


def unmarked(struct: Struct) -> Struct:
    """Returns a value whose lists and dictionaries can no longer be changed in place."""
    if not isinstance(struct, (tuple, dict)):
        return struct
    made = rebuilt(struct, map(unmarked, parts_of(struct)))
    if isinstance(made, (Listed, Entries)):
        made.mark = frozenset()
    return made
