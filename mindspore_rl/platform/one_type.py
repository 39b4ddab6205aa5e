"""Gives the sides of an `if` on an array one type, as MindSpore's graphs need.

`return 1.0` beside `return rate * x` gives an array of the number, where an array decides.
"""

import ast
import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from mindspore import Tensor, float32, ops

from mindspore_rl.platform.syntax import own_nodes

AS_ARRAY, TEST = "as_array_by_msrl", "test_by_msrl"
ENDS = (ast.Return, ast.Break, ast.Continue, ast.Raise)


def as_array(value: Any, test: Any) -> Any:
    """Makes an array of a real number, if an array decides between it and others."""
    if isinstance(test, Tensor) and isinstance(value, float):
        return ops.cast(value, float32)
    return value


def give(function: ast.FunctionDef) -> None:
    """Changes a function: what its `return`s and the sides of its `if`s give has one type."""
    args = function.args
    params = {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    _block(function.body, params, [], itertools.count())


def sides(node: ast.IfExp) -> ast.IfExp:
    """Changes `x if test else y` likewise."""
    if compares(node.test):
        node.body = _given(node.body, [node.test])
        node.orelse = _given(node.orelse, [node.test])
    return node


def compares(test: ast.expr) -> bool:
    """Returns whether a condition compares values in their order or for equality."""
    orders = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
    return isinstance(test, ast.Compare) and all(isinstance(op, orders) for op in test.ops)


def _block(body: list[ast.stmt], known: set[str], tests: list, numbers: Iterator[int]) -> None:
    """Changes the statements of a block.

    Args:
        body: the block.
        known: names that are set before it.
        tests: the conditions that decide whether the function gets there.
        numbers: numbers of conditions.
    """
    known, tests = set(known), list(tests)
    for node in list(body):
        if isinstance(node, ast.If) and compares(node.test):
            name = ast.Name(f"{TEST}_{next(numbers)}", ast.Load())
            body.insert(body.index(node), _assigned(name.id, node.test, node))
            stored = _stored(node)
            both = (node.body, node.orelse)
            names = stored & known | _surely(node.body) & _surely(node.orelse)
            for side in both:
                _block(side, known, [*tests, name], numbers)
                if not side or not isinstance(side[-1], ENDS):
                    side += [_assigned(n, _given(_load(n), [name]), node) for n in sorted(names)]
            tests += [name] if any(isinstance(n, ast.Return) for n in own_nodes(node)) else []
        elif isinstance(node, (ast.If, ast.For, ast.While)):
            _block(node.body, known, tests, numbers)
            _block(node.orelse, known, tests, numbers)
        elif isinstance(node, ast.Return) and node.value is not None:
            node.value = _given(node.value, tests)
        known |= _surely([node])


def _surely(body: Iterable[ast.stmt]) -> set[str]:
    """Returns the names that a block sets in any case."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            found |= _stored(node)
        elif isinstance(node, ast.If):
            found |= _surely(node.body) & _surely(node.orelse)
    return found


def _stored(node: ast.AST) -> set[str]:
    names = (part for part in own_nodes(node) if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _given(value: ast.expr, tests: list) -> ast.expr:
    """Returns `as_array(value, test)` for each condition.

    A tuple is left as it is: MindSpore 2.10 computes wrong numbers of some whose parts are fixed.
    """
    real = not isinstance(value, ast.Constant) or isinstance(value.value, float)
    for test in tests if real and not isinstance(value, ast.Tuple) else ():
        call = ast.Call(_load(AS_ARRAY), [value, copy.deepcopy(test)], [])
        value = ast.fix_missing_locations(ast.copy_location(call, value))
    return value


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _assigned(name: str, value: ast.expr, like: ast.AST) -> ast.stmt:
    made = ast.Assign([ast.Name(name, ast.Store())], copy.deepcopy(value))
    return ast.fix_missing_locations(ast.copy_location(made, like))
