"""Makes products of many matrices read slices and transposes in place, as in attention.

A `Strided` node copies elements of an array: an offset, and a stride for each axis. A product needs
no copy if the elements of a row, or of a column, are neighbours: it gets the array, and how to read
it. A product whose result is transposed becomes the product of its transposed arguments. The
gradient of slices that cover an array, a sum of arrays with zeros elsewhere, is a concatenation.
"""

from collections import Counter
from dataclasses import replace

from mindspore_rl.codegen.cfg import Block, tensors
from mindspore_rl.codegen.effects import overwritten, root_of
from mindspore_rl.codegen.ops.matmul import PRODUCTS, Read, read_of, turned
from mindspore_rl.codegen.ops.views import constant, is_view, option, strides_of
from mindspore_rl.codegen.simplify import drop_dead
from mindspore_rl.mindir.graph import Value


def read_in_place(blocks: list[Block]) -> None:
    """Rewrites the products of many matrices, and the gradients of their slices."""
    nodes = [node for block in blocks for node in block.nodes]
    if not any(map(_batched, nodes)):
        return
    changing = {root_of(arg) for node in nodes for arg in overwritten(node)}
    uses = Counter(value for node in nodes for value in tensors(node))
    uses.update(value for block in blocks for value in block.ends())
    for block in blocks:
        inside = set(block.nodes)
        for node in block.nodes:
            if node.op == "AddN" and all(uses[arg] == 1 and arg in inside for arg in node.args):
                _concatenate(node)
            if node.op == "Strided" and node.args[0] in inside and uses[node.args[0]] == 1:
                _turn(node)
            for position in (0, 1) if _batched(node) else ():
                found = _source(node, position, inside)
                if found is not None and root_of(found[0]) not in changing:
                    _read(node, position, *found)
    drop_dead(blocks)


def _batched(node: Value) -> bool:
    """Returns whether a node is the product of many matrices with as many."""
    return node.op in PRODUCTS and all(len(read_of(node, i).shape) > 2 for i in (0, 1))


def _turn(node: Value) -> None:
    """Rewrites a product's transpose: (A B)^T = B^T A^T."""
    product = node.args[0]
    shape = node.type.shape
    if not _batched(product) or len(product.type.shape) != len(shape):
        return
    *ahead, rows, columns = strides_of(product.type.shape)
    strides = zip(shape, node.attrs["strides"], (*ahead, columns, rows), strict=True)
    if node.attrs["offset"] or any(n > 1 and a != b for n, a, b in strides):
        return
    a, b = turned(product)
    node.op, node.args = product.op, [product.args[1], product.args[0], *product.args[2:]]
    node.attrs = {**product.attrs, "transpose_a": not b, "transpose_b": not a}
    node.attrs["reads"] = [read_of(product, 1), read_of(product, 0)]


def _source(node: Value, position: int, inside: set[Value]) -> tuple[Value, Read] | None:
    """Finds the array of which an argument is a copy. Returns: it, and how to read it."""
    value, read = node.args[position], read_of(node, position)
    found = None
    while is_view(value) or value.op == "Strided" and value in inside:
        if is_view(value):
            read = replace(read, offset=read.offset + value.attrs.get("offset", 0))
        else:
            composed = _composed(read, value)
            if composed is None:
                break
            read = composed
            found = value.args[0], read
        value = value.args[0]
    return (value, read) if found else None


def _composed(read: Read, copy: Value) -> Read | None:
    """Returns how to read from the array that `copy` reads; None if there are no such strides."""
    shape, own, kept = copy.type.shape, strides_of(copy.type.shape), copy.attrs["strides"]
    place = [read.offset // step % n for n, step in zip(shape, own, strict=True)]
    last, strides = list(place), []
    for n, stride in zip(read.shape, read.strides, strict=True):
        axes = [i for i, step in enumerate(own) if shape[i] > 1 and 0 < step <= stride]
        if n == 1 or stride == 0 or not axes:
            strides.append(0)
            if n > 1 and stride:
                return None
            continue
        axis = axes[0]
        if stride % own[axis]:
            return None
        last[axis] += (n - 1) * (stride // own[axis])
        strides.append(stride // own[axis] * kept[axis])
    if any(end >= n for end, n in zip(last, shape, strict=True)):
        return None
    offset = sum(at * stride for at, stride in zip(place, kept, strict=True))
    return Read(read.shape, copy.attrs["offset"] + offset, tuple(strides))


def _read(node: Value, position: int, base: Value, read: Read) -> None:
    """Makes a product read an array, if the numbers of each row or column are neighbours."""
    (rows, columns), (down, right) = read.shape[-2:], read.strides[-2:]
    flags = list(turned(node))
    if down == 1 and rows > 1 and right >= rows:
        shape, strides = read.shape[:-2] + (columns, rows), read.strides[:-2] + (right, down)
        read, flags[position] = Read(shape, read.offset, strides), not flags[position]
    elif right != 1 or down < columns:
        return
    both = [read_of(node, 0), read_of(node, 1)]
    both[position] = read
    node.args[position] = base
    node.attrs = {**node.attrs, "reads": both}
    node.attrs |= {"transpose_a": flags[0], "transpose_b": flags[1]}


def _concatenate(node: Value) -> None:
    """Rewrites a sum of gradients of slices that cover an array along one axis."""
    parts = []
    for part in node.args:
        spans = _spans(part) if part.op == "StridedSliceGrad" else []
        if len(spans) != 1:
            return
        parts.append((*spans[0], part.args[0]))
    parts.sort(key=lambda part: part[:3])
    axis, at = parts[0][0], 0
    for own, start, end, _ in parts:
        if own != axis or start != at:
            return
        at = end
    if at == node.type.shape[axis]:
        node.op, node.args = "Concat", [tuple(dy for *_, dy in parts)]
        node.attrs = {**node.attrs, "axis": axis}


def _spans(part: Value) -> list[tuple[int, int, int]]:
    """Returns axis, start and end for the axes that a slice cuts; none if it does more."""
    begin, end, step = (constant(part, i) for i in (2, 3, 4))
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    first, last, *others = (option(part, name, 5 + i, 0) for i, name in enumerate(names))
    if any(others) or any(size != 1 for size in step):
        return []
    found = []
    for axis, n in enumerate(part.type.shape[: len(begin)]):
        start = None if first >> axis & 1 else begin[axis]
        stop = None if last >> axis & 1 else end[axis]
        start, stop, _ = slice(start, stop).indices(n)
        if (start, stop) != (0, n):
            found.append((axis, start, stop))
    return found
