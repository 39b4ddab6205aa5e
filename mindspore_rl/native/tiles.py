"""Tiles of the batch: what treats rows apart runs on some rows after the other.

A loss takes each row of a batch through layers and back, and only then sums over the rows. Written
layer by layer, such arrays go to memory and come back; by tiles of some rows they stay in a core's
cache, and tiles can go to different cores. The nodes of a block that treat rows apart, and the sums
over rows that they end in, become one node `Tiles` with a body of its own. Which rows are together,
and the order of sums, are fixed here: results do not depend on the number of threads.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mindspore_rl.native.blocks import Block, origin, outputs, substitute, tensors
from mindspore_rl.native.effects import needs_of
from mindspore_rl.native.program import Type, Value
from mindspore_rl.native.rows.elementwise import BY_CHANNEL, ELEMENTWISE
from mindspore_rl.native.rows.products import turned
from mindspore_rl.native.rows.reductions import reduced_axes
from mindspore_rl.native.rows.views import axes_of, constant, is_view, option

MOST_ROWS = 64
"""Of a tile: what some layers make of them fits a core's cache."""
MOST_PARTS = 8
"""Sums that are made apart; as many cores can share a batch."""
LEAST_WORK, LEAST_SHARED = 2_000_000, 20_000_000
"""Operations on numbers, below which tiles are not worth it, and several cores: to wake one takes
as long as a million of them."""

ROWS, SUM = "rows", "sum"


def tile(block: Block, blocks: list[Block]) -> None:
    """Puts `Tiles` in place of a block's nodes where it is worth it.

    Args:
        block: whose nodes change.
        blocks: all of the cell, which may use what the nodes give.
    """
    while True:
        nodes = [n for n in block.nodes if not is_view(n)]
        needed = needs_of(nodes)
        found = [_Segment(nodes, needed, batch) for batch in _batches(nodes)]
        best = max(found, key=lambda segment: segment.work, default=None)
        if best is None or best.work < LEAST_WORK:
            return
        best.outline(block, blocks)


