"""Copies of functions that read the fields of records by place: `batch.reward` becomes `batch[2]`.

MindSpore compiles tuples, but no NamedTuple and no dataclass. Likewise the entries of dictionaries
that a function gets. A copy also makes tuples where the function makes records, and where it
returns a dictionary.
"""

import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import linecache
import os
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from mindspore_rl.errors import ProgramError
from mindspore_rl.platform.syntax import nodes_of, own_nodes, source_lines, statement_in
from mindspore_rl.platform.user_modules import is_users
from mindspore_rl.rl.records import (
    defaults_of,
    fields_of,
    in_order,
    is_record_class,
    own_constructor,
)

Form = tuple
"""Form of a record: each field's name and its own form; `()` for any other value.

In that of a dictionary stands `repr(key)` for a name.
"""


_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


@dataclass(frozen=True)
class Named:
    """A value whose parts have names.

    Attributes:
        kind: a NamedTuple class, a dataclass, `dict`, or `tuple` for a tuple in or of such; None:
            a record of an unknown class.
        parts: the names, each with what is named in it, if anything is.
    """

    kind: Any
    parts: tuple[tuple[str, "Named | None"], ...]

    @classmethod
    def of(cls, form: Form) -> "Named | None":
        """Returns what is named in a record of this form; None for other values."""
        return cls(None, tuple((name, cls.of(inner)) for name, inner in form)) if form else None

    @property
    def has_names(self) -> bool:
        """True if it is more than a tuple."""
        return self.kind is not tuple or any(part and part.has_names for _, part in self.parts)

    @property
    def form(self) -> Form:
        """The form that it has as a record."""
        if self.kind is tuple:
            return ()
        return tuple((name, part.form if part else ()) for name, part in self.parts)

    @property
    def names(self) -> tuple:
        """The names in it, also of records in tuples, without the classes."""
        inner = ((name, part.names if part else ()) for name, part in self.parts)
        return tuple(inner) if self.has_names else ()

    @property
    def of_known_class(self) -> "Named | None":
        """The same without records of unknown classes; None if nothing remains."""
        parts = tuple((name, part and part.of_known_class) for name, part in self.parts)
        known = None if self.kind is None else Named(self.kind, parts)
        return known if known and known.has_names else None


def _same(one: Named | None, other: Named | None) -> bool:
    """Returns whether the same is named in two values."""
    return (one.names if one else ()) == (other.names if other else ())


def by_place(function: Callable, forms: tuple[Form, ...]) -> Callable:
    """Makes a function of tuples from a function of records.

    Methods and functions that it passes a record to are copied too.

    Args:
        function: a function or a bound method, written with `def`.
        forms: the forms of its arguments, in order.

    Returns: the copy; the function itself if no argument is a record.

    Raises:
        ProgramError: it does not take these arguments, cannot be read, or uses a record otherwise.
    """
    if not any(forms):
        return function
    try:
        given = inspect.signature(function).bind(*map(Named.of, forms))
        return _copy(function, _by_name(given))[0]
    except (TypeError, OSError, SyntaxError) as error:
        name = getattr(function, "__qualname__", function)
        raise ProgramError(
            f"{name} is given a NamedTuple ({error}): expected a method or function written with "
            "`def` that takes these arguments"
        ) from error


def with_tuples(
    function: Callable, forms: tuple[Form, ...] = (), keys: tuple[str, ...] = ()
) -> Callable:
    """Makes a function of tuples that returns tuples from one of records or dictionaries.

    Args:
        function: a function or a bound method, written with `def`.
        forms: the forms of its arguments, in order; none are records if it is empty.
        keys: the names of the last of them, which are given by name.
    """
    known, first = tuple(map(Named.of, forms)), len(forms) - len(keys)
    named = dict(zip(keys, known[first:], strict=True))
    given = inspect.signature(function).bind_partial(*known[:first], **named)
    return _copy(function, _by_name(given))[0]


