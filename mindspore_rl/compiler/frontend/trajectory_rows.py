"""Rows of the trajectory buffer: where each insertion writes, and how many rows a sample has.

A sample returns the records inserted since the previous sample, in order. Its number of rows counts
only the loops around an insertion that are not around the sample as well.
"""

from dataclasses import replace

from mindspore_rl.compiler.frontend.replay_rows import Site, rows_before
from mindspore_rl.compiler.ir.ir import Item, Loop, Op, common, num_turns, with_ops
from mindspore_rl.compiler.ir.operations import REPLAY
from mindspore_rl.errors import ProgramError


def place_rows(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Sets `index` and `rows` of each insertion and `rows` of each sample.

    Raises:
        ProgramError: a sample would not have the same rows in every turn.
    """
    placement = _Placement()
    placement.visit(items, ())
    return with_ops(items, placement.placed)


class _Placement:
    def __init__(self) -> None:
        self.placed: dict[str, Op] = {}
        self.waiting: list[Site] = []
        self.sampled_rows = 0

    def visit(self, items: tuple[Item, ...], loops: tuple[Loop, ...]) -> bool:
        """Places the insertions and samples of a body. Returns: whether it samples."""
        samples = False
        for item in items:
            if isinstance(item, Loop):
                inside = self.visit(item.body, (*loops, item))
                if self.waiting and (inside or item.kind == "iterations"):
                    raise ProgramError(
                        f"{self.waiting[0][0].where}\n  rows that no sample follows in the same "
                        f"turn of\n  {item.where}\n  put msrl.replay_sample() after the last "
                        "msrl.replay_insert() of the loop"
                    )
                samples |= inside
            elif isinstance(item, Op) and item.kind == "replay_insert":
                self.waiting.append((item, loops))
            elif isinstance(item, Op) and item.kind == "replay_sample":
                samples = True
                if self.waiting:
                    self._sample(item, loops)
                self.placed[item.name] = replace(item, attrs=(("rows", self.sampled_rows),))
        return samples

    def _sample(self, sample: Op, loops: tuple[Loop, ...]) -> None:
        around = [len(common(loops, others)) for _, others in self.waiting]
        if len(set(around)) > 1:
            outside = self.waiting[around.index(min(around))][0]
            raise ProgramError(
                f"{sample.where}\n  the first turn of the loop around this sample would have more "
                f"rows than the others, those of\n  {outside.where}\n  sample these before the "
                "loop, or insert them in it"
            )
        own = [(op, others[around[0] :]) for op, others in self.waiting]
        for at, (op, inner) in enumerate(own):
            reads = [
                *(name for name in op.reads if name != REPLAY),
                *(loop.index for loop in inner),
            ]
            self.placed[op.name] = replace(
                op,
                reads=(*dict.fromkeys(reads), REPLAY),
                attrs=(("index", rows_before(own, at, inner)[1]), ("rows", num_turns(inner))),
            )
        self.sampled_rows, self.waiting = sum(num_turns(inner) for _, inner in own), []
