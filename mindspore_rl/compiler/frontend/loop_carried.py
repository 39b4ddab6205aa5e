"""Finds names that statements assign, and those that a loop carries."""

import ast
import copy
from collections.abc import Iterator
from typing import Any

from mindspore_rl.compiler.frontend.scope import THROWN_AWAY, Frame, free_names
from mindspore_rl.compiler.frontend.sequences import is_unrolled
from mindspore_rl.platform.syntax import children, nodes_of

PASSING = {"partial", "zip", "enumerate", "tuple", "list", "reversed", "dict", "items", "values"}
"""Functions whose results hold functions that they are given."""


def assigned(nodes: list[ast.stmt], changed: bool = True) -> set[str]:
    """Returns the names that statements assign, except the targets of comprehensions.

    Args:
        nodes: the statements.
        changed: whether to include names of lists and dictionaries that are changed in place.
    """
    found = set()
    waiting: list[ast.AST] = [*nodes]
    while waiting:
        node = waiting.pop()
        if not changed and hasattr(node, "in_place"):
            continue
        if isinstance(node, ast.comprehension):
            waiting += (node.iter, *node.ifs)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                found.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif not isinstance(node, ast.Lambda):
            waiting += children(node)
    return found - {THROWN_AWAY}


def loaded(node: ast.AST) -> set[str]:
    """Returns the names that a statement or an expression reads.

    The name of a function inside this one stands for the variables that it uses, too. Its
    definition reads the default values of its parameters.
    """
    found = set()
    waiting: list[ast.AST] = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (ast.FunctionDef, ast.Lambda)):
            waiting += [given for given in (*part.args.defaults, *part.args.kw_defaults) if given]
            found |= set(free_names(part)) if isinstance(part, ast.Lambda) else set()
            continue
        waiting += children(part)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            found |= {part.id, *getattr(part, "captures", ())}
        elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
    return found


def note_captures(function: ast.FunctionDef) -> None:
    """Notes at each read of a name, as `captures`, the variables that its functions use.

    A name that may hold a function of `function` is one of a `def` or of what is made of a lambda
    or of such a name, but for results of calls other than `partial`.
    """
    nodes = [node for statement in function.body for node in _own_nodes(statement)]
    uses: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            uses.setdefault(node.name, set()).update(free_names(node))
    pairs = [pair for node in nodes for pair in _made_of(node)]
    before = -1
    while before != (before := sum(map(len, uses.values()))):
        for used in uses.values():  # functions that it calls
            used.update(*(uses[name] for name in used & uses.keys()))
        for target, value in pairs:
            if found := _functions_in(value, uses):
                for name in assigned([ast.Expr(target)]):
                    uses.setdefault(name, set()).update(found)
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in uses:
            node.captures = frozenset(uses[node.id])  # type: ignore[attr-defined]


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yields a statement's nodes, without those inside other functions."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
        for part in children(node):
            yield from _own_nodes(part)


def _made_of(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yields the targets of a statement, each with the expression that it is assigned."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield node.target, node.iter


def _functions_in(value: ast.AST, uses: dict[str, set[str]]) -> set[str]:
    """Returns the variables that the functions in a value use."""
    if isinstance(value, ast.Lambda):
        return set(free_names(value))
    if isinstance(value, ast.Name):
        return uses.get(value.id, set())
    parts = children(value)
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] not in PASSING:
        return set()
    return set().union(*(_functions_in(part, uses) for part in parts))


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
        names = {part.id for part in nodes_of(test) if isinstance(part, ast.Name)}
        return None if names & changing else frame.holds(test)

    class Decide(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> Any:
            known = holds(node.test)
            if known is not None:
                node.body, node.orelse = node.body if known else node.orelse, []
            self.generic_visit(node)
            return node if known is None else node.body

        def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
            return node

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
    names = {part.id for arg in call.args for part in nodes_of(arg) if isinstance(part, ast.Name)}
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
