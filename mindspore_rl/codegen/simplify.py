"""Simplifies a control-flow graph: constant parameters, dead nodes, straight-line joins."""

from collections.abc import Container
from typing import Any

import numpy as np

from mindspore_rl.codegen.cfg import Block, origin, substitute, tensors
from mindspore_rl.codegen.effects import acts
from mindspore_rl.mindir.graph import Value


def key_of(value: Any) -> Any:
    """Returns a key by which constants with the same data are equal; other values unchanged."""
    if isinstance(value, Value) and value.op == "constant":
        data = value.data
        if isinstance(data, np.ndarray):
            return ("constant", data.dtype.str, data.shape, data.tobytes())
        return ("constant", repr(data))
    return value


def reached(*first: Block) -> list[Block]:
    """Returns the blocks reachable from `first`, including these."""
    found = list(first)
    for block in found:
        found += [j.target for j in block.jumps if j.target not in found]
    return list(dict.fromkeys(found))


def resolve_params(
    blocks: list[Block], incoming: dict[Value, list[Value]], known: dict[Value, Value]
) -> None:
    """Replaces each parameter that gets the same value from all jumps by that value.

    Args:
        blocks: all blocks.
        incoming: the values that jumps pass to each parameter.
        known: values that are known to equal others.
    """
    found: dict[Value, Value | None] = {p: None for b in blocks for p in b.params}
    found |= known

    def resolve(value: Value) -> Value | None:
        while value in found and found[value] is not value:
            following = found[value]
            if following is None:
                return None
            value = following
        return value

    changed = True
    while changed:
        changed = False
        for param, sources in incoming.items():
            if found[param] is param:
                continue
            values = {key_of(v): v for v in map(resolve, sources) if v not in (None, param)}
            new = next(iter(values.values())) if len(values) == 1 else (param if values else None)
            if new is not None and key_of(new) != key_of(found[param]):
                found[param] = new
                changed = True
    _keep_params(blocks, {param for param, value in found.items() if value is param})
    for block in blocks:
        substitute(block, lambda value: resolve(value) or value)


def _keep_params(blocks: list[Block], kept: Container[Value]) -> None:
    for block in blocks:
        for jump in block.jumps:
            pairs = zip(jump.target.params, jump.args, strict=True)
            jump.args = [arg for param, arg in pairs if param in kept]
    for block in blocks:
        block.params = [param for param in block.params if param in kept]


def drop_dead(blocks: list[Block]) -> None:
    """Removes nodes and parameters that neither results, conditions nor effects depend on."""
    sources: dict[Value, list[Value]] = {}
    for block in blocks:
        for jump in block.jumps:
            for param, arg in zip(jump.target.params, jump.args, strict=True):
                sources.setdefault(param, []).append(arg)
    live: set[Value] = set()
    todo = [v for b in blocks for v in ([b.condition] if b.condition else []) + (b.results or [])]
    todo += [node for block in blocks for node in block.nodes if acts(node)]
    while todo:
        value = origin(todo.pop())
        if value in live:
            continue
        live.add(value)
        todo += [*sources.get(value, []), *tensors(value)]
    for block in blocks:
        block.nodes = [node for node in block.nodes if node in live]
    _keep_params(blocks, live)


def merge(blocks: list[Block]) -> None:
    """Appends each block that has a single, unconditional predecessor to that predecessor."""
    entries: dict[Block, int] = {}
    for block in blocks:
        for jump in block.jumps:
            entries[jump.target] = entries.get(jump.target, 0) + 1
    for block in blocks:
        while len(block.jumps) == 1 and entries[block.jumps[0].target] == 1:
            following = block.jumps[0].target
            if following is block or following is blocks[0]:
                break
            if following.params:
                raise AssertionError("a parameter with one source is that source")
            block.nodes += following.nodes
            block.condition, block.jumps = following.condition, following.jumps
            block.results, following.results = following.results, None
            following.jumps, following.nodes = [], []