def _batches(nodes: list[Value]) -> list[int]:
    """Numbers of rows that products have."""
    sizes = {n.args[0].type.shape[0] for n in nodes if n.op in _PRODUCTS + _CONVOLUTIONS}
    return sorted(size for size in sizes if size >= 2 * MOST_ROWS // 4)


def _rows(value: Value, batch: int) -> bool:
    found = value.type
    return (
        isinstance(found, Type)
        and bool(found.shape)
        and found.size > 0
        and (found.shape[0] % batch == 0)
    )


class _Segment:
    """The nodes of a block that treat the rows of a batch apart, in so far as they can run at once.

    Attributes:
        kinds: of each value that they give, `ROWS` or `SUM`.
        work: operations on numbers; 0 where the batch has no tiles.
    """

    def __init__(self, nodes: list[Value], needs: dict[Value, set[Value]], batch: int) -> None:
        self.batch = batch
        self.kinds: dict[Value, str] = {}
        self.sliced: dict[Value, list[bool]] = {}  # of a node's tensors, whether by tiles
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
        most = max(
            (v.type.shape[0] // batch for v, kind in self.kinds.items() if kind == ROWS), default=1
        )
        largest = min(MOST_ROWS // most, batch // 2)
        sizes = [s for s in range(1, largest + 1) if batch % s == 0]
        self.size = max(sizes, default=0)
        self.work = sum(map(_work, self.nodes)) if self.size * most >= MOST_ROWS // 4 else 0

    def _kinds(self, node: Value, args: list[Value], bases: list[Value]) -> list[str] | None:
        """Kinds of a node's results, if it treats rows apart."""
        rule = _RULES.get(node.op) or (_elementwise if node.op in ELEMENTWISE else None)
        found = rule(node, args, self.batch) if rule else None
        if found is None:
            return None
        kinds, sliced = found
        for value, kind in zip(outputs(node), kinds, strict=True):
            if kind == ROWS and not _rows(value, self.batch):
                return None
        for arg, base, by_rows in zip(args, bases, sliced, strict=True):
            if by_rows and not _rows(arg, self.batch):
                return None
            if base in self.kinds and not (by_rows and _aligned(arg)):
                return None
        self.sliced[node] = sliced
        return kinds

    # ---- a body of its own -------------------------------------------------------------------

    def outline(self, block: Block, blocks: list[Block]) -> None:
        """Moves the nodes into a `Tiles` node."""
        inside = set(self.kinds)
        given: dict[tuple[Value, bool], Value] = {}
        made: dict[Value, Value] = {}
        turned_weights: dict[Value, Value] = {}

        def shrunk(found: Any) -> Any:
            if isinstance(found, tuple):
                return tuple(map(shrunk, found))
            first = found.shape[0] // self.batch * self.size
            return Type((first, *found.shape[1:]), found.dtype)

        def taken(arg: Value, by_rows: bool) -> Value:
            if arg in made:
                return made[arg]
            if _base(arg) in inside:  # a view of a value made in the body
                made[arg] = Value(
                    arg.op, arg.name, [taken(arg.args[0], True), *arg.args[1:]], arg.attrs,
                    shrunk(arg.type), None, arg.scope,
                )  # fmt: skip
                return made[arg]
            if not by_rows and (arg.op == "constant" or arg.type is None):
                return arg
            key = arg, by_rows
            if key not in given:
                kind = shrunk(arg.type) if by_rows else arg.type
                given[key] = Value("argument", arg.name, type=kind)
            return given[key]

        for node in self.nodes:
            sliced = iter(self.sliced[node])

            def copied(arg: Any, sliced: Any = sliced) -> Any:
                if isinstance(arg, tuple):
                    return tuple(copied(part) for part in arg)
                if arg is None:
                    return None
                return taken(arg, next(sliced))

            attrs = dict(node.attrs)
            args = [copied(arg) for arg in node.args]
            if node.op == "MatMul" and turned(node) == (False, True) and _whole(node.args[1]):
                weight = node.args[1]
                if weight not in turned_weights:
                    turned_weights[weight] = _turned(weight)
                args[1] = taken(turned_weights[weight], False)
                attrs["transpose_b"] = False
            outs = outputs(node)
            types = tuple(shrunk(v.type) if self.kinds[v] == ROWS else v.type for v in outs)
            clone = Value(node.op, node.name, args, attrs, None, None, node.scope)
            if isinstance(node.type, tuple):
                clone.type = types
                clone.attrs["parts"] = parts = tuple(
                    Value("part", v.name, [clone], type=t, data=i)
                    for i, (v, t) in enumerate(zip(outs, types, strict=True))
                )
                made |= dict(zip(outs, parts, strict=True))
            else:
                clone.type = types[0]
            made[node] = clone

        used = _used(blocks, set(self.nodes))
        rows = [v for v, kind in self.kinds.items() if v in used and kind == ROWS]
        sums = [v for v, kind in self.kinds.items() if v in used and kind == SUM]
        body = Block("tile", nodes=_with_views(made, self.nodes), results=[])
        body.results = [made[v] for v in (*rows, *sums)]
        count = self.batch // self.size
        node = Value("Tiles", f"tiles of {self.size}", [arg for arg, _ in given])
        node.attrs = {
            "body": body,
            "given": list(given.values()),
            "moves": [by_rows for _, by_rows in given],
            "count": count,
            "at once": min(count, MOST_PARTS) if self.work >= LEAST_SHARED else 1,
            "rows": len(rows),
            "divisors": [count if "Mean" in origin(v).op else 1 for v in sums],
        }
        node.type = tuple(v.type for v in (*rows, *sums))
        node.attrs["parts"] = tuple(
            Value("part", v.name, [node], type=v.type, data=i) for i, v in enumerate((*rows, *sums))
        )
        new = dict(zip((*rows, *sums), node.attrs["parts"], strict=True))
        views = [n for n in block.nodes if is_view(n)]
        block.nodes = [*self.before, *turned_weights.values(), node, *self.after, *views]
        for other in blocks:
            substitute(other, lambda value: new.get(value, value))
        gone = inside - set(new)
        for other in blocks:
            other.nodes = [n for n in other.nodes if not (is_view(n) and _base(n) in gone)]


def _with_views(made: dict[Value, Value], nodes: list[Value]) -> list[Value]:
    """The body's nodes, views among them."""
    inner = set(nodes)
    return [new for old, new in made.items() if old in inner or is_view(new)]


def _used(blocks: list[Block], inside: set[Value]) -> set[Value]:
    """What others than some nodes use of them."""
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
    """Whether a view has its base's rows where they are."""
    while is_view(value):
        if value.attrs.get("offset") or value.type.size != value.args[0].type.size:
            return False
        value = value.args[0]
    return True


def _whole(weight: Value) -> bool:
    """Whether a matrix is worth turning once: the products take whole vectors of its columns."""
    rows, columns = weight.type.shape
    return rows % 16 == 0 and weight.op != "constant"


def _turned(weight: Value) -> Value:
    rows, columns = weight.type.shape
    return Value("Turned", weight.name, [weight], type=Type((columns, rows), weight.type.dtype))


def _work(node: Value) -> float:
    size = sum(v.type.size for v in outputs(node))
    if node.op in _PRODUCTS:
        one, other = (a.type.size for a in node.args[:2])
        return 2.0 * float(np.sqrt(float(one) * other * size))
    if node.op in _CONVOLUTIONS:
        return 100.0 * size
    return 4.0 * size


# ---- how each primitive treats rows: kinds of its results, and which arguments go by rows --------

_Rule = tuple[list[str], list[bool]] | None
_PRODUCTS = ("MatMul", "MatMulExt", "BatchMatMul", "BatchMatMulExt", "Mm", "Dense")
_CONVOLUTIONS = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput")


def _elementwise(node: Value, args: list[Value], batch: int) -> _Rule:
    if not _rows(node, batch):
        return None
    shape, sliced = node.type.shape, []
    bias = node.op in BY_CHANNEL and len(shape) > 1
    for position, arg in enumerate(args):
        own = arg.type.shape if isinstance(arg.type, Type) else ()
        if node.op == "Strided":
            sliced.append(True)
            if not _strided_by_rows(node, arg):
                return None
        elif not isinstance(arg.type, Type) or arg.type.size == 1 or bias and position == 1:
            sliced.append(False)
        elif arg.type.size == node.type.size or len(own) == len(shape) and own[0] == shape[0]:
            sliced.append(True)
        elif len(own) < len(shape) or own[0] == 1:
            sliced.append(False)
        else:
            return None
    return [ROWS], sliced


def _strided_by_rows(node: Value, arg: Value) -> bool:
    """Whether every row is made from the same row of the argument."""
    shape, strides = node.type.shape, node.attrs["strides"]
    offset = node.attrs["offset"]
    inner = zip(shape[1:], strides[1:], strict=True)
    last = offset + sum((extent - 1) * stride for extent, stride in inner)
    row = strides[0]
    return row * shape[0] == arg.type.size and offset >= 0 and min(strides) >= 0 and last < row


def _product(node: Value, args: list[Value], batch: int) -> _Rule:
    one, other = args[:2]
    turned_one, turned_other = turned(node)
    rest = [False] * (len(args) - 2)
    ranks = len(one.type.shape), len(other.type.shape)
    if ranks[0] > 1 and ranks[1] == 2 and not turned_one:
        return [ROWS], [True, False, *rest]
    if ranks == (2, 2) and not turned_other and one.type.shape[0] == other.type.shape[0]:
        return [SUM], [True, True, *rest]
    if min(ranks) > 2 and ranks[0] == ranks[1]:
        return [ROWS], [True, True, *rest]
    return None


def _sum(node: Value, args: list[Value], batch: int) -> _Rule:
    sliced = [i == 0 for i in range(len(args))]
    return [SUM if 0 in reduced_axes(node) else ROWS], sliced


def _along(axis_at: int, default: int = -1) -> Callable[[Value, list[Value], int], _Rule]:
    """For what works along an axis other than the first."""

    def rule(node: Value, args: list[Value], batch: int) -> _Rule:
        axes = axes_of(option(node, "axis", axis_at, default))
        first = outputs(node)[0].type
        if not axes or axes[0] % max(len(first.shape), 1) == 0:
            return None
        sliced = [isinstance(arg.type, Type) and arg.type.size > 1 for arg in args]
        return [ROWS] * len(outputs(node)), sliced

    return rule


def _gather(node: Value, args: list[Value], batch: int) -> _Rule:
    if constant(node, 2) != 0 or constant(node, 3, 0):
        return None
    return [ROWS], [i == 1 for i in range(len(args))]


def _these(kinds: Iterable[str], *sliced: int) -> Callable[[Value, list[Value], int], _Rule]:
    kinds = list(kinds)

    def rule(node: Value, args: list[Value], batch: int) -> _Rule:
        return list(kinds), [i in sliced for i in range(len(args))]

    return rule


_RULES: dict[str, Callable[[Value, list[Value], int], _Rule]] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(("SumExt", "ReduceSum", "MeanExt", "ReduceMean"), _sum),
    "BiasAddGrad": _these([SUM], 0),
    "LogSoftmax": _along(1),
    "LogSoftmaxExt": _along(1),
    "Softmax": _along(1),
    "LogSoftmaxGrad": _along(2),
    "SoftmaxBackward": _along(2),
    "GatherD": _along(1),
    "GatherDGradV2": _along(1),
    "OneHot": _along(4),
    "Concat": _along(1, 0),
    "Gather": _gather,
    "Conv2D": _these([ROWS], 0),
    "Conv2DBackpropInput": _these([ROWS], 0),
    "Conv2DBackpropFilter": _these([SUM], 0, 1),
}
