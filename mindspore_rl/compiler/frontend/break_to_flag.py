"""Rewrites loops that may end early as complete loops with a flag.

`break` becomes an assignment to the flag, and the statements after it are put under an `if` on the
flag. `continue` becomes an assignment to another flag, which every turn sets first. The `else` of
a `for` is put behind it, under the flag. A `while` with a bound becomes a loop over `range` whose
flag is the rest of its condition. The node's
attribute `going` names the flag; `build` puts the whole body under it. Functions without such a
loop are not changed.
"""

# ruff: noqa: D102  (the visitors of `ast`, whose names say what they take)

import ast
import copy
from collections.abc import Callable
from typing import Any, TypeVar

from mindspore_rl.compiler.frontend.loop_carried import assigned
from mindspore_rl.platform.names import unused
from mindspore_rl.platform.syntax import children, nodes_of

Node = TypeVar("Node", bound=ast.AST)
BOUND = """supported: a `while` that counts its turns up to a number known now, such as
  `while turn < 10 and ...:` with `turn += 1` and no `continue` in its body, or a `for` with
  `if ...: break`"""


def end_by_flag(function: ast.FunctionDef) -> ast.FunctionDef:
    """Rewrites the loops of a function that contain `break`, and its `while` loops."""
    function.body = _Rewriter(names_in(function)).block(function.body)
    return function


def count_turns(function: ast.FunctionDef, kind_of: Callable[[ast.expr], str]) -> None:
    """Rewrites loops over `enumerate(msrl.minibatches(...))` with a name that counts their turns.

    `msrl.iterations()` gives their number itself, which a resumed run goes on with.

    Args:
        function: its tree, which is changed.
        kind_of: the name of the loop of msrl that an expression is; empty for any other.
    """
    names = names_in(function)

    class Counted(ast.NodeTransformer):
        def visit_For(self, node: ast.For) -> Any:  # noqa: N802
            self.generic_visit(node)
            call, target = node.iter, node.target
            if (
                not isinstance(call, ast.Call)
                or ast.unparse(call.func) != "enumerate"
                or not (call.args and kind_of(call.args[0]))
                or not (isinstance(target, ast.Tuple) and len(target.elts) == 2)
            ):
                return node
            first = [*call.args[1:], *(item.value for item in call.keywords), ast.Constant(0)][0]
            turn = unused("turn_number", names)
            if kind_of(call.args[0]) == "iterations":
                since = ast.BinOp(first, ast.Add(), ast.Name(turn, ast.Load()))
                node.body[:0] = [
                    at(node, ast.Assign([target.elts[0]], since)),
                    at(node, ast.Assign([target.elts[1]], ast.Name(turn, ast.Load()))),
                ]
                node.iter, node.target = call.args[0], ast.Name(turn, ast.Store())
                return at(node, node)
            more = ast.BinOp(ast.Name(turn, ast.Load()), ast.Add(), ast.Constant(1))
            node.iter, (number, node.target) = call.args[0], target.elts
            node.body[:0] = [
                at(node, ast.Assign([number], ast.Name(turn, ast.Load()))),
                at(node, ast.Assign([ast.Name(turn, ast.Store())], more)),
            ]
            return [at(node, ast.Assign([ast.Name(turn, ast.Store())], first)), node]

        def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:  # noqa: N802
            return node

    function.body = Counted().visit(ast.Module(function.body, [])).body


def names_in(function: ast.FunctionDef) -> set[str]:
    """Returns the variables and arguments of a function."""
    names = {node.id for node in nodes_of(function) if isinstance(node, ast.Name)}
    return names | {node.arg for node in nodes_of(function) if isinstance(node, ast.arg)}


