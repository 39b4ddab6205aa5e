"""Rewrites functions that return under conditions of the run, so that they return once, at the end.

`if test: return a` followed by `return b` becomes `if test: returned = a`, `else: returned = b` and
`return returned`. What cannot be written so is left as it is, and `build` refuses it.
"""

import ast
from collections.abc import Callable

from mindspore_rl.compiler.frontend.break_to_flag import at, names_in
from mindspore_rl.platform.names import unused

Holds = Callable[[ast.expr], bool | None]


def return_once(function: ast.FunctionDef, holds: Holds) -> str:
    """Rewrites a function's body, if a `return` in it depends on a condition of the run.

    Args:
        function: its tree, which is changed.
        holds: whether a condition holds, as far as that is known before the function is read.

    Returns: the variable that holds the result; empty if nothing was changed.
    """
    if not any(_depends(statement, holds) for statement in function.body):
        return ""
    name = unused("returned", names_in(function))
    body = _assigned(function.body, name, function.body[-1])
    if body is None:
        return ""
    end = ast.Return(ast.Name(name, ast.Load()))
    function.body = [*body, at(function.body[-1], end)]
    return name


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
