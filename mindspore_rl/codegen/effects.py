"""Effects: which parameters nodes overwrite, and the order that must be kept."""

from mindspore_rl.codegen.cfg import Block, Unsupported, origin, tensors
from mindspore_rl.codegen.ops.views import FREE, is_view
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.primitives import PRIMITIVES

WRITES = {op: primitive.writes for op, primitive in PRIMITIVES.items() if primitive.writes}
"""Positions of the arguments that a primitive overwrites; its results, if any, are these."""
EFFECTS = {*WRITES, "Custom"}
"""Primitives that are kept, in their order, whether or not their result is used."""


def overwritten(node: Value) -> list[Value]:
    """Returns the arguments that a node overwrites."""
    return [node.args[position] for position in WRITES.get(node.op, ())]


def acts(node: Value) -> bool:
    """Returns whether a node has effects, also a primitive without a rule that has some."""
    changes = node.attrs.get("side_effect_mem") and any(v.op == "weight" for v in tensors(node))
    return node.op in EFFECTS or bool(changes)


def place_of(value: Value) -> tuple[Value, int]:
    """Returns the value whose memory holds a value's elements, and the offset of the first one."""
    offset = 0
    while True:
        if is_view(value):
            offset += value.attrs.get("offset", 0)
            value = value.args[0]
        elif value.op == "part" and origin(value).op in WRITES:
            value = overwritten(origin(value))[value.data]  # it returns the overwritten argument
        elif value.op in WRITES:
            value = overwritten(value)[0]
        else:
            return value, offset


def root_of(value: Value) -> Value:
    """Returns the value whose memory holds a value's elements."""
    return place_of(value)[0]


def check_overwritten(blocks: list[Block]) -> None:
    """Checks the arguments of in-place primitives, which return a copy in native code.

    Raises:
        Unsupported: such an argument is read elsewhere, or a constant is overwritten or loaded: a
            Parameter whose name the graph lacks.
    """
    nodes = [node for block in blocks for node in block.nodes]
    held = {root_of(node) for node in nodes if node.op == "Load"} | _overwritten_roots(blocks)
    if any(value.op == "constant" for value in held):
        raise Unsupported("a Parameter that MindSpore's graph holds as a constant")
    ends = {value for block in blocks for value in block.ends()}
    for node in nodes:
        if node.op.startswith("Inplace"):
            target = node.args[0]
            readers = sum(target in tensors(other) for other in nodes)
            if readers > 1 or target in ends or target.op in ("weight", "param"):
                raise Unsupported(f"{node.op} of what is read elsewhere")


def _overwritten_roots(blocks: list[Block]) -> set[Value]:
    return {root_of(arg) for block in blocks for node in block.nodes for arg in overwritten(node)}


def update_in_place(blocks: list[Block]) -> None:
    """Makes a loop overwrite the variable of which each turn changes some rows.

    Only that change reads the variable inside the loop, at the end of the turn.
    """
    for block in blocks:
        if len(block.jumps) != 1:
            continue
        (jump,) = block.jumps
        inside = [node for b in _loop(block, jump.target, blocks) for node in b.nodes]
        for param, new in zip(jump.target.params, jump.args, strict=True):
            if new.op != "TensorScatterUpdate" or new.args[0] is not param or new not in inside:
                continue
            readers = [node for node in inside if {param, new} & set(tensors(node))]
            if readers == [new] and jump.args.count(new) == 1 and param not in jump.args:
                new.op = "ScatterNdUpdate"


def _loop(last: Block, first: Block, blocks: list[Block]) -> set[Block]:
    """Returns the blocks that lead to the last one of a loop without its first, and both."""
    found, waiting = {first, last}, [last]
    while waiting:
        here = waiting.pop()
        before = {b for b in blocks if here is not first and here in (j.target for j in b.jumps)}
        waiting += before - found
        found |= before
    return found


def copy_stale(blocks: list[Block]) -> None:
    """Makes `Load` copy a parameter if the loaded value is used after the next write to it.

    The copies of parameters that MindSpore's graph has are such reads, too.
    """
    written = _overwritten_roots(blocks)
    for block in blocks:
        for node in block.nodes:
            if node.op == "TensorMove" and root_of(node.args[0]).op == "weight":
                node.op = "Load"
        for position, node in reversed(list(enumerate(block.nodes))):
            if node.op != "Load" or root_of(node) not in written:
                continue
            if _is_stale(node, position, block, blocks):
                node.attrs = {**node.attrs, "copied": True}


def _is_stale(node: Value, position: int, block: Block, blocks: list[Block]) -> bool:
    held = root_of(node)
    names, stale = {node}, False
    for other in block.nodes[position + 1 :]:
        if set(map(origin, tensors(other))) & names:
            if is_view(other):
                names.add(other)
            elif stale:
                return True
        if held in map(root_of, overwritten(other)):
            stale = True
    if stale and names & set(block.ends()):
        return True
    outside = (b for b in blocks if b is not block)
    return any(
        names & {*b.ends(), *(v for n in b.nodes for v in map(origin, tensors(n)))} for b in outside
    )


def needs_of(nodes: list[Value]) -> dict[Value, set[Value]]:
    """Returns the nodes that must run before each node: its operands and conflicting effects."""
    inside = set(nodes)
    needs: dict[Value, set[Value]] = {}
    wrote: dict[Value, Value] = {}
    readers: dict[Value, set[Value]] = {}
    outside: Value | None = None
    for node in nodes:
        roots = {root_of(value) for value in tensors(node)}
        targets = [root_of(arg) for arg in overwritten(node)]
        found = {origin(value) for value in roots}
        for arg in tensors(node):
            while arg.op in FREE or arg.op == "part":  # walks to the node whose result is read
                arg = arg.args[0]  # noqa: PLW2901
            found.add(arg)
        found &= inside
        found |= {wrote[value] for value in (*roots, *targets) if value in wrote}
        for target in targets:
            found |= readers.get(target, set())
        if node.op == "Custom":  # communication with other ranks keeps its order
            found |= {outside} if outside is not None else set()
            outside = node
        found.discard(node)
        needs[node] = found
        for value in roots:
            readers.setdefault(value, set()).add(node)
        for target in targets:
            wrote[target] = node
            readers[target] = set()
    return needs
