"""Expressions that only tell the user something: they are left out of the graph."""

import ast
import logging
import warnings

from mindspore_rl.compiler.frontend.scope import PURE, Frame

METHODS = {"asnumpy", "format", "item", "max", "mean", "min", "sum", "tolist"}
"""Methods of arrays and texts that change nothing."""
PLAIN = "it is left out of the graph: compute before it what it needs, and let it call nothing else"


def only_tells(node: ast.expr, frame: Frame) -> bool:
    """Returns whether an expression prints, logs or warns, and does nothing else."""
    if not isinstance(node, ast.Call):
        return False
    value = frame.static(node.func)[1]
    logs = isinstance(getattr(value, "__self__", None), logging.Logger)
    logs = logs or getattr(value, "__module__", "") == "logging"
    tells = logs or value is print or value is warnings.warn
    return tells and all(is_plain(part, frame) for part in (*node.args, *node.keywords))


def is_plain(node: ast.AST, frame: Frame) -> bool:
    """Returns whether an expression changes nothing, whatever its values: it calls no own code."""
    for part in ast.walk(node):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(part, ast.Name) and frame.is_msrl(part):
            return False
        if isinstance(part, ast.Call):
            func = part.func
            if isinstance(func, ast.Attribute) and func.attr in METHODS:
                continue
            if not any(frame.static(func)[1] is one for one in (*PURE, repr)):
                return False
    return True
