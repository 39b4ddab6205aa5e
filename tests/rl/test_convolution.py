"""MindSpore's convolutions on the CPU."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from mindspore_rl.platform import mindspore_device

mindspore_device.use()
conv = nn.Conv2d(4, 8, 4, stride=2, pad_mode="valid")
images = Tensor(np.ones((2, 4, 12, 12), np.float32))
ms.grad(lambda x: conv(x).sum(), 0, weights=conv.trainable_params())(images)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels of x86")
def test_convolutions_take_a_fast_kernel_of_onednn(monkeypatch):
    monkeypatch.setenv("ONEDNN_VERBOSE", "1")
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    kernels = [line for line in ran.stdout.splitlines() if "exec,cpu,convolution" in line]
    assert len(kernels) == 3  # forward, by weights, by images
    assert not [line for line in kernels if "ref" in line.split(",")[6]]
