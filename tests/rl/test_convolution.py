"""Uncompiled convolutions equal MindSpore's own."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.ops.operations.nn_ops import Conv2D

from mindspore_rl.platform import convolution, mindspore_device


@pytest.mark.parametrize(
    "layer",
    [
        {"kernel_size": 3, "stride": 2, "pad_mode": "valid"},
        {"kernel_size": (2, 3), "stride": (1, 2), "pad_mode": "same"},
        {"kernel_size": 3, "stride": 2, "pad_mode": "pad", "padding": (1, 2, 0, 3), "dilation": 2},
    ],
)
def test_results_and_first_and_second_gradients_equal_those_of_mindspore(layer, monkeypatch):
    mindspore_device.use()
    monkeypatch.setattr(convolution, "MAX_ENTRIES", 2_000)  # some images at a time
    conv = nn.Conv2d(2, 3, has_bias=True, **layer)
    x = Tensor(np.random.default_rng(0).random((5, 2, 10, 11), np.float32))
    mine = _found(conv, x)
    monkeypatch.setattr(Conv2D, "__call__", convolution.called_in_mindspore)
    for one, other in zip(mine, _found(conv, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def _found(conv, x):
    def loss(x):
        return (conv(x).tanh() ** 3).sum()

    of_both = ms.grad(loss, 0, weights=conv.trainable_params())
    of_images = ms.grad(loss)
    twice = ms.grad(lambda x: (of_images(x) ** 2).sum())
    images, weights = of_both(x)
    return [value.asnumpy() for value in (conv(x), images, *weights, twice(x))]