def _by_name(given: inspect.BoundArguments) -> dict[str, Named | None]:
    """Returns what is named in arguments by their names; those in a `*rest` have none of their own.

    Raises:
        TypeError: a record is among them.
    """
    for name, values in given.arguments.items():
        rest = given.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        if rest and any(values):
            raise TypeError(f"a record is one of *{name}: name the parameter that it goes to")
    return single_arguments(given)


def single_arguments(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Returns the arguments by name, without those in a `*rest` or a `**rest`."""
    rests = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = bound.signature.parameters
    return {k: v for k, v in bound.arguments.items() if parameters[k].kind not in rests}


def named_result(
    function: Callable, only_tuples: bool = False, given: Mapping[str, Named | None] = _NOTHING
) -> Named | None:
    """Finds the names of the parts of a function's result, if it returns a record or a dictionary.

    Args:
        function: the function.
        only_tuples: see `_Fields`.
        given: what is named in its arguments, by their names.

    Raises:
        ProgramError: its returns give results with other names.
    """
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code in _reading:  # a function that calls itself
        return None
    _reading.add(code)
    try:
        return _copy(function, given, only_tuples, only_names=True)[1]
    except (OSError, TypeError, SyntaxError):  # no source
        return None
    finally:
        _reading.discard(code)


_reading = set[Any]()
"""The code of functions whose results are being found."""


def _copy(
    function: Callable,
    given: Mapping[str, Named | None],
    only_tuples: bool = False,
    only_names: bool = False,
) -> tuple[Callable, Named | None]:
    """Copies a function, see `_Fields`. Returns: the copy, and what is named in its result."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    lines, first = source_lines(inner)
    place = inspect.getsourcefile(inner) or "?", first
    reader = _Fields(function, given, *place, only_tuples, only_names)
    reader.read(_definition(lines))
    if only_tuples and not reader.edits:
        return function, reader.result
    lines = reader.edited(lines)
    cells = zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)
    free = {name: cell.cell_contents for name, cell in cells} | reader.copies
    copy = made_from(lines, first, inner, free)
    copy.__defaults__, copy.__kwdefaults__ = inner.__defaults__, inner.__kwdefaults__
    owner = getattr(function, "__self__", None)
    return (copy if owner is None else types.MethodType(copy, owner)), reader.result


def made_from(lines: list[str], first: int, like: Any, free: dict[str, Any]) -> Any:
    """Makes a function from the lines of a `def`.

    Args:
        lines: its source.
        first: the line in the file of the first of them.
        like: a function of the same module and file.
        free: the values of names of an enclosing function.
    """
    file = _file_of([*["\n"] * (first - 1), *lines], inspect.getsourcefile(like) or "?")
    tree = _definition(lines)
    tree.decorator_list, tree.returns = [], None
    for part in nodes_of(tree.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    tree.args.defaults = [ast.Constant(None) for _ in tree.args.defaults]
    tree.args.kw_defaults = [default and ast.Constant(None) for default in tree.args.kw_defaults]
    ast.increment_lineno(tree, first - 1)
    made = ast.parse(f"def made({', '.join(free)}):\n    return {tree.name}")
    made.body[0].body.insert(0, tree)  # type: ignore[attr-defined]
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(made), file, "exec"), like.__globals__, scope)  # noqa: S102
    function = scope["made"](**free)
    function.__name__ = f"{tree.name}_{next(_numbers())}"
    return function


@functools.cache
def _numbers() -> Iterator[int]:
    """Returns the numbers of the functions made here, no part of what a cell's code can reach.

    MindSpore keeps what it parsed by `__name__` and `id`, and a new function may have the `id` of
    an old one.
    """
    return itertools.count()


def _file_of(lines: list[str], file: str) -> str:
    """Returns another path of a file, for which Python finds other lines.

    MindSpore shows the lines of the file itself in its messages.
    """
    folder, name = os.path.split(file)
    path = os.path.join(folder, ".", name)
    while path in linecache.cache and linecache.getlines(path) != lines:
        path = os.path.join(os.path.dirname(path), ".", name)
    linecache.cache[path] = (sum(map(len, lines)), None, lines, path)
    return path


