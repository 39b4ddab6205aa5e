"""Rules of convolutions (as matrix products) and pools."""

from mindspore_rl.codegen.ops.registry import Call, Operand, Table
from mindspore_rl.codegen.ops.views import extent_of

ROWS = Table()


@ROWS.row("convolution")
def _convolution(call: Call) -> None:
    """Emits a convolution as matrix products with the im2col columns of an image or group."""
    op, attrs = call.node.op.replace("Transpose", "BackpropInput"), call.node.attrs
    groups = attrs.get("group", 1)
    if attrs.get("format", "NCHW") != "NCHW":
        raise call.unsupported()
    x, weight, y = {
        "Conv2D": lambda: (call.args[0], call.args[1], call.out),
        "Conv2DBackpropFilter": lambda: (call.args[1], call.out, call.args[0]),
        "Conv2DBackpropInput": lambda: (call.out, call.args[1], call.args[0]),
    }[op]()
    (images, _, height, width), (out, channels, tall, wide) = x.shape, weight.shape
    images, out = images * groups, out // groups  # the groups of an image are contiguous
    top, _, left, _ = attrs["pad_list"]
    (down, across), (dilated, spread) = attrs["stride"][-2:], attrs["dilation"][-2:]
    places = y.shape[2] * y.shape[3]
    taken = channels * tall * wide
    window = (channels, height, width, tall, wide, down, across, top, left, dilated, spread)
    window += y.shape[2:]
    products = {  # m, n, k, and whether each operand is transposed
        "Conv2D": (out, places, taken, False, False),
        "Conv2DBackpropFilter": (out, taken, places, False, True),
        "Conv2DBackpropInput": (taken, places, out, True, False),
    }
    m, n, k, *turned = products[op]
    room = call.scratch(taken * places + m * n + k * (n + 15) + m * k + 64)
    call.line(f"{{ float *const columns = {room}, *const part = columns + {taken * places};")
    call.line(f"  float *const room = part + {m * n};")
    if op != "Conv2D":
        call.line(f"  memset({call.out.pointer}, 0, {call.out.size} * sizeof(float));")
    call.line(f"  for (int64_t n = 0; n < {images}; n++) {{")
    image, result = (
        f"{x.pointer} + n * {channels * height * width}",
        (f"{y.pointer} + n * {out * places}"),
    )
    weights = f"{weight.pointer} + n % {groups} * {out * taken}" if groups > 1 else weight.pointer
    if op != "Conv2DBackpropInput":
        call.run("columns_of", (*window, False), image, "columns")
    if op == "Conv2D":
        call.run("product", (m, n, k, *turned), weights, "columns", result, "room")
    elif op == "Conv2DBackpropFilter":
        call.run("product", (m, n, k, *turned), result, "columns", "part", "room")
        call.line(f"    for (int64_t i = 0; i < {m * n}; i++) ({weights})[i] += part[i];")
    else:
        call.run("product", (m, n, k, *turned), weights, result, "columns", "room")
        call.run("columns_of", (*window, True), image, "columns")
    call.line("  } }")


@ROWS.row("max_pool")
def _max_pool(call: Call) -> None:
    x, op = call.args[0], call.node.op
    y = call.outs[0] if "Grad" not in op else call.args[1]
    window = _window(call, x, y)
    index = f"(int32_t *){call.scratch(y.size)}"
    if op.startswith("MaxPoolWith"):
        index = call.outs[1].pointer
    if op != "MaxPoolGradWithArgmaxV2":
        call.run("max_pool", window, x, y if "Grad" not in op else "(float *)nullptr", index)
    if "Grad" in op:
        dy, index = (call.args[2], index) if op == "MaxPoolGrad" else (y, call.args[2].pointer)
        planes, size = extent_of(x.shape[:-2]), extent_of(x.shape[-2:])
        call.run("max_pool_grad", (planes, size, extent_of(y.shape[-2:])), index, dy, call.out)


@ROWS.row("average_pool")
def _average_pool(call: Call) -> None:
    back = call.node.op == "AvgPoolGrad"
    inner, outer = (call.out, call.args[2]) if back else (call.args[0], call.out)
    call.run("average_pool", (*_window(call, inner, outer), back), inner, outer)


def _window(call: Call, x: Operand, y: Operand) -> tuple[int, ...]:
    """Returns the template arguments of a pool: planes, sizes, window, strides, padding, output.

    If the padding is odd, the end gets one more than the beginning.
    """
    attrs, op = call.node.attrs, call.node.op
    if op.startswith("Max"):
        sizes, steps = attrs["kernel_size"][-2:], attrs["strides"][-2:]
        same, layout = attrs.get("pad_mode") == "SAME", attrs.get("format", "NCHW")
    else:
        at = 3 if op.endswith("Grad") else 1
        sizes, steps = call.number(at), call.number(at + 1)
        same, layout = call.number(at + 2) == 1, ("NCHW", "")[bool(call.number(at + 3, 0))]
        if call.number(at + 2) == 0:
            raise call.unsupported()
    if layout != "NCHW" or x.type.dtype != "float32" or attrs.get("ceil_mode"):
        raise call.unsupported()
    if any(n != 1 for n in attrs.get("dilation", ())):
        raise call.unsupported()
    if "pads" in attrs:
        before = tuple(attrs["pads"][-2:])
    elif same:
        spans = zip(x.shape[-2:], y.shape[-2:], sizes, steps, strict=True)
        before = tuple(max((n - 1) * step + size - m, 0) // 2 for m, n, size, step in spans)
    else:
        before = (0, 0)
    return (extent_of(x.shape[:-2]), *x.shape[-2:], *sizes, *steps, *before, *y.shape[-2:])
