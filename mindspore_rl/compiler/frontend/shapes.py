"""Sizes of arrays: after `T, B = x.shape`, T and B are read as `x.shape[0]` and `x.shape[1]`.

Each replica has a size of its own of the axis of environments, and MindSpore takes as a shape only
numbers known while it compiles. An expression that reads the shape itself obeys both.
"""

# ruff: noqa: D102  (the visitors of `ast`, whose names say what they take)

import ast
import copy
from collections import Counter

from mindspore_rl.compiler.frontend.break_to_flag import at, names_in
from mindspore_rl.compiler.frontend.in_place import METHODS
from mindspore_rl.compiler.frontend.scope import THROWN_AWAY, Frame, Static
from mindspore_rl.platform.names import unused
from mindspore_rl.platform.syntax import nodes_of


def sizes_in_place(function: ast.FunctionDef, frame: Frame) -> None:
    """Writes the sizes that a function names in place of their names.

    Names that are assigned more than once, and sizes of what is known while reading, stay.

    Args:
        function: its tree, which is changed.
        frame: its scope, with the arguments.
    """
    stores = Counter(node.arg for node in nodes_of(function) if isinstance(node, ast.arg))
    stores.update(
        node.id
        for node in nodes_of(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    _Sizes(frame, stores, function).generic_visit(function)


class _Sizes(ast.NodeTransformer):
    """Replaces names of sizes, statement by statement."""

    def __init__(self, frame: Frame, stores: Counter[str], function: ast.FunctionDef) -> None:
        self.frame, self.stores, self.names = frame, stores, names_in(function)
        self.changed = set(map(_changed, nodes_of(function)))  # lists, whose lengths may change
        self.sizes: dict[str, ast.expr] = {}
        self.depth = 0

    def visit_FunctionDef(self, inner: ast.FunctionDef) -> ast.FunctionDef:  # noqa: N802
        self.depth += 1
        self.generic_visit(inner)
        self.depth -= 1
        return inner

    def visit_Name(self, name: ast.Name) -> ast.expr:  # noqa: N802
        if name.id not in self.sizes or not isinstance(name.ctx, ast.Load):
            return name
        return at(name, copy.deepcopy(self.sizes[name.id]))

    def visit_Assign(self, statement: ast.Assign) -> ast.stmt | list[ast.stmt]:  # noqa: N802
        self.generic_visit(statement)
        if self.depth or len(statement.targets) > 1:
            return statement
        found, rest = self._sizes_of(statement.targets[0], statement.value)
        if not found:
            return statement
        kept: dict[str, ast.stmt] = {}
        for size in found.values():
            for part in nodes_of(size):
                if isinstance(part, ast.Attribute) and part.attr == "shape":
                    part.value = self._kept(part.value, kept, statement)
                elif isinstance(part, ast.Call):
                    part.args = [self._kept(part.args[0], kept, statement)]
        self.sizes |= found
        left = [at(statement, ast.Assign(*sides)) for sides in rest]
        return [*kept.values(), *left] or at(statement, ast.Pass())

    def _sizes_of(self, target: ast.expr, value: ast.expr) -> tuple[dict[str, ast.expr], list]:
        """Returns the names of sizes in an assignment, and targets and value of what remains."""
        pairs = [(target, value)]
        match target, value:
            case ast.Tuple(targets), ast.Tuple(values) if len(targets) == len(values):
                if not any(isinstance(part, ast.Starred) for part in (*targets, *values)):
                    pairs = list(zip(targets, values, strict=True))
        found: dict[str, ast.expr] = {}
        rest = []
        for one, given in pairs:
            named = dict(self._named(one, given))
            if named and all(self.stores[name] == 1 for name in named):
                found |= named
            else:
                rest.append((one, given))
        if len(rest) > 1:
            targets, values = map(list, zip(*rest, strict=True))
            return found, [([ast.Tuple(targets, ast.Store())], ast.Tuple(values, ast.Load()))]
        return found, [([one], given) for one, given in rest]

    def _named(self, target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
        """Returns the names of a target, each with its size; empty if one of them is no size."""
        if isinstance(target, ast.Name):
            return [(target.id, copy.deepcopy(value))] if self._is_size(value) else []
        if not isinstance(target, (ast.Tuple, ast.List)):
            return []
        parts: list[ast.expr] = [
            ast.Subscript(value, ast.Constant(place), ast.Load())
            for place in range(len(target.elts))
        ]
        if isinstance(value, ast.Tuple) and len(value.elts) == len(parts):
            parts = value.elts
        named = list(map(self._named, target.elts, parts))
        if not all(named):
            return []
        return [pair for pairs in named for pair in pairs if pair[0] != THROWN_AWAY]

    def _is_size(self, value: ast.expr) -> bool:
        """Returns whether a value is made of shapes of variables, and of numbers."""
        if isinstance(value, ast.Subscript):
            return self._is_size(value.value)
        if isinstance(value, ast.BinOp):
            sides = value.left, value.right
            constant = [isinstance(side, ast.Constant) for side in sides]
            return not all(constant) and all(
                plain or self._is_size(side) for plain, side in zip(constant, sides, strict=True)
            )
        match value:
            case ast.Attribute(owner, "shape"):
                pass
            case ast.Call(ast.Name("len"), [ast.Name() | ast.Attribute() as owner], []):
                if ast.unparse(owner) in self.changed:
                    return False
            case _:
                return False
        while isinstance(owner, ast.Attribute):
            owner = owner.value
        return (
            isinstance(owner, ast.Name)
            and self.stores[owner.id] > 0
            and not isinstance(self.frame.names.get(owner.id), Static)
        )

    def _kept(self, owner: ast.expr, kept: dict[str, ast.stmt], statement: ast.Assign) -> ast.expr:
        """Returns an array under a name that is not assigned again."""
        root = next(part.id for part in nodes_of(owner) if isinstance(part, ast.Name))
        if self.stores[root] == 1:
            return owner
        text = ast.unparse(owner)
        if text not in kept:
            name = unused(f"sized_{root}", self.names)
            kept[text] = at(statement, ast.Assign([ast.Name(name, ast.Store())], owner))
        target = kept[text].targets[0]  # type: ignore[attr-defined]
        return ast.Name(target.id, ast.Load())


def _changed(node: ast.AST) -> str:
    """Returns what a part of a function may change in place, as text; empty for nothing."""
    match node:
        case ast.Attribute(ast.Subscript(owner), method) if method in METHODS:
            return ast.unparse(owner)  # a defaultdict gets an entry
        case ast.Attribute(owner, method) if method in METHODS:
            return ast.unparse(owner)
        case ast.Subscript(owner, _, ast.Store()):
            return ast.unparse(owner)
    return ""
