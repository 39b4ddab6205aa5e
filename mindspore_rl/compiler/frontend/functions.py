"""Functions as values: those inside `learn`, lambdas, `functools.partial`, and losses."""

import ast
import functools
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mindspore_rl.compiler.frontend.builder import is_operators
from mindspore_rl.compiler.frontend.paths import Paths
from mindspore_rl.compiler.frontend.records import Entries, Record
from mindspore_rl.compiler.frontend.scope import (
    BUILTINS,
    MSRL,
    Frame,
    Gone,
    Static,
    Struct,
    Var,
    free_names,
    is_literal,
    literal,
    variables,
)
from mindspore_rl.compiler.ir.ir import Expr
from mindspore_rl.platform.syntax import nodes_of, own_nodes, source_lines, statement_in

LOSS = (
    "expected a function of yours: a method `self.loss`, a function of the file, a `def` or "
    "`lambda` in this\n  function, or functools.partial of one"
)
NETWORK = (
    "expected a network of the learner by its name or place (`self.network`, `self.critics[0]`), "
    "or a\n  tuple of networks"
)


@dataclass(frozen=True, eq=False)
class Inner:
    """A function inside the one being read.

    Attributes:
        tree: its source.
        frame: the function around it, whose variables it uses as they are when it is called.
        defaults: the default values of its parameters.
    """

    tree: ast.FunctionDef | ast.Lambda
    frame: Frame
    defaults: dict[str, Struct]

    @property
    def name(self) -> str:
        """The function's name, for errors."""
        return getattr(self.tree, "name", "lambda")


@dataclass(frozen=True, eq=False)
class Partial:
    """A `functools.partial`.

    Attributes:
        function: an `Inner`, or a known function.
        path: an expression for a known function.
        args: its positional arguments.
        keywords: its other arguments.
    """

    function: Any
    path: Expr | None
    args: tuple[Struct, ...]
    keywords: dict[str, Struct]


