"""Liveness: names that are read after each statement; loops and branches carry no dead names."""

import ast

from mindspore_rl.compiler.frontend.loop_carried import assigned, loaded
from mindspore_rl.compiler.frontend.sequences import is_unrolled
from mindspore_rl.platform.syntax import nodes_of

Live = dict[ast.AST, set[str]]
"""The names that may be read after each `if` and `for` before they are assigned again, including
reads in a later iteration of an enclosing loop."""


def live_behind(function: ast.FunctionDef) -> Live:
    """Computes the names that are live after each `if` and `for` of a function."""
    live: Live = {}
    _before(function.body, set(), live)
    return live


def _before(statements: list[ast.stmt], after: set[str], live: Live) -> set[str]:
    """Returns the names that are live before statements, given those that are live after them."""
    for node in reversed(statements):
        if isinstance(node, ast.If):
            live[node] = after
            either = _before(node.body, after, live) | _before(node.orelse, after, live)
            after = either | _read(node.test)
        elif isinstance(node, ast.For):
            live[node] = after = after | {getattr(node, "going", "")}
            target = assigned([ast.Expr(node.target)])
            while not (turn := _before(node.body, after, live) - target) <= after:
                after = after | turn
            after = turn | _read(node.iter) | (after if is_unrolled(node) else set())
        elif isinstance(node, ast.Return):
            after = _read(node)
        else:
            after = (after - assigned([node])) | _read(node)
    return after


def _read(node: ast.AST) -> set[str]:
    """Returns the names that a node reads, and starred names, which keep their known length."""
    starred = (part.value for part in nodes_of(node) if isinstance(part, ast.Starred))
    return loaded(node) | {name.id for name in starred if isinstance(name, ast.Name)}
