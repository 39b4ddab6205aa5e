"""Scope of a function being read: names, constants and source lines."""

import ast
import builtins
import copy
import dataclasses
import enum
import functools
import inspect
import math
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mindspore_rl.compiler.frontend.records import Listed, Record
from mindspore_rl.compiler.ir.ir import Item, Where
from mindspore_rl.errors import ProgramError, described
from mindspore_rl.platform.syntax import children, nodes_of, source_lines, statement_in

SUPPORTED = """supported: assignments to names, calls of msrl and of methods, `if` on configuration,
  loop indices and values that are the same everywhere, and `for` over msrl.iterations(),
  msrl.steps(), msrl.epochs(n), msrl.minibatches(n, values), range(n) or a tuple, `while`
  that counts its turns up to a known number, and `break` in these"""
PURE = {abs, bool, float, getattr, hasattr, int, isinstance, len, max, min, round, str, sum, tuple}
PURE |= {all, any, dict, divmod, enumerate, filter, frozenset, list, map, range, repr, reversed}
PURE |= {set, sorted, zip, functools.reduce}
PURE |= {dataclasses.asdict, dataclasses.astuple, dataclasses.fields}
PURE |= {getattr(math, name) for name in dir(math) if callable(getattr(math, name))}
CALLING = (filter, functools.reduce, map, max, min, sorted)
"""Pure functions that call what they are given."""
OF_PLAIN = {name for kind in (str, list, dict) for name in dir(kind) if name[0] != "_"}
OF_PLAIN -= {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "sort"}
OF_PLAIN -= {"setdefault", "update"}
"""Methods of texts, lists and dictionaries that change nothing."""
BUILTINS = frozenset(dir(builtins))
LISTING_METHODS = ("get_parameters", "trainable_params")
"""Methods of cells that give known Parameters, see `rl.parameters.list_parameters`."""


@dataclass(frozen=True)
class Var:
    """A variable of the graph."""

    name: str


@dataclass(frozen=True)
class Perhaps:
    """An entry of a dictionary that a condition of the run may leave out, see `perhaps`.

    Attributes:
        value: its number, float32; 0.0 where it is left out.
        given: whether it is there.
    """

    value: Any
    given: Any


@dataclass(frozen=True)
class Static:
    """A value known at compile time: a number, a function, `self`."""

    value: Any


@dataclass(frozen=True)
class Gone:
    """A name that must not be read any more, with the reason, and what to write instead."""

    why: str
    way: str = ""


@dataclass(frozen=True)
class Broken(Gone):
    """A name whose assignment was refused."""


REFUSED = Broken("what was refused")


class Follows(ProgramError):
    """A problem that follows from an earlier one, and is not told."""


Struct = Any  # Var | Static | tuple[Struct, ...] | dict[str, Struct]


def variables(struct: Struct) -> Iterator[Var]:
    """Yields the variables in a structure."""
    if isinstance(struct, Var):
        yield struct
    elif isinstance(struct, Perhaps):
        yield from (struct.value, struct.given)
    elif isinstance(struct, (tuple, dict)):
        for part in struct.values() if isinstance(struct, dict) else struct:
            yield from variables(part)


class Msrl:
    """Placeholder for the `msrl` argument while reading."""


MSRL = Msrl()


THROWN_AWAY = "_"
"""The name for values that are never read: no loop carries it, and no branch changes it."""


@dataclass
class Scope:
    """Items of the loop body or branch being read."""

    items: list[Item] = field(default_factory=list)
    outer: "Scope | None" = None

    def inside(self, other: "Scope | None") -> bool:
        """Returns whether this body lies strictly inside another."""
        scope = self.outer
        while scope is not None and scope is not other:
            scope = scope.outer
        return scope is not None