class Functions:
    """Reads functions that are values.

    Args:
        reader: the reader of expressions.
        paths: the names of the trainer's objects.

    Attributes:
        width: how many values the last loss returns; None if its returns do not show it.
        is_one: whether it surely returns one array.
    """

    def __init__(self, reader: Any, paths: Paths) -> None:
        self.reader, self.draft, self.paths = reader, reader.draft, paths
        self._open: list[Inner] = []
        self._role = "a loss"
        self.width: int | None = None
        self.is_one = False

    # ---- values ----------------------------------------------------------------------------

    def defined(self, tree: ast.FunctionDef | ast.Lambda) -> Static:
        """Reads the definition of a function."""
        frame, args = self.draft.frame, tree.args
        if getattr(tree, "decorator_list", ()):
            frame.fail(tree, "a decorator of a function inside a function", "call it by its name")
        if hidden := self.reader.sequences.bound & set(free_names(tree)):
            name = min(hidden)
            frame.fail(
                tree,
                f"a lambda that uses `{name}` of a comprehension",
                f"all of them would see its last value: write `lambda ..., {name}={name}:`",
            )
        several = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        pairs = list(zip(several[len(several) - len(args.defaults) :], args.defaults, strict=True))
        only = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        pairs += [(arg.arg, given) for arg, given in only if given is not None]
        defaults = {name: self.draft.kept(self.reader.expression(given)) for name, given in pairs}
        return Static(Inner(tree, frame, defaults))

    def partial(self, call: ast.Call) -> Static | None:
        """Reads `partial(function, ...)`; returns None for any other call."""
        if self.draft.frame.static(call.func)[1] is not functools.partial or not call.args:
            return None
        function, path = self._function(call.args[0])
        args = tuple(map(self.draft.kept, self.reader.elements(call.args[1:])))
        named = self.reader.named(call.keywords)
        keywords = {name: self.draft.kept(value) for name, value in named.items()}
        if isinstance(function, Partial):
            args, keywords = (*function.args, *args), {**function.keywords, **keywords}
            function, path = function.function, function.path
        return Static(Partial(function, path, args, keywords))

    def _function(self, node: ast.expr) -> tuple[Any, Expr | None]:
        """Reads a function that is an argument. Returns: it, and an expression for a known one."""
        struct = None
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Lambda, ast.Call)):
            struct = self.reader.expression(node)
        value = struct.value if isinstance(struct, Static) else None
        if not callable(value) and not isinstance(value, (Inner, Partial)):
            self.draft.fail(node, f"`{ast.unparse(node)}` as a function", LOSS)
        if isinstance(value, (Inner, Partial)):
            return value, None
        path = self.paths.written(node, self.draft.frame) or self.paths.of(value)
        if path is None:  # a function of the file or of a module
            path = Expr(self.reader.substituted(node, []))
        return value, path

    def inner(self, func: ast.expr) -> Inner | Partial | None:
        """Returns the function inside this one that a name stands for, else None."""
        struct = self.draft.frame.names.get(func.id) if isinstance(func, ast.Name) else None
        value = struct.value if isinstance(struct, Static) else None
        if isinstance(value, Partial) and isinstance(value.function, Inner):
            return value
        return value if isinstance(value, Inner) else None

    # ---- calls -----------------------------------------------------------------------------

    def bound(
        self,
        inner: Inner,
        args: tuple[Struct, ...],
        keywords: dict[str, Struct],
        node: ast.AST,
        compiled: bool = True,
    ) -> dict[str, Struct]:
        """Returns the values of a function's parameters in a call.

        Args:
            inner: the function.
            args: the arguments in order.
            keywords: the others.
            node: the call.
            compiled: whether MindSpore compiles the function, which then names its parameters.
        """
        spec, called = inner.tree.args, f"a call of {inner.name}"
        if compiled and (spec.vararg or spec.kwarg):
            self.draft.fail(
                node, f"`*` in the parameters of {inner.name}", "name each of its parameters"
            )
        positional = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
        names = [*positional, *(arg.arg for arg in spec.kwonlyargs)]
        if len(args) > len(positional) and not spec.vararg:
            wanted = len(positional)
            self.draft.fail(node, f"{called} with {len(args)} arguments, expected {wanted}", "")
        given = dict(zip(positional, args, strict=False))
        others = dict[str, Struct]()
        for name, value in keywords.items():
            if spec.kwarg and name not in names:
                others[name] = value
                continue
            if name not in names or name in given:
                self.draft.fail(node, f"{called} with the argument {name!r}", "")
            given[name] = value
        for name in names:
            if name not in given and name not in inner.defaults:
                self.draft.fail(node, f"{called} without {name!r}", "")
        found = {name: given[name] if name in given else inner.defaults[name] for name in names}
        if spec.vararg:
            found[spec.vararg.arg] = tuple(args[len(positional) :])
        if spec.kwarg:
            found[spec.kwarg.arg] = Entries.of(others)
        return found

    def in_order(self, node: ast.Call, values: tuple[Struct, ...]) -> tuple[Struct, ...]:
        """Returns the arguments of a loss or an update in order; some may be given by name."""
        named = [item for item in node.keywords if item.arg != "rows"]
        if not named:
            return values
        from mindspore_rl.api import in_order  # noqa: PLC0415  (imports MindSpore)

        function, keywords = self._function(node.args[0])[0], self.reader.named(named)
        if isinstance(function, Inner):
            return tuple(self.bound(function, values, keywords, node).values())
        if isinstance(function, Partial):
            self.draft.fail(named[0].value, "a keyword argument of a partial", "give it in order")
        try:
            return in_order(function, values, keywords)
        except TypeError as error:
            called = f"`{ast.unparse(node.args[0])}` does not take these arguments ({error}), so"
            return self.draft.fail(named[0].value, f"{called} this", "give them in order")

    # ---- losses ----------------------------------------------------------------------------

    def loss(
        self, node: ast.expr, values: tuple[Struct, ...], role: str = "a loss"
    ) -> tuple[Expr, tuple[Struct, ...]]:
        """Reads a loss, or the function of an update, and its arguments.

        Args:
            node: the function.
            values: the arguments.
            role: what it is, for errors.

        Returns: an expression for a function of arrays, and the arrays.
        """
        self._role = role
        function, path = self._function(node)
        keywords: dict[str, Struct] = {}
        if isinstance(function, Partial):
            path, keywords = function.path, function.keywords
            values, function = (*function.args, *values), function.function
        self.width, self.is_one = width(function), gives_one(function)
        self._check_result(function, node)
        if isinstance(function, Inner):
            return self._inner_loss(function, values, keywords, node)
        assert path is not None
        if not keywords and not self.takes_objects(values):
            return path, values
        params, fixed, given, arrays = [], dict[str, Expr](), [], []
        pairs = [("", value) for value in values] + list(keywords.items())
        for place, (name, value) in enumerate(pairs):
            own = f"a{place}"
            if self._is_fixed(value):
                fixed[own] = self.object(value, node)
            else:
                params.append(own)
                arrays.append(value)
            given.append(f"{name}={own}" if name else own)
        call = [path, *map(_text, (", ".join(params), ", ".join(given))), _entries(fixed)]
        return self._call("bound", call), tuple(arrays)

    def _check_result(self, function: Any, node: ast.expr) -> None:
        """Refuses a loss that returns a dictionary."""
        tree = tree_of(function) if self._role == "a loss" else None
        found = [] if tree is None else own_nodes(tree)
        for made in (node for node in found if isinstance(node, ast.Return)):
            parts: list[Any] = getattr(made.value, "elts", [made.value])
            if not any(isinstance(part, ast.Dict) for part in parts):
                continue
            values = [one for part in parts for one in getattr(part, "values", [part])]
            self.draft.fail(
                node,
                f"`{ast.unparse(node)}`, a loss that returns a dictionary,",
                f"return its values in order, `return {', '.join(map(ast.unparse, values))}`, and "
                "name these\n  where they are used: grads, (loss, *others) = msrl.gradient(...)",
            )

    def _inner_loss(
        self, inner: Inner, args: tuple, keywords: dict[str, Struct], node: ast.AST
    ) -> tuple[Expr, tuple[Struct, ...]]:
        values = self.bound(inner, args, keywords, node)
        values |= self._captured(inner, node)
        fixed = {name: value for name, value in values.items() if self._is_fixed(value)}
        names = [part for part in nodes_of(inner.tree) if isinstance(part, ast.Name)]
        stored = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        if changed := sorted(stored & fixed.keys()):
            self.draft.fail(
                node,
                f"`{inner.name}`, which assigns to its parameter `{changed[0]}`, as {self._role}",
                "use another name in it",
            )
        arrays = {name: value for name, value in values.items() if name not in fixed}
        texts = {name: self.object(value, node) for name, value in fixed.items()}
        return self._inner(inner, ", ".join(arrays), texts, node), tuple(arrays.values())

    def _captured(self, inner: Inner, node: ast.AST) -> dict[str, Struct]:
        """Returns the variables of the function around that an inner one uses, as they are now."""
        frame, found = inner.frame, dict[str, Struct]()
        module = vars(sys.modules[frame.module])
        for name in free_names(inner.tree):
            struct = frame.names.get(name)
            if isinstance(struct, Gone):
                self.draft.fail(node, f"{struct.why} (`{name}`) in {inner.name}", struct.way)
            if isinstance(struct, Static) and struct.value is MSRL:
                self.draft.fail(
                    node,
                    f"{self._role} that calls msrl ({inner.name})",
                    "compute that before, in `learn`, and use the result",
                )
            if struct is not None:
                found[name] = struct
            elif name in frame.namespace and name not in module:
                self.draft.fail(node, f"{name!r}, a name of an enclosing function,")
            elif name not in module and name not in BUILTINS:
                hint = "set it before, or let it be an argument"
                self.draft.fail(node, f"the unknown name {name!r} in {inner.name}", hint)
        return found

    def network(self, node: ast.expr) -> Expr:
        """Reads the networks of a gradient."""
        path = self.paths.written(node, self.draft.frame)
        struct = self.reader.expression(node)
        if not all(map(_is_network, _leaves(struct))):
            self.draft.fail(node, f"msrl.gradient by `{ast.unparse(node)}`", NETWORK)
        return path if path is not None else self.object(struct, node)

    # ---- expressions -----------------------------------------------------------------------

    def object(self, struct: Struct, node: ast.AST) -> Expr:
        """Returns an expression for a value that has no arrays."""
        if isinstance(struct, (tuple, dict)) and not isinstance(struct, Record):
            if isinstance(struct, dict):
                return _entries({key: self.object(part, node) for key, part in struct.items()})
            parts = [self.object(part, node).tree for part in struct]
            return Expr(ast.Tuple(parts, ast.Load()))
        value = struct.value if isinstance(struct, Static) else None
        if isinstance(value, Inner):
            return self._helper(value, node)
        if isinstance(struct, Static) and is_literal(value):
            return Expr(literal(value))
        path = self.paths.of(value) if isinstance(struct, Static) else None
        if path is not None:
            return path
        if isinstance(value, (list, tuple)):  # such as what `trainable_params()` makes
            return self.object(tuple(map(Static, value)), node)
        what = f"a function that uses {_described(struct)}"
        hint = "pass it as an argument, or keep it in an attribute of the learner"
        return self.draft.fail(node, what, hint)

    def _helper(self, inner: Inner, node: ast.AST) -> Expr:
        """Returns an expression for a function that another one inside `learn` calls."""
        args = inner.tree.args
        if inner in self._open:
            self.draft.fail(node, f"a function that calls itself ({inner.name})")
        if inner.defaults or args.vararg or args.kwonlyargs or args.kwarg:
            self.draft.fail(
                node,
                f"`{inner.name}`, which a loss calls, with other than plain parameters",
                "pass it all its arguments in order",
            )
        self._open.append(inner)
        fixed = {name: self.object(v, node) for name, v in self._captured(inner, node).items()}
        self._open.pop()
        params = ", ".join(arg.arg for arg in (*args.posonlyargs, *args.args))
        return self._inner(inner, params, fixed, node)

    def _inner(self, inner: Inner, params: str, fixed: dict[str, Expr], node: ast.AST) -> Expr:
        frame = inner.frame
        home, names = frame.home, frame.home.__qualname__.split(".")
        found: Any = vars(sys.modules[frame.module]).get(names[0])
        for name in names[1:]:
            found = getattr(found, name, None)
        if getattr(found, "__func__", found) is not home:
            self.draft.fail(
                node,
                f"a function inside `{home.__qualname__}` as {self._role}",
                "write it in a method of a class of the file, or in a function of the file",
            )
        path: ast.expr = ast.Name(self.draft.imported(frame.module, names[0]), ast.Load())
        for name in names[1:]:
            path = ast.Attribute(path, name, ast.Load())
        place = (Expr(str(inner.tree.lineno)), Expr(str(inner.tree.col_offset)))
        return self._call("inner", [Expr(path), *place, _text(params), _entries(fixed)])

    def _call(self, function: str, args: list[Expr]) -> Expr:
        name = self.draft.imported("mindspore_rl.rl.inner", function)
        return Expr(ast.Call(ast.Name(name, ast.Load()), [arg.tree for arg in args], []))

    def _is_fixed(self, struct: Struct) -> bool:
        return next(variables(struct), None) is None

    def takes_objects(self, values: tuple[Struct, ...]) -> bool:
        """Returns whether arguments have a part that is no array and no number."""
        return any(
            isinstance(leaf, Static) and not is_literal(leaf.value) for leaf in _leaves(values)
        )


