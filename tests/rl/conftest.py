"""Run one function of Tensors eagerly, or compiled inside a `while` in strict graph mode."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn


class _Compiled(nn.Cell):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, turn, *tensors):
        results = self.function(*tensors)
        while turn < 2:
            results = self.function(*tensors)
            turn = turn + 1
        return results


@pytest.fixture(params=["pynative", "graph"])
def run(request):
    """Return run(function, *arrays): function takes Tensors and returns a tuple of two or more.

    It returns a list of NumPy arrays. A compiled loop returns a tuple of one with one more axis.
    """
    graph = request.param == "graph"
    ms.set_context(mode=ms.GRAPH_MODE if graph else ms.PYNATIVE_MODE)
    if graph:
        ms.set_context(jit_syntax_level=ms.STRICT)

    def call(function, *arrays):
        tensors = [Tensor(array) for array in arrays]
        if graph:
            results = _Compiled(function)(Tensor(0, ms.int32), *tensors)
        else:
            results = function(*tensors)
        return [np.array(result.asnumpy()) for result in results]

    yield call
    ms.set_context(mode=ms.GRAPH_MODE)
