"""Expressions that only tell the user something: they are left out of the graph."""

import ast
import inspect
import logging
import warnings

from mindspore_rl.compiler.frontend.scope import PURE, Frame
from mindspore_rl.platform.syntax import nodes_of

METHODS = {"abs", "all", "any", "asnumpy", "astype", "format", "isfinite", "isnan", "item"}
METHODS |= {"max", "mean", "min", "reshape", "sum", "tolist"}
"""Methods of arrays and texts that change nothing."""
LIBRARIES = ("mindspore", "numpy", "math")
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
    for part in nodes_of(node):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(part, ast.Name) and frame.is_msrl(part):
            return False
        if isinstance(part, ast.Call):
            func = part.func
            if isinstance(func, ast.Attribute) and func.attr in METHODS:
                continue
            value = frame.static(func)[1]
            home = getattr(inspect.getmodule(value), "__name__", "") if callable(value) else ""
            library = home.partition(".")[0] in LIBRARIES
            if not library and not any(value is one for one in (*PURE, repr)):
                return False
    return True
