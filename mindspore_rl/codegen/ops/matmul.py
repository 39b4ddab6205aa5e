"""Rules of matrix products."""

from dataclasses import dataclass

import numpy as np

from mindspore_rl.codegen.ops.registry import Call, Table, loops, place
from mindspore_rl.codegen.ops.views import option, strides_of
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.primitives import PRIMITIVES

ROWS = Table()
PANEL, SQUARE = 64, 4
"""Columns of a panel; rows and columns that are transposed at once."""
PRODUCTS = tuple(op for op, primitive in PRIMITIVES.items() if primitive.kernel == "product")


@dataclass(frozen=True)
class Read:
    """Reading of an argument by a product of many matrices, before it is transposed.

    Attributes:
        shape: of the matrices, for the whole batch.
        offset: of the first element in the argument.
        strides: of each axis, in elements; the last one is 1.
    """

    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


def read_of(node: Value, position: int) -> Read:
    """Returns how a product reads its first or second argument; see `strided.py`."""
    if "reads" in node.attrs:
        found: Read = node.attrs["reads"][position]
        return found
    shape = node.args[position].type.shape
    return Read(shape, 0, tuple(strides_of(shape)))


@ROWS.row("product")
def _product(call: Call) -> None:
    a, b = call.args[:2]
    turned_a, turned_b = turned(call.node)
    reads = read_of(call.node, 0), read_of(call.node, 1)
    given_a, given_b = (read.shape for read in reads)
    if not given_a or not given_b or a.type.dtype != "float32":
        raise call.unsupported()
    one = given_a if len(given_a) > 1 else (1, *given_a)
    other = given_b if len(given_b) > 1 else (*given_b, 1)
    m, k = one[-2:][::-1] if turned_a else one[-2:]
    n = other[-2] if turned_b else other[-1]
    ahead = one[:-2], other[:-2]
    batch: tuple[int, ...] = np.broadcast_shapes(*ahead)
    if "reads" in call.node.attrs:
        batch = call.out.shape[:-2]  # of a tile, perhaps
    if len(other) == 2 and not turned_a:
        batch, m = (), a.size // k if k else 0
    template: tuple = (m, n, k, turned_a, turned_b)
    if columns := call.node.attrs.get("columns"):
        n, template = columns, (m, columns, k, False, False, k, n)
    room = call.scratch(_scratch(k))
    if not batch and call.parts > 1:
        wide = n > m and n % (64 * call.parts) == 0
        part = "product_columns" if wide else "product_part"
        step, size = -(-(n if wide else m) // call.parts), -(-_scratch(k) // 16) * 16
        area = call.scratch(call.parts * size)
        values = ", ".join(str(t).lower() for t in (*template, step))
        rest = f"{a.pointer}, {b.pointer}, {call.out.pointer}, {area} + part * {size}"
        call.in_parts(f"  {part}<{values}>(part, {rest});")
    elif call.node.attrs.get("panels"):
        call.run("product_panels", (m, n, k), a, b, call.out)
    elif not batch:
        call.run("product", template, a, b, call.out, room)
    else:
        head, variables = loops(batch)
        call.line(f"{{ int64_t at = 0; {head}{{")
        given = (
            f"{x.pointer} + {read.offset} + {place(variables, _repeated(read, batch))}"
            for x, read in zip((a, b), reads, strict=True)
        )
        apart = [read.strides[-2] for read in reads] if "reads" in call.node.attrs else []
        call.run(
            "  product", (*template, *apart), *given, f"{call.out.pointer} + at++ * {m * n}", room
        )
        call.line("} }")
    if call.node.op == "Dense" and len(call.args) > 2 and call.args[2] is not None:
        bias = call.args[2].pointer
        call.line(f"for (int64_t i = 0; i < {m}; i++)")
        call.line(
            f"  for (int64_t j = 0; j < {n}; j++) {call.out.pointer}[i * {n} + j] += {bias}[j];"
        )


def _scratch(k: int) -> int:
    """Returns the floats that `product` needs: some columns of one matrix, in vectors."""
    return min(k, 384) * 64


def _repeated(read: Read, wide: tuple[int, ...]) -> list[int]:
    """Returns the strides between matrices, broadcast to a wider shape."""
    axes = zip(read.shape[:-2], read.strides[:-2], strict=True)
    strides = [stride if n > 1 else 0 for n, stride in axes]
    return [0] * (len(wide) - len(strides)) + strides


def turned(node: Value) -> tuple[bool, bool]:
    """Returns whether each of a product's two matrices is transposed."""
    if node.op == "Dense":
        return False, True
    return bool(option(node, "transpose_a", 2, False)), bool(option(node, "transpose_b", 3, False))


@ROWS.row("turned")
def _turned(call: Call) -> None:
    """Emits the copy of a matrix, perhaps transposed, with rows of whole vectors.

    `Turned` is not a primitive of MindSpore.
    """
    x, y, (rows, width) = call.args[0].pointer, call.out.pointer, call.out.shape
    turns, columns = call.node.attrs.get("turned", True), call.node.attrs.get("columns", width)
    if turns and call.parts > 1:
        step, last = columns // call.parts, call.parts - 1
        given = f"{x} + part * {step * rows}, {rows}, {y} + part * {step}, {width}"
        call.in_parts(
            f"for (int64_t r = 0; r < {rows}; r++) own({y} + r * {width} + part * {step}, {step});",
            f"transpose<{step}, {rows}>({given});",
            f"if (part == {last}) fill<{columns}, {rows}, {width}>({y});",
        )
        return
    apart, step = rows if turns else columns, rows // call.parts
    if call.parts > 1:
        x, y = f"{x} + part * {step * apart}", f"{y} + part * {step * width}"
    shared = [] if call.node.attrs.get("of a core") else [f"own({y}, {step * width});"]
    call.in_parts(
        *shared, f"pack<{columns}, {step}, {apart}, {str(turns).lower()}, {width}>({x}, {y});"
    )


@ROWS.row("panels")
def _panels(call: Call) -> None:
    """Emits the copy of a matrix, perhaps transposed, into panels of its columns."""
    x, y, (k, n) = call.args[0].pointer, call.out.pointer, call.out.shape
    turns, tall, apart = call.node.attrs["turned"], k, n
    if turns:
        n, apart = n // call.parts, k
        step, place = n * k, f"{n * k}"
    else:
        k //= call.parts
        step, place = k * n, f"{k} * COLUMNS"
    if call.parts > 1:
        x, y = f"{x} + part * {step}", f"{y} + part * {place}"
    call.in_parts(f"panels<{n}, {k}, {str(turns).lower()}, {apart}, {tall}>({x}, {y});")
