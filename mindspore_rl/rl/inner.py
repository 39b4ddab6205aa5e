"""Functions that a program defines inside others, or binds to values, as functions of arrays.

A loss inside `learn` uses variables of `learn`. Its copy takes the arrays among them as further
arguments; the others (networks, numbers) are fixed.
"""

import ast
import inspect
import zlib
from collections.abc import Callable
from typing import Any

from mindspore_rl.platform.syntax import nodes_of, source_lines, statement_in
from mindspore_rl.rl.by_place import made_from


def inner(
    function: Callable, line: int, column: int, params: str, fixed: dict[str, Any]
) -> Callable:
    """Makes a function from a `def` or `lambda` inside another function.

    Args:
        function: the function around it.
        line: its first line, counted from the first line of that function.
        column: its place in this line, in bytes.
        params: the parameters of the copy, separated by commas.
        fixed: the values of its other names.
    """
    function = inspect.unwrap(getattr(function, "__func__", function))
    lines, first = source_lines(function)
    tree = next(
        node
        for node in nodes_of(statement_in(lines))
        if isinstance(node, (ast.FunctionDef, ast.Lambda))
        and (node.lineno, node.col_offset) == (line, column)
    )
    name = f"{getattr(tree, 'name', 'lambda')}_{line}_{column}"
    header = f"def {name}({params}):"
    if isinstance(tree, ast.Lambda):
        start, text = _from_lambda(tree, header, lines)
    else:
        start, text = _from_def(tree, header, lines)
    return made_from(text, first + start - 1, function, fixed)


def bound(function: Callable, params: str, given: str, fixed: dict[str, Any]) -> Callable:
    """Makes a function that calls another with some arguments fixed.

    Args:
        function: a function or a method.
        params: the parameters of the result, separated by commas.
        given: the arguments of the call, over these and the names of fixed values.
        fixed: the fixed values.
    """
    known = inspect.unwrap(getattr(function, "__func__", function))
    like = known if inspect.isfunction(known) else _around
    number = zlib.crc32(f"{params}: {given}".encode())  # cached code goes by a function's name
    line = f"def {like.__name__}_{number}({params}): return function({given})\n"
    return made_from([line], like.__code__.co_firstlineno, like, {**fixed, "function": function})


def _around() -> None:
    """Stands for a function where a cell is called."""


def _from_lambda(tree: ast.Lambda, header: str, lines: list[str]) -> tuple[int, list[str]]:
    """Returns the lines of a `def` like a `lambda`, each where it was, and the first's number."""
    gap = "\n" * (tree.body.lineno - tree.lineno)  # inside the brackets
    source = f"{header} return ({gap}{_between(tree.body, tree.body, lines)})\n"
    return tree.lineno, source.splitlines(keepends=True)


def _from_def(tree: ast.FunctionDef, header: str, lines: list[str]) -> tuple[int, list[str]]:
    """Returns the lines of a `def` with another first line, and this line's number."""
    start, end = tree.body[0], tree.body[-1]
    indent = " " * tree.col_offset
    if lines[start.lineno - 1].encode()[: start.col_offset].strip():  # `def f(x): return x`
        return start.lineno, [f"{indent}{header} {_between(start, end, lines)}\n"]
    gap = ["\n"] * (start.lineno - tree.lineno - 1)
    return tree.lineno, [f"{indent}{header}\n", *gap, *lines[start.lineno - 1 : tree.end_lineno]]


def _between(first: Any, last: Any, lines: list[str]) -> str:
    """Returns the source from the start of a node to the end of another."""
    chosen = [line.encode() for line in lines[first.lineno - 1 : last.end_lineno]]
    chosen[-1] = chosen[-1][: last.end_col_offset]
    chosen[0] = chosen[0][first.col_offset :]
    return b"".join(chosen).decode()