@dataclass
class Frame:
    """One function being read.

    Attributes:
        names: the structure that each local name is bound to.
        namespace: its globals and the variables of enclosing functions that it uses.
        top: whether it is `Trainer.train`.
        rename: the graph's name of each local variable.
        parts: the graph's names of the parts of tuples and dictionaries.
        created: the body in which each variable was made; assignments inside it keep its name.
        live: names that are live after each loop and condition, see `liveness`.
        nested: how many loops and run-time conditions of this function are open.
        numbers: names that it uses as numbers, see `used_as_numbers`.
        apart: names that it takes apart, see `taken_apart`.
        returned: the variable that holds its result, see `early_return`; empty if none does.
        node: the statement being read.
        outermost: the statement of the function's own body that this is in.
        around: the function of the file in which this one stands; None: it is one itself.
        facts: what is known of the graph's variables, a `builder.Draft`.
    """

    function: Any
    file: str
    first_line: int
    lines: list[str]
    namespace: dict[str, Any]
    module: str
    top: bool = False
    names: dict[str, Struct] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)
    parts: dict[tuple[str, Any], str] = field(default_factory=dict)
    created: dict[str, Scope] = field(default_factory=dict)
    live: dict[ast.AST, set[str]] = field(default_factory=dict)
    nested: int = 0
    numbers: set[str] = field(default_factory=set)
    apart: set[str] = field(default_factory=set)
    returned: str = ""
    node: ast.AST = field(default_factory=ast.Pass)
    outermost: ast.stmt = field(default_factory=ast.Pass)
    around: Any = None
    facts: Any = None

    @property
    def home(self) -> Any:
        """The function of the file that holds the source."""
        return self.function if self.around is None else self.around

    @property
    def msrl(self) -> str:
        """The name of the `msrl` argument."""
        return next(n for n, s in self.names.items() if isinstance(s, Static) and s.value is MSRL)

    def where(self, node: ast.AST) -> Where:
        """Returns the source line of a node."""
        line = getattr(node, "lineno", 1)
        text = self.lines[line - 1].rstrip() if line <= len(self.lines) else ""
        return Where(_short(self.file), self.first_line + line - 1, text)

    def place(self, node: Any) -> tuple[str, int, int]:
        """Returns the place of an expression: file, line and column."""
        return self.file, self.first_line + node.lineno - 1, node.col_offset

    def fail(
        self, node: ast.AST, construct: str, hint: str = SUPPORTED, form: bool = False
    ) -> NoReturn:
        """Raises an error that shows a construct's source line and the supported forms.

        Args:
            node: the construct.
            construct: it, in words.
            hint: the supported forms.
            form: whether the construct is refused whatever its names stand for.

        Raises:
            ProgramError: always.
        """
        names = [part.id for part in nodes_of(node) if isinstance(part, ast.Name)]
        if not form and any(isinstance(self.names.get(name), Broken) for name in names):
            raise Follows(construct)
        where = self.where(node)
        before = where.text.encode()[: getattr(node, "col_offset", 0)].decode(errors="ignore")
        indent = len(where.text) - len(where.text.lstrip())
        raise ProgramError(
            f"{where.file}:{where.line}: {construct} is not supported here\n"
            f"    {where.text.strip()}\n    {' ' * max(len(before) - indent, 0)}^\n"
            f"  {hint}"
        )

    def static(self, node: ast.expr) -> tuple[bool, Any]:
        """Evaluates an expression at compile time.

        Returns: whether its value is known, and the value.
        """
        if bound := bound_names(node):
            return self._evaluated(node) if self._is_plain(node, bound) else (False, None)
        names = {}
        measured: set[ast.AST] = set()  # names of which only the length is used
        for part in nodes_of(node):
            if isinstance(part, ast.Call):
                known, function = self.static(part.func)
                if not known or not _is_pure(function):
                    return False, None
                for arg in (*part.args, *(item.value for item in part.keywords)):
                    if function is len and isinstance(self._of_name(arg), (tuple, dict)):
                        if isinstance(entries := self._of_name(arg), dict):
                            self.check_given(entries, arg)
                        measured.add(arg)
                        continue
                    known, value = self.static(arg)
                    if not known or is_array(value):
                        return False, None
                    if function in CALLING and callable(value) and not _is_pure(value):
                        return False, None
            elif isinstance(part, (ast.Lambda, ast.NamedExpr, ast.Starred, ast.Slice)) or (
                hasattr(part, "in_change")  # an entry that a `defaultdict` may have to make
            ):
                return False, None
            elif isinstance(part, ast.Name):
                struct = self.names.get(part.id)
                if part in measured:
                    names[part.id] = struct
                    continue
                if struct is None and part.id in BUILTINS and part.id not in self.namespace:
                    continue
                value = _known(struct)
                if value is not _UNKNOWN:
                    names[part.id] = value
                elif struct is not None or part.id not in self.namespace:
                    return False, None
        return self._evaluated(node, names)

    def _evaluated(self, node: ast.expr, names: dict[str, Any] | None = None) -> tuple[bool, Any]:
        """Evaluates an expression whose names are known; an iterator or a lambda is no value."""
        inside = names is None
        if names is None:  # with functions inside, which see global names alone
            found = {part.id for part in nodes_of(node) if isinstance(part, ast.Name)}
            names = {name: _known(self.names[name]) for name in found & self.names.keys()}
            names = {**self.namespace, **names}
        try:
            code = compile(ast.Expression(body=node), self.file, "eval")
            value = eval(code, {**self.namespace, **names}, names)  # noqa: S307
        except Exception as error:  # noqa: BLE001  (shown as the user's mistake)
            self.fail(node, f"`{ast.unparse(node)}` ({described(error)})")
        made = inside and callable(value)  # a lambda, which is read where it is called
        return (False, None) if isinstance(value, Iterator) or made else (True, value)

    def _is_plain(self, node: ast.AST, bound: set[str]) -> bool:
        """Returns whether Python may evaluate a comprehension or a lambda in an expression now.

        All that it uses beside its own names, `bound`, is known, is no array and holds none.
        """
        if isinstance(node, ast.Call) and _uses(node.func, bound):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            parts = (node.func.value, *node.args) if method in OF_PLAIN else ()  # type: ignore
            return bool(parts) and all(self._is_plain(part, bound) for part in parts)
        if isinstance(node, ast.Call):
            known, function = self.static(node.func)
            given = (*node.args, *node.keywords)
            return known and _is_pure(function) and all(self._is_plain(a, bound) for a in given)
        if isinstance(node, ast.Lambda):
            return not (node.args.defaults or node.args.kw_defaults) and self._is_plain(
                node.body, bound
            )
        if isinstance(node, ast.expr) and not _uses(node, bound):
            known, value = self.static(node)
            return known and (_is_pure(value) or is_plain_value(value))
        if isinstance(node, (ast.NamedExpr, ast.Starred, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        return all(self._is_plain(part, bound) for part in children(node))

    def check_given(self, entries: dict[Any, Struct], node: ast.expr) -> None:
        """Refuses to read entries of a dictionary that are perhaps not there."""
        for key, part in entries.items():
            if isinstance(part, Perhaps):
                text = f"{ast.unparse(node)}[{key!r}]"
                self.fail(
                    node,
                    f"`{text}`, which a condition that is known only at run time may leave out,",
                    f"msrl.report leaves it out then, too; to read it, set it before: {text} = 0.0",
                )

    def _of_name(self, node: ast.expr) -> Struct | None:
        return self.names.get(node.id) if isinstance(node, ast.Name) else None

    def is_msrl(self, node: ast.expr) -> bool:
        """Returns whether an expression is the `msrl` argument."""
        struct = self._of_name(node)
        return isinstance(struct, Static) and struct.value is MSRL

    def part(self, node: ast.expr) -> Struct | None:
        """A name, or a field, entry or element of what has one; None for anything else."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Subscript):
            return self._entry(node)
        base = self.part(node.value) if isinstance(node, ast.Attribute) else None
        if not isinstance(base, Record) or not isinstance(node, ast.Attribute):
            return None
        if node.attr == "_fields" and issubclass(base.kind, tuple):
            return Static(tuple(base.fields))
        if member_of(base, node.attr) is not None:
            return None
        if node.attr not in base.fields:
            name, fields = base.kind.__name__, ", ".join(base.fields)
            self.fail(node, f"`{node.attr}` of a {name}", f"its fields are {fields}")
        return base[base.fields.index(node.attr)]

    def _entry(self, node: ast.Subscript) -> Struct | None:
        """An entry of a dictionary, or an element of a tuple, that is there in any case."""
        base: Any = self.part(node.value)
        known, key = self.static(node.slice) if isinstance(base, (tuple, dict)) else (False, None)
        if not known or (isinstance(base, tuple) and not isinstance(key, int)):
            return None
        try:
            found = base[key]
        except (KeyError, IndexError, TypeError):
            return None
        return None if isinstance(found, Perhaps) else found

    def holds(self, condition: ast.expr) -> bool | None:
        """Returns whether a condition holds; None if that is known only at run time."""
        if isinstance(struct := self.part(condition), tuple):
            return bool(struct)
        if isinstance(struct, dict) and not all(isinstance(p, Perhaps) for p in struct.values()):
            return True
        if struct == {}:
            return False
        if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
            holds = self.holds(condition.operand)
            return None if holds is None else not holds
        if (is_none := self._is_none(condition)) is not None:
            return is_none
        if (of_all := self._any_or_all(condition)) is not None:
            return of_all
        if (is_kind := self._is_instance(condition)) is not None:
            return is_kind
        if (asked := self.asked(condition)) is not None:
            name, key, there = asked
            entries = self.names[name]
            return None if isinstance(entries.get(key), Perhaps) else (key in entries) is there
        known, value = self.static(self.with_sizes(condition, rows=False))
        if known:
            return None if is_array(value) else bool(value)
        if not isinstance(condition, ast.BoolOp):
            return None
        deciding, holds = isinstance(condition.op, ast.Or), None
        for part in condition.values:  # short-circuits
            holds = self.holds(part)
            if holds in (None, deciding):
                break
        return holds

    def of_entries(self, test: ast.expr) -> ast.expr:
        """Returns a condition; `"loss" in metrics` for `metrics` if that may leave it out."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return ast.copy_location(ast.UnaryOp(test.op, self.of_entries(test.operand)), test)
        if not isinstance(entries := self._of_name(test), dict) or self.holds(test) is not None:
            return test
        asked: list[ast.expr] = [
            ast.Compare(ast.Constant(key), [ast.In()], [test]) for key in entries
        ]
        made = asked[0] if len(asked) == 1 else ast.BoolOp(ast.Or(), asked)
        return ast.fix_missing_locations(ast.copy_location(made, test))

    def asked(self, node: ast.expr) -> tuple[str, Any, bool] | None:
        """Returns the parts of `"loss" in metrics`: name, key, and whether it is to be there."""
        match node:
            case ast.Compare(left, [ast.In() | ast.NotIn() as operator], [ast.Name(name)]):
                if isinstance(self.names.get(name), dict):
                    return name, self.known(left), isinstance(operator, ast.In)
        return None

    def _any_or_all(self, node: ast.expr) -> bool | None:
        """Decides `any(xs)` and `all(f(x) for x in xs)` of known parts; else returns None."""
        function = node.func if isinstance(node, ast.Call) else None
        name = function.id if isinstance(function, ast.Name) else ""
        if name not in ("any", "all") or name in self.names or name in self.namespace:
            return None
        (given, *more), before = node.args or [None, None], self.names  # type: ignore[attr-defined]
        loop = given.generators[0] if isinstance(given, ast.GeneratorExp) else None
        if more or (loop and (loop.ifs or not isinstance(loop.target, ast.Name))):
            return None
        over = loop.iter if loop else given
        parts = self.part(over)
        if isinstance(over, (ast.Tuple, ast.List)):
            known = list(map(self.static, over.elts))
            parts = tuple(Static(value) for found, value in known if found)
            parts = parts if len(parts) == len(known) else None
        if not isinstance(parts, tuple):
            return None
        key = loop.target.id if loop else "part"  # type: ignore[attr-defined]
        one = ast.copy_location(ast.Name(key, ast.Load()), node)
        test = given.elt if loop else one  # type: ignore[union-attr]
        found = []
        for part in parts:
            self.names = {**before, key: part}
            found.append(self.holds(test))
        self.names = before
        return None if None in found else (any if name == "any" else all)(found)

    def _is_none(self, condition: ast.expr) -> bool | None:
        """Decides `x is None` and `x is not None` of what is never None; returns None otherwise."""
        if not isinstance(condition, ast.Compare) or not isinstance(
            condition.ops[0], (ast.Is, ast.IsNot)
        ):
            return None
        struct, other = self.part(condition.left), condition.comparators[0]
        made = isinstance(struct, Var) and struct.name in self.facts.arrays
        if len(condition.ops) > 1 or not (made or isinstance(struct, (tuple, dict))):
            return None
        none = isinstance(other, ast.Constant) and other.value is None
        return isinstance(condition.ops[0], ast.IsNot) if none else None

    def _is_instance(self, condition: ast.expr) -> bool | None:
        """Decides `isinstance(x, tuple)` of what is no constant; returns None otherwise."""
        match condition:
            case ast.Call(ast.Name("isinstance"), [given, kind], []):
                struct, (known, wanted) = self.part(given), self.static(kind)
            case _:
                return None
        if not known or struct is None or isinstance(struct, Static):
            return None
        from mindspore import Tensor  # noqa: PLC0415

        kind_of: type = list if isinstance(struct, Listed) else tuple
        if isinstance(struct, Record):
            kind_of = struct.kind
        elif isinstance(struct, dict):
            kind_of = dict
        elif isinstance(struct, Var) and self.facts.widths.get(struct.name, 1) == 1:
            if struct.name not in self.facts.arrays - self.facts.tuples:
                return None
            kind_of = Tensor
        return issubclass(kind_of, wanted)

    def known(self, node: ast.expr) -> Any:
        """Returns the value of an expression that must be known at compile time."""
        if isinstance(node, ast.IfExp) and (holds := self.holds(node.test)) is not None:
            return self.known(node.body if holds else node.orelse)
        known, value = self.static(self.with_sizes(node))
        if not known:
            hint = (
                "here stands what is known while reading. A loop that draws random numbers "
                "(msrl.minibatches,\n  msrl.uniform, msrl.replay_sample) counts its turns in the "
                "run: append its results to a list, xs.append(x)"
            )
            if any(
                isinstance(part, ast.Attribute) and part.attr == "shape" for part in nodes_of(node)
            ):
                hint = (
                    "of sizes, the first ones of samples and minibatches are known while reading"
                    f"{self._sized(node)}: take these,\n  or the configuration's number, "
                    "self.config.num_steps, or what __init__ keeps, such as the width of\n  "
                    "observations, self.width = spec.obs_shape[-1]; a loop over the rows of a "
                    "batch, which learners\n  share, is written for all rows at once"
                )
            self.fail(
                node,
                "a value that is only known at run time, where configuration or "
                "a constant is expected,",
                hint,
            )
        return value

    def _sized(self, node: ast.expr) -> str:
        """Names an array whose sizes are known, for one of the size in an expression."""
        axis = 0
        for part in nodes_of(node):
            match part:
                case ast.Subscript(ast.Attribute(_, "shape"), ast.Constant(int(given))):
                    axis = given
        for name, struct in self.names.items():
            fields = struct.fields if isinstance(struct, Record) else ("",)
            parts = struct if isinstance(struct, Record) else (struct,)
            for field_name, part in zip(fields, parts, strict=True):
                sizes = self.facts.sizes_of(part.name) if isinstance(part, Var) else None
                if axis < len(sizes or ()):
                    return f", {name}{field_name and '.'}{field_name}.shape[{axis}]"
        return ""

    def with_sizes(self, node: ast.expr, rows: bool = True) -> ast.expr:
        """Returns an expression with what is known while reading of sizes and users' functions.

        Without `rows`, only those that do not grow with the number of environments.
        """
        return _KnownSizes(self, rows).visit(copy.deepcopy(node))  # type: ignore[no-any-return]

    def msrl_call(self, call: ast.Call) -> str | None:
        """Returns the name of the `msrl` method that a call calls; None for any other call."""
        func = call.func
        if isinstance(func, ast.Attribute) and self.is_msrl(func.value):
            return func.attr
        return None

    def gets_msrl(self, call: ast.Call) -> bool:
        """Returns whether a call passes msrl on, so that the function is inlined."""
        values = [*call.args, *(k.value for k in call.keywords)]
        return any(self.is_msrl(value) for value in values)


def member_of(struct: Struct, name: str) -> Any:
    """Returns a property or a method that a record's class has; None for anything else."""
    found = vars(struct.kind).get(name) if isinstance(struct, Record) else None
    own = isinstance(found, property) or inspect.isfunction(found)
    return found if own and not name.startswith("_") and name not in struct.fields else None


class Rows(int):
    """A size that grows with the number of environments."""


class _KnownSizes(ast.NodeTransformer):
    """Replaces sizes, `x.shape[0]` and `len(x)`, and calls whose results are known by numbers."""

    def __init__(self, frame: Frame, rows: bool) -> None:
        self.frame, self.rows = frame, rows

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:  # noqa: N802
        match node:
            case ast.Subscript(ast.Attribute(owner, "shape"), ast.Constant(int(axis))):
                return self._size(node, owner, axis)
        return self._inner(node)

    def visit_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        match node:
            case ast.Call(ast.Name("len"), [owner], []):
                return self._size(node, owner, 0)
        result = constant(self.frame.facts.known_result(node))
        return self._inner(node) if result is None else ast.copy_location(literal(result), node)

    def _size(self, node: ast.expr, owner: ast.expr, axis: int) -> ast.expr:
        struct = self.frame.part(owner)
        sizes = self.frame.facts.sizes_of(struct.name) if isinstance(struct, Var) else None
        if sizes is None or not 0 <= axis < len(sizes):
            return self._inner(node)
        if isinstance(sizes[axis], Rows) and not self.rows:
            return self._inner(node)
        return ast.copy_location(ast.Constant(int(sizes[axis])), node)

    def _inner(self, node: ast.expr) -> ast.expr:
        self.generic_visit(node)
        return node


def bound_names(node: ast.AST) -> set[str]:
    """Returns the names that comprehensions and lambdas in an expression bind."""
    found = set[str]()
    for part in nodes_of(node):
        if isinstance(part, ast.comprehension):
            found |= {one.id for one in nodes_of(part.target) if isinstance(one, ast.Name)}
        elif isinstance(part, ast.Lambda):
            found |= {one.arg for one in nodes_of(part.args) if isinstance(one, ast.arg)}
    return found


def _uses(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in nodes_of(node))


def is_plain_value(value: Any) -> bool:
    """Returns whether a value is made of numbers, texts and such alone, which nothing changes."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_plain_value, value))
    if isinstance(value, dict):
        return all(map(is_plain_value, (*value, *value.values())))
    return is_literal(value) or isinstance(value, (range, enum.Enum, dataclasses.Field))


_UNKNOWN = object()


def _known(struct: Struct) -> Any:
    """Returns the value of a structure whose parts are all known, else `_UNKNOWN`."""
    if isinstance(struct, Static) and struct.value is not MSRL:
        return struct.value
    if isinstance(struct, tuple):
        parts = tuple(map(_known, struct))
        if any(part is _UNKNOWN for part in parts):
            return _UNKNOWN
        if isinstance(struct, Listed):
            return list(parts)
        return struct.kind(*parts) if isinstance(struct, Record) else parts
    if isinstance(struct, dict):
        entries = {key: _known(part) for key, part in struct.items()}
        return _UNKNOWN if any(part is _UNKNOWN for part in entries.values()) else entries
    return _UNKNOWN


def constant(struct: Struct) -> Any:
    """Returns the value of a structure whose parts are all known, else None."""
    value = _known(struct)
    return None if value is _UNKNOWN else value


def _is_pure(function: Any) -> bool:
    if getattr(function, "__name__", "") in LISTING_METHODS and is_cell(function):
        return True
    owner = getattr(function, "__self__", None)
    if type(owner) in (str, tuple):  # `name.endswith("loss")`
        return True
    if type(owner) in (dict, list) and getattr(function, "__name__", "") in OF_PLAIN:
        return is_plain_value(owner)
    if isinstance(function, type) and issubclass(function, enum.Enum):
        return True
    try:
        return function in PURE
    except TypeError:
        return False


def open_frame(function: Any) -> tuple[Frame, ast.FunctionDef]:
    """Parses a function's source.

    Returns: a frame without arguments, and the syntax tree of the function.

    Raises:
        ProgramError: there is no source, or it is not a plain `def`.
    """
    given = getattr(function, "__func__", function)
    function = inspect.unwrap(given)
    try:
        lines, first_line = source_lines(function)
    except (OSError, TypeError) as error:
        name = getattr(function, "__qualname__", function)
        raise ProgramError(f"the source of {name} cannot be read: {error}") from error
    closure = inspect.getclosurevars(function)
    frame = Frame(
        function,
        inspect.getsourcefile(function) or "?",
        first_line,
        lines,
        {**function.__globals__, **closure.nonlocals},
        function.__module__,
    )
    try:
        definition = statement_in(lines)
    except SyntaxError:  # part of a longer expression
        definition = ast.Pass(lineno=1, col_offset=0)
    if not isinstance(definition, ast.FunctionDef):
        frame.fail(definition, "a function that is not a plain `def`")
    decorators = [ast.unparse(decorator) for decorator in definition.decorator_list]
    if function is not given or not {*decorators} <= {"staticmethod", "classmethod", "property"}:
        frame.fail(
            definition,
            f"a decorator of `{definition.name}`, which is read and not called,",
            "write what the decorator does into the function",
        )
    for call in nodes_of(definition):
        if _takes_first_parameter(call):  # the parameters are a tuple here
            name = ast.copy_location(ast.Name("iter", ast.Load()), call)
            call.args = [ast.copy_location(ast.Call(name, call.args, []), call)]  # type: ignore
    return frame, definition


def _takes_first_parameter(node: ast.AST) -> bool:
    """Returns whether an expression is `next(network.get_parameters())`."""
    match node:
        case ast.Call(ast.Name("next"), [ast.Call(ast.Attribute(attr=method), [], [])], []):
            return method in LISTING_METHODS
    return False


def free_names(tree: ast.FunctionDef | ast.Lambda) -> list[str]:
    """Returns the names that a function uses and does not bind, without those of its defaults."""
    tree = copy.deepcopy(tree)
    for name in ("defaults", "kw_defaults"):
        plain = [given and ast.Constant(None) for given in getattr(tree.args, name)]
        setattr(tree.args, name, plain)
    table = symtable.symtable(ast.unparse(tree), "?", "exec").get_children()
    found: dict[str, None] = {}
    while table:
        scope = table.pop()
        found |= dict.fromkeys(s.get_name() for s in scope.get_symbols() if s.is_global())
        table += scope.get_children()
    return list(found)


def is_literal(value: Any) -> bool:
    """Returns whether a value can be written as a literal in generated source."""
    if isinstance(value, tuple):
        return all(map(is_literal, value))
    return value is None or isinstance(value, (int, float, bool, str, np.integer, np.floating))


def literal(value: Any) -> ast.expr:
    """Returns a value as an expression."""
    if isinstance(value, tuple):
        return ast.Tuple(list(map(literal, value)), ast.Load())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return ast.Call(ast.Name("float", ast.Load()), [ast.Constant(str(value))], [])
    negative = repr(value).startswith("-")
    return ast.UnaryOp(ast.USub(), ast.Constant(-value)) if negative else ast.Constant(value)


def is_array(value: Any) -> bool:
    """Returns whether a known value is an array, which belongs in an operation."""
    from mindspore import Tensor  # noqa: PLC0415  (there since the program was imported)

    return isinstance(value, (Tensor, np.ndarray))


def is_parameter(value: Any) -> bool:
    """Returns whether a known value is a Parameter, which updates change."""
    from mindspore import Parameter  # noqa: PLC0415

    return isinstance(value, Parameter)


def is_cell(value: Any) -> bool:
    """Returns whether a known value is a cell or a method of one."""
    from mindspore import nn  # noqa: PLC0415

    return isinstance(getattr(value, "__self__", value), nn.Cell)


def _short(file: str) -> str:
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
