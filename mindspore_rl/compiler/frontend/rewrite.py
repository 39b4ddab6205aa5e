"""Rewrites an expression of the user's function over the graph's variables."""

# ruff: noqa: D102  (the visitors of `ast`, whose names say what they take)

import ast
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

from mindspore_rl.compiler.frontend.scope import Gone, Perhaps, Static, is_literal, literal
from mindspore_rl.compiler.ir.ir import Expr

Rewrite = Callable[[ast.expr], ast.expr]


class Rewriter(ast.NodeTransformer):
    """Rewrites an expression over graph variables, collecting what it reads."""

    def __init__(self, reader: Any, reads: list[str]) -> None:
        self.reader, self.reads = reader, reads

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and not isinstance(node, (ast.Constant, ast.Starred)):
            known, value = self.reader.frame.static(node)
            if known and is_literal(value):
                return literal(value)
        if isinstance(node, (ast.Attribute, ast.Call)):
            with self.reader.owner_read(node) as named:
                return super().visit(named)
        return super().visit(node)

    def visit_Name(self, name: ast.Name) -> ast.expr:  # noqa: N802
        struct = self.reader.frame.names.get(name.id)
        if struct is None:
            return self.reader.draft.global_name(name)
        if isinstance(struct, Static) and (path := self.reader.object_path(name, self.reads)):
            return path
        if isinstance(struct, Gone):
            self.reader.expression(name)
        return self.reader.operand(struct, name, self.reads)

    def visit_Attribute(self, attribute: ast.Attribute) -> ast.AST:  # noqa: N802
        if (made := self.reader.property_of(attribute)) is not None:
            return self.reader.operand(made, attribute, self.reads)
        field = self.reader.frame.part(attribute)
        if field is not None:
            return self.reader.operand(field, attribute, self.reads)
        if isinstance(owner := self.reader.frame.part(attribute.value), (tuple, dict)):
            kind = "dictionary" if isinstance(owner, dict) else "list"
            self.reader.frame.fail(attribute, f"`{attribute.attr}` of a {kind}", METHODS[kind])
        return self.reader.object_path(attribute, self.reads) or self.generic_visit(attribute)

    def visit_Subscript(self, part: ast.Subscript) -> ast.AST:  # noqa: N802
        struct = self.reader.part_of(part)
        if struct is not None:
            return self.reader.operand(struct, part, self.reads)
        return self.reader.object_path(part, self.reads) or self.generic_visit(part)

    def visit_Call(self, call: ast.Call) -> ast.expr:  # noqa: N802
        frame = self.reader.frame
        if self.reader.is_read(call) or frame.msrl_call(call) is not None:
            return self.reader.operand(self.reader.expression(call), call, self.reads)
        reader = self.reader
        made = (reader.record, reader.field_by_name, reader.sequences.made, reader.sequences.chosen)
        for read in (reader.grown.called, reader.each, *made, reader.perhaps.got):
            if (struct := read(call)) is not None:
                return self.reader.operand(struct, call, self.reads)
        args: list[ast.expr] = []
        for arg in call.args:
            if isinstance(arg, ast.Starred) and self.reader.is_tuple(arg.value):
                values = self.reader.elements([arg])
                args += [self.reader.operand(value, arg, self.reads) for value in values]
            elif isinstance(arg, ast.GeneratorExp) and self._takes_at_once(call):
                args.append(self._each(arg))
            elif self._arranges(arg):  # `sum(map(f, xs))`
                found = self.reader.sequences.iterated(arg)
                args.append(self.reader.operand(found, arg, self.reads))
            else:
                args.append(self.visit(arg))
        if (kind := self._number(call)) is not None:
            return self._call("number", ast.Constant(kind), *args)
        if (name := self._extreme(call)) is not None:
            return self._call("extreme", ast.Constant(name), *args)
        keywords: list[ast.keyword] = []
        for item in call.keywords:
            known = item.arg is None and reader.is_dictionary(item.value)
            for key, value in reader.named([item]).items() if known else ():
                keywords.append(ast.keyword(key, reader.operand(value, item.value, self.reads)))
            if not known:
                keywords.append(ast.keyword(item.arg, self.visit(item.value)))
        return ast.Call(self.visit(call.func), args, keywords)

    def _takes_at_once(self, call: ast.Call) -> bool:
        """Returns whether a call of a function of Python takes all values of a generator."""
        function = self.reader.frame.static(call.func)[1]
        return isinstance(function, (type, BuiltinFunctionType))

    def _arranges(self, node: ast.expr) -> bool:
        """Returns whether an expression is `map(f, xs)`, or such, of parts that are known."""
        if not isinstance(node, ast.Call):
            return False
        kind = self.reader.frame.static(node.func)[1]
        parts = node.args[1:] if kind is map else node.args
        several = kind in (map, zip, reversed, sorted) and bool(parts)
        return several and all(map(self.reader.is_tuple, parts))

    def _number(self, call: ast.Call) -> str | None:
        """Returns the kind of number of `float(x)`, which MindSpore cannot join in branches."""
        value = self.reader.frame.static(call.func)[1] if len(call.args) == 1 else None
        if not any(value is kind for kind in (float, int, bool)) or call.keywords:
            return None
        return str(getattr(value, "__name__", ""))

    def _extreme(self, call: ast.Call) -> str | None:
        """Returns the name of `max(a, b)` or `min(a, b)`, which MindSpore does not compile."""
        value = self.reader.frame.static(call.func)[1]
        starred = any(isinstance(arg, ast.Starred) for arg in call.args)
        if len(call.args) != 2 or starred or call.keywords:
            return None
        return "max" if value is max else "min" if value is min else None

    def _each(self, node: ast.expr) -> ast.expr:
        struct = self.reader.sequences.unread(node)
        if struct is None:
            struct = self.reader.sequences.comprehended(node)
        return self.reader.operand(struct, node, self.reads)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:  # noqa: N802
        *values, last = self._operands(self.reader.operands(node), self.visit)
        if not values:
            return last
        before = ast.BoolOp(node.op, values) if len(values) > 1 else values[0]
        if not isinstance(last, ast.Constant):
            return ast.BoolOp(node.op, [*values, last])
        name = "both" if isinstance(node.op, ast.And) else "either"
        return self._call(name, before, last)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:  # noqa: N802
        test = self.condition(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        return ast.IfExp(test, self._perhaps(node.body), self._perhaps(node.orelse))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:  # noqa: N802
        if (asked := self.reader.frame.asked(node)) is None:
            return self.generic_visit(node)
        name, key, there = asked
        part = self.reader.frame.names[name].get(key)
        if not isinstance(part, Perhaps):
            return ast.Constant(bool(self.reader.frame.holds(node)))
        given = self.reader.operand(part.given, node, self.reads)
        return given if there else self.reader.opposite(given)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:  # noqa: N802
        if not isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, self.visit(node.operand))
        operand = self.condition(node.operand)
        if isinstance(operand, ast.Constant):
            return ast.Constant(not operand.value)
        return self.reader.opposite(operand)

    def _call(self, operator: str, *args: ast.expr) -> ast.expr:
        """Returns a call of one of `rl.operators`."""
        name = self.reader.draft.imported("mindspore_rl.rl.operators", operator)
        return ast.Call(ast.Name(name, ast.Load()), list(args), [])

    def condition(self, node: ast.expr) -> ast.expr:
        """Rewrites an expression of which only the truth value is used; a constant if known."""
        holds = self.reader.frame.holds(node)
        if holds is not None:
            return ast.Constant(holds)
        if (known := self.reader.grown.condition(node, self.reads)) is not None:
            return known
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            operand = self.condition(node.operand)
            if isinstance(operand, ast.Constant):
                return ast.Constant(not operand.value)
            return ast.UnaryOp(node.op, operand)
        if not isinstance(node, ast.BoolOp):
            return self.visit(node)
        says_nothing, unknown = isinstance(node.op, ast.And), []
        for value in self._operands(self.reader.operands(node), self.condition):
            if not isinstance(value, ast.Constant):
                unknown.append(value)
            elif bool(value.value) is not says_nothing:
                return ast.Constant(not says_nothing)
        if not unknown:
            return ast.Constant(says_nothing)
        return ast.BoolOp(node.op, unknown) if len(unknown) > 1 else unknown[0]

    def _operands(self, parts: list[ast.expr], rewrite: Rewrite) -> list[ast.expr]:
        return [rewrite(parts[0]), *(self._perhaps(part, rewrite) for part in parts[1:])]

    def _perhaps(self, node: ast.expr, rewrite: Rewrite | None = None) -> ast.expr:
        """Rewrites an operand that Python evaluates conditionally."""
        self.reader.choices += 1
        rewritten = (rewrite or self.visit)(node)
        self.reader.choices -= 1
        return rewritten

    def visit_Starred(self, node: ast.Starred) -> ast.AST:  # noqa: N802
        if not isinstance(node.value, ast.GeneratorExp):
            return self.generic_visit(node)
        return ast.Starred(self._each(node.value), node.ctx)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:  # noqa: N802
        self.reader.frame.fail(
            node,
            "a generator that is kept",
            "its values are computed when they are taken, and only once: make a list of it, "
            f"[{ast.unparse(node)[1:-1]}]",
        )

    def _refuse(self, node: ast.expr) -> Any:
        names = {
            ast.Lambda: "a lambda",
            ast.NamedExpr: "`:=`",
            ast.Yield: "`yield`",
            ast.Await: "`await`",
            ast.YieldFrom: "`yield`",
        }
        self.reader.frame.fail(node, names.get(type(node), "a comprehension"))

    visit_ListComp = _each  # noqa: N815
    visit_Lambda = visit_SetComp = _refuse  # noqa: N815
    visit_DictComp = visit_NamedExpr = visit_Yield = visit_Await = visit_YieldFrom = _refuse  # noqa: N815


METHODS = {
    "list": "take its parts, xs[-1] and xs[:-1]; it changes by append, insert(0, x), extend, pop, "
    "clear and\n  reverse, each on a line of its own",
    "dictionary": "take its entries, d[key], d.items() and d.values(); it changes by d[key] = x, "
    "update, pop and clear,\n  each on a line of its own",
}
OWNERS = ("trainer", "actor", "learner")
_IN_CELL = {owner: Expr(f"self.{owner}") for owner in OWNERS}


def owned(expression: Expr) -> Expr:
    """Replaces the names `trainer`, `actor` and `learner` by attributes of `self`, the cell."""
    return expression.substitute(_IN_CELL)