class _Rewriter(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.flag = self.turn = ""

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrites statements; those after a possible `break` are put under the flag."""
        result: list[ast.stmt] = []
        for position, statement in enumerate(statements):
            rewritten = self.visit(statement)
            result += rewritten if isinstance(rewritten, list) else [rewritten]
            if isinstance(statement, (ast.Break, ast.Continue)):
                break
            rest = statements[position + 1 :]
            flags = [flag for flag in (self.flag, self.turn) if flag in assigned(result)]
            if rest and flags:
                tests: list[ast.expr] = [ast.Name(flag, ast.Load()) for flag in flags]
                test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
                result.append(at(statement, ast.If(test, self.block(rest), [])))
                break
        return result

    def visit_If(self, node: ast.If) -> ast.If:  # noqa: N802
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        return node

    def visit_Break(self, node: ast.Break) -> ast.stmt:  # noqa: N802
        return self._set(self.flag, ast.Constant(False), node) if self.flag else node

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:  # noqa: N802
        return self._set(self.turn, ast.Constant(False), node) if self.turn else node

    def visit_For(self, node: ast.For) -> list[ast.stmt]:  # noqa: N802
        flag, behind = self._flagged(node, node.body), self.block(node.orelse)
        node.orelse = []
        if flag in assigned(node.body):
            if behind:
                behind = [at(behind[0], ast.If(ast.Name(flag, ast.Load()), behind, []))]
            return [self._set(flag, ast.Constant(True), node), node, *behind]
        self.names.discard(flag)
        return [node, *behind]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:  # noqa: N802
        parts = [node.test]
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
            parts = node.test.values
        found = next(((part, count) for part in parts if (count := _turns_of(part, node))), None)
        if found is None or node.orelse or any(map(_continues, node.body)):
            return [node]  # a `continue` may leave out the counting
        bound, count = found
        rest = [part for part in parts if part is not bound]
        test = rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest)
        turns = unused("turns", self.names)
        call: ast.expr = ast.Call(ast.Name("range", ast.Load()), [ast.Name(turns, ast.Load())], [])
        loop = at(node, ast.For(ast.Name("_", ast.Store()), call, node.body, []))
        before = [self._set(turns, count, node)]
        if not rest:
            return [*before, at(node, ast.If(bound, self.visit_For(loop), []))]
        again = ast.Assign([], copy.deepcopy(test))
        flag = self._flagged(loop, [*node.body, at(node, again)], again)
        both = ast.BoolOp(ast.And(), [bound, ast.Name(flag, ast.Load())])
        return [*before, self._set(flag, test, node), at(node, ast.If(both, [loop], []))]

    def _flagged(self, loop: ast.For, body: list[ast.stmt], again: ast.Assign | None = None) -> str:
        """Rewrites the body of a loop with a new flag.

        Args:
            loop: the loop, whose attribute `going` is set to the flag's name.
            body: its statements.
            again: an assignment in the body whose target becomes the flag.

        Returns: the flag's name.
        """
        outer, flag = (self.flag, self.turn), unused("going", self.names)
        self.flag, self.turn = flag, unused("turn", self.names)
        if again is not None:
            again.targets = [at(loop, ast.Name(flag, ast.Store()))]
        loop.body = self.block(body)
        if self.turn in assigned(loop.body):
            loop.body.insert(0, self._set(self.turn, ast.Constant(True), loop))
        else:
            self.names.discard(self.turn)
        loop.going = flag  # type: ignore[attr-defined]
        self.flag, self.turn = outer
        return flag

    @staticmethod
    def _set(flag: str, value: ast.expr, node: ast.stmt) -> ast.stmt:
        return at(node, ast.Assign([ast.Name(flag, ast.Store())], value))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:  # noqa: N802
        return node


def at(node: ast.AST, new: Node) -> Node:
    """Places a new node where another one stands."""
    return ast.fix_missing_locations(ast.copy_location(new, node))


def _continues(node: ast.AST) -> bool:
    """Returns whether a statement has a `continue` of the loop in which it stands."""
    if isinstance(node, (ast.For, ast.While)):
        return False
    return isinstance(node, ast.Continue) or any(map(_continues, children(node)))


def _turns_of(part: ast.expr, loop: ast.While) -> ast.expr | None:
    """Returns an expression for the number of turns that `n < m` or `n <= m` allows.

    None unless the loop's body increments n exactly once, by a fixed step, and leaves m alone.
    """
    if not isinstance(part, ast.Compare) or len(part.ops) != 1:
        return None
    low, high = part.left, part.comparators[0]
    if isinstance(part.ops[0], (ast.Gt, ast.GtE)):
        low, high = high, low
    elif not isinstance(part.ops[0], (ast.Lt, ast.LtE)):
        return None
    stores = [
        n.id
        for statement in loop.body
        for n in nodes_of(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    steps = [
        statement.value
        for statement in loop.body
        if isinstance(statement, ast.AugAssign)
        and isinstance(statement.op, ast.Add)
        and ast.unparse(statement.target) == ast.unparse(low)
    ]
    fixed = {n.id for e in (high, *steps) for n in nodes_of(e) if isinstance(n, ast.Name)}
    if len(steps) != 1 or stores.count(ast.unparse(low)) != 1 or fixed & set(stores):
        return None
    first, limit, step = copy.deepcopy((low, high, steps[0]))
    count: ast.expr
    if isinstance(part.ops[0], (ast.Lt, ast.Gt)):
        turns = ast.BinOp(ast.BinOp(first, ast.Sub(), limit), ast.FloorDiv(), step)
        count = ast.UnaryOp(ast.USub(), turns)  # rounded up
    else:
        turns = ast.BinOp(ast.BinOp(limit, ast.Sub(), first), ast.FloorDiv(), step)
        count = ast.BinOp(turns, ast.Add(), ast.Constant(1))
    for inside in nodes_of(count):
        at(part, inside)
    return count
