"""Tiles the batch: nodes that treat rows independently run on some rows at a time.

A loss takes each row of a batch forward and backward through layers, and only then sums over the
rows. Computed layer by layer, the arrays go through main memory; in tiles of some rows they stay in
a core's cache, and tiles can run on different cores. The nodes of a block that treat rows
independently, and the sums over rows that they end in, become one `Tiles` node with a body of its
own. The tiles and the order of sums are fixed here, so results do not depend on the number of
threads.
"""

from typing import Any

import numpy as np

from mindspore_rl.codegen.cfg import Block, give_parts, origin, outputs, substitute, tensors
from mindspore_rl.codegen.effects import needs_of
from mindspore_rl.codegen.ops.batch_rules import BY_ROWS, CONVOLUTIONS, SUM, has_rows, rule_of
from mindspore_rl.codegen.ops.convolution import operations
from mindspore_rl.codegen.ops.elementwise import ELEMENTWISE
from mindspore_rl.codegen.ops.matmul import PANEL, PRODUCTS, SQUARE, turned
from mindspore_rl.codegen.ops.updates import UPDATES
from mindspore_rl.codegen.ops.views import extent_of, is_view
from mindspore_rl.mindir.graph import Type, Value
from mindspore_rl.mindir.primitives import PRIMITIVES
from mindspore_rl.platform import toolchain

MAX_ROWS = 64
"""Limit on the rows of a tile: their arrays in some layers fit into a core's cache."""
MAX_BYTES = 8 << 20
"""Limit on an array of a tile's rows: images fit into a core's share of the last cache."""
MAX_PARTS = toolchain.MAX_THREADS
"""Limit on the partial sums of a batch, and so on the cores that can share it."""
MIN_PANELS = 32_768
"""Fewest numbers of a weight whose columns are stored in panels.

The rows of a smaller one stay in a core's second cache.
"""
MIN_COPIED = 131_072
"""The same of one that is not transposed, with short rows: a smaller one is read where it is."""
MAX_PACKED_BYTES = 256 << 10
"""Limit on the weights that each core packs for itself, which stay in its second cache."""
SORTS = tuple(op for op, primitive in PRIMITIVES.items() if primitive.kernel == "sort")
VECTOR = 16
"""Numbers of the widest vector."""
MIN_ROWS = 16
"""Fewest rows of a product's part."""
MIN_ELEMENTS = 10_000
"""Fewest elements that an optimiser's step or a sort shares among cores."""
MIN_LOOP = 100_000
"""The same of another loop, which takes less time for fewer than its data take between cores."""
MIN_WORK = 2_000_000
"""Arithmetic operations below which tiles and several cores do not pay.

They take as long as cores need to exchange some hundred kilobytes.
"""


def tile(block: Block, blocks: list[Block]) -> None:
    """Replaces nodes of a block by `Tiles` nodes where that pays.

    Args:
        block: the block to change.
        blocks: all blocks of the cell, which may use the results of the nodes.
    """
    while True:
        nodes = [n for n in block.nodes if not is_view(n)]
        needed = needs_of(nodes)
        found = [_Segment(nodes, needed, batch) for batch in _batches(nodes)]
        best = max(found, key=lambda segment: segment.work, default=None)
        if best is None or best.work < max(MIN_WORK, 1):
            break
        _outline(best, block, blocks)
    _share(block)


