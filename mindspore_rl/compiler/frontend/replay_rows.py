"""Rows of a kept replay: where records are stored, and how many there are at a draw.

Both are expressions of the loop indices, so every replica computes them for its own environments
without a counter or a message.
"""

from collections import Counter
from dataclasses import replace

from mindspore_rl.compiler.ir.ir import (
    Expr,
    Item,
    Loop,
    Op,
    common,
    num_turns,
    turn_index,
    walk,
    with_ops,
)
from mindspore_rl.compiler.ir.operations import REPLAY
from mindspore_rl.errors import ProgramError

STRATIFIED = "stratified"
"""The kind of draw in which each replica samples from its own records."""
Site = tuple[Op, tuple[Loop, ...]]
"""An operation and the loops around it, or those inside some loop."""


def place_kept(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Sets on each insertion and each draw the number of records inserted before it.

    Raises:
        ProgramError: an insertion or a draw stands outside `msrl.iterations()`, the first draw
            comes before any insertion, or one iteration inserts more records than are kept.
    """
    sites = [site for site in walk(items) if site[0].kind in ("replay_keep", "replay_draw")]
    stores: dict[str, list[Site]] = {}
    for op, loops in sites:
        if not loops or loops[0].kind != "iterations":
            raise ProgramError(
                f"{op.where}\n  it stands outside msrl.iterations(): fill the replay in the first "
                "ones,\n  and learn `if msrl.env_steps() >= config.learning_starts:`"
            )
        stores.setdefault(op.replay or "", []).append((op, loops))
    _check_updates(items)
    placed: dict[str, Op] = {}
    for own in stores.values():
        placed |= _placed(own)
    return with_ops(items, placed)


def _placed(sites: list[Site]) -> dict[str, Op]:
    """Returns the insertions and draws of one replay with the numbers of their records."""
    keeps = [site for site in sites if site[0].kind == "replay_keep"]
    inner = [(op, loops[1:]) for op, loops in keeps]
    total = sum(num_turns(loops) for _, loops in inner)
    ways = {op.attr["by"] for op, _ in sites if op.kind == "replay_draw"}
    whole = any("count" in op.attr for op, _ in sites)
    placed = {}
    for number, (op, loops) in enumerate(sites):
        capacity = keeps[0][0].attr["capacity"]
        if capacity < total:
            raise ProgramError(
                f"{op.where}\n  an iteration inserts {total} records of each environment, and keep "
                f"leaves room for {capacity} of each: raise it"
            )
        earlier = sum(other.kind == "replay_keep" for other, _ in sites[:number])
        before, index = rows_before(inner, earlier, loops[1:])
        _check_draw(op, before)
        attrs = dict(op.attrs) | {
            "capacity": capacity,
            "iteration": loops[0].index,
            "per_iteration": total,
            "index": index,
            "rows": num_turns(loops[1:]),
            "weighted": "priority" in ways,
            "compiles": ways <= {STRATIFIED} and not whole,
            "turn": turn_index(loops[1:]),
        }
        indices = tuple(loop.index for loop in loops)
        others = tuple(name for name in op.reads if name != REPLAY)
        reads = (*dict.fromkeys((*others, *indices)), REPLAY)
        placed[op.name] = replace(op, reads=reads, attrs=tuple(attrs.items()))
    return placed


def _check_draw(op: Op, number: int) -> None:
    """Checks that a draw finds enough records in the first iteration.

    Args:
        op: a draw; an insertion always passes.
        number: records of each environment inserted before it.
    """
    steps = max(op.attr["steps"], 1) if op.kind == "replay_draw" else 0
    if op.kind == "replay_draw" and op.attr["by"] == "distinct":
        found, wanted = number - steps + 1, op.attr["per_env"]
        if 0 < found < wanted:
            raise ProgramError(
                f"{op.where}\n  it draws {wanted} records an environment without replacement "
                f"where there are {found}: put it after as many steps of the loop, or ask for fewer"
            )
    if number >= steps:
        return
    if not number:
        raise ProgramError(
            f"{op.where}\n  it draws where nothing was inserted yet: put it after the first "
            "msrl.replay_insert() of the loop"
        )
    raise ProgramError(
        f"{op.where}\n  it draws windows of {op.attr['steps']} records where {number} of each "
        "environment were inserted: put it after as many steps of the loop, or ask for fewer"
    )


def _check_updates(items: tuple[Item, ...]) -> None:
    ops = [op for op, _ in walk(items)]
    draws = [op for op in ops if op.kind == "replay_draw" and op.attr["by"] == "priority"]
    weighted = [op.replay for op in draws]
    for op in ops:
        if op.kind == "replay_update" and op.replay not in weighted:
            of = f', of="{op.replay}"' if op.replay else ""
            named = "".join(f'; those of "{name}" have of="{name}"' for name in weighted if name)
            raise ProgramError(
                f"{op.where}\n  priorities by which nothing is drawn: sample by them, "
                f'msrl.replay_sample(256, "priority"{of}){named}'
            )


def rows_before(insertions: list[Site], at: int, loops: tuple[Loop, ...]) -> tuple[int, Expr]:
    """Counts the rows that are inserted before a turn of loops.

    Args:
        insertions: in order, each with the loops around it.
        at: how many of them stand before the place in question.
        loops: the loops around this place.

    Returns: their number before the first turn, and an expression for any turn.
    """
    first, of_turns = 0, Counter[Expr]()
    for number, (_, around) in enumerate(insertions):
        shared = common(loops, around)
        rows = num_turns(around[len(shared) :])
        first += rows if number < at else 0
        if shared:
            of_turns[turn_index(shared)] += rows
    index = Expr(str(first))
    for turn, rows in of_turns.items():
        index = index.plus(turn if rows == 1 else turn.times(rows))
    return first, index


def inserted(op: Op) -> str:
    """Returns an expression: records of each environment inserted so far in the whole run."""
    return f"{op.attr['iteration']} * {op.attr['per_iteration']} + {op.attr['index']}"


def position(op: Op) -> str:
    """Returns an expression: the row of the ring buffer where this turn's records are written."""
    return f"({inserted(op)}) % {op.attr['capacity']}"
