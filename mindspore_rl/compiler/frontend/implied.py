"""Marks that calls of msrl imply, where the program sets none."""

from collections.abc import Container, Iterable, Iterator

from mindspore_rl.compiler.ir.dataflow import definitions
from mindspore_rl.compiler.ir.ir import Item, Op, walk
from mindspore_rl.compiler.ir.operations import EFFECTS, OPERATIONS

Implied = dict[tuple[str, str], tuple[int, ...]]
"""The positions of the arguments or results that get a mark, by operation and mark."""
GLUE = frozenset(kind for kind, row in OPERATIONS.items() if row.component == "glue")

WITHIN = frozenset(kind for kind in GLUE - {"boundary"} if not OPERATIONS[kind].reduces)
"""Kinds of operations that compute statistics from reductions."""


def implied_marks(items: Iterable[Item]) -> Implied:
    """Finds the marks that the calls of a program imply.

    A boundary in the program moves a mark: a result gets no mark if such a boundary takes a value
    computed from it. All arguments of a call get no mark if one is computed from the result of such
    a boundary.

    Args:
        items: the program as it was read, with the boundaries that it sets.
    """
    flow = _Flow(tuple(items))
    found: Implied = {}
    set_by_hand = {
        (source.name, mark, variable)
        for op in flow.ops.values()
        if (mark := op.mark)
        for source, variable in flow.sources(op, GLUE)
    }
    read = {name for op in flow.ops.values() for name in op.reads}
    # The rows of a gradient, where the program does not ask for them.
    unread = {op.targets[2] for op in flow.ops.values() if op.kind == "gradient"} - read
    for op in flow.ops.values():
        gives, takes = OPERATIONS[op.kind].gives, OPERATIONS[op.kind].takes
        if gives:
            found[op.name, gives] = tuple(
                place
                for place, name in enumerate(op.targets)
                if (op.name, gives, name) not in set_by_hand and name not in unread
            )
        if op.kind == "update":
            found[op.name, takes] = tuple(
                place for place, arg in enumerate(op.args) if flow.is_statistic(op, arg)
            )
        elif takes and not any(source.mark == takes for source, _ in flow.sources(op, GLUE)):
            given = OPERATIONS[op.kind].arguments or len(op.args)
            found[op.name, takes] = tuple(range(given))
    return {key: places for key, places in found.items() if places}


class _Flow:
    """The operations that the values of a program come from."""

    def __init__(self, items: tuple[Item, ...]) -> None:
        self.uses = definitions(items)
        self.ops = {op.name: op for op, _ in walk(items)}

    def sources(
        self, op: Op, through: Container[str], reads: Iterable[str] | None = None
    ) -> Iterator[tuple[Op, str]]:
        """Yields the operations that define what an operation reads, through those of some kinds.

        Args:
            op: the operation that reads.
            through: kinds whose own inputs are followed too.
            reads: the variables; by default all that it reads.

        Yields: each operation with the variable that it defines.
        """
        seen: set[tuple[str, str]] = set()
        waiting = [(op.name, variable) for variable in reads or op.reads]
        while waiting:
            reader, variable = waiting.pop()
            for name in () if variable in EFFECTS else self.uses[reader][variable]:
                if name in self.ops and (name, variable) not in seen:
                    seen.add((name, variable))
                    source = self.ops[name]
                    yield source, variable
                    if source.kind in through:
                        waiting += [(name, read) for read in source.reads]

    def is_statistic(self, op: Op, arg: str) -> bool:
        """Returns whether an argument is computed only from reductions, without a boundary."""
        made = self.sources(op, WITHIN, (arg,)) if arg in op.reads else ()
        kinds = {source.kind for source, _ in made if source.kind not in WITHIN}
        return bool(kinds) and all(OPERATIONS[kind].reduces for kind in kinds)