def tree_of(function: Any) -> Any:
    """Returns the tree of a function; None if it has no source."""
    if isinstance(function, Inner):
        return function.tree
    known = inspect.unwrap(getattr(function, "__func__", function))
    try:
        return statement_in(source_lines(known)[0])
    except (OSError, TypeError, SyntaxError):
        return None


def width(function: Any) -> int | None:
    """Returns how many values each `return` of a function names; None if that is not written.

    `return self.net.sample(obs)` counts as many as that method of an attribute returns.
    """
    if (tree := tree_of(function)) is None:
        return None
    values = [node.value for node in own_nodes(tree) if isinstance(node, ast.Return)]
    values = [tree.body] if isinstance(tree, ast.Lambda) else values
    found = {_width_of(value, function, tree) for value in values}
    return found.pop() if len(found) == 1 else None


def gives_one(function: Any, callers: tuple[Any, ...] = ()) -> bool:
    """Returns whether a function surely gives one array: an operator's result, in each `return`.

    A `return` may call another such function, or name what is made by operators alone.
    """
    if (tree := tree_of(function)) is None or tree in callers:
        return False
    nodes = list(own_nodes(tree))
    values: list[Any] = [node.value for node in nodes if isinstance(node, ast.Return)]
    values = [tree.body] if isinstance(tree, ast.Lambda) else values
    assigns = [node for node in nodes if isinstance(node, ast.Assign)]
    assigned = {target: node.value for node in assigns for target in node.targets}
    added = {node.target for node in nodes if isinstance(node, ast.AugAssign)}
    made: dict[str, list[Any]] = {}
    for name in nodes:
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name not in added:
            made.setdefault(name.id, []).append(assigned.get(name))

    def one(value: Any) -> bool:
        if isinstance(value, ast.Name):
            return value.id in made and all(map(one, made.pop(value.id)))
        called = _called(value, function, tree)
        return is_operators(value) or (called and gives_one(called, (*callers, tree)))

    return bool(values) and all(map(one, values))


