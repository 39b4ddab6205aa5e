"""Regions: the largest parts of a fragment that compile to one MindSpore cell each.

A run of neighbouring items becomes a cell if all of them have a graph implementation and at least
one computes something. A buffer belongs to the cell that contains the loop which fills it, else to
Python.
"""

from dataclasses import replace
from typing import Any

from mindspore_rl.compiler.ir.dataflow import definitions, exposed
from mindspore_rl.compiler.ir.ir import (
    REGIONS,
    Branch,
    Item,
    Loop,
    Lowered,
    Op,
    Region,
    paths,
    walk,
)
from mindspore_rl.compiler.ir.operations import OPERATIONS
from mindspore_rl.compiler.lowering.project import Projection
from mindspore_rl.platform.names import unused


def find_regions(projection: Projection, in_graph: bool) -> tuple[Lowered, ...]:
    """Groups a fragment's items into regions. Returns: the items, with regions in their place."""
    for replay_in_cell in (True, False):
        finder = _Finder(projection, in_graph, replay_in_cell)
        body = finder.group(projection.body, inside_loop=False)
        if not replay_in_cell or _replay_in_one_region(body):
            return body
    raise AssertionError


class _Finder:
    def __init__(self, projection: Projection, in_graph: bool, replay_in_cell: bool) -> None:
        self.projection = projection
        self.in_graph, self.replay_in_cell = in_graph, replay_in_cell
        steps = "environment" in projection.fragment.components
        self.kept_in_cell = replay_in_cell and in_graph and steps
        self.uses = definitions(projection.body)
        self.names: set[str] = set()

    def group(self, items: tuple[Item, ...], inside_loop: bool) -> tuple[Lowered, ...]:
        """Replaces the runs of items that compile, also inside loops and branches that do not."""
        result: list[Lowered] = []
        run: list[Item] = []

        def close() -> None:
            result.extend(self._close(run))
            run.clear()

        for item in items:
            if self._compiles(item, not inside_loop):
                run.append(item)
                continue
            close()
            if isinstance(item, Loop):
                python_loop = inside_loop or item.kind != "iterations"
                grouped: Any = self.group(item.body, python_loop)
                result.append(replace(item, body=grouped))
            elif isinstance(item, Branch):
                sides: Any = [self.group(side, inside_loop) for side in (item.body, item.orelse)]
                result.append(replace(item, body=sides[0], orelse=sides[1]))
            else:
                result.append(item)
        close()
        return tuple(result)

    def _compiles(self, item: Item, whole_loop: bool) -> bool:
        if isinstance(item, Loop):
            return item.kind != "iterations" and all(self._compiles(i, True) for i in item.body)
        if isinstance(item, Branch):
            return all(self._compiles(i, whole_loop) for i in item.body + item.orelse)
        match OPERATIONS[item.kind].cell:
            case "rows":
                return whole_loop
            case "replay":
                return whole_loop and self.replay_in_cell
            case "kept":
                return whole_loop and self.kept_in_cell and item.attr["compiles"]
            case "environment":
                return self.in_graph
            case cell:
                return cell != ""

    def _close(self, run: list[Item]) -> list[Lowered]:
        run = self._rows_first(run)
        start, end = 0, len(run)
        while start < end and _is_edge(run[start]):
            start += 1
        while end > start and _is_edge(run[end - 1]):
            end -= 1
        middle = tuple(run[start:end])
        reasons = ("computes", "environment")
        if not any(
            OPERATIONS[op.kind].cell in reasons and not _is_unpacking(op) for op, _ in walk(middle)
        ):
            return list(run)
        region = self._region(middle)
        return [*run[:start], region, *run[end:]]

    def _rows_first(self, run: list[Item]) -> list[Item]:
        """Moves the indexing of tables made outside the run to its front, where it is a view."""
        made = {t for op, _ in walk(tuple(run)) for t in op.targets}
        first = [
            i for i in run if isinstance(i, Op) and i.kind == "index" and not set(i.reads) & made
        ]
        return first + [i for i in run if i not in first]

    def _region(self, items: tuple[Item, ...]) -> Region:
        inside = {op.name: op for op, _ in walk(items)}
        branches = {item.name for item, _ in paths(items) if isinstance(item, Branch)}
        inputs = exposed(items)
        escaping = []
        for op in inside.values():
            for target in op.targets:
                outside = any(
                    op.name in definers.get(target, ())
                    for reader, definers in self.uses.items()
                    if reader not in inside and reader not in branches
                )
                if (outside or target in inputs) and target not in escaping:
                    escaping.append(target)
        buffers = {op.targets[0] for op in inside.values() if op.kind == "stack"}
        inputs = exposed(items, tuple(name for name in escaping if name not in buffers))
        return Region(self._name(inside), items, inputs, tuple(escaping))

    def _name(self, inside: dict[str, Op]) -> str:
        kinds = {op.kind for op in inside.values()}
        name = next(found for found, needs in REGIONS.items() if needs <= kinds)
        return unused(name, self.names)


def _replay_in_one_region(body: tuple[Lowered, ...]) -> bool:
    """Returns whether all operations on each replay are in one cell, or all in no cell."""
    holders: dict[str | None, str] = {}
    for item, _ in paths(body):
        inside = item.items if isinstance(item, Region) else (item,) * isinstance(item, Op)
        holder = item.name if isinstance(item, Region) else ""
        for op, _ in walk(inside):
            if op.kind.startswith("replay_") and holders.setdefault(op.replay, holder) != holder:
                return False
    return True


def _is_edge(item: Item) -> bool:
    return isinstance(item, Op) and (OPERATIONS[item.kind].cell == "trims" or _is_unpacking(item))


def _is_unpacking(op: Op) -> bool:
    return op.kind == "glue" and op.args[0].isidentifier()


def regions_of(body: tuple[Lowered, ...]) -> list[Region]:
    """Returns the regions of a fragment, or of a loop in it, in order."""
    return [item for item, _ in paths(body) if isinstance(item, Region)]


def read_outside(items: tuple[Item, ...], part: tuple[Item, ...]) -> set[str]:
    """Returns the variables that are read by the items of a program outside `part`."""
    inside = {item.name for item, _ in paths(part)}
    others = [i for i, _ in paths(items) if not isinstance(i, Loop) and i.name not in inside]
    return {name for item in others for name in item.reads}