def _share(block: Block) -> None:
    """Marks the nodes that threads compute in parts: large products, loops over many elements."""
    for node in block.nodes:
        if node.op in PRODUCTS and len(node.type.shape) == 2 and _work(node) >= MIN_WORK:
            node.attrs["in parts"] = max(min(MAX_PARTS, node.type.shape[0] // MIN_ROWS), 1)
        loop = node.args[0] if node.op in UPDATES else node
        least = MIN_LOOP if node.op in ELEMENTWISE else MIN_ELEMENTS
        shared = node.op in ELEMENTWISE or node.op in (*UPDATES, "Turned", "Panels")
        if shared and isinstance(loop.type, Type) and loop.type.size >= least:
            pieces = MAX_PARTS
            if node.op in ("Turned", "Panels"):  # the parts in which the weight is updated
                rows = node.args[0].type.shape[0]
                unit = PANEL if node.op == "Panels" and node.attrs["turned"] else SQUARE
                pieces = rows // unit if rows % unit == 0 else 1
            node.attrs["in parts"] = _pieces(pieces)
        if node.op in SORTS and node.args[0].type.size >= MIN_ELEMENTS:
            node.attrs["in parts"] = _pieces(extent_of(node.args[0].type.shape[:-1]))


def _pieces(count: int) -> int:
    """Returns the largest number of parts into which `count` divides evenly."""
    return max(parts for parts in range(1, MAX_PARTS + 1) if count % parts == 0)


def _batches(nodes: list[Value]) -> list[int]:
    """Returns the batch sizes of matrix products and convolutions, in order."""
    sizes = {n.args[0].type.shape[0] for n in nodes if n.op in PRODUCTS + CONVOLUTIONS}
    return sorted(size for size in sizes if size >= 2 * MAX_ROWS // 4)


def _rows_of(nodes: list[Value], batch: int) -> set[Value]:
    """Finds the values whose rows are those of the batch.

    They are the row operands of products and all values connected to them row by row. The number of
    rows is not enough: the weights of a layer as wide as the batch have as many rows.
    """
    group: dict[Value, set[Value]] = {}
    found: set[Value] = set()
    for node in nodes:
        args, rule = tensors(node), rule_of(node)
        treated = rule(node, args, batch) if rule else None
        if treated is None:
            continue
        kinds, sliced = treated
        pairs = zip(map(_base, args), sliced, strict=True)
        rows = [base for base, by_rows in pairs if by_rows and base.op != "constant"]
        rows += [v for v, kind in zip(outputs(node), kinds, strict=True) if kind == BY_ROWS]
        joined = set(rows).union(*(group.get(value, ()) for value in rows))
        group |= dict.fromkeys(joined, joined)
        if node.op in PRODUCTS + CONVOLUTIONS:
            found.update(rows[:1])
    return set().union(*(group[value] for value in found))


class _Segment:
    """The nodes of a block that treat batch rows independently and can run as one `Tiles` node.

    Attributes:
        kinds: the kind of each value that they compute, `BY_ROWS` or `SUM`.
        sliced: for each node, whether each of its tensors is passed by tiles.
        before: other nodes that run before them.
        after: other nodes that run after them.
        size: batch rows of a tile; 0 if the batch cannot be tiled.
        work: arithmetic operations; 0 if the batch cannot be tiled.
    """

    def __init__(self, nodes: list[Value], needs: dict[Value, set[Value]], batch: int) -> None:
        self.batch, self._rows = batch, _rows_of(nodes, batch)
        self.kinds: dict[Value, str] = {}
        self.sliced: dict[Value, list[bool]] = {}
        self.before: list[Value] = []
        self.after: list[Value] = []
        late: set[Value] = set()
        for node in nodes:
            args = tensors(node)
            bases = [_base(arg) for arg in args]
            kinds = None
            if not (needs[node] & late or any(self.kinds.get(b) == SUM for b in bases)):
                kinds = self._kinds(node, args, bases)
            if kinds is not None:
                self.kinds |= dict(zip(outputs(node), kinds, strict=True))
            elif needs[node] & late or any(b in self.kinds for b in bases):
                late.add(node)
                self.after.append(node)
            else:
                self.before.append(node)
        self.nodes = [n for n in nodes if n in self.sliced]
        by_rows = [v.type for v, kind in self.kinds.items() if kind == BY_ROWS]
        most = max((found.shape[0] for found in by_rows), default=batch) // batch
        largest = max((found.nbytes for found in by_rows), default=0) / batch
        fitting = max(min(MAX_ROWS // most, int(MAX_BYTES // max(largest, 1))), 1)
        sizes = [s for s in range(1, min(fitting, batch // 2) + 1) if batch % s == 0]
        self.size = max(sizes, default=0)
        fewest = min(MAX_ROWS // 4, fitting * most)
        self.work = sum(map(_work, self.nodes)) if self.size * most >= fewest else 0

    def _kinds(self, node: Value, args: list[Value], bases: list[Value]) -> list[str] | None:
        """Returns the kinds of a node's results; None unless it treats rows independently."""
        rule = rule_of(node)
        found = rule(node, args, self.batch) if rule else None
        if found is None:
            return None
        kinds, sliced = found
        for value, kind in zip(outputs(node), kinds, strict=True):
            if kind == BY_ROWS and not (value in self._rows and has_rows(value, self.batch)):
                return None
        for arg, base, by_rows in zip(args, bases, sliced, strict=True):
            if by_rows and not has_rows(arg, self.batch):
                return None
            if base in self.kinds and not (by_rows and _aligned(arg)):
                return None
        self.sliced[node] = sliced
        return kinds


def _outline(segment: _Segment, block: Block, blocks: list[Block]) -> None:
    """Moves a segment's nodes out of a block into a `Tiles` node."""
    body = _Body(segment)
    used = _used(blocks, set(segment.nodes))
    rows, sums = (
        [v for v, kind in segment.kinds.items() if v in used and kind == wanted]
        for wanted in (BY_ROWS, SUM)
    )
    node = body.node(rows, sums)
    new = dict(zip((*rows, *sums), node.attrs["parts"], strict=True))
    views = [n for n in block.nodes if is_view(n)]
    packed = node.attrs["packed"].values()
    turned = [value for value in body.turned.values() if value not in packed]
    block.nodes = [*segment.before, *turned, node, *segment.after, *views]
    for other in blocks:
        substitute(other, lambda value: new.get(value, value))
    gone = set(segment.kinds) - set(new)
    for other in blocks:
        other.nodes = [n for n in other.nodes if not (is_view(n) and _base(n) in gone)]


class _Body:
    """A copy of a segment's nodes for one tile.

    Attributes:
        turned: by weight and form, the weights that are rearranged once for all tiles.
    """

    def __init__(self, segment: _Segment) -> None:
        self.segment = segment
        self.turned: dict[tuple[Value, str, bool], Value] = {}
        self._made: dict[Value, Value] = {}
        self._given: dict[tuple[Value, bool], Value] = {}
        for node in segment.nodes:
            self._add(node)

    def _add(self, node: Value) -> None:
        sliced = iter(self.segment.sliced[node])

        def copied(arg: Any) -> Any:
            if isinstance(arg, tuple):
                return tuple(copied(part) for part in arg)
            return None if arg is None else self._taken(arg, next(sliced))

        attrs, args = dict(node.attrs), [copied(arg) for arg in node.args]
        made = None
        if node.op == "MatMul" and self.segment.sliced[node][:2] == [True, False]:
            made = _arranged(node)
        if made is not None:
            made = self.turned.setdefault((node.args[1], made.op, turned(node)[1]), made)
            args[1] = self._taken(made, False)
            attrs |= {"transpose_b": False, "panels": made.op == "Panels"}
            attrs["columns"] = made.attrs.get("columns")
        outs, kinds = outputs(node), self.segment.kinds
        types = tuple(self._shrunk(v.type) if kinds[v] == BY_ROWS else v.type for v in outs)
        copy = Value(node.op, node.name, args, attrs, types[0], None, node.scope)
        if isinstance(node.type, tuple):
            give_parts(copy, types, [v.name for v in outs])
            self._made |= dict(zip(outs, copy.attrs["parts"], strict=True))
        self._made[node] = copy

    def _taken(self, arg: Value, by_rows: bool) -> Value:
        """Returns the value that replaces an argument in the body."""
        if arg in self._made:
            return self._made[arg]
        if _base(arg) in self.segment.kinds:  # a view of a value made in the body
            args = [self._taken(arg.args[0], True), *arg.args[1:]]
            found = self._shrunk(arg.type)
            self._made[arg] = Value(arg.op, arg.name, args, arg.attrs, found, None, arg.scope)
            return self._made[arg]
        if not by_rows and (arg.op == "constant" or arg.type is None):
            return arg
        if (arg, by_rows) not in self._given:
            found = self._shrunk(arg.type) if by_rows else arg.type
            self._given[arg, by_rows] = Value("argument", arg.name, type=found)
        return self._given[arg, by_rows]

    def _shrunk(self, found: Type) -> Type:
        """Returns the type of a tile's rows of a value."""
        first = found.shape[0] // self.segment.batch * self.segment.size
        return Type((first, *found.shape[1:]), found.dtype)

    def node(self, rows: list[Value], sums: list[Value]) -> Value:
        """Makes the `Tiles` node, whose results are the segment's values used elsewhere."""
        results, inner = [*rows, *sums], set(self.segment.nodes)
        nodes = [new for old, new in self._made.items() if old in inner or is_view(new)]
        count = self.segment.batch // self.segment.size
        parts = min(count, MAX_PARTS)
        packed = self._packed()
        for weight in packed:
            weight.attrs["of a core"] = True
        args = [arg.args[0] if arg in packed else arg for arg, _ in self._given]
        node = Value("Tiles", f"tiles of {self.segment.size}", args)
        node.attrs = {
            "packed": {i: arg for i, (arg, _) in enumerate(self._given) if arg in packed},
            "body": Block("tile", nodes=nodes, results=[self._made[v] for v in results]),
            "given": list(self._given.values()),
            "moves": [by_rows for _, by_rows in self._given],
            "count": count,
            "at once": parts,
            "meet": parts in (4, 8) and bool(sums),
            "rows": len(rows),
            "divisors": [count if "Mean" in origin(v).op else 1 for v in sums],
        }
        give_parts(node, tuple(v.type for v in results), [v.name for v in results])
        return node

    def _packed(self) -> list[Value]:
        """Returns the arranged weights that are small enough for each core to make its own.

        They are not sent from core to core as they are, and nobody waits for another's.
        """
        found, size = list[Value](), 0
        for value in self.turned.values():
            if size + value.type.nbytes <= MAX_PACKED_BYTES:
                found.append(value)
                size += value.type.nbytes
        return found


def _used(blocks: list[Block], inside: set[Value]) -> set[Value]:
    """Returns the values that are used by nodes or block ends other than `inside`."""
    found: set[Value] = set()
    for block in blocks:
        for node in block.nodes:
            if node not in inside and not is_view(node):
                found |= {_base(arg) for arg in tensors(node)}
        found |= {_base(value) for value in block.ends() if value is not None}
    return found


def _base(value: Value) -> Value:
    while is_view(value):
        value = value.args[0]
    return value


def _aligned(value: Value) -> bool:
    """Returns whether a view covers its base from the first element to the last."""
    while is_view(value):
        if value.attrs.get("offset") or value.type.size != value.args[0].type.size:
            return False
        value = value.args[0]
    return True


def _arranged(product: Value) -> Value | None:
    """Makes a weight in the form in which a product reads it fastest; None for the form it has.

    The columns of large ones lie in panels; the rows of small ones become rows of whole vectors.
    """
    weight, (turned_a, turns) = product.args[1], turned(product)
    if turned_a or weight.op == "constant":
        return None
    rows, columns = weight.type.shape[::-1] if turns else weight.type.shape
    found = Type((rows, columns), weight.type.dtype)
    wide = turns or columns > 4 * PANEL or found.size >= MIN_COPIED
    if wide and found.size >= MIN_PANELS and columns > PANEL and columns % PANEL == 0:
        return Value("Panels", weight.name, [weight], {"turned": turns}, found)
    if columns >= VECTOR and (turns or columns % VECTOR):
        found = Type((rows, -(-columns // VECTOR) * VECTOR), weight.type.dtype)
        attrs = {"turned": turns, "columns": columns}
        return Value("Turned", weight.name, [weight], attrs, found)
    return None


def _work(node: Value) -> float:
    size = sum(v.type.size for v in outputs(node))
    if node.op in PRODUCTS:
        one, other = (a.type.size for a in node.args[:2])
        return 2.0 * float(np.sqrt(float(one) * other * size))
    if node.op in CONVOLUTIONS:
        return operations(node)
    return 4.0 * size