def _width_of(value: ast.expr | None, function: Any, tree: Any) -> int | None:
    """Returns how many values a returned expression names, see `width`."""
    if isinstance(value, ast.Tuple):
        return _length(value, tree)
    called = _called(value, function, tree)
    return width(called) if inspect.ismethod(called) and called != function else None


def _length(value: ast.expr, tree: Any) -> int | None:
    """Returns the length of a sequence that a function writes, or names once; None if unknown."""
    match value:
        case ast.Tuple(parts) | ast.List(parts):
            lengths = [
                _length(part.value, tree) if isinstance(part, ast.Starred) else 1 for part in parts
            ]
            return None if None in lengths else sum(filter(None, lengths))
        case ast.ListComp(_, [loop]) | ast.GeneratorExp(_, [loop]) if not loop.ifs:
            return _length(loop.iter, tree)
        case ast.Name(name):
            nodes = list(own_nodes(tree))
            used = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
            made = [n.value for n in nodes if isinstance(n, ast.Assign) and n.targets[0] in used]
            once = sum(isinstance(one.ctx, ast.Store) for one in used) == len(made) == 1
            once &= not any(isinstance(node, ast.arg) and node.arg == name for node in nodes)
            owners = [n.value for n in nodes if isinstance(n, (ast.Attribute, ast.Subscript))]
            if once and not any(one in owners for one in used):
                return _length(made[0], tree)
    return None


