"""Rules of matrix products."""

import numpy as np

from mindspore_rl.codegen.ops.registry import Call, Table, loops, place
from mindspore_rl.codegen.ops.views import option, strides_of
from mindspore_rl.mindir.graph import Value
from mindspore_rl.mindir.primitives import PRIMITIVES

ROWS = Table()
PRODUCTS = tuple(op for op, primitive in PRIMITIVES.items() if primitive.kernel == "product")


@ROWS.row("product")
def _product(call: Call) -> None:
    a, b = call.args[:2]
    turned_a, turned_b = turned(call.node)
    if not a.shape or not b.shape or a.type.dtype != "float32":
        raise call.unsupported()
    one = a.shape if len(a.shape) > 1 else (1, *a.shape)
    other = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    m, k = one[-2:][::-1] if turned_a else one[-2:]
    n = other[-2] if turned_b else other[-1]
    ahead = one[:-2], other[:-2]
    batch: tuple[int, ...] = np.broadcast_shapes(*ahead)
    if len(other) == 2 and not turned_a:
        batch, m = (), a.size // k if k else 0
    template = (m, n, k, turned_a, turned_b)
    room = call.scratch(_scratch(n, k))
    if not batch and call.parts > 1:
        step, size = -(-m // call.parts), -(-_scratch(n, k) // 16) * 16
        area = call.scratch(call.parts * size)
        values = ", ".join(str(t).lower() for t in (*template, step))
        rest = f"{a.pointer}, {b.pointer}, {call.out.pointer}, {area} + part * {size}"
        call.in_parts(f"  product_part<{values}>(part, {rest});")
    elif not batch:
        call.run("product", template, a, b, call.out, room)
    else:
        head, variables = loops(batch)
        call.line(f"{{ int64_t at = 0; {head}{{")
        given = (
            f"{x.pointer} + ({place(variables, _repeated(own, batch))}) * {size}"
            for x, own, size in zip((a, b), ahead, (m * k, n * k), strict=True)
        )
        call.run("  product", template, *given, f"{call.out.pointer} + at++ * {m * n}", room)
        call.line("} }")
    if call.node.op == "Dense" and len(call.args) > 2 and call.args[2] is not None:
        bias = call.args[2].pointer
        call.line(f"for (int64_t i = 0; i < {m}; i++)")
        call.line(
            f"  for (int64_t j = 0; j < {n}; j++) {call.out.pointer}[i * {n} + j] += {bias}[j];"
        )


def _scratch(n: int, k: int) -> int:
    """Returns the floats that `product` needs: some columns of its second matrix, in vectors."""
    return min(k, 384) * min(n + 15, 64)


def _repeated(shape: tuple[int, ...], wide: tuple[int, ...]) -> list[int]:
    """Returns the strides of an array broadcast to a wider shape."""
    strides = [stride if n > 1 else 0 for n, stride in zip(shape, strides_of(shape), strict=True)]
    return [0] * (len(wide) - len(shape)) + strides


def turned(node: Value) -> tuple[bool, bool]:
    """Returns whether each of a product's two matrices is transposed."""
    if node.op == "Dense":
        return False, True
    return bool(option(node, "transpose_a", 2, False)), bool(option(node, "transpose_b", 3, False))


@ROWS.row("turned")
def _turned(call: Call) -> None:
    """Emits the transposition of a matrix; `Turned` is not a primitive of MindSpore."""
    columns, rows = call.out.shape
    x, y, step = call.args[0].pointer, call.out.pointer, rows // call.parts
    if call.parts > 1:
        x, y = f"{x} + part * {step * columns}", f"{y} + part * {step}"
    call.in_parts(f"transpose<{step}, {columns}>({x}, {columns}, {y}, {rows});")
