"""Hoists draws from a kept replay: all of an iteration's draws are made ahead of the loop.

The result of a stratified draw does not depend on the updates between draws, as long as the loop
inserts nothing. Without its draws a loop over updates compiles as a whole: one call of a cell per
iteration instead of one per update.
"""

from dataclasses import replace

from mindspore_rl.compiler.ir.ir import Branch, Expr, Item, Loop, Op, num_turns, walk
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.plan.value import Value

COMPILED = ("computes", "fits", "trims")
MAX_BYTES = 2**26
"""Limit on the bytes of all records drawn in an iteration, which are in memory together."""


def draw_ahead(items: tuple[Item, ...], values: dict[str, Value]) -> tuple[Item, ...]:
    """Moves draws out of the loops in an iteration that then compile as a whole.

    Args:
        items: the items of a fragment.
        values: the values of its variables; the stacked results of hoisted draws are added.
    """
    result: list[Item] = []
    for item in items:
        if isinstance(item, Loop) and item.kind == "iterations":
            result.append(replace(item, body=draw_ahead(item.body, values)))
        elif isinstance(item, Branch):
            sides = draw_ahead(item.body, values), draw_ahead(item.orelse, values)
            result.append(replace(item, body=sides[0], orelse=sides[1]))
        elif isinstance(item, Loop) and _can(item, values):
            draws: dict[str, Op] = {}
            loop = _without_draws(item, draws, values)
            result += [*draws.values(), loop]
        else:
            result.append(item)
    return tuple(result)


def _can(loop: Loop, values: dict[str, Value]) -> bool:
    size = 0
    for op, loops in walk((loop,)):
        if _compiles(op) and op.attr["index"].isdecimal():  # nothing is inserted in these loops
            size += num_turns(loops) * sum(values[name].message_bytes for name in op.targets)
        elif OPERATIONS[op.kind].cell not in COMPILED:
            return False
    return 0 < size <= MAX_BYTES


def _compiles(op: Op) -> bool:
    return op.kind == "replay_draw" and op.attr["compiles"]


def _without_draws(loop: Loop, draws: dict[str, Op], values: dict[str, Value]) -> Loop:
    """Moves the draws out of a loop.

    Args:
        loop: the loop.
        draws: the moved draws, by the tables of their random numbers; those of the turns of an
            unrolled loop have rows of one table.
        values: see `draw_ahead`.
    """
    body = list[Item]()
    ops = [item for item in loop.body if isinstance(item, Op)]
    drawn = {op.name: op for op in ops if _compiles(op)}
    rows = {op.targets[0]: op for op in ops if op.kind == "index"}
    used = {rows[op.args[0]].name for op in drawn.values()}
    for item in loop.body:
        if isinstance(item, Loop):
            body.append(_without_draws(item, draws, values))
        elif item.name in drawn:
            draw = drawn[item.name]
            row = rows[draw.args[0]]
            table, place = row.args
            if table not in draws:
                stacks = tuple(f"{name}_of_all" for name in draw.targets)
                for name, stack in zip(draw.targets, stacks, strict=True):
                    values[stack] = values[name].behind(values[table].shape[0])
                inner = {draw.args[0], *row.reads}
                reads = (table, *(name for name in draw.reads if name not in inner))
                draws[table] = replace(draw, targets=stacks, args=(table,), reads=reads)
            for name, stack in zip(draw.targets, draws[table].targets, strict=True):
                reads = (stack, *(read for read in row.reads if read != table))
                args = (Expr(stack), place)
                body.append(Op(f"index:{name}", "index", (name,), args, reads, draw.where))
        elif item.name not in used:
            body.append(item)
    return replace(loop, body=tuple(body))
