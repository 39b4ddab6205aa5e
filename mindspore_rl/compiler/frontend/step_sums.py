"""Sums over the steps that start at a number: `total = 0.0`, then `total += reward` in the loop."""

import ast

from mindspore_rl.compiler.frontend.builder import BY_ELEMENT, REDUCES_LAST, SAME_SIZES
from mindspore_rl.compiler.frontend.loop_carried import assigned
from mindspore_rl.platform.syntax import nodes_of

REWARD, ENDED = slice(2, 3), slice(3, 5)
"""Results of `msrl.env_step`: the reward, with teams `[B, A]`; terminated and truncated, `[B]`."""
OPERATORS = (*SAME_SIZES, *BY_ELEMENT)
Rows = dict[str, bool]
"""Names of arrays, each with True if it is `[B, A]`, or False if it is `[B]`."""


def sums_of_steps(loop: ast.For, msrl: str, teams: bool) -> Rows:
    """Returns the names to which a loop only adds values of one shape, in each turn.

    Args:
        loop: a loop over `msrl.steps()`.
        msrl: the name of `msrl`.
        teams: whether rewards have an axis of agents.
    """
    found, rows = Rows(), Rows()
    for statement in loop.body:
        made = Rows()
        match statement:
            case ast.Assign([ast.Tuple(names)], ast.Call(func, args)):
                if ast.unparse(func) == f"{msrl}.boundary" and isinstance(args[-1], ast.Call):
                    func = args[-1].func
                if ast.unparse(func) == f"{msrl}.env_step":
                    each = (names[REWARD], teams), (names[ENDED], False)
                    made = {n.id: has for ns, has in each for n in ns if isinstance(n, ast.Name)}
            case ast.Assign([ast.Name(name)], value):
                if (has := _has_agents(value, rows, msrl)) is not None:
                    made = {name: has}
            case ast.AugAssign(ast.Name(name), ast.Add(), value):
                if (has := _has_agents(value, rows, msrl)) is not None:
                    found[name] = has
        gone = assigned([statement])
        rows = {name: has for name, has in rows.items() if name not in gone} | made
    uses = [node.id for node in nodes_of(loop) if isinstance(node, ast.Name)]
    return {name: has for name, has in found.items() if uses.count(name) == 1}


def spread(name: str, start: float, msrl: str, teams: bool) -> ast.Assign:
    """Returns the statement that makes an array `[B]`, with teams `[B, A]`, of a sum's start."""
    each = f"{msrl}.env_index()"
    if teams:
        each += f".expand_dims(1) * {msrl}.agent_index()"
    (made,) = ast.parse(f"{name} = {start!r} + 0.0 * ({each})").body
    assert isinstance(made, ast.Assign)
    return made


def _has_agents(node: ast.expr, rows: Rows, msrl: str) -> bool | None:
    """Returns whether a value is `[B, A]`, and not `[B]`; None for any other value.

    It is made of `rows` and numbers element by element, or leaves out the axis of agents.
    """
    sides: list[ast.expr] = []
    match node:
        case ast.Name(name):
            return rows.get(name)
        case ast.BinOp(left, _, right) | ast.Compare(left, [_], [right]):
            sides = [left, right]
        case ast.UnaryOp(_, value):
            sides = [value]
        case ast.Call(ast.Attribute(ast.Name(owner), "joint"), [value]) if owner == msrl:
            sides = [value]
        case ast.Call(ast.Attribute(ast.Name("ops"), name), args, []) if name in OPERATORS:
            sides = args
        case ast.Call(ast.Attribute(value, name), _, []) if name in SAME_SIZES:
            sides = [value]
        case ast.Call(ast.Attribute(value, name)) if name in REDUCES_LAST:
            return False if _is_last(node) and _has_agents(value, rows, msrl) else None
    given = {_has_agents(side, rows, msrl) for side in sides if not isinstance(side, ast.Constant)}
    return given.pop() if len(given) == 1 else None


def _is_last(call: ast.Call) -> bool:
    """Returns whether a call's only argument is the last axis of `[B, A]`."""
    given = [*call.args, *(item.value for item in call.keywords)]
    named = all(item.arg in ("axis", "dim") for item in call.keywords)
    return named and len(given) == 1 and ast.unparse(given[0]) in ("-1", "1")
