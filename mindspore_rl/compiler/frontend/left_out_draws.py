"""Refuses draws that a condition leaves out in some turns of an iteration's loops.

A draw inside loops takes the row of its turn. The plain loop counts its calls, so both agree only
if an iteration makes the draw in all turns or in none.
"""

from mindspore_rl.compiler.ir.dataflow import INITIAL, definitions
from mindspore_rl.compiler.ir.ir import Branch, Loop, Op, paths
from mindspore_rl.errors import ProgramError

_DRAWS = ("noise", "uniform_of_all", "dataset_windows", "dataset_transitions")
_SAME = ("glue", "copy", "constant", "env_steps")
"""Operations whose result is the same in all turns if their inputs are."""


def check_draws(body: tuple) -> None:
    """Checks the conditions around each draw.

    Raises:
        ProgramError: a condition may change from turn to turn; names the line of the draw.
    """
    uses, walked = definitions(body), list(paths(body))
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

    tables = {
        table: op
        for op in items.values()
        if isinstance(op, Op) and op.kind in _DRAWS
        for table in op.targets
    }
    for name, item in items.items():
        if not isinstance(item, Op):
            continue
        if item.kind == "replay_draw" and "purpose" in item.attr:  # it has no table
            drawn = item
        elif item.kind == "index" and item.reads[0] in tables:
            drawn = tables[item.reads[0]]
        else:
            continue
        around = [outer for outer in places[name] if isinstance(outer, Branch)]
        if inside(name) and any(inside(branch.name) and changes(branch.name) for branch in around):
            raise ProgramError(
                f"{drawn.where}\n  random numbers, data or records drawn under a condition that "
                "may change within an iteration, or in a loop that `break` may end, are not "
                "supported here:\n  draw them in every turn, before the condition; what is done "
                "with them may stand under it"
            )


def _is_inner_loop(item: object) -> bool:
    return isinstance(item, Loop) and item.kind != "iterations"
