"""Source lines and syntax trees of Python functions, which readers of programs walk often."""

import ast
import copy
import functools
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

_WITHOUT_NODES = (
    *("arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "level"),
    *("module", "simple", "type_comment"),
)
"""Fields of nodes that hold no nodes but contexts, which nobody looks for."""


@functools.cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in kind._fields if name not in _WITHOUT_NODES)


def children(node: ast.AST) -> list[ast.AST]:
    """Returns the nodes directly in a node, as `ast.iter_child_nodes`, but not its context."""
    found: list[ast.AST] = []
    held = node.__dict__
    for name in _fields_of(type(node)):  # type: ignore[arg-type]
        value = held.get(name)
        if value.__class__ is list:
            found += [part for part in value if isinstance(part, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields a node and all nodes in it, in the order of `ast.walk`, but no contexts."""
    waiting = [tree]
    for node in waiting:  # it grows
        waiting += children(node)
        yield node


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes in a node; functions and classes in it themselves, but not their parts."""
    for part in children(node):
        yield part
        if not isinstance(part, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield from own_nodes(part)


def source_lines(function: Any) -> tuple[list[str], int]:
    """Returns the lines of a function and the number of the first, as `inspect.getsourcelines`.

    Raises:
        OSError: there is no source.
        TypeError: it is no function in Python.
    """
    lines, first = _lines_of(inspect.unwrap(getattr(function, "__func__", function)))
    return [*lines], first


@functools.lru_cache(4096)  # in a dictionary here they would be part of what a cell can reach
def _lines_of(function: Any) -> tuple[list[str], int]:
    return inspect.getsourcelines(function)


def statement_in(lines: Sequence[str]) -> ast.stmt:
    """Parses the source lines of a function, which keeps its columns if the lines are indented.

    Raises:
        SyntaxError: they are part of a longer expression, such as a lambda.
    """
    nested = lines[0][:1].isspace()  # a method's lines; under `if` they parse
    text = "".join(lines)
    tree = ast.parse(f"if 1:\n{text}" if nested else text)
    if re.search(r"^\s*match\b", text, re.M):
        tree = Matches().visit(tree)
    if nested:
        for node in nodes_of(tree):
            held = node.__dict__
            if "lineno" in held:
                held["lineno"] -= 1
                held["end_lineno"] -= 1
    first = tree.body[0]
    return first.body[0] if isinstance(first, ast.If) else first


class Matches(ast.NodeTransformer):
    """Makes an `if` of a `match` of numbers, texts and names of constants; others stay."""

    def visit_Match(self, node: ast.Match) -> ast.stmt:  # noqa: N802, D102
        self.generic_visit(node)
        found: list[ast.stmt] = []
        for case in reversed(node.cases):
            pattern = case.pattern
            several = pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]
            tests = [test for one in several if (test := _test_of(node.subject, one)) is not None]
            if len(tests) < len(several):
                return node
            holds = tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)
            if case.guard is not None:
                holds = ast.BoolOp(ast.And(), [holds, case.guard])
            found = [ast.If(holds, case.body, found)]
        return ast.fix_missing_locations(ast.copy_location(found[0], node))


def _test_of(subject: ast.expr, pattern: ast.pattern) -> ast.expr | None:
    match pattern:
        case ast.MatchValue(value):
            return ast.Compare(copy.deepcopy(subject), [ast.Eq()], [value])
        case ast.MatchSingleton(value):
            return ast.Compare(copy.deepcopy(subject), [ast.Is()], [ast.Constant(value)])
        case ast.MatchAs(None, None):
            return ast.Constant(True)
    return None
