"""Counts the operations and bytes of a cell, to predict its time on described devices."""

from dataclasses import dataclass

import numpy as np

from mindspore_rl.codegen.cfg import Block, Blocks, outputs, tensors
from mindspore_rl.codegen.ops.batch_rules import CONVOLUTIONS
from mindspore_rl.codegen.ops.convolution import operations
from mindspore_rl.codegen.ops.matmul import PRODUCTS, turned
from mindspore_rl.codegen.ops.views import FREE, is_view
from mindspore_rl.mindir.graph import Value

COMPARISONS = ("Less", "LessEqual", "Greater", "GreaterEqual")


@dataclass(frozen=True)
class Work:
    """The computation of a part of a cell, in one turn of the loops around it.

    Attributes:
        bounds: names of the parameters that hold the counts of the loops around it.
        launches: operators that run.
        flops: floating-point operations; two for each term of a matrix product or convolution.
        moved_bytes: bytes that operators read and write.
    """

    bounds: tuple[str, ...] = ()
    launches: float = 0.0
    flops: float = 0.0
    moved_bytes: float = 0.0


def work_of(blocks: Blocks) -> tuple[Work, ...]:
    """Sums a cell's work by the loops that contain it; both sides of a condition count.

    Work in loops with a constant bound is multiplied by that bound.
    """
    around: dict[Block, tuple[tuple[str, ...], float]] = {}
    waiting: list[tuple[Block, tuple[str, ...], float]] = [(blocks.blocks[0], (), 1.0)]
    while waiting:
        block, bounds, times = waiting.pop()
        if block in around:
            continue
        around[block] = bounds, times
        sides = [jump.target for jump in block.jumps]
        name, turns = _bound_of(block)
        if (name or turns) and len(sides) == 2:
            inner = (*bounds, name) if name else bounds
            waiting += [(sides[1], bounds, times), (sides[0], inner, times * (turns or 1))]
        else:
            waiting += [(side, bounds, times) for side in sides]
    return tuple(
        _sum(bounds, [_work(node, times) for node in block.nodes])
        for block, (bounds, times) in around.items()
        if block.nodes
    )


def _sum(bounds: tuple[str, ...], parts: list[Work]) -> Work:
    keys = ("launches", "flops", "moved_bytes")
    return Work(bounds, *(sum(getattr(part, key) for part in parts) for key in keys))


def _bound_of(block: Block) -> tuple[str, int]:
    """Returns the bound of the loop whose test a block is: a parameter's name, or a number.

    `("", 0)` if the block is no such test.
    """
    condition = block.condition
    if condition is None or condition.op not in COMPARISONS:
        return "", 0
    values = [value.args[0] if value.op == "Load" else value for value in tensors(condition)]
    if not any(value.op == "param" for value in values):
        return "", 0
    for value in values:
        if value.op == "weight":
            return value.name, 0
        if value.op == "constant" and np.size(value.data) == 1:
            return "", int(value.data)
    return "", 0


def _work(node: Value, times: float) -> Work:
    if node.op in FREE or is_view(node) or node.op in ("part", "Taken", "Load", "Custom"):
        return Work()
    read = [value for value in tensors(node) if value.type is not None]
    written = [value for value in outputs(node) if value.type is not None]
    moved = sum(value.type.nbytes for value in (*read, *written))
    size = sum(value.type.size for value in written)
    return Work((), times, times * _flops(node, size), times * moved)


def _flops(node: Value, size: int) -> float:
    if node.op in CONVOLUTIONS:
        return operations(node)
    if node.op not in PRODUCTS:
        return float(size)
    shape = node.args[0].type.shape
    return 2.0 * size * (shape[-2] if turned(node)[0] else shape[-1])
