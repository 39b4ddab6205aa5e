"""Rules of convolutions and pools."""

import math

import numpy as np

from mindspore_rl.codegen.cfg import Block
from mindspore_rl.codegen.ops.registry import Call, Operand, Table
from mindspore_rl.codegen.ops.views import extent_of
from mindspore_rl.mindir.graph import Value

ROWS = Table()


_FUNCTIONS = {
    "Conv2D": ("forward", "xwy"),
    "Conv2DBackpropFilter": ("by_weights", "yxw"),
    "Conv2DBackpropInput": ("by_input", "ywx"),
}
"""The function in convolution.h, and the order of images x, weights w and results y: of a node's
arguments and last of what it computes."""


@ROWS.row("convolution")
def _convolution(call: Call) -> None:
    """Emits a convolution, for each group of channels."""
    function, order = _FUNCTIONS[call.node.op.replace("Transpose", "BackpropInput")]
    attrs, operands = call.node.attrs, (*call.args[:2], call.out)
    groups = attrs.get("group", 1)
    if attrs.get("format", "NCHW") != "NCHW":
        raise call.unsupported()
    x, weight, y = (operands[order.index(name)] for name in "xwy")
    (images, _, height, width), (out, channels, tall, wide) = x.shape, weight.shape
    out //= groups
    top, _, left, _ = attrs["pad_list"]
    (down, across), (dilated, spread) = attrs["stride"][-2:], attrs["dilation"][-2:]
    places, taps = y.shape[2] * y.shape[3], tall * wide
    if not (images and out and channels and places and taps):
        call.line(f"memset({call.out.pointer}, 0, {call.out.size} * sizeof(float));")
        return
    steps = {"x": channels * height * width, "w": out * channels * taps, "y": out * places}
    numbers = (images, steps["x"] * groups, steps["y"] * groups, channels, height, width, out)
    numbers += (tall, wide, down, across, top, left, dilated, spread, *y.shape[2:])
    rows = max(top + height, (y.shape[2] - 1) * down + (tall - 1) * dilated + 1)
    columns = max(left + width, (y.shape[3] - 1) * across + (wide - 1) * spread + 1)
    if function == "by_input":
        room = call.scratch(taps * out * (channels + 15) + rows * columns * 32)
    else:
        room = call.scratch(channels * (taps * (out + 15) + rows * columns) + places * 32)
    given = [operand.pointer for operand in operands]
    if groups > 1:
        call.line(f"for (int64_t g = 0; g < {groups}; g++)")
        given = [f"{at} + g * {steps[name]}" for at, name in zip(given, order, strict=True)]
    if "scale" in attrs:
        room += f", {attrs['scale']!r}f"
    template = ", ".join(map(str, numbers))
    call.line(f"convolution<{template}>::{function}({', '.join(given)}, {room});")


def operations(node: Value) -> float:
    """Returns the number of operations of a convolution: two for each tap of each result."""
    _, order = _FUNCTIONS[node.op]
    values = (*node.args[:2], node)
    weight, y = (values[order.index(name)].type for name in "wy")
    return 2.0 * y.size * extent_of(weight.shape[1:])


def take_bytes(blocks: list[Block]) -> bool:
    """Makes convolutions of bytes of those of the bytes as numbers times a constant.

    The constant becomes the attribute `scale`: weights are multiplied by it instead of the images.

    Returns: whether there are such convolutions; the numbers are then perhaps dead.
    """
    found = False
    for node in [node for block in blocks for node in block.nodes]:
        at = {"Conv2D": 0, "Conv2DBackpropFilter": 1}.get(node.op, -1)
        scaled = _scaled(node.args[at]) if at >= 0 else None
        if scaled is not None:
            node.args[at], node.attrs["scale"] = scaled
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
