"""Finds names that statements assign, and those that a loop carries."""

import ast
import copy
from typing import Any

from mindspore_rl.compiler.frontend.scope import THROWN_AWAY, Frame
from mindspore_rl.compiler.frontend.sequences import is_unrolled


def assigned(nodes: list[ast.stmt]) -> set[str]:
    """Returns the names that statements assign, except the targets of comprehensions."""
    found = set()
    waiting: list[ast.AST] = [*nodes]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.comprehension):
            waiting += (node.iter, *node.ifs)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                found.add(node.id)
        else:
            waiting += ast.iter_child_nodes(node)
    return found - {THROWN_AWAY}


def loaded(node: ast.AST) -> set[str]:
    """Returns the names that a statement or an expression reads."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            found.add(part.id)
        elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
    return found


def carried(loop: ast.For, frame: Frame) -> tuple[set[str], set[str]]:
    """Finds the loop-carried names. Branches on conditions that are known now are resolved first.

    Returns:
        names that the body may read before it assigns them, and names that the body may leave
        unassigned in a turn, so that they keep the value of the previous turn.
    """
    body = decided(loop, frame)
    found: set[str] = set()
    surely = _expose(body, set(), found)
    changed = assigned(body)
    return changed & found, changed - surely - found


def decided(loop: ast.For, frame: Frame) -> list[ast.stmt]:
    """Returns a copy of a loop's body without the branches that are taken in no turn."""
    changing = assigned([loop])

    def holds(test: ast.expr) -> bool | None:
        if isinstance(test, ast.BoolOp):
            deciding, known = isinstance(test.op, ast.Or), True
            for value in map(holds, test.values):  # short-circuits
                if value is deciding:
                    return value
                known &= value is not None
            return not deciding if known else None
        names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
        return None if names & changing else frame.holds(test)

    class Decide(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> Any:
            known = holds(node.test)
            if known is not None:
                node.body, node.orelse = node.body if known else node.orelse, []
            self.generic_visit(node)
            return node if known is None else node.body

        def visit_For(self, node: ast.For) -> Any:
            self.generic_visit(node)
            return None if _no_turns(node.iter, frame, changing) else node

    loop = copy.deepcopy(loop)
    Decide().generic_visit(loop)
    return loop.body


def _no_turns(call: ast.expr, frame: Frame, changing: set[str]) -> bool:
    """Returns whether a loop over `range(n)` or `msrl.epochs(n)` is known to have no turns."""
    if not isinstance(call, ast.Call) or not 1 <= len(call.args) <= 3:
        return False
    names = {part.id for arg in call.args for part in ast.walk(arg) if isinstance(part, ast.Name)}
    found = [(False, None)] if names & changing else list(map(frame.static, call.args))
    ends = [end for known, end in found if known and type(end) is int and end is not None]
    return len(ends) == len(found) and ends[2:] != [0] and not range(*ends)


def _expose(nodes: list[ast.stmt], known: set[str], found: set[str]) -> set[str]:
    for node in nodes:
        if isinstance(node, ast.If):
            found |= loaded(node.test) - known
            taken = _expose(node.body, set(known), found)
            known = taken & _expose(node.orelse, set(known), found)
        elif isinstance(node, ast.For):
            found |= loaded(node.iter) - known
            turn = _expose(node.body, known | assigned([ast.Expr(node.target)]), found)
            known = known if is_unrolled(node) else turn  # any other runs at least once
        else:
            found |= loaded(node) - known
            known = known | assigned([node])
    return known
