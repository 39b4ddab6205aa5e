"""Rewrites loops over generators, `map` and `filter`, which compute a value when its turn begins.

`for x in (f(y) for y in ys): ...` becomes `for y in ys:` with `x = f(y)` as its first statement. So
`f` sees what the turns before have changed, as it does in Python.
"""

# ruff: noqa: N802  (the visitors of `ast`)

import ast
import copy
import itertools
from collections.abc import Sequence
from typing import Any

from mindspore_rl.compiler.frontend.break_to_flag import at, names_in
from mindspore_rl.compiler.frontend.scope import Frame
from mindspore_rl.platform.names import unused
from mindspore_rl.platform.syntax import children, nodes_of

Taken = tuple[ast.expr, ast.expr, list[ast.stmt]]
"""What a loop goes over, its target, and the first statements of its body."""
PASS_ON: tuple[Any, ...] = (
    *(enumerate, zip, itertools.chain, itertools.islice, itertools.pairwise, itertools.zip_longest),
)
"""Iterators that take the values of others one by one; `product` and such take all at once."""


def compute_by_turns(function: ast.FunctionDef, frame: Frame) -> None:
    """Rewrites the loops of a function over what computes its values one by one.

    Args:
        function: its tree, which is changed.
        frame: of the function.
    """
    _put_in(function)
    function.body = _Loops(names_in(function), frame).visit(ast.Module(function.body, [])).body


def _put_in(function: ast.FunctionDef) -> None:
    """Puts a generator with a name where the next statement takes its values, and nobody else."""
    names = [node for node in nodes_of(function) if isinstance(node, ast.Name)]
    for around in nodes_of(function):
        body = getattr(around, "body", None)
        if not isinstance(body, list):
            continue
        for first, second in list(itertools.pairwise(body)):
            match first:
                case ast.Assign([ast.Name(name)], ast.GeneratorExp() as made):
                    own = [node for node in names if node.id == name]
                    reads = [node for node in own if isinstance(node.ctx, ast.Load)]
                    if len(own) == 2 and len(reads) == 1 and _taken_in(second, reads[0]):
                        _Put(reads[0], made).visit(second)
                        body.remove(first)


def _taken_in(statement: ast.stmt, name: ast.Name) -> bool:
    """Returns whether a statement evaluates a name, and does so once."""
    if isinstance(statement, ast.For):
        return statement.iter is name
    waiting: list[ast.AST] = [statement]
    for node in waiting:
        if not isinstance(node, (ast.Lambda, ast.comprehension, ast.IfExp, ast.FunctionDef)):
            waiting += [] if hasattr(node, "body") else children(node)
    return any(node is name for node in waiting)


class _Put(ast.NodeTransformer):
    def __init__(self, name: ast.Name, made: ast.GeneratorExp) -> None:
        self.name, self.made = name, made

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.made if node is self.name else node