def _definition(lines: list[str]) -> ast.FunctionDef:
    """Parses the source of a function. Raises: SyntaxError: it is not a `def`."""
    found = statement_in(lines)
    if not isinstance(found, ast.FunctionDef):
        raise SyntaxError("not a `def`")
    return found


class _Fields(ast.NodeVisitor):
    """Finds the fields of records that a function reads, and the functions it passes records to.

    Attributes:
        only_tuples: whether of the results of functions only NamedTuples become tuples.
        only_names: whether the copy is not used, only what is named in its result.
        file: the file of the function.
        copies: the copies of those functions, by their names in the copy of this one.
        edits: what changes, each with its first and last place and the new text.
        result: what is named in the function's result, if anything is.
    """

    def __init__(
        self,
        function: Any,
        given: Mapping[str, Named | None],
        file: str,
        first: int,
        only_tuples: bool,
        only_names: bool,
    ) -> None:
        self.function, self.file, self.first = function, file, first
        self.only_tuples, self.only_names = only_tuples, only_names
        self.copies: dict[str, Callable] = {}
        self.result: Named | None = None
        self._named = {name: named for name, named in given.items() if named}
        self._stores: dict[str, list[Named | None]] = {}  # what a name is given
        self._results: dict[ast.AST, Named | None] = {}
        self.edits: list[tuple[tuple[int, int], tuple[int, int], str]] = []
        self._taken: set[ast.AST] = set()  # dictionaries that are not used as such

    def edited(self, lines: list[str]) -> list[str]:
        """Returns the lines with the edits, as many as before."""
        found = [line.encode() for line in lines]
        for (top, start), (bottom, end), text in sorted(self.edits, reverse=True):
            found[top] = found[top][:start] + text.encode() + found[bottom][end:]
            found[top + 1 : bottom + 1] = [b"\n"] * (bottom - top)
        return [line.decode() for line in found]

    def form(self, node: ast.AST) -> Form:
        """Returns the form of an expression."""
        named = self.named(node)
        return named.form if named else ()

    def named(self, node: ast.AST | None) -> Named | None:
        """Returns what is named in the value of an expression."""
        if isinstance(node, ast.Name):
            return self._named.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._part(node.value, node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._part(node.value, repr(node.slice.value))
        if isinstance(node, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in node.elts):
            return Named(tuple, tuple((str(i), self.named(e)) for i, e in enumerate(node.elts)))
        if not isinstance(node, ast.Call):
            return None
        if replaced := self._replaced(node):
            record, values = replaced
            of = self.named(record)
            parts = of.parts if of else ()
            new = ((name, self.named(values[name]) if name in values else p) for name, p in parts)
            return Named(of.kind, tuple(new)) if of else None
        callee = self._value(node.func)
        if self._is_record_class(callee):
            given = dict(zip(in_order(callee), node.args, strict=False))
            given |= {str(item.arg): item.value for item in node.keywords}
            names = fields_of(callee)
            return Named(callee, tuple((name, self.named(given.get(name))) for name in names))
        if node not in self._results:
            written = _is_written(callee) and callee != self.function
            self._results[node] = None
            if written:
                known = self._given(callee, node)
                self._results[node] = named_result(callee, self.only_tuples, known)
        return self._results[node]

    def _part(self, node: ast.expr, name: str) -> Named | None:
        """Returns what is named in a part of an expression."""
        of = self.named(node)
        return dict(of.parts).get(name) if of else None

    def _given(self, callee: Any, node: ast.Call) -> dict[str, Named | None]:
        """Returns what is named in a call's arguments, by the function's parameters."""
        named = {str(item.arg): item.value for item in node.keywords}
        if "None" in named or any(isinstance(arg, ast.Starred) for arg in node.args):
            return {}
        try:
            bound = inspect.signature(callee).bind(*node.args, **named)
        except (TypeError, ValueError):
            return {}
        return {name: self.named(value) for name, value in single_arguments(bound).items()}

    def _replaced(self, node: ast.Call) -> tuple[ast.expr, dict[str, ast.expr]] | None:
        """Returns the record and the new values of `x._replace(a=y)`; None for other calls.

        Likewise of `dataclasses.replace(x, a=y)`.
        """
        values = {str(item.arg): item.value for item in node.keywords}
        match node:
            case ast.Call(ast.Attribute(record, "_replace"), []):
                pass
            case ast.Call(func, [record]) if self._value(func) is dataclasses.replace:
                pass
            case _:
                return None
        names = [name for name, _ in self.form(record)]
        return (record, values) if values and set(values) <= set(names) else None

    def _is_record_class(self, kind: Any) -> bool:
        return is_record_class(kind) and (issubclass(kind, tuple) or not self.only_tuples)

    def _find_result(self, node: ast.FunctionDef) -> None:
        """Finds what is named in the function's result; makes tuples of the dictionaries in it."""
        found = []
        for part in (one for one in own_nodes(node) if isinstance(one, ast.Return)):
            made: Any = self._made(part.value, node) if not self.only_tuples else None
            if self._is_dict_call(made):
                keys = [item.arg for item in made.keywords]
                values = [item.value for item in made.keywords]
            elif isinstance(made, ast.Dict):
                constants = [k if isinstance(k, ast.Constant) else None for k in made.keys]
                keys, values = [k and k.value for k in constants], made.values
            else:
                named = self.named(part.value)
                found.append(named if named and named.has_names else None)
                continue
            if not keys or not all(isinstance(key, str) for key in keys):
                self.fail(part, "a dictionary with other keys than words", "write its keys out")
            parts = zip(map(str, keys), map(self.named, values), strict=True)
            found.append(Named(dict, tuple(parts)))
            self.edits.append((_start(made), _start(values[0]), "("))
            for value, following in itertools.pairwise(values):
                self.edits.append((_end(value), _start(following), ", "))
            self.edits.append((_end(values[-1]), _end(made), ",)"))
        if any(not _same(result, found[0]) for result in found):
            found = [result and result.of_known_class for result in found]
        if any(not _same(result, found[0]) for result in found):
            if all(result is None or result.kind is tuple for result in found):
                return
            hint = "let all its returns give results with the same names"
            self.fail(node, f"`{node.name}`, whose results have other names,", hint)
        known = [result for result in found if result and result == result.of_known_class]
        self.result = next(iter(known or found), None)

    def _made(self, node: Any, function: ast.FunctionDef) -> Any:
        """Returns what is assigned to a name that a function only returns; else the node itself."""
        if not isinstance(node, ast.Name):
            return node
        parts = list(nodes_of(function))
        found = [
            p
            for p in parts
            if isinstance(p, ast.Assign) and [node.id] == list(map(ast.unparse, p.targets))
        ]
        uses = sum(isinstance(p, ast.Name) and p.id == node.id for p in parts)
        return found[0].value if len(found) == 1 and uses == 2 else node

    def _is_dict_call(self, node: ast.AST | None) -> bool:
        """Returns whether an expression is `dict(a=x, b=y)`."""
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        return called and node.func.id == "dict" and not node.args  # type: ignore[union-attr]

    def visit(self, node: ast.AST) -> None:
        """Refuses a dictionary of which another part than an entry is used."""
        read = isinstance(getattr(node, "ctx", None), ast.Load)
        if read and node not in self._taken and _is_dictionary(self.form(node)):
            hint = f"take its entries, {ast.unparse(node)}[...], or give it to a function of yours"
            self.fail(node, f"`{ast.unparse(node)}`, a dictionary, as a whole", hint)
        super().visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:  # noqa: N802
        """Replaces the key of an entry by its place."""
        if _is_dictionary(form := self.form(node.value)):
            self._taken.add(node.value)
            key = repr(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
            names = [name for name, _ in form]
            if key not in names:
                has = f"write one of its keys: {', '.join(names)}"
                self.fail(node, f"the key {ast.unparse(node.slice)} of a dictionary", has)
            self._edit(node.slice, node.slice, str(names.index(key)))
        self.generic_visit(node)

    def read(self, node: ast.FunctionDef) -> None:
        """Reads the function's body: copies of a record's name are followed."""
        self.owner = (node.args.posonlyargs + node.args.args)[:1]
        arguments = [part.arg for part in nodes_of(node.args) if isinstance(part, ast.arg)]
        self._stores = {name: [self._named.get(name)] for name in arguments}
        for part in nodes_of(node):
            if isinstance(part, ast.Assign):
                if self.form(part.value) and all(isinstance(t, ast.Name) for t in part.targets):
                    self._taken.add(part.value)
                for target in part.targets:
                    self._assign(target, part.value)
        self._find_result(node)
        stored = [n.id for n in nodes_of(node) if isinstance(n, ast.Name) and _is_store(n)]
        stored += [n.arg for n in nodes_of(node) if isinstance(n, ast.arg)]
        fields = {ast.unparse(n) for n in nodes_of(node) if isinstance(n, ast.Attribute)}
        for name, named in list(self._named.items()):
            known = self._stores.get(name, [])
            if stored.count(name) == len(known) and all(_same(one, named) for one in known):
                continue
            is_dictionary = _is_dictionary(named.form)
            if is_dictionary or fields & {f"{name}.{field}" for field, _ in named.form}:
                what = "a dictionary" if is_dictionary else "a NamedTuple"
                hint = "use another name for what is no such record"
                self.fail(node, f"`{name}`, {what}, is assigned again", hint)
            del self._named[name]
        for statement in node.body:
            self.visit(statement)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """Notes what an assignment gives to names."""
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        if both and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
            for one, part in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
                self._assign(one, part)
        else:
            self._store(target, self.named(value))

    def _store(self, target: ast.expr, named: Named | None) -> None:
        """Notes what a value gives to a name, or its parts to several."""
        if isinstance(target, ast.Name):
            self._stores.setdefault(target.id, []).append(named)
            self._named |= {target.id: named} if named else {}
        elif isinstance(target, ast.Tuple):
            parts = [part for _, part in named.parts] if named else []
            if len(parts) != len(target.elts):
                parts = [None for _ in target.elts]
            for one, part in zip(target.elts, parts, strict=True):
                self._store(one, part)

    def visit_Attribute(self, node: ast.Attribute) -> None:  # noqa: N802
        """Replaces a field by its place."""
        self.visit(node.value)
        if names := [name for name, _ in self.form(node.value)]:
            if node.attr not in names:
                has = f"its fields are {', '.join(names)}; change a record before, in `learn`"
                self.fail(node, f"`{node.attr}` of a NamedTuple", has)
            self._edit(node.value, node, f"[{names.index(node.attr)}]", after=True)

    def visit_Call(self, node: ast.Call) -> None:  # noqa: N802
        """Calls a copy of a function that gets a record."""
        if replaced := self._replaced(node):
            self._replace(node, *replaced)
            return
        callee = self._value(node.func)
        asks = ast.unparse(node.func) == "isinstance" and self.form(node.args[0])
        if asks and is_record_class(self._value(node.args[1])):
            self.fail(node, f"`{ast.unparse(node)}`, of a record,", "ask for `tuple`")
        if _is_written(callee):
            self._taken |= {*node.args, *(item.value for item in node.keywords if item.arg)}
        self.generic_visit(node)
        placed = [self._names_in(arg) for arg in node.args]
        named = {item.arg: self._names_in(item.value) for item in node.keywords if item.arg}
        if self._is_record_class(callee):
            if not self.only_names and (own := own_constructor(callee)):
                hint = f"compute what its {own} does in a function that makes a plain record"
                self.fail(node, f"a `{callee.__name__}`, which has the method {own},", hint)
            name = f"{callee.__name__}_by_place_{len(self.copies)}"
            self.copies[name] = _maker(callee, inspect.unwrap(self.function))
            self._edit(node.func, node.func, name)
        elif _is_written(callee) and (any((*placed, *named.values())) or self.named(node)):
            known = inspect.unwrap(getattr(callee, "__func__", callee))
            name = f"{known.__code__.co_name}_by_place_{len(self.copies)}"
            given = inspect.signature(callee).bind(*placed, **named)
            modes = self.only_tuples, self.only_names
            self.copies[name] = _copy(callee, _by_name(given), *modes)[0]
            self._edit(node.func, node.func, name)

    def _names_in(self, node: ast.AST) -> Named | None:
        """Returns what is named in an argument, if anything is."""
        named = self.named(node)
        return named if named and named.has_names else None

    def _replace(self, node: ast.Call, record: ast.expr, values: dict[str, ast.expr]) -> None:
        """Calls a function that makes a tuple of a record's parts and of new ones."""
        names = [part for part, _ in self.form(record)]
        called = f"replaced_by_place_{len(self.copies)}"
        self.copies[called] = _replacer(names, list(values), inspect.unwrap(self.function))
        if node.args:
            self._edit(node.func, node.func, called)
        else:
            self.edits.append((_start(record), _start(record), f"{called}("))
            self.edits.append((_end(record), _start(node.keywords[0]), ", "))
        for part in (record, *values.values()):
            self._taken.add(part)
            self.visit(part)

    def _value(self, node: ast.AST) -> Any:
        """Returns the function or object that a name or an attribute stands for, else None."""
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr, None)
        if not isinstance(node, ast.Name):
            return None
        if [node.id] == [arg.arg for arg in self.owner]:
            return getattr(self.function, "__self__", None)
        inner = inspect.getclosurevars(inspect.unwrap(self.function))
        return {**inner.globals, **inner.nonlocals}.get(node.id)

    def _edit(self, one: Any, other: Any, text: str, after: bool = False) -> None:
        self.edits.append((_end(one) if after else _start(one), _end(other), text))

    def fail(self, node: Any, what: str, hint: str) -> NoReturn:
        """Raises an error with the line of a node."""
        raise ProgramError(
            f"{self.file}:{self.first + node.lineno - 1}: {what} is not supported here\n  {hint}"
        )


def _maker(kind: Any, like: Callable) -> Callable:
    """Makes a function that returns the fields of a record as a tuple, from the same arguments."""
    names, places = fields_of(kind), in_order(kind)
    named = [name for name in names if name not in places]
    known = defaults_of(kind)
    texts = [f"{name}=None" if name in known else name for name in (*places, *named)]
    texts[len(places) :] = ["*", *texts[len(places) :]] if named else []
    lines = [f"def tupled({', '.join(texts)}):\n", f"    return ({', '.join(names)},)\n"]
    made = made_from(lines, 1, getattr(like, "__func__", like), {})
    made.__defaults__ = tuple(known[name] for name in places if name in known)
    made.__kwdefaults__ = {name: known[name] for name in named if name in known}
    return made


def _replacer(names: list[str], given: list[str], like: Callable) -> Callable:
    """Makes a function that returns a tuple's parts of these names, but for those given anew."""
    parts = (name if name in given else f"_of[{place}]" for place, name in enumerate(names))
    lines = [
        f"def replaced({', '.join(('_of', *given))}):\n",
        f"    return ({', '.join(parts)},)\n",
    ]
    return made_from(lines, 1, getattr(like, "__func__", like), {})


def _is_dictionary(form: Form) -> bool:
    return bool(form) and not form[0][0].isidentifier()


def _start(node: Any) -> tuple[int, int]:
    return node.lineno - 1, node.col_offset


def _end(node: Any) -> tuple[int, int]:
    return node.end_lineno - 1, node.end_col_offset


def _is_store(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _is_written(function: Any) -> bool:
    """Returns whether a value is a function or method that is no part of MindSpore."""
    known = inspect.unwrap(getattr(function, "__func__", function))
    return inspect.isfunction(known) and str(known.__module__).partition(".")[0] != "mindspore"


def take_records() -> None:
    """Lets this process's MindSpore compile functions that make records: a copy of them."""
    from mindspore.graph import _parse as parse  # noqa: PLC0415  (the readers of source need none)

    parsed = parse.parse_cb

    def with_records(function: Any, method: Any = None) -> Any:
        inner = inspect.unwrap(getattr(function, "__func__", function))
        if inspect.isfunction(inner) and is_users(inner.__module__):
            with contextlib.suppress(OSError, TypeError, SyntaxError):  # of a lambda
                function = _copy(function, {}, only_tuples=True)[0]
        return parsed(function, method)

    parse.parse_cb = with_records
