"""Fuses element-wise nodes and updates of one size into one loop."""

from dataclasses import dataclass
from typing import Any

from mindspore_rl.codegen.cfg import Block, Unsupported
from mindspore_rl.codegen.effects import needs_of, overwritten, root_of
from mindspore_rl.codegen.index_math import chain, is_number, loop_type, splits_of, straight
from mindspore_rl.codegen.ops.elementwise import ELEMENTWISE
from mindspore_rl.codegen.ops.updates import UPDATES
from mindspore_rl.codegen.ops.views import FREE, is_view
from mindspore_rl.mindir.graph import Type, Value

MAX_STREAMS = 24
"""Limit on the arrays that a fused loop reads; more exceed a core's registers and prefetchers."""


@dataclass
class Group:
    """Nodes that are emitted together: an element-wise loop, or one call."""

    nodes: list[Value]
    splits: tuple[int, ...] = ()

    @property
    def fused(self) -> bool:
        """True if the group is an element-wise loop, False if it is a call."""
        return self.nodes[0].op in ELEMENTWISE or self.nodes[0].op in UPDATES


def grouped(block: Block) -> list[Group]:
    """Orders a block's nodes into groups; element-wise nodes of one size share a group."""
    nodes = [n for n in block.nodes if not is_view(n)]
    needs = needs_of(nodes)
    done: set[Value] = set()
    groups: list[Group] = []
    waiting = nodes
    while waiting:
        first = next(n for n in waiting if needs[n] <= done)
        group = Group([first])
        if first.op in FREE:
            first.op = "TensorMove"
        if group.fused:
            _grow(group, waiting, needs, done)
        done |= set(group.nodes)
        waiting = [n for n in waiting if n not in done]
        groups.append(group)
    return groups


def _grow(
    group: Group, waiting: list[Value], needs: dict[Value, set[Value]], done: set[Value]
) -> None:
    """Adds every element-wise node of the same size that can run in the same loop.

    A loop reads an element of what an update overwrites in the turn that writes it.
    """
    size = loop_type(group.nodes[0]).size
    members: set[Value] = set()
    streams: set[Any] = set()
    splits: set[int] = set()
    askew: set[Value] = set()
    written: set[Value] = set()
    group.nodes = []
    for node in waiting:
        if not (node.op in ELEMENTWISE and isinstance(node.type, Type) or node.op in UPDATES):
            continue
        if loop_type(node).size != size or not needs[node] <= done | members:
            continue
        args = [arg for arg in node.args if is_number(arg)]
        outside = {root_of(arg) for arg in args if arg.op != "constant"} - members
        others = {root_of(arg) for arg in args if not straight(node, arg)}
        targets = set(map(root_of, overwritten(node)))
        if others & (written | targets) or targets & askew:
            if not members:
                raise Unsupported(f"{node.op} of a part of an array, or from parts of it")
            continue
        more = set(splits)
        for arg in args:
            if arg.type is None or root_of(arg) in members and arg.type.size == size:
                continue
            if arg.type.size != 1:
                more |= splits_of(node, arg)
        if node.op == "Strided" and root_of(node.args[0]) in members:
            continue  # reads other elements than the loop's current one
        nested = chain(more, size)
        if nested is None or (members and len(streams | outside) > MAX_STREAMS):
            if not members:
                raise Unsupported(f"{node.op} of shapes that do not nest")
            continue
        splits, streams = set(nested), streams | outside
        askew |= others
        written |= targets
        members.add(node)
        group.nodes.append(node)
    group.splits = tuple(sorted(splits))