def _called(value: ast.expr | None, function: Any, tree: Any) -> Any:
    """Returns the function of the file, or the method of `self` or its attributes, in a call."""
    if not isinstance(value, ast.Call) or isinstance(function, Inner):
        return None
    *path, name = ast.unparse(value.func).split(".")
    owner, first = getattr(function, "__self__", None), [arg.arg for arg in tree.args.args[:1]]
    if not path:
        found = inspect.unwrap(function).__globals__.get(name)
        return found if inspect.isfunction(found) else None
    if owner is None or path[:1] != first or not all(map(str.isidentifier, (*path, name))):
        return None
    for attribute in (*path[1:], name):
        owner = getattr(owner, attribute, None)
    return owner


def _leaves(struct: Struct) -> Iterator[Struct]:
    if isinstance(struct, (tuple, dict)):
        for part in struct.values() if isinstance(struct, dict) else struct:
            yield from _leaves(part)
    else:
        yield struct


def _is_network(struct: Struct) -> bool:
    """Returns whether a known value has trainable parameters."""
    from mindspore import Parameter, nn  # noqa: PLC0415

    value = struct.value if isinstance(struct, Static) else None
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_network(Static(part)) for part in value)
    if isinstance(value, dict):
        return bool(value) and all(_is_network(Static(part)) for part in value.values())
    return isinstance(value, (nn.Cell, Parameter))


def _described(struct: Struct) -> str:
    if isinstance(struct, Record):
        return f"a {struct.kind.__name__}"
    if isinstance(struct, Var):
        return f"the array `{struct.name}` of the function around it"
    value = struct.value if isinstance(struct, Static) else struct
    return f"`{getattr(value, '__name__', type(value).__name__)}`"


def _text(value: str) -> Expr:
    return Expr(ast.Constant(value))


def _entries(parts: dict[Any, Expr]) -> Expr:
    keys: list[ast.expr | None] = [ast.Constant(key) for key in parts]
    return Expr(ast.Dict(keys, [part.tree for part in parts.values()]))
