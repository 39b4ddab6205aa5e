"""Plans the memory area of a cell: a place for every value that outlives its loop.

Values that several blocks use have places of their own. Values that one block uses share places by
liveness.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from mindspore_rl.codegen.cfg import Block, origin, outputs, tensors
from mindspore_rl.codegen.effects import WRITES, root_of
from mindspore_rl.codegen.fusion import Group
from mindspore_rl.mindir.graph import Type, Value

ALIGNED = 64


def aligned(count: int) -> int:
    """Rounds a number of bytes up to a multiple of `ALIGNED`."""
    return -(-count // ALIGNED) * ALIGNED


@dataclass
class Memory:
    """Byte offsets of values in the memory area, and its size."""

    offsets: dict[Value, int] = field(default_factory=dict)
    end: int = 0


def lay_out(groups: dict[Block, list[Group]], given: Collection[Value]) -> Memory:
    """Plans places for the values that blocks compute, except those in `given`."""
    users: dict[Value, set[Block]] = {}
    for block in groups:
        for value in [v for n in block.nodes for v in tensors(n)] + block.ends():
            if value is not None:
                users.setdefault(root_of(value), set()).add(block)
    home = {n: b for b in groups for n in b.nodes}
    lasting: list[Value] = [p for block in groups for p in block.params]
    for root, blocks in users.items():
        if origin(root) in home and blocks != {home[origin(root)]}:
            lasting.append(root)
    memory = Memory()
    for value in dict.fromkeys(lasting):
        memory.offsets[value] = memory.end
        memory.end += _room(value.type)
    shared = memory.end
    for block, found in groups.items():
        memory.end = max(memory.end, _lay_out_block(block, found, given, memory.offsets, shared))
    return memory


def _lay_out_block(
    block: Block,
    groups: list[Group],
    given: Collection[Value],
    offsets: dict[Value, int],
    start: int,
) -> int:
    """Plans places for values that only one block uses. Returns: the end of the places."""
    last = _last_uses(block, groups)
    area = _Area(start)
    ending: dict[int, list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        for node in group.nodes:
            for out in outputs(node):
                if out in offsets or out in given or node.op in WRITES:
                    continue
                if group.fused and out not in last:
                    continue  # dead after the loop
                size = _room(out.type)
                offsets[out] = area.take(size)
                ending.setdefault(last.get(out, number), []).append((offsets[out], size))
        area.give_back(ending.pop(number, []))
    return area.end


def _last_uses(block: Block, groups: list[Group]) -> dict[Value, int]:
    """Returns, for each value read outside the loop that makes it, its last reading group."""
    last: dict[Value, int] = {}
    for number, group in enumerate(groups):
        inside = set(group.nodes) if group.fused else set()
        read = {root_of(value) for node in group.nodes for value in tensors(node)}
        last |= dict.fromkeys(read - inside, number)
    return last | dict.fromkeys(map(root_of, block.ends()), len(groups))


class _Area:
    """A first-fit allocator of bytes from an offset on."""

    def __init__(self, start: int) -> None:
        self.end = start
        self._free: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        """Allocates a number of bytes. Returns: their offset."""
        spot = next((f for f in self._free if f[1] >= size), None)
        if spot is None:
            at, self.end = self.end, self.end + size
            return at
        self._free.remove(spot)
        at, room = spot
        if room > size:
            self._free.append((at + size, room - size))
        return at

    def give_back(self, spots: list[tuple[int, int]]) -> None:
        """Frees places, given as (offset, size), and joins neighbouring free places."""
        joined: list[tuple[int, int]] = []
        for at, size in sorted(self._free + spots):
            if joined and sum(joined[-1]) == at:
                joined[-1] = joined[-1][0], joined[-1][1] + size
            else:
                joined.append((at, size))
        self._free = joined


def _room(found: Type) -> int:
    return aligned(max(found.nbytes, 1))
