"""Rewrites an expression of the user's function over the graph's variables."""

# ruff: noqa: D102  (the visitors of `ast`, whose names say what they take)

import ast
from typing import Any

from mindspore_rl.graph.frame import Gone, Static, is_literal, literal


class Rewriter(ast.NodeTransformer):
    """Rewrites an expression over graph variables, collecting what it reads."""

    def __init__(self, reader: Any, reads: list[str]) -> None:
        self.reader, self.reads = reader, reads

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and not isinstance(node, (ast.Constant, ast.Starred)):
            known, value = self.reader.frame.static(node)
            if known and is_literal(value):
                return ast.parse(literal(value), mode="eval").body
        return super().visit(node)

    def visit_Name(self, name: ast.Name) -> ast.expr:  # noqa: N802
        struct = self.reader.frame.names.get(name.id)
        if struct is None:
            return self.reader.global_name(name)
        if isinstance(struct, Static) and (path := self.reader.object_path(name, self.reads)):
            return path
        if isinstance(struct, Gone):
            self.reader.expression(name)
        return self.reader.operand(struct, name, self.reads)

    def visit_Attribute(self, attribute: ast.Attribute) -> ast.AST:  # noqa: N802
        return self.reader.object_path(attribute, self.reads) or self.generic_visit(attribute)

    def visit_Subscript(self, part: ast.Subscript) -> ast.AST:  # noqa: N802
        struct = self.reader.part_of(part)
        if struct is not None:
            return self.reader.operand(struct, part, self.reads)
        return self.generic_visit(part)

    def visit_Call(self, call: ast.Call) -> ast.expr:  # noqa: N802
        if self.reader.msrl_call(call) is not None or self.reader.gets_msrl(call):
            return self.reader.operand(self.reader.expression(call), call, self.reads)
        args: list[ast.expr] = []
        for arg in call.args:
            if isinstance(arg, ast.Starred) and self.reader.is_tuple(arg.value):
                values = self.reader.expression(arg.value)
                args += [self.reader.operand(value, arg, self.reads) for value in values]
            else:
                args.append(self.visit(arg))
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in call.keywords]
        return ast.Call(self.visit(call.func), args, keywords)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:  # noqa: N802
        stops = isinstance(node.op, ast.Or)
        values: list[ast.expr] = []
        for part in node.values:
            value = self._perhaps(part) if values else self.visit(part)
            if not isinstance(value, ast.Constant):
                values.append(value)
            elif bool(value.value) == stops:
                if not values:
                    return ast.Constant(stops)
                values.append(value)
        if len(values) > 1:
            return ast.BoolOp(node.op, values)
        return values[0] if values else ast.Constant(not stops)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:  # noqa: N802
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        return ast.IfExp(test, self._perhaps(node.body), self._perhaps(node.orelse))

    def _perhaps(self, node: ast.expr) -> ast.expr:
        """Rewrites what Python would evaluate only where a condition says so."""
        self.reader.choices += 1
        rewritten = self.visit(node)
        self.reader.choices -= 1
        return rewritten

    def _refuse(self, node: ast.expr) -> Any:
        names = {
            ast.Lambda: "a lambda",
            ast.NamedExpr: "`:=`",
            ast.Yield: "`yield`",
            ast.Await: "`await`",
            ast.YieldFrom: "`yield`",
        }
        self.reader.frame.fail(node, names.get(type(node), "a comprehension"))

    visit_Lambda = visit_ListComp = visit_SetComp = visit_GeneratorExp = _refuse  # noqa: N815
    visit_DictComp = visit_NamedExpr = visit_Yield = visit_Await = visit_YieldFrom = _refuse  # noqa: N815
