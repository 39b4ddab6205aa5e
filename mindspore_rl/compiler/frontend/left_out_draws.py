"""Random numbers that a condition leaves out in some turns of an iteration's loops.

A draw inside loops takes the row of its turn. The plain loop counts its calls. If an iteration
makes the draw in all turns or in none, both agree; else the draw counts, too.
"""

from dataclasses import replace
from itertools import count

from mindspore_rl.compiler.ir.dataflow import INITIAL, definitions
from mindspore_rl.compiler.ir.ir import Branch, Expr, Item, Loop, Op, paths
from mindspore_rl.errors import ProgramError

_DRAWS = ("noise", "uniform_of_all", "dataset_windows", "dataset_transitions")
_SAME = ("glue", "copy", "constant", "env_steps")
"""Operations whose result is the same in all turns if their inputs are."""


def counted_draws(body: tuple[Item, ...]) -> tuple[Item, ...]:
    """Lets draws count their turns where a condition around them may change from turn to turn.

    Raises:
        ProgramError: a draw from the records of all environments stands there; names its line.
    """
    walked = list(paths(body))
    changing = _changing(body, walked)
    items = {item.name: item for item, _ in walked}
    tables = {
        table: op
        for op in items.values()
        if isinstance(op, Op) and op.kind in _DRAWS
        for table in op.targets
    }
    last = dict[str, str]()  # by draw that counts: its last table, behind which it does
    for name in changing:
        item = items[name]
        if item.kind == "replay_draw" and "purpose" in item.attr:
            raise ProgramError(
                f"{item.where}\n  a sample of all environments together under a condition that may "
                "change within an iteration, or in a loop that `break` may end, is not supported "
                "here:\n  leave out `by` and draw a multiple of num_envs, or draw in every turn, "
                "before the condition"
            )
        if item.kind == "index" and item.reads[0] in tables:
            last[tables[item.reads[0]].name] = item.reads[0]
    if not last:
        return body
    zeros = tuple(
        Op(f"constant:{drawn}", "constant", (drawn,), (Expr("0"),), (), items[name].where)
        for name, table in last.items()
        for drawn in (_counter(table),)
    )
    last_of = {table: last[op.name] for table, op in tables.items() if op.name in last}
    numbers = count(1)

    def rewritten(items: tuple[Item, ...]) -> tuple[Item, ...]:
        found = list[Item]()
        for item in items:
            if isinstance(item, Branch):
                bodies = rewritten(item.body), rewritten(item.orelse)
                found.append(replace(item, body=bodies[0], orelse=bodies[1]))
            elif isinstance(item, Loop):
                zero = zeros if item.kind == "iterations" else ()
                found.append(replace(item, body=zero + rewritten(item.body)))
            elif item.kind == "index" and item.reads[0] in last_of:
                table = item.reads[0]
                drawn = _counter(last_of[table])
                found.append(replace(item, args=(Expr(table), Expr(drawn)), reads=(table, drawn)))
                if table == last_of[table]:
                    name, more = f"glue:{drawn}.{next(numbers)}", Expr(f"{drawn} + 1")
                    found.append(Op(name, "glue", (drawn,), (more,), (drawn,), item.where))
            else:
                found.append(item)
        return tuple(found)

    return rewritten(body)


def _counter(table: str) -> str:
    """Returns the name of the number of draws whose last table this is."""
    return f"{table}_drawn"


def _changing(body: tuple[Item, ...], walked: list) -> list[str]:
    """Returns the operations under a condition that may change within an iteration."""
    uses = definitions(body)
    places = {item.name: around for item, around in walked}
    items = {item.name: item for item, _ in walked}

    def inside(name: str) -> bool:
        loops = [outer for outer in places[name] if isinstance(outer, Loop)]
        return any(loop.kind != "iterations" for loop in loops)

    def changes(reader: str, path: tuple[str, ...] = ()) -> bool:
        for definers in uses[reader].values():
            inner = [n for n in definers - {INITIAL} if _is_inner_loop(items[n]) or inside(n)]
            for name in inner:
                item = items[name]
                if len(definers) > 1 or name in path or not isinstance(item, Op):
                    return True
                if item.kind not in _SAME or changes(name, (*path, name)):
                    return True
        return False

    def may_change(branches: list[Branch]) -> bool:
        return any(inside(branch.name) and changes(branch.name) for branch in branches)

    return [
        item.name
        for item, around in walked
        if isinstance(item, Op) and item.kind in ("index", "replay_draw") and inside(item.name)
        if may_change([outer for outer in around if isinstance(outer, Branch)])
    ]


def _is_inner_loop(item: object) -> bool:
    return isinstance(item, Loop) and item.kind != "iterations"
