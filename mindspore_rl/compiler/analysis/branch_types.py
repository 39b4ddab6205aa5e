"""Checks that the branches of conditional expressions have one type.

MindSpore cannot compile `m if m > 0.5 else 1.0` or `m > 0.5 or m`, whose values are an array and a
number, or of two types. The uncompiled loop takes one of them and does not see the other.
"""

import ast
from typing import Any

from mindspore import Tensor

from mindspore_rl.compiler.analysis.interpret import Probe
from mindspore_rl.compiler.ir.ir import Op
from mindspore_rl.errors import ProgramError
from mindspore_rl.platform import one_type


def check_branches(probe: Probe) -> None:
    """Evaluates both branches where an array decides at run time.

    Raises:
        ProgramError: they have other types; names the line and both.
    """
    for op, inputs in probe.evaluated:
        if op.kind == "glue":
            for node in ast.walk(op.args[0].tree):
                if isinstance(node, (ast.IfExp, ast.BoolOp)):
                    _check(op, node, {**probe.names, **inputs})


def _check(op: Op, node: ast.IfExp | ast.BoolOp, scope: dict[str, Any]) -> None:
    if isinstance(node, ast.IfExp):
        decides, sides = [node.test], [node.body, node.orelse]
    else:
        decides, sides = node.values[:-1], node.values
    try:
        at_run_time = any(isinstance(_value(part, scope), Tensor) for part in decides)
        types = {_type(_value(side, scope)): ast.unparse(side) for side in sides}
    except Exception:  # noqa: BLE001  (a failure is reported elsewhere)
        return
    made_one = isinstance(node, ast.IfExp) and one_type.compares(node.test)
    if made_one and set(types) == {"float", "an array of float32"}:
        return
    if at_run_time and len(types) > 1:
        found = " and ".join(f"`{text}` is {kind}" for kind, text in types.items())
        raise ProgramError(
            f"{op.where}\n  a compiled cell needs one type for all values of "
            f"`{ast.unparse(node)}`, and {found}: write {_instead(node, set(types))}"
        )


def _value(node: ast.expr, scope: dict[str, Any]) -> Any:
    return eval(ast.unparse(node), dict(scope))  # noqa: S307  (the user's own expression)


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"an array of {str(value.dtype).lower()}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_type, value))})"
    return "None" if value is None else type(value).__name__


def _instead(node: ast.IfExp | ast.BoolOp, types: set[str]) -> str:
    if types <= {"bool", "int", "float"}:
        return "real numbers, 1.0 in place of 1"
    if isinstance(node, ast.IfExp) and any(kind.startswith("an array") for kind in types):
        test, *sides = map(ast.unparse, (node.test, node.body, node.orelse))
        for side, other in (sides, sides[::-1]):
            if isinstance(ast.parse(side, mode="eval").body, ast.Constant):
                return f"ops.full_like({other}, {side}) in place of {side}"
        return f"ops.where({test}, {', '.join(sides)})"
    return "one type, such as x != 0.0 in place of x"