class _Loops(ast.NodeTransformer):
    def __init__(self, names: set[str], frame: Frame) -> None:
        self.names, self.frame = names, frame

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        node.iter, node.target, first = self._taken(node.iter, node.target)
        node.body[:0] = first
        self._check(node.iter)
        return node

    def _check(self, given: ast.expr) -> None:
        """Refuses what else computes its values one by one, inside `chain` and such."""
        kind = self.frame.static(given.func)[1] if isinstance(given, ast.Call) else None
        passes_on = any(kind is one for one in PASS_ON) or kind == itertools.chain.from_iterable
        for arg in given.args if isinstance(given, ast.Call) and passes_on else ():
            by_call = isinstance(arg, ast.Call) and any(
                self._is(arg.func, k) for k in (map, filter)
            )
            if by_call or isinstance(arg, ast.GeneratorExp):
                self.frame.fail(
                    arg,
                    "a loop over this inside another iterator",
                    f"it computes each value at its turn; make a list of it: {_as_list(arg)}",
                )
            self._check(arg)

    def _taken(self, given: ast.expr, target: ast.expr, alone: bool = True) -> Taken:
        """Takes what a loop goes over apart.

        Args:
            given: the expression.
            target: what each of its values is assigned to.
            alone: whether it may leave out values, which would be those of others in a `zip`.
        """
        match given:
            case ast.GeneratorExp(value, [ast.comprehension(own, source, tests)]):
                if alone or not tests:
                    return self._of_generator(given, target, (own, source, tests, value))
            case ast.Call(func, [function, *sources], []) if sources and self._is(func, map):
                names, value = self._call(function, len(sources))
                return self._taken(_generator(given, value, names, sources), target, alone)
            case ast.Call(func, [function, source], []) if alone and self._is(func, filter):
                names, test = self._call(function, 1)
                one = ast.Name(names[0], ast.Load())
                test = one if isinstance(function, ast.Constant) else test
                return self._taken(_generator(given, one, names, [source], test), target)
            case ast.Call(func, [source, *_]) if self._is(func, enumerate):
                number, value = self._parts(target, 2)
                given.args[0], own, first = self._taken(source, value, False)
                if first:
                    return self._together(given, target, [(number, value), (number, own)], first)
            case ast.Call(func, sources) if sources and self._is(func, zip):
                values = self._parts(target, len(sources))
                taken = [self._taken(*pair, False) for pair in zip(sources, values, strict=True)]
                given.args = [source for source, _, _ in taken]
                if first := [statement for *_, some in taken for statement in some]:
                    pairs = [values, [own for _, own, _ in taken]]
                    return self._together(given, target, pairs, first)
        return given, target, []

    def _is(self, func: ast.expr, kind: type) -> bool:
        return isinstance(func, ast.Name) and self.frame.static(func)[1] is kind

    def _parts(self, target: ast.expr, count: int) -> list[ast.expr]:
        """Returns the parts of a target, or new names for them if it is one name."""
        if isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == count:
            return target.elts
        names = (unused("taken", self.names) for _ in range(count))
        return [at(target, ast.Name(name, ast.Store())) for name in names]

    def _together(
        self, given: ast.expr, target: ast.expr, parts: Sequence, first: list[ast.stmt]
    ) -> Taken:
        values, own = parts
        if not isinstance(target, (ast.Tuple, ast.List)) or list(values) != target.elts:
            loaded: list[ast.expr] = [ast.Name(value.id, ast.Load()) for value in values]
            first = [*first, at(target, ast.Assign([target], ast.Tuple(loaded, ast.Load())))]
        return given, at(target, ast.Tuple(list(own), ast.Store())), first

    def _of_generator(self, given: ast.expr, target: ast.expr, parts: tuple) -> Taken:
        """Gives the variables of a generator, which are its own, other names in the loop."""
        own, source, tests, value = parts
        mine = sorted({node.id for node in nodes_of(own) if isinstance(node, ast.Name)})
        renamed = _Renamed({name: unused(name, self.names) for name in mine})
        own, value, *tests = (renamed.visit(copy.deepcopy(part)) for part in (own, value, *tests))
        source, own, first = self._taken(source, own)
        for test in tests:
            left_out = ast.If(ast.UnaryOp(ast.Not(), test), [ast.Continue()], [])
            first.append(at(test, left_out))
        return source, own, [*first, at(given, ast.Assign([target], value))]

    def _call(self, function: ast.expr, count: int) -> tuple[list[str], ast.expr]:
        """Returns names for the arguments of a function, and a call of it with them."""
        match function:
            case ast.Lambda(ast.arguments([], args, None, [], [], None, []), body):
                if len(args) == count:
                    return [arg.arg for arg in args], body
            case ast.Name() | ast.Attribute() | ast.Lambda() | ast.Constant(None):
                pass
            case _:
                self.frame.fail(
                    function, "a `map` or `filter` by this", "give the function a name before it"
                )
        names = [unused("given", self.names) for _ in range(count)]
        return names, ast.Call(function, [ast.Name(name, ast.Load()) for name in names], [])


def _as_list(given: ast.expr) -> str:
    text = ast.unparse(given)
    return f"[{text[1:-1]}]" if isinstance(given, ast.GeneratorExp) else f"list({text})"


def _generator(
    given: ast.expr, value: ast.expr, names: list[str], sources: list[ast.expr], *tests: ast.expr
) -> ast.GeneratorExp:
    """Returns `(value for x, y in zip(xs, ys) if test)`."""
    variables: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    own, source = variables[0], sources[0]
    if len(sources) > 1:
        own = ast.Tuple(variables, ast.Store())
        source = ast.Call(ast.Name("zip", ast.Load()), sources, [])
    return at(given, ast.GeneratorExp(value, [ast.comprehension(own, source, [*tests], 0)]))


class _Renamed(ast.NodeTransformer):
    """Gives variables other names."""

    def __init__(self, others: dict[str, str]) -> None:
        self.others = others

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.others.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.others.get(node.arg, node.arg)
        return node
