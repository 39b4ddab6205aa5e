"""Rules of convolutions and pools."""

import math

import numpy as np

from mindspore_rl.codegen.cfg import Block
from mindspore_rl.codegen.ops.registry import Call, Operand, Table
from mindspore_rl.codegen.ops.views import extent_of
from mindspore_rl.mindir.graph import Value

ROWS = Table()


_IMAGES = {"Conv2D": 0, "Conv2DBackpropFilter": 1}
"""The argument of a convolution that is images, which may be bytes."""
_FUNCTIONS = {
    "Conv2D": ("forward", "x", "w", "y"),
    "Conv2DBackpropFilter": ("by_weights", "x", "y", "w"),
    "Conv2DBackpropInput": ("by_input", "y", "w", "x"),
}
"""The function of `convolution` in convolution.h, and what it takes: images, weights, results."""


@ROWS.row("convolution")
def _convolution(call: Call) -> None:
    """Emits a convolution, for each group of channels."""
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
    out //= groups
    top, _, left, _ = attrs["pad_list"]
    (down, across), (dilated, spread) = attrs["stride"][-2:], attrs["dilation"][-2:]
    places, taps = y.shape[2] * y.shape[3], tall * wide
    if not (images and out and channels and places and taps):
        call.line(f"memset({call.out.pointer}, 0, {call.out.size} * sizeof(float));")
        return
    operands = {"x": x, "w": weight, "y": y}
    steps = {"x": channels * height * width, "w": out * channels * taps, "y": out * places}
    numbers = (images, steps["x"] * groups, steps["y"] * groups, channels, height, width, out)
    numbers += (tall, wide, down, across, top, left, dilated, spread, *y.shape[2:])
    rows = max(top + height, (y.shape[2] - 1) * down + (tall - 1) * dilated + 1)
    columns = max(left + width, (y.shape[3] - 1) * across + (wide - 1) * spread + 1)
    if op == "Conv2DBackpropInput":
        room = call.scratch(taps * out * (channels + 15) + rows * columns * 32)
    else:
        room = call.scratch(channels * (taps * (out + 15) + rows * columns) + places * 32)
    function, *order = _FUNCTIONS[op]
    for group in range(groups):
        given = [f"{operands[name].pointer} + {group * steps[name]}" for name in order]
        if op in _IMAGES:
            given.insert(1, f"{float(attrs.get('scale', 1))!r}f")
        template = ", ".join(map(str, numbers))
        call.line(f"convolution<{template}>::{function}({', '.join(given)}, {room});")


def take_bytes(blocks: list[Block]) -> bool:
    """Makes convolutions of bytes of those of the bytes as numbers times a constant.

    The constant becomes the attribute `scale`: weights are multiplied by it instead of the images.

    Returns: whether there are such convolutions; the numbers are then perhaps dead.
    """
    found = False
    for node in [node for block in blocks for node in block.nodes if node.op in _IMAGES]:
        scaled = _scaled(node.args[_IMAGES[node.op]])
        if scaled is not None:
            node.args[_IMAGES[node.op]], node.attrs["scale"] = scaled
            found = True
    return found


def _scaled(value: Value) -> tuple[Value, float] | None:
    """Returns bytes and a number whose product is a value; None if it is no such product."""
    scale = 1.0
    while value.op in ("RealDiv", "Div", "Divs", "Mul", "Muls"):
        op, (value, number) = value.op, value.args[:2]
        if number.op != "constant" or np.size(number.data) != 1:
            return None
        factor = float(number.data)
        scale = scale * factor if op.startswith("Mul") else scale / factor if factor else math.inf
    if value.op != "Cast" or value.type.dtype != "float32" or not math.isfinite(scale):
        return None
    return (value.args[0], scale) if value.args[0].type.dtype == "uint8" else None


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
