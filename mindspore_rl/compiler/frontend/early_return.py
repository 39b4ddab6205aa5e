"""Rewrites functions that return under conditions of the run, so that they return once, at the end.

`if test: return a` followed by `return b` becomes `if test: returned = a`, `else: returned = b` and
`return returned`. In a loop, `return a` becomes a flag and `break`; behind the loop, the flag
decides on `return a`. Other forms stay as they are, and `build` refuses them.
"""

# ruff: noqa: D102  (the visitors of `ast`, whose names say what they take)

import ast
import copy
from collections.abc import Callable
from typing import Any

from mindspore_rl.compiler.frontend.break_to_flag import at, names_in
from mindspore_rl.platform.names import unused
from mindspore_rl.platform.syntax import children, nodes_of

Holds = Callable[[ast.expr], bool | None]


def return_once(function: ast.FunctionDef, holds: Holds) -> str:
    """Rewrites a function's body, if a `return` in it depends on a condition of the run.

    Args:
        function: its tree, which is changed.
        holds: whether a condition holds, as far as that is known before the function is read.

    Returns: the variable that holds the result; empty if none does.
    """
    names = names_in(function)
    function.body = _out_of_loops(function.body, names)
    if not any(_depends(statement, holds) for statement in function.body):
        return ""
    name = unused("returned", names)
    body = _assigned(function.body, name, function.body[-1])
    if body is None:
        return ""
    end = ast.Return(ast.Name(name, ast.Load()))
    function.body = [*body, at(function.body[-1], end)]
    return name


def _out_of_loops(statements: list[ast.stmt], names: set[str]) -> list[ast.stmt]:
    """Returns statements whose loops are left by `break` before they return.

    Args:
        statements: the statements.
        names: the names of the function, to which new ones are added.
    """
    found: list[ast.stmt] = []
    for statement in statements:
        if isinstance(statement, ast.If):
            statement.body = _out_of_loops(statement.body, names)
            statement.orelse = _out_of_loops(statement.orelse, names)
        over = ast.unparse(statement.iter) if isinstance(statement, ast.For) else ""
        if (
            not isinstance(statement, (ast.For, ast.While))
            or not _has_return(statement)
            or over.endswith(".iterations()")  # refused when it is read
        ):
            found.append(statement)
            continue
        loops = _Loops(names)
        loops.visit(statement)
        found += [*(at(statement, one) for one in loops.before), statement, *loops.behind]
    return found


class _Loops(ast.NodeTransformer):
    """Rewrites the loops of a nest so that `break` leaves them before they return.

    The value of a `return` is computed behind the nest: after a `break` nothing changes its names,
    except for the indices of the loops, which are copied.

    Attributes:
        before: statements to run before the nest.
        behind: statements to run behind it.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.before: list[ast.stmt] = []
        self.behind: list[ast.If] = []
        self.flag: ast.expr = ast.Constant(False)
        self._indices: set[str] = set()

    def visit_For(self, node: Any) -> Any:  # noqa: N802
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            self._indices.add(node.target.id)
        first = len(self.behind)
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        flags: list[ast.expr] = [part.test for part in self.behind[first:]]
        self.flag = flags[0] if len(flags) == 1 else ast.BoolOp(ast.Or(), flags)
        return node

    visit_While = visit_For  # noqa: N815

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in statements:
            found.append(statement)
            if isinstance(statement, ast.Return):
                found[-1:] = self._left(statement)
            elif isinstance(statement, ast.If):
                statement.body = self._block(statement.body)
                statement.orelse = self._block(statement.orelse)
            elif isinstance(statement, (ast.For, ast.While)) and _has_return(statement):
                self.visit(statement)
                flag = copy.deepcopy(self.flag)
                found.append(at(statement, ast.If(flag, [ast.Break()], [])))
        return found

    def _left(self, node: ast.Return) -> list[ast.stmt]:
        value, flag, found = node.value, unused("left", self.names), list[ast.stmt]()
        for name in sorted({n.id for n in nodes_of(node) if isinstance(n, ast.Name)}):
            if name in self._indices:
                kept = unused(f"{name}_left", self.names)
                self.before.append(_set(kept, ast.Constant(0)))
                found.append(at(node, _set(kept, ast.Name(name, ast.Load()))))
                for part in nodes_of(node):
                    if isinstance(part, ast.Name) and part.id == name:
                        part.id = kept
        self.before.append(_set(flag, ast.Constant(False)))
        back = ast.If(ast.Name(flag, ast.Load()), [at(node, ast.Return(value))], [])
        self.behind.append(at(node, back))
        found += [at(node, _set(flag, ast.Constant(True))), at(node, ast.Break())]
        return found


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _has_return(node: ast.AST) -> bool:
    """Returns whether a statement has a `return` of the function in which it stands."""
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        return False
    return isinstance(node, ast.Return) or any(map(_has_return, children(node)))


def _depends(statement: ast.stmt, holds: Holds) -> bool:
    """Returns whether a statement has a `return` under a condition of the run, outside of loops."""
    if not isinstance(statement, ast.If) or not _returns(statement):
        return False
    known = holds(statement.test)
    taken = statement.body if known else statement.orelse
    return known is None or any(_depends(part, holds) for part in taken)


def _returns(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return any(map(_returns, (*statement.body, *statement.orelse)))
    return isinstance(statement, ast.Return)


def _always(statements: list[ast.stmt]) -> bool:
    """Returns whether statements return in any case."""
    for statement in statements:
        if isinstance(statement, ast.Return):
            return True
        if isinstance(statement, ast.If) and _always(statement.body) and _always(statement.orelse):
            return True
    return False


def _assigned(statements: list[ast.stmt], name: str, where: ast.stmt) -> list[ast.stmt] | None:
    """Returns statements that assign to a name what given ones return, and all to their end.

    None if statements would have to stand in both branches of a condition.
    """
    for place, statement in enumerate(statements):
        before, rest = statements[:place], statements[place + 1 :]
        if isinstance(statement, ast.Return):
            value = statement.value or ast.Constant(None)
            return [*before, at(statement, ast.Assign([ast.Name(name, ast.Store())], value))]
        if isinstance(statement, ast.If) and _returns(statement):
            goes_on = [not _always(side) for side in (statement.body, statement.orelse)]
            if all(goes_on) and rest:
                return None
            sides = [
                _assigned([*side, *rest] if more else side, name, statement)
                for side, more in zip((statement.body, statement.orelse), goes_on, strict=True)
            ]
            if sides[0] is None or sides[1] is None:
                return None
            return [*before, at(statement, ast.If(statement.test, sides[0], sides[1]))]
    nothing = ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None))
    return [*statements, at(where, nothing)]
