"""Uncompiled convolutions on the CPU as products.

MindSpore's CPU kernel for `Conv2D` takes the reference code of oneDNN: 0.5 GFLOP/s where this takes
6 to 12. Compiled cells are not affected: MindSpore's compiler does not call a primitive.
"""

import functools
import math
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops.operations.nn_ops import Conv2D

MAX_ENTRIES = 2**24
"""Limit on the entries of unfolded images that are in memory at once."""

called_in_mindspore = Conv2D.__call__


def use_products() -> None:
    """Computes uncompiled `Conv2D` of the CPU as products from now on."""
    Conv2D.__call__ = _called


def _called(primitive: Conv2D, x: Tensor, weight: Tensor) -> Tensor:
    usual = primitive.group == 1 and primitive.data_format == "NCHW" and x.dtype == ms.float32
    if not usual or ms.get_context("device_target") != "CPU":
        return called_in_mindspore(primitive, x, weight)
    kernel, stride, dilation = weight.shape[2:], primitive.stride[2:], primitive.dilation[2:]
    if any(padding := _padding(primitive, x.shape[2:], kernel, stride, dilation)):
        x = ops.pad(x, padding)
    return _convolution(kernel, stride, dilation)(x, weight)


def _padding(primitive: Conv2D, size: Any, kernel: Any, stride: Any, dilation: Any) -> list[int]:
    """Returns the entries to add at the left, right, top and bottom of images."""
    if primitive.pad_mode == "pad":
        top, bottom, left, right = primitive.pad
        return [left, right, top, bottom]
    if primitive.pad_mode == "valid":
        return [0, 0, 0, 0]
    found: list[int] = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        more = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        found = [more // 2, more - more // 2, *found]
    return found


@functools.cache
def _convolution(kernel: tuple, stride: tuple, dilation: tuple) -> nn.Cell:
    return _Convolution(kernel, stride, dilation)


class _Convolution(nn.Cell):
    """A convolution without padding. Unfolds some images at a time, and again for the gradient."""

    def __init__(self, kernel: tuple, stride: tuple, dilation: tuple) -> None:
        super().__init__()
        self.kernel, self.stride, self.dilation = kernel, stride, dilation

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        channels, positions = weight.shape[0], self._positions(x)
        matrix, number = weight.reshape((channels, -1)), self._number(x, weight)
        found = [ops.matmul(matrix, self._unfold(part)) for part in ops.split(x, number)]
        return ops.concat(found).reshape((x.shape[0], channels, *positions))

    def bprop(self, x: Tensor, weight: Tensor, _: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        channels, size = weight.shape[0], Tensor(x.shape[2:], ms.int32)
        matrix, number = weight.reshape((channels, -1)), self._number(x, weight)
        given = given.reshape((x.shape[0], channels, -1))
        of_images, of_weights = [], []
        for part, mine in zip(ops.split(x, number), ops.split(given, number), strict=True):
            columns = ops.matmul(matrix.T, mine)
            of_images.append(ops.fold(columns, size, self.kernel, self.dilation, 0, self.stride))
            of_weights.append(ops.matmul(mine, self._unfold(part).swapaxes(1, 2)).sum(0))
        return ops.concat(of_images), sum(of_weights).reshape(weight.shape)

    def _positions(self, x: Tensor) -> tuple[int, ...]:
        extents = zip(x.shape[2:], self.kernel, self.stride, self.dilation, strict=True)
        return tuple((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in extents)

    def _number(self, x: Tensor, weight: Tensor) -> int:
        """Returns how many images to unfold at once."""
        each = weight.size // weight.shape[0] * math.prod(self._positions(x))
        return max(MAX_ENTRIES // max(each, 1), 1)

    def _unfold(self, x: Tensor) -> Tensor:
        return ops.unfold(x, self.kernel, self.dilation, 0, self.stride)
