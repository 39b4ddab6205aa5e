"""Expressions for the objects of a trainer: `learner.critics[0]` for a network in a list."""

import ast
import inspect
from collections.abc import Iterator
from typing import Any

from mindspore_rl.compiler.frontend.scope import Frame, Static, is_array, is_cell, is_literal
from mindspore_rl.compiler.ir.ir import Expr
from mindspore_rl.platform.user_modules import is_users

CONTAINERS = (list, tuple, dict)


class Paths:
    """Names the objects that can be reached from the trainer, the actor and the learner.

    Args:
        trainer: the trainer.
    """

    def __init__(self, trainer: Any) -> None:
        self.roots = {id(trainer): Expr("trainer"), id(trainer.actor): Expr("actor")}
        self.roots[id(trainer.learner)] = Expr("learner")
        self._owners = (trainer.learner, trainer.actor, trainer)
        self._found: dict[int, Expr] = {}

    def written(self, node: ast.expr, frame: Frame) -> Expr | None:
        """Returns the path of `self.network`, `self.critics[0].loss` or a name of such an object.

        None for anything else.
        """
        parts: list[tuple[ast.expr, Any]] = []
        base = node
        while isinstance(base, (ast.Attribute, ast.Subscript)):
            if isinstance(base, ast.Attribute):
                parts.insert(0, (base, base.attr))
            elif isinstance(base.slice, ast.Slice) or not frame.static(base.slice)[0]:
                return None
            else:
                parts.insert(0, (base, frame.static(base.slice)[1]))
            base = base.value
        struct = frame.names.get(base.id) if isinstance(base, ast.Name) else None
        owner = struct.value if isinstance(struct, Static) else None
        path = self.of(owner)
        if path is None:
            return None
        for part, key in parts:
            if isinstance(part, ast.Attribute):
                if not hasattr(owner, key):
                    frame.fail(node, f"`{type(owner).__name__}` has no `{key}`, so this")
                owner, path = getattr(owner, key), _attribute(path, key)
            else:
                known, owner = frame.static(part)
                if not known or not is_literal(key):
                    return None
                path = _entry(path, key)
            path = self.roots.get(id(owner), path)
        return path

    def of(self, value: Any) -> Expr | None:
        """Returns the path of an object or a method; None if it is not part of the trainer."""
        if inspect.ismethod(value):
            owner = self.of(value.__self__)
            return None if owner is None else _attribute(owner, value.__name__)
        if (root := self.roots.get(id(value))) is not None or is_literal(value):
            return root
        if id(value) not in self._found:
            self._search()  # what `__init__` made is there since; lists may have new parts
        return self._found.get(id(value))

    def _search(self) -> None:
        """Finds all objects, those with the shortest paths first, and those in optimisers last.

        Optimisers hold the parameters of networks.
        """
        from mindspore import nn  # noqa: PLC0415

        last: list[tuple[Any, Expr]] = []
        waiting = [(owner, self.roots[id(owner)]) for owner in self._owners]
        seen = {id(owner) for owner in self._owners}
        while waiting or last:
            value, path = (waiting or last).pop(0)
            for part, way in _parts(value, path):
                if id(part) not in seen and not is_literal(part):
                    seen.add(id(part))
                    self._found[id(part)] = way
                    (last if isinstance(part, nn.Optimizer) else waiting).append((part, way))


def holds_parameters(value: Any) -> bool:
    """Returns whether an object is, or has, a cell or an array."""
    waiting, seen = [getattr(value, "__self__", value)], set[int]()
    while waiting:
        one = waiting.pop()
        if is_cell(one) or is_array(one):
            return True
        if id(one) not in seen and not is_literal(one):
            seen.add(id(one))
            waiting += [part for part, _ in _parts(one, Expr("_"))]
    return False


def _parts(value: Any, path: Expr) -> Iterator[tuple[Any, Expr]]:
    """Yields an object's parts with their paths."""
    if isinstance(value, dict):
        yield from ((part, _entry(path, key)) for key, part in value.items() if is_literal(key))
        return
    if isinstance(value, CONTAINERS):
        yield from ((part, _entry(path, place)) for place, part in enumerate(value))
        return
    from mindspore_rl.rl.parameters import OF_EVERY_CELL  # noqa: PLC0415

    fields: dict[str, Any] = {}
    if is_cell(value) and not inspect.ismethod(value):
        own = {k: v for k, v in vars(value).items() if k not in OF_EVERY_CELL}
        fields = {**value._cells, **value._params, **own}
        if hasattr(value, "__getitem__"):  # a CellList or a CellDict
            keys = {str(key): key for key in _keys(value)}
            yield from ((value[key], _entry(path, key)) for key in keys.values())
            fields = {name: part for name, part in fields.items() if name not in keys}
    elif is_users(type(value).__module__):
        fields = getattr(value, "__dict__", {})
    for name, part in fields.items():
        if name.isidentifier() and getattr(value, name, None) is part is not None:
            yield part, _attribute(path, name)


def _keys(cells: Any) -> list[Any]:
    return list(cells.keys()) if hasattr(cells, "keys") else list(range(len(cells)))


def _attribute(path: Expr, name: str) -> Expr:
    return Expr(ast.Attribute(path.tree, name, ast.Load()))


def _entry(path: Expr, key: Any) -> Expr:
    return Expr(ast.Subscript(path.tree, ast.Constant(key), ast.Load()))
