"""Copies of functions that read the fields of records by place: `batch.reward` becomes `batch[2]`.

MindSpore compiles tuples, but no NamedTuple and no dataclass. Likewise the entries of dictionaries
that a function gets. A copy also makes tuples where the function makes records, and where it
returns a dictionary.
"""

import ast
import contextlib
import functools
import inspect
import itertools
import linecache
import os
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from mindspore_rl.errors import ProgramError
from mindspore_rl.platform.syntax import nodes_of, own_nodes, source_lines, statement_in
from mindspore_rl.platform.user_modules import is_users
from mindspore_rl.rl.records import defaults_of, fields_of, in_order, is_record_class

Form = tuple
"""Form of a record: each field's name and its own form; `()` for any other value.

In that of a dictionary stands `repr(key)` for a name.
"""


@dataclass(frozen=True)
class Named:
    """A result whose parts have names.

    Attributes:
        kind: a NamedTuple class, a dataclass, `dict`, or `tuple` for a tuple in or of such.
        parts: the names, each with what is named in it, if anything is.
    """

    kind: Any
    parts: tuple[tuple[str, "Named | None"], ...]

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
        given = inspect.signature(function).bind(*forms)
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
    first = len(forms) - len(keys)
    named = dict(zip(keys, forms[first:], strict=True))
    given = inspect.signature(function).bind_partial(*forms[:first], **named)
    return _copy(function, _by_name(given))[0]


def _by_name(given: inspect.BoundArguments) -> dict[str, Form]:
    """Returns the forms of arguments by their names; arguments in a `*rest` have none of their own.

    Raises:
        TypeError: a record is among them.
    """
    parameters = given.signature.parameters
    forms = {}
    for name, form in given.arguments.items():
        if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            if any(form):
                raise TypeError(f"a record is one of *{name}: name the parameter that it goes to")
        elif parameters[name].kind is not inspect.Parameter.VAR_KEYWORD:
            forms[name] = form
    return forms


def named_result(function: Callable, only_tuples: bool = False) -> Named | None:
    """Finds the names of the parts of a function's result, if it returns a record or a dictionary.

    Args:
        function: the function.
        only_tuples: see `_Fields`.

    Raises:
        ProgramError: its returns give results with other names.
    """
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    if code in _reading:  # a function that calls itself
        return None
    _reading.add(code)
    try:
        return _copy(function, {}, only_tuples)[1]
    except (OSError, TypeError, SyntaxError):  # no source
        return None
    finally:
        _reading.discard(code)


_reading = set[Any]()
"""The code of functions whose results are being found."""


def _copy(
    function: Callable, forms: dict[str, Form], only_tuples: bool = False
) -> tuple[Callable, Named | None]:
    """Copies a function, see `_Fields`. Returns: the copy, and what is named in its result."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    lines, first = source_lines(inner)
    reader = _Fields(function, forms, inspect.getsourcefile(inner) or "?", first, only_tuples)
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
        file: the file of the function.
        copies: the copies of those functions, by their names in the copy of this one.
        edits: what changes, each with its first and last place and the new text.
        result: what is named in the function's result, if anything is.
    """

    def __init__(
        self, function: Any, forms: dict[str, Form], file: str, first: int, only_tuples: bool
    ) -> None:
        self.function, self.forms, self.file, self.first = function, dict(forms), file, first
        self.only_tuples = only_tuples
        self.copies: dict[str, Callable] = {}
        self.result: Named | None = None
        self._named: dict[str, Named] = {}
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
        if isinstance(node, ast.Attribute):
            return dict(self.form(node.value)).get(node.attr, ())
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return dict(self.form(node.value)).get(repr(node.slice.value), ())
        if isinstance(node, ast.Call):
            named = self.named(node)
            return named.form if named else ()
        return self.forms.get(node.id, ()) if isinstance(node, ast.Name) else ()

    def named(self, node: ast.AST | None) -> Named | None:
        """Returns what is named in the value of an expression: a record that is made here."""
        if isinstance(node, ast.Name):
            return self._named.get(node.id)
        if isinstance(node, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in node.elts):
            return Named(tuple, tuple((str(i), self.named(e)) for i, e in enumerate(node.elts)))
        if not isinstance(node, ast.Call):
            return None
        callee = self._value(node.func)
        if self._is_record_class(callee):
            given = dict(zip(in_order(callee), node.args, strict=False))
            given |= {str(item.arg): item.value for item in node.keywords}
            names = fields_of(callee)
            return Named(callee, tuple((name, self.named(given.get(name))) for name in names))
        if node not in self._results:
            written = _is_written(callee) and callee != self.function
            self._results[node] = named_result(callee, self.only_tuples) if written else None
        return self._results[node]

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
        if any(result != found[0] for result in found):
            hint = "let all its returns give results with the same names"
            self.fail(node, f"`{node.name}`, whose results have other names,", hint)
        self.result = found[0] if found else None

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
        for part in nodes_of(node):
            if isinstance(part, ast.Assign) and (form := self.form(part.value)):
                names = [t.id for t in part.targets if isinstance(t, ast.Name)]
                self._taken |= {part.value} if len(names) == len(part.targets) else set()
                self.forms |= dict.fromkeys(names, form)
                if named := self.named(part.value):
                    self._named |= dict.fromkeys(names, named)
        self._find_result(node)
        stored = [n.id for n in nodes_of(node) if isinstance(n, ast.Name) and _is_store(n)]
        stored += [n.arg for n in nodes_of(node) if isinstance(n, ast.arg)]
        for name, form in self.forms.items():
            if form and stored.count(name) > 1:
                what = "a dictionary" if _is_dictionary(form) else "a NamedTuple"
                self.fail(node, f"`{name}`, {what}, is assigned again", "use another name")
        for statement in node.body:
            self.visit(statement)

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
        callee = self._value(node.func)
        asks = ast.unparse(node.func) == "isinstance" and self.form(node.args[0])
        if asks and is_record_class(self._value(node.args[1])):
            self.fail(node, f"`{ast.unparse(node)}`, of a record,", "ask for `tuple`")
        if _is_written(callee):
            self._taken |= {*node.args, *(item.value for item in node.keywords if item.arg)}
        self.generic_visit(node)
        forms = [self.form(arg) for arg in node.args]
        named = {item.arg: self.form(item.value) for item in node.keywords if item.arg}
        if self._is_record_class(callee):
            name = f"{callee.__name__}_by_place_{len(self.copies)}"
            self.copies[name] = _maker(callee, inspect.unwrap(self.function))
            self._edit(node.func, node.func, name)
        elif _is_written(callee) and (any((*forms, *named.values())) or self.named(node)):
            known = inspect.unwrap(getattr(callee, "__func__", callee))
            name = f"{known.__code__.co_name}_by_place_{len(self.copies)}"
            given = inspect.signature(callee).bind(*forms, **named)
            self.copies[name] = _copy(callee, _by_name(given), self.only_tuples)[0]
            self._edit(node.func, node.func, name)

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
