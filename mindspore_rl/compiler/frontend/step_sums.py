"""Sums over the steps that start at a number: `total = 0.0`, then `total += reward` in the loop."""

import ast

from mindspore_rl.compiler.frontend.builder import BY_ELEMENT, SAME_SIZES
from mindspore_rl.compiler.frontend.loop_carried import assigned
from mindspore_rl.platform.syntax import nodes_of

REWARD, ENDED = slice(2, 3), slice(3, 5)
"""Results of `msrl.env_step`: the reward, with teams `[B, A]`; terminated and truncated, `[B]`."""
OPERATORS = (*SAME_SIZES, *BY_ELEMENT)


def sums_of_steps(loop: ast.For, msrl: str, results: slice) -> set[str]:
    """Returns the names to which a loop only adds values of one shape, in each turn.

    Args:
        loop: a loop over `msrl.steps()`.
        msrl: the name of `msrl`.
        results: those of `msrl.env_step` of which the values are made, element by element.
    """
    found, rows = set[str](), set[str]()
    for statement in loop.body:
        made = set[str]()
        match statement:
            case ast.Assign([ast.Tuple(names)], ast.Call(func, args)):
                if ast.unparse(func) == f"{msrl}.boundary" and isinstance(args[-1], ast.Call):
                    func = args[-1].func
                if ast.unparse(func) == f"{msrl}.env_step":
                    made = {n.id for n in names[results] if isinstance(n, ast.Name)}
            case ast.Assign([ast.Name(name)], value) if _made_of(value, rows):
                made = {name}
            case ast.AugAssign(ast.Name(name), ast.Add(), value):
                if _made_of(value, rows):
                    found.add(name)
        rows = (rows - assigned([statement])) | made
    uses = [node.id for node in nodes_of(loop) if isinstance(node, ast.Name)]
    return {name for name in found if uses.count(name) == 1}


def spread(name: str, start: float, msrl: str, teams: bool) -> ast.Assign:
    """Returns the statement that makes an array `[B]`, with teams `[B, A]`, of a sum's start."""
    each = f"{msrl}.env_index()"
    if teams:
        each += f".expand_dims(1) * {msrl}.agent_index()"
    (made,) = ast.parse(f"{name} = {start!r} + 0.0 * ({each})").body
    assert isinstance(made, ast.Assign)
    return made


def _made_of(node: ast.expr, rows: set[str]) -> bool:
    """Returns whether a value is made of these and of numbers, element by element."""
    sides: list[ast.expr] = []
    match node:
        case ast.Name(name):
            return name in rows
        case ast.BinOp(left, _, right) | ast.Compare(left, [_], [right]):
            sides = [left, right]
        case ast.UnaryOp(_, value):
            return _made_of(value, rows)
        case ast.Call(ast.Attribute(ast.Name("ops"), name), args, []) if name in OPERATORS:
            sides = args
        case ast.Call(ast.Attribute(value, name), _, []) if name in SAME_SIZES:
            return _made_of(value, rows)
    numbers = [isinstance(side, ast.Constant) for side in sides]
    given = [_made_of(side, rows) for side in sides]
    return any(given) and all(map(max, numbers, given))
