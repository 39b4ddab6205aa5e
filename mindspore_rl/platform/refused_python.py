"""Finds Python in compiled functions that MindSpore does not take, or takes for another."""

import ast
from collections.abc import Iterator

from mindspore_rl.platform.syntax import own_nodes

INSTEAD = {
    ast.Try: "`try`: leave it out, or test before what may fail",
    ast.Import: "`import`: write it at the top of the file",
    ast.ImportFrom: "`import`: write it at the top of the file",
    ast.Nonlocal: "`nonlocal`: return the value, and assign it where the function is called",
    ast.Global: "`global`: return the value, and keep it in a Parameter",
}
"""Statements that MindSpore does not compile, and what to write."""


def instead_of(node: ast.AST) -> str:
    """Returns what MindSpore does not compile of a node and what to write; empty if it does."""
    if isinstance(node, (ast.For, ast.While)) and node.orelse:
        return "`else` of a loop: write it after the loop, under a condition"
    if isinstance(node, ast.Delete) and not all(isinstance(n, ast.Name) for n in node.targets):
        return "`del` of an entry: make a dictionary or list without it"
    if name := _of_comprehension(node):
        return (
            f"lambda that reads `{name}` of a comprehension, of which Python keeps the last: keep "
            "each by functools.partial"
        )
    return INSTEAD.get(type(node), "")


def _of_comprehension(node: ast.AST) -> str:
    """Returns a name of a comprehension that the lambdas that it makes read; empty if none do."""
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        return ""
    made = node.value if isinstance(node, ast.DictComp) else node.elt
    own = {n.id for one in node.generators for n in ast.walk(one.target) if isinstance(n, ast.Name)}
    for part in getattr(made, "elts", [made]):
        if isinstance(part, ast.Lambda):
            read = {n.id for n in ast.walk(part.body) if isinstance(n, ast.Name)}
            found = (own & read) - {arg.arg for arg in ast.walk(part) if isinstance(arg, ast.arg)}
            if found:
                return min(found)
    return ""


def changed_later(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str]]:
    """Yields functions in a function that read one of its names, if that changes before a call."""
    nodes = list(own_nodes(function))
    scopes = [node for node in nodes if isinstance(node, ast.comprehension)]
    aside = {name for scope in scopes for name in ast.walk(scope.target)}
    names = [node for node in nodes if isinstance(node, ast.Name) and node not in aside]
    loops = [set(ast.walk(node)) for node in nodes if isinstance(node, (ast.For, ast.While))]
    for inner in nodes:
        match inner:
            case ast.FunctionDef(own) | ast.Assign([ast.Name(own)], ast.Lambda()):
                pass
            case _:
                continue
        parts = list(ast.walk(inner))
        used = [part for part in parts if isinstance(part, ast.Name)]
        bound = {part.arg for part in parts if isinstance(part, ast.arg)}
        bound |= {part.id for part in used if isinstance(part.ctx, ast.Store)}
        read = {part.id for part in used} - bound
        calls = [name for name in names if name.id == own and name not in parts]
        for name in names:
            if name.id in read and isinstance(name.ctx, ast.Store) and name not in parts:
                again = [loop for loop in loops if name in loop and inner not in loop]
                later = (call.lineno > name.lineno > inner.lineno for call in calls)
                if any(later) or any(call in loop for call in calls for loop in again):
                    yield inner, name.id
