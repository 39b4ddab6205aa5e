"""Liveness: names that are read after each statement; loops and branches carry no dead names."""

import ast

from mindspore_rl.compiler.frontend.loop_carried import assigned, loaded

Live = dict[ast.AST, set[str]]
"""Of each `if` and `for`, the names that may be read behind it before they are assigned anew, in a
later turn of a loop around it, too."""


def live_behind(function: ast.FunctionDef) -> Live:
    """Looks at all of a function."""
    live: Live = {}
    _before(function.body, set(), live)
    return live


def _before(statements: list[ast.stmt], after: set[str], live: Live) -> set[str]:
    """The names that may be read from a place on, of those that may be read behind statements."""
    for node in reversed(statements):
        if isinstance(node, ast.If):
            live[node] = after
            either = _before(node.body, after, live) | _before(node.orelse, after, live)
            after = either | _read(node.test)
        elif isinstance(node, ast.For):  # taken at least once
            live[node] = after = after | {getattr(node, "going", "")}
            target = assigned([ast.Expr(node.target)])
            while not (turn := _before(node.body, after, live) - target) <= after:
                after = after | turn
            after = turn | _read(node.iter)
        elif isinstance(node, ast.Return):
            after = _read(node)
        else:
            after = (after - assigned([node])) | _read(node)
    return after


def _read(node: ast.AST) -> set[str]:
    """Names that are read, and those that keep the length which they have: `a, *rest = ...`."""
    starred = (part.value for part in ast.walk(node) if isinstance(part, ast.Starred))
    return loaded(node) | {name.id for name in starred if isinstance(name, ast.Name)}
